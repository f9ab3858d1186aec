"""Former names of flags, keywords and variables: one error each, with the present name."""

import importlib
import re
import traceback

import pytest

import pathways as pw
import pathways.proxy


@pytest.mark.parametrize("tool", ["pw_compile", "pw_sim", "pw_viz"])
def test_flag_of_schedules(tool, capfd):
    main = importlib.import_module(f"pathways.tools.{tool}").main
    error = f"{tool.replace('_', '-')}: error: --policy is renamed to --schedule\n"
    for arguments in (["step.mlir", "--policy", "1f1b"], ["--policy=1f1b", "step.mlir"]):
        assert main(arguments) == 1
        assert capfd.readouterr().err == error


@pytest.mark.parametrize(
    ("function", "former", "present"),
    [
        (pw.auto, "microbatches", "num_microbatches"),
        (pw.resilient, "disk", "directory"),
        (pw.resilient, "disk_keep", "max_to_keep"),
        (pw.resilient, "minimum", "min_replicas"),
        (pw.checkpoint.save, "keep", "max_to_keep"),
    ],
)
def test_keywords(function, former, present):
    message = rf"^{function.__name__}\(\) got .* argument '{former}': it is renamed to '{present}'"
    with pytest.raises(TypeError, match=message) as caught:
        function(**{former: 2})
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames == ["test_keywords"], "no frame of ours"


@pytest.mark.parametrize(
    ("variable", "present"),
    [
        ("PW_CPU_DEVICES", "set JAX_NUM_CPU_DEVICES=2, or call pathways.connect(cpu_devices=2)"),
        ("PW_ISLANDS", "call pathways.connect(cpu_devices=8, islands=2), with your number of devices"),
    ],
)
@pytest.mark.parametrize("use", [pw.connect, pw.cluster, pathways.proxy.serve])
def test_variables_of_devices(variable, present, use, monkeypatch):
    pw.disconnect()
    monkeypatch.setenv(variable, "2")
    with pytest.raises(ValueError, match=re.escape(f"{variable}=2 has no effect any more: {present}")):
        use()
