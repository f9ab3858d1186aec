"""Ctrl-C at random moments of steps, puts and reads: values stay right, and hosts keep nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "interrupt_steps.py"


@pytest.mark.feature("hosts", "clients", "error")
@pytest.mark.process
@pytest.mark.hosts
@pytest.mark.parametrize("how", ["own", "attached"])
def test_interrupted_steps_leave_nothing_on_hosts(how):
    process = subprocess.run(
        [sys.executable, SCRIPT, "200", "0", how], capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "200 interrupts" in process.stdout
