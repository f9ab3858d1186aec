"""Former names of flags, keywords and variables: one error each, with the present name."""

import importlib

import pytest


@pytest.mark.parametrize("tool", ["pw_compile", "pw_sim", "pw_viz"])
def test_flag_of_schedules(tool, capfd):
    main = importlib.import_module(f"pathways.tools.{tool}").main
    error = f"{tool.replace('_', '-')}: error: --policy is renamed to --schedule\n"
    for arguments in (["step.mlir", "--policy", "1f1b"], ["--policy=1f1b", "step.mlir"]):
        assert main(arguments) == 1
        assert capfd.readouterr().err == error
