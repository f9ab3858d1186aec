"""Versions on disk of `pw.resilient` on hosts, which write them from their memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import kill_training
import numpy as np
import pytest
from check import assert_equal

import pathways as pw
from pathways.passes.analysis.measured.trace_file import read_spans

pytestmark = pytest.mark.hosts

pytest.importorskip("orbax.checkpoint.experimental.v1", reason="orbax-checkpoint is not installed")


def with_key(training: kill_training.Training) -> kill_training.Training:
    """Adds a typed key, an array and a number that no step changes, beside the state on hosts."""

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        trained, metrics = training.step(state["trained"], batch)
        return {**state, "trained": trained, "count": state["count"] + 1}, metrics

    extra = {"key": jax.random.key(3), "table": np.arange(3), "count": 0}
    options = {"feeds": (training.step, "batch")}
    state = {"trained": training.state, **extra}
    return kill_training.Training(step, state, training.source, training.batches, options=options)


@pytest.mark.parametrize(
    ("islands", "make"),
    [
        ([pw.Island(hosts=2)] * 2, lambda: kill_training.slices((0, 1), (0, 1), 2, schedule="1f1b")),
        ([pw.Island(devices_per_host=2)] * 2, lambda: kill_training.replicas(2, schedule="1f1b", zero1=True)),
        ([pw.Island()] * 2, lambda: with_key(kill_training.slices((0, 1), (0, 1), schedule="1f1b"))),
    ],
    ids=["islands of two hosts", "zero1", "other leaves"],
)
def test_hosts_write_versions_to_disk_from_their_memory(
    own_workers: None, tmp_path: Path, islands: list[pw.Island], make: Callable[[], Any]
) -> None:
    pw.connect(islands=islands)
    training = make()
    expected = kill_training.undisturbed(training)

    def resilient() -> Any:
        options = {"every": 2, "directory": tmp_path / "run", "disk_every": 1, **training.options}
        return pw.resilient(training.step, training.state, training.source, **options)

    with (  # noqa: PT012 # it is stopped in the body of the loop
        pw.trace(tmp_path / "trace.json"),
        pytest.raises(KeyboardInterrupt),
        resilient() as run,
    ):
        for n, metrics in run.steps(12):
            assert_equal(metrics, expected[0][n])
            if n == 9:
                raise KeyboardInterrupt
    # No version was read back to devices.
    assert {span.row for span in read_spans((tmp_path / "trace.json").read_bytes())} == {
        "snapshots",
        "copies",
        "recoveries",
    }
    with resilient() as run:
        assert 2 <= run.step <= 10
        for n, metrics in run.steps(kill_training.STEPS):
            assert_equal(metrics, expected[0][n])
        state = jax.device_get(run.state)
    keys = [tree.pop("key") for tree in (state, expected[1]) if "key" in tree]
    assert_equal(*(map(jax.random.key_data, keys)) if keys else (0, 0))
    assert_equal(state, expected[1])
