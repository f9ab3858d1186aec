"""A process with untrusted input keeps to its limit of memory, and does not outlive its parent."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pathways.runtime.resources.process_limits import limit_memory

CHILD = """
import os, sys, time
from pathways.runtime.resources.process_limits import exit_with_parent
exit_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(60)
"""

PARENT = f"""
import os, subprocess, sys
subprocess.run([sys.executable, "-c", {CHILD!r}, str(os.getpid())])
"""


@pytest.mark.process
@pytest.mark.needs("linux")
def test_exit_with_parent_kills_a_process_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = Path(f"/proc/{int(parent.stdout.readline())}/stat")
        assert child.exists()
        parent.kill()
        parent.wait()
        patience = time.monotonic() + 10
        while _runs(child) and time.monotonic() < patience:
            time.sleep(0.01)
        assert not _runs(child)


@pytest.mark.process
@pytest.mark.needs("linux")
def test_exit_with_parent_exits_at_once_without_the_parent() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, "1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_limit_memory_limits_memory_and_lifts_the_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError), limit_memory(1 << 20):
        bytearray(1 << 28)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(bytearray(1 << 28)) == 1 << 28


def _runs(stat: Path) -> bool:
    """Returns whether a process exists and has not exited: one that its parent does not reap is a zombie."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
