"""Threads that use programs on two hosts in all ways at once: no hang, no wrong value, no array left."""

from __future__ import annotations

from pathlib import Path

import preloaded
import pytest

pytestmark = pytest.mark.process

SECONDS = 4.0


@pytest.mark.parametrize("seed", [0])
def test_stress_of_threads_hosts_and_handles(seed):
    """All hosts issue all steps in one order, whatever threads do; they hold the controller's arrays only."""
    script = Path(__file__).parents[1] / "support" / "stress_hosts.py"
    done = preloaded.run(script, str(seed), str(SECONDS), timeout=SECONDS + 80)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
