"""Start of the tools: the modules loaded before the child process that does the work."""

import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

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
def test_tools_have_a_light_parent(tool):
    done = subprocess.run(
        [sys.executable, "-c", PARENT.format(tool=tool)], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert f"pathways.tools.{tool}" in loaded
    assert not loaded & (HEAVY | OURS)


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_print_their_version_and_flags(tool, capfd):
    name = tool.replace("_", "-")
    main = importlib.import_module(f"pathways.tools.{tool}").main
    assert main(["--version"]) == 0
    assert re.fullmatch(rf"{name} \S+( \((jax(lib)?|pygls) \S+\))?\n", capfd.readouterr().out)
    assert main(["--help"]) == 0
    text = capfd.readouterr().out
    assert text.startswith(f"usage: {name} ")
    assert "--version" in text
    assert main(["--hepl"]) == 1
    error = capfd.readouterr().err
    assert re.fullmatch(rf"{name}: error: un\w+ \w+ '--hepl'; did you mean '--help'\?\n", error)


def test_tools_are_all_listed():
    names = [
        "bundle",
        "cluster",
        "compile",
        "completion",
        "lsp",
        "opt",
        "proxy",
        "run",
        "sim",
        "viz",
        "worker",
    ]
    assert [f"pw_{name}" for name in names] == TOOLS


# A tool whose work is what stands behind `work`.
TOOL = """
import sys, time
from pathways.tools.common import command, supervisor
from pathways.tools.common.flags import FlagParser

def work(options):
    supervisor.doing("working")
    {work}

sys.exit(command.run(FlagParser("pw-tool", "", ""), work, None))
"""


def start(work, process_group=None, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", TOOL.format(work=work)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=process_group,
    )


def ended(process_id):
    """Returns whether a process has exited; its parent may not have waited for it."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.needs("linux")
def test_supervise_ends_the_child_with_its_parent():
    with start("import os; print(os.getpid(), flush=True); time.sleep(60)") as tool:
        child = int(tool.stdout.readline())
        assert child != tool.pid
        tool.kill()
        tool.wait()
        patience = time.monotonic() + 10
        while not (has_exited := ended(child)) and time.monotonic() < patience:
            time.sleep(0.01)
        if not has_exited:
            os.kill(child, signal.SIGKILL)
        assert has_exited


@pytest.mark.needs("linux")
def test_supervise_limits_memory():
    hoard = "rows = []\n    while True: rows.append(bytearray(1 << 20)); time.sleep(0.001)"
    with start(hoard, PW_MEMORY_LIMIT="200M") as tool:
        _, errors = tool.communicate(timeout=60)
    assert tool.returncode == 1
    assert errors == (
        "pw-tool: error: took more than 200M of memory while working; PW_MEMORY_LIMIT sets another limit\n"
    )


@pytest.mark.quick
@pytest.mark.parametrize("limit", ["", "1.5T", "20G", "500MB"])
def test_supervise_reads_the_limit_of_memory(limit):
    with start("return 0", PW_MEMORY_LIMIT=limit) as tool:
        _, errors = tool.communicate(timeout=60)
    expected = "pw-tool: error: PW_MEMORY_LIMIT must be a size such as 500M or 8G, got '1.5T'\n"
    assert (tool.returncode, errors) == ((1, expected) if limit == "1.5T" else (0, ""))


def test_supervise_reports_many_interrupts_in_one_line():
    # Ctrl-C reaches parent and child, the child again from its parent, and both again by the impatient.
    with start("print('ready', flush=True); time.sleep(60)", process_group=0) as tool:
        assert tool.stdout.readline() == "ready\n"
        for _ in range(5):
            os.killpg(tool.pid, signal.SIGINT)
            time.sleep(0.001)
        _, errors = tool.communicate(timeout=60)
    assert (tool.returncode, errors) == (130, "pw-tool: interrupted\n")


def test_supervise_ends_a_child_that_ignores_interrupts():
    ignore = "import signal; signal.signal(2, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    with start(ignore) as tool:
        assert tool.stdout.readline() == "ready\n"
        tool.send_signal(signal.SIGINT)
        time.sleep(0.1)
        tool.send_signal(signal.SIGINT)
        _, errors = tool.communicate(timeout=60)
    assert (tool.returncode, errors) == (130, "pw-tool: interrupted\n")


@pytest.mark.parametrize("level", ["", "0"])
def test_supervise_silences_xla_by_default(level):
    environment = {"TF_CPP_MIN_LOG_LEVEL": level} if level else {}
    with start(
        "import pathways.dialect.operations.bindings, jax; jax.devices(); return 0", **environment
    ) as tool:
        _, errors = tool.communicate(timeout=60)
    assert tool.returncode == 0
    assert ("pjrt_client" in errors) == (level == "0"), errors
