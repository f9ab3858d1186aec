"""Threads that do everything at once to programs on two hosts: nothing hangs, is wrong, or is left over."""

from __future__ import annotations

from pathlib import Path

import preloaded
import pytest

pytestmark = pytest.mark.process

SECONDS = 4.0


@pytest.mark.parametrize("seed", [0])
def test_stress_of_threads_hosts_and_handles(seed):
    """All hosts take all steps in one order, whatever threads do; hosts hold what the controller holds."""
    script = Path(__file__).parents[1] / "support" / "stress_hosts.py"
    done = preloaded.run(script, str(seed), str(SECONDS), timeout=SECONDS + 80)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
