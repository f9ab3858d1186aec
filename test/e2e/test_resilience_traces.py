"""Snapshots, copies and recoveries of `pw.resilient` in traces."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from models import layer, squared_error

import pathways as pw
from pathways.passes.analysis.measured.events import TraceSpan
from pathways.passes.analysis.measured.trace_file import read_spans, read_trace
from pathways.runtime.local import recording


@pytest.fixture(autouse=True)
def disconnected() -> Iterator[None]:
    pw.disconnect()
    yield
    pw.disconnect()


def train(lose: Callable[[Any], None]) -> None:
    """Trains a pipeline over two islands, and loses something after step 7."""
    devices = pw.make_virtual_device_set()
    layers = [pw.jit(layer, devices=devices.add_slice((1,), ("x",), island=f"island{n}")) for n in range(2)]
    loss = squared_error(layers)

    @pw.program(donate_argnums=0)
    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        value, grads = jax.value_and_grad(loss)(state, batch)
        return [w - 0.1 * g for w, g in zip(state, grads, strict=True)], value

    batch = (np.ones((4, 8), np.float32),) * 2
    with pw.resilient(step, [np.eye(8, dtype=np.float32)] * 2, [batch] * 12, every=3) as run:
        for n, _ in run.steps(12):
            # A version may take longer than steps that compute next to nothing.
            while (pending := run._recovery.core.table.pending) is not None and pending.key.step <= n + 1:
                run._recovery.drain()
                run._store.wait(0.1)
            if n == 7:
                lose(run)


def spans_of(path: Path) -> dict[tuple[str, str], list[str]]:
    """Returns the names of the spans in each row, in the order of their times."""
    rows: dict[tuple[str, str], list[TraceSpan]] = {}
    for span in sorted(read_spans(path.read_bytes()), key=lambda span: span.start):
        assert 0 <= span.start <= span.end
        rows.setdefault((span.track, span.row), []).append(span)
    for row in rows.values():
        # Times are rounded when they are written.
        assert all(a.end <= b.start + 1e-6 for a, b in itertools.pairwise(row))
    return {place: [span.name for span in row] for place, row in rows.items()}


def test_trace_shows_snapshots_and_recoveries(tmp_path: Path) -> None:
    pw.connect(cpu_devices=2, islands=2)
    path = tmp_path / "run.json"
    with pw.trace(path):
        train(lambda run: run.lose("island1"))
    rows = spans_of(path)
    for island in ("island0", "island1"):
        assert {*rows[island, "snapshots"]} == {"snapshot 3", "snapshot 6", "snapshot 9", "snapshot 12"}
    recovery = [name for name in rows["pw.resilient", "recoveries"] if name != "steps held"]
    assert recovery[0] in ("restore 6", "restore 9")
    assert all(name.endswith(("steps run again", "step run again")) for name in recovery[1:])
    # Steps are read as without them.
    assert {timeline.program for timeline in read_trace(path.read_bytes())} == {"step"}


@pytest.mark.hosts
def test_trace_shows_snapshots_copies_and_recoveries_of_hosts(tmp_path: Path) -> None:
    pw.connect(hosts=2)
    path = tmp_path / "run.json"
    with pw.trace(path):
        train(lambda run: run.lose("island1", memory=True))
    rows = spans_of(path)
    for host in range(2):
        track = f"host {host} (island{host})"
        assert rows[track, "snapshots"][:2] == ["snapshot 3", "snapshot 6"]
        assert rows[track, "copies"][:2] == [f"copy {n} from host {1 - host}" for n in (3, 6)]
    assert rows["host 1 (island1)", "restores"][0].startswith("fetch ")
    assert any(name.startswith("read ") for name in rows["host 0 (island0)", "restores"])
    restored, *again = [name for name in rows["pw.resilient", "recoveries"] if name != "steps held"]
    assert restored.startswith("restore ")
    assert all(name.endswith(("steps run again", "step run again")) for name in again)


def test_trace_file_has_spans_beside_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with recording.span("row", "before the trace"):
        pass
    with pw.trace(path), recording.span("row", "first", track="a"), recording.span("row", "other", track="b"):
        pass
    assert [(span.track, span.name) for span in read_spans(path.read_bytes())] == [
        ("b", "other"),
        ("a", "first"),
    ]
