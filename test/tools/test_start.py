"""How tools start: what is loaded before the child process that does the work."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = sorted(file.stem for file in (Path(__file__).parents[2] / "tools").glob("pw_*.py"))
HEAVY = {"jax", "jaxlib", "ml_dtypes", "numpy._core", "scipy"}
OURS = {"pathways.compiler", "pathways.dialect", "pathways.passes", "pathways.runtime"}

# A fork copies whatever the parent has loaded, and threads of it do not survive.
PARENT = """
import os, sys
from pathways.tools.{tool} import main

def fork():
    print(*sys.modules)
    sys.stdout.flush()
    os._exit(0)

os.fork = fork
sys.argv = ["{tool}", "--no-such-flag"]
main()
"""


@pytest.mark.parametrize("tool", TOOLS)
def test_the_parent_of_a_tool_is_light(tool):
    done = subprocess.run(
        [sys.executable, "-c", PARENT.format(tool=tool)], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert f"pathways.tools.{tool}" in loaded
    assert not loaded & (HEAVY | OURS)


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_tells_its_version_and_its_flags(tool, capfd):
    name = tool.replace("_", "-")
    main = importlib.import_module(f"pathways.tools.{tool}").main
    assert main(["--version"]) == 0
    assert re.fullmatch(rf"{name} \S+( \(jax(lib)? \S+\))?\n", capfd.readouterr().out)
    assert main(["--help"]) == 0
    text = capfd.readouterr().out
    assert text.startswith(f"usage: {name} ")
    assert "--version" in text
    assert main(["--hepl"]) == 1
    error = capfd.readouterr().err
    assert re.fullmatch(rf"{name}: error: un\w+ \w+ '--hepl'; did you mean '--help'\?\n", error)


def test_there_are_tools():
    assert TOOLS == ["pw_bundle", "pw_compile", "pw_opt", "pw_run", "pw_sim", "pw_viz"]
