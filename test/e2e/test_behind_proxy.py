"""Our own tests of programs pass behind `pw-proxy`; `make behind-proxy` runs all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "behind_proxy.py"


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_tenth_of_the_tests_behind_pw_proxy() -> None:
    # That run of pytest is no part of this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, SCRIPT, "--some", "-q"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
