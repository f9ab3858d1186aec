"""Threads that do everything at once to programs on two hosts: nothing hangs, is wrong, or is left over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 4.0


@pytest.mark.parametrize("seed", [0])
def test_threads_hosts_and_handles(seed):
    """All hosts take all steps in one order, whatever threads do; hosts hold what the controller holds."""
    command = [
        sys.executable,
        Path(__file__).parents[1] / "support" / "stress_hosts.py",
        str(seed),
        str(SECONDS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS + 80)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
