"""A short run of the soak: hosts get faults, and the run has no hang, no wrong value, no array left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process


def test_hosts_that_are_hurt():
    soak = Path(__file__).parents[2] / "bench" / "soak.py"
    done = subprocess.run(
        [sys.executable, soak, "--seconds", "12"], capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert "nothing hung, nothing was wrong, nothing is left" in done.stdout
