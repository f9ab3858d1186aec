"""Training on hosts that are killed at random moments: some of the kills of `make nightly`."""

from __future__ import annotations

import kill_training
import pytest

pytestmark = [pytest.mark.hosts, pytest.mark.slow]


@pytest.mark.parametrize(
    ("name", "kills"),
    [("pipeline", 3), ("islands of two hosts", 2), ("two replicas, zero1", 3), ("rows of hosts", 2)],
)
def test_training_survives_kills_at_random_moments(own_workers: None, name: str, kills: int) -> None:
    killed = run = 0
    while killed < kills:
        # Its steps may end before all of them.
        killed += kill_training.play(name, f"0 {run}", kills - killed)
        run += 1
