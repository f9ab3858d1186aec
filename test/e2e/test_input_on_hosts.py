"""Input that hosts read: the same batches on any number of hosts, also after a restart on others."""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple

import host_functions
import jax
import jax.numpy as jnp
import numpy as np
import preloaded
import pytest
from jax.sharding import PartitionSpec as P

import pathways as pw
from pathways.runtime.clusters.connect import controller

pytestmark = pytest.mark.usefixtures("own_or_attached_workers")

ISLANDS = [pw.Island(devices_per_host=2), pw.Island(devices_per_host=2), pw.Island(hosts=2)]
OPTIONS = pw.HostOptions(heartbeat=3)
BATCH = {"x": np.zeros((8, 4), np.float32), "y": (np.zeros(8, np.int32), {"z": np.zeros(8, np.int32)})}


class Pair(NamedTuple):
    x: object

    def values(self):
        return self


def connected():
    pw.connect(islands=ISLANDS, options=OPTIONS)


def step_on(devices, *islands):
    """Returns a compiled step that reads the leaves of a batch on islands; without any, in this process."""
    slices = [devices.add_slice((2,), ("i",), island=f"island{n}") for n in islands] or [
        devices.add_slice((1,), ("i",))
    ]
    split = P("i") if islands else P()
    reads = [pw.jit(lambda x, y: x.sum() + y.sum(), devices=s, in_shardings=(split, split)) for s in slices]

    @pw.program
    def step(batch):
        leaves = [batch["x"], batch["y"][0], batch["y"][1]["z"]]
        pairs = zip(itertools.cycle(reads), leaves, strict=False)
        return [read(leaf, leaf) for read, leaf in pairs]

    return step.lower(BATCH).compile()


def step_of_replicas(devices):
    """Returns a compiled step whose replicas each read their rows of a batch."""
    slice = devices.add_slice((2,), ("i",))
    read = pw.jit(lambda w, x, y, z: w * (x.sum() + y.sum() + z.sum()), devices=slice)
    loss = jax.value_and_grad(lambda w, batch: read(w, batch["x"], batch["y"][0], batch["y"][1]["z"]))
    return pw.program(lambda w, batch: pw.accumulate(loss, 2)(w, batch)).lower(np.float32(1), BATCH).compile()


def values(batch):
    return jax.tree.map(np.asarray, batch)


def equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, values(ours), values(theirs))


@pytest.mark.feature("training", "hosts")
@pytest.mark.not_attached
def test_input_of_numbered_rows_is_the_same_on_any_hosts(devices):
    """On one, two and three islands, one with two hosts, and in this process."""
    source = pw.on_hosts(host_functions.numbered, seed=3)
    connected()
    seen = []
    for islands in ((0,), (1, 0), (2,), (2, 1, 0)):
        step = step_on(devices, *islands)
        with pw.prefetch(source, step, "batch", rows=8, count=3) as batches:
            seen.append([values(batch) for batch in batches if step(batch)])
            assert batches.get_state() == 3
    expected = [host_functions.numbered(seed=3)[8 * 2 + row] for row in range(8)]
    np.testing.assert_array_equal(seen[0][2]["x"], np.float32([row["x"] for row in expected]))
    for batches in seen[1:]:
        equal(batches, seen[0])
    for slice in devices.slices:
        pw.release(slice)
    pw.disconnect()
    step = step_on(devices)
    with pw.prefetch(source, step, "batch", rows=8, count=3) as batches:
        equal(list(batches), seen[0])


def test_input_of_shards_is_the_same_on_any_hosts(devices):
    connected()
    seen, states = [], []
    replicated = pw.make_virtual_device_set(replicas=2)
    steps = [step_on(devices, *islands) for islands in ((0,), (1, 0), (2,), (2, 1, 0))]
    for step in (*steps, step_of_replicas(replicated)):
        source = pw.on_hosts("host_functions:shard_of")
        with pw.prefetch(source, step, "batch", shards=4, count=4) as batches:
            seen.append([values(batch) for batch in batches])
            states.append(batches.get_state())
    for slice in replicated.slices:
        for each in slice.replicas:
            pw.release(each)
    assert states == [[{"position": 7 + 3 * 8}] * 4] * 5
    assert seen[0][1]["y"][0].tolist() == [1000 * n + 7 + 3 * k for n in range(4) for k in (3, 4)]
    for batches in seen[1:]:
        equal(batches, seen[0])
    # An island continues the input that another one has begun.
    source = pw.on_hosts("host_functions:shard_of")
    with pw.prefetch(source, step_on(devices, 0), "batch", shards=4) as batches:
        for _ in range(2):
            next(batches)
        state = batches.get_state()
    source.set_state(state)
    with pw.prefetch(source, step_on(devices, 2), "batch", shards=4, count=2) as batches:
        equal(list(batches), seen[0][2:])


@pytest.mark.parametrize("where", ["here", "on hosts"])
def test_input_may_return_the_same_memory_for_each_row(devices, where):
    """The memory of the last row would be that of all."""
    if where == "on hosts":
        connected()
    step = step_on(devices, *([1, 0] if where == "on hosts" else []))
    source = pw.on_hosts("host_functions:refilled")
    for rows, expected in (
        ({"rows": 8}, [*range(8, 16)]),
        ({"shards": 2}, [*range(4, 8), *range(1004, 1008)]),
    ):
        with pw.prefetch(source, step, "batch", count=2, **rows) as batches:
            _, second = map(values, batches)
        assert second["x"].tolist() == [[value] * 4 for value in expected]
        assert second["y"][0].tolist() == second["y"][1]["z"].tolist() == expected


def test_input_restores_its_position_on_fewer_hosts(devices, tmp_path):
    connected()
    source = pw.on_hosts(host_functions.numbered, seed=1)
    step = step_on(devices, 1, 0)
    with pw.prefetch(source, step, "batch", rows=8) as batches:
        for n, batch in enumerate(batches, 1):
            if n == 3:
                pw.checkpoint.save(tmp_path, {"x": batch["x"]}, n, data=batches)
            if n == 5:
                after = values(batch)
                break
    again = pw.on_hosts(host_functions.numbered, seed=1)
    pw.checkpoint.restore(tmp_path, {"x": np.zeros((8, 4), np.float32)}, data=again)
    assert again.get_state() == 3
    with pw.prefetch(again, step_on(devices, 2), "batch", rows=8) as batches:
        equal(next(itertools.islice(batches, 1, 2)), after)


RUN = """
import os, signal, sys
import host_functions, pathways as pw, test_input_on_hosts as tests

pw.connect(islands=tests.ISLANDS[:2])
step = tests.step_on(pw.make_virtual_device_set(), 1, 0)
with pw.prefetch(pw.on_hosts(host_functions.shard_of), step, "batch", shards=4) as batches:
    for n, batch in enumerate(batches, 1):
        pw.checkpoint.save(sys.argv[1], {"read": step(batch)}, n, data=batches)
        if n == 4:
            # The third host is ready then.
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_input_of_a_killed_run_goes_on_with_fewer_hosts(devices, tmp_path):
    folders = [str(Path(file).parent) for file in (__file__, host_functions.__file__)]
    done = preloaded.run("-c", RUN, tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)})
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    connected()
    step = step_on(devices, 0)
    with pw.prefetch(pw.on_hosts(host_functions.shard_of), step, "batch", shards=4, count=5) as batches:
        wanted = [values(batch) for batch in batches]
    last = pw.checkpoint.latest(tmp_path)
    assert last in (3, 4)
    source = pw.on_hosts(host_functions.shard_of)
    read = pw.checkpoint.restore(tmp_path, {"read": [np.float32(0), np.int32(0), np.int32(0)]}, data=source)[
        "read"
    ]
    np.testing.assert_array_equal(read, [np.asarray(x) for x in step(wanted[last - 1])])
    with pw.prefetch(source, step, "batch", shards=4, count=5 - last) as batches:
        for batch, expected in zip(batches, wanted[last:], strict=True):
            equal(batch, expected)


def test_input_ends_with_its_last_whole_batch(devices):
    connected()
    step = step_on(devices, 0, 2)
    source = pw.on_hosts(host_functions.numbered, count=20)
    with pw.prefetch(source, step, "batch", rows=8) as batches:
        assert len(list(batches)) == 2
    source = pw.on_hosts(host_functions.shard_of, count=5)
    with pw.prefetch(source, step, "batch", shards=4) as batches:
        assert len(list(batches)) == 2
    with (
        pw.prefetch(source, step, "batch", shards=4, count=3) as batches,
        pytest.raises(ValueError, match="the input ended after 2 of 3 batches"),
    ):
        list(batches)
    source = pw.on_hosts(host_functions.generated)
    with pw.prefetch(source, step, "batch", shards=4) as batches:
        assert len(list(batches)) == 3
        with pytest.raises(TypeError, match="no position to save: a shard of host_functions:generated"):
            batches.get_state()


@pytest.mark.feature("training", "hosts")
def test_input_batches_may_be_donated(devices):
    """Freed batches' memory is reused, and never that of live ones."""
    connected()
    slice = devices.add_slice((2,), ("i",), island="island0")
    next_to = pw.jit(lambda x: x + 1, devices=slice, in_shardings=P("i"))
    batch = {
        "half": np.zeros((8, 3), jnp.bfloat16),
        "bit": np.zeros(8, bool),
        "none": np.zeros((8, 0), np.float32),
    }
    step = pw.program(
        lambda batch: {name: next_to(x) for name, x in batch.items() if name != "bit"}, donate_argnums=0
    )
    step = step.lower(batch).compile()
    source = pw.on_hosts(host_functions.typed)
    kept = []
    with pw.prefetch(source, step, "batch", rows=8, count=12) as batches:
        kept = [batch if n % 3 else step(batch) for n, batch in enumerate(batches)]
    for n, one in enumerate(kept):
        rows = 8 * n + np.arange(8) + (n % 3 == 0)
        np.testing.assert_array_equal(np.asarray(one["half"]), np.stack([rows] * 3, 1).astype(jnp.bfloat16))
        if n % 3:
            np.testing.assert_array_equal(np.asarray(one["bit"]), rows % 2 == 0)


@pytest.mark.feature("training", "error")
def test_input_errors_name_host_and_batch(devices):
    connected()
    step = step_on(devices, 1)
    source = pw.on_hosts(host_functions.numbered, bad=17)
    with pw.prefetch(source, step, "batch", rows=8) as batches:
        assert [len(step(next(batches))) for _ in range(2)] == [3, 3]
        with pytest.raises(pw.CallFailedError, match=r"host 1 \(island1\), batch 2 raised .*row 17") as error:
            next(batches)
    assert "host_functions.py" in str(error.value)
    wrong = pw.on_hosts(host_functions.numbered, wrong=9)
    with pw.prefetch(wrong, step, "batch", rows=8) as batches:
        next(batches)
        with pytest.raises(TypeError, match=r"batch 1: row 1\['x'\] is float64\[3\]: expected float32\[4\]"):
            next(batches)
    for name, kwargs, text in (
        ("no_rows", {"rows": 8}, "rows= needs an input with __getitem__, such as a grain.MapDataset"),
        ("shard_of", {"shards": 4}, None),
    ):
        with pw.prefetch(pw.on_hosts(f"host_functions:{name}"), step, "batch", **kwargs) as batches:
            if text is None:
                next(batches)
                continue
            with pytest.raises(TypeError, match=text):
                next(batches)
    with (
        pw.prefetch(pw.on_hosts("nowhere:rows"), step, "batch", rows=8) as batches,
        pytest.raises(ImportError, match=r"nowhere:rows: host 1 \(island1\)"),
    ):
        next(batches)


def test_input_end_hides_no_error_of_another_shard(devices):
    """One host may read both shards, or each its own."""
    connected()
    for island, host in ((2, 3), (0, 0)):
        source = pw.on_hosts(host_functions.uneven)
        with pw.prefetch(source, step_on(devices, island), "batch", shards=2) as batches:
            next(batches)
            with pytest.raises(
                pw.CallFailedError, match=rf"host {host} .*, batch 1 raised .*: row 4 is empty"
            ):
                list(batches)


def test_input_has_a_position_before_its_first_batch(devices, tmp_path):
    connected()
    steps = [step_on(devices, 2), step_on(devices, 0)]
    first = [{"position": 7}] * 4
    for step in steps:
        source = pw.on_hosts(host_functions.shard_of)
        with pw.prefetch(source, step, "batch", shards=4) as batches:
            pw.checkpoint.save(tmp_path / "run", {"n": 0}, len(list(tmp_path.glob("run/*"))), data=batches)
            assert batches.get_state() == first
            next(batches)
            assert batches.get_state() != first
    again = pw.on_hosts(host_functions.shard_of)
    pw.checkpoint.restore(tmp_path / "run", {"n": 0}, data=again)
    assert again.get_state() == first
    source = pw.on_hosts("host_functions:no_rows")
    with (
        pw.prefetch(source, steps[0], "batch", rows=8) as batches,
        pytest.raises(TypeError, match="opening the input: rows= needs an input with __getitem__"),
    ):
        batches.get_state()


def test_input_positions_may_be_bytes(devices, tmp_path):
    """A `DataLoader` of Grain has such positions."""
    connected()
    steps = [step_on(devices, 2), step_on(devices, 0)]
    source = pw.on_hosts(host_functions.bytes_of)
    with pw.prefetch(source, steps[0], "batch", shards=4) as batches:
        next(batches)
        pw.checkpoint.save(tmp_path, {"n": 1}, 1, data=batches)
        after = values(next(batches))
    again = pw.on_hosts(host_functions.bytes_of)
    pw.checkpoint.restore(tmp_path, {"n": 0}, data=again)
    with pw.prefetch(again, steps[1], "batch", shards=4) as batches:
        equal(next(batches), after)


def test_input_reports_number_inputs(devices, caplog):
    connected()
    step = step_on(devices, 0)
    slow = pw.on_hosts(host_functions.slow_to_open, seconds=1.0)
    resumed = pw.on_hosts(host_functions.numbered, slow=8 * 40, seconds=1.0)
    resumed.set_state(40)
    with caplog.at_level(logging.WARNING, "pathways"):
        for source in (slow, resumed):
            with pw.prefetch(source, step, "batch", rows=8, stall_report=0.3) as batches:
                next(batches)
    reports = [text for text in caplog.messages if "the steps wait" in text]
    opening = next(text for text in reports if "batch 0 of the input" in text)
    assert re.search(r"host 0: has been running for \d+ s, opening the input, in ", opening)
    assert f"slow_to_open at {host_functions.__file__}:" in opening
    assert any("batch 40 of the input" in text and " s, batch 40, in " in text for text in reports)
    bad = pw.on_hosts(host_functions.numbered, bad=8 * 40)
    bad.set_state(40)
    with pw.prefetch(bad, step, "batch", rows=8) as batches, pytest.raises(pw.CallFailedError) as error:
        next(batches)
    assert error.value.__notes__ == ["pw.prefetch: batch 40 of the input"]


@pytest.mark.feature("training", "hosts")
def test_input_feeds_programs_of_several_signatures(devices):
    connected()
    slice = devices.add_slice((2,), ("i",), island="island0")
    total = pw.jit(lambda x: x.sum(), devices=slice, in_shardings=P("i"))
    step = pw.program(lambda batch: total(batch["half"]))
    for rows in (8, 16):
        step(
            {
                "half": np.zeros((rows, 3), jnp.bfloat16),
                "bit": np.zeros(rows, bool),
                "none": np.zeros((rows, 0), np.float32),
            }
        )
    for rows in (16, 8):
        with pw.prefetch(pw.on_hosts(host_functions.typed), step, "batch", rows=rows) as batches:
            assert next(batches)["half"].shape == (rows, 3)
    with pytest.raises(ValueError, match=r"rows=4, but batch\['bit'\] has 16 rows"):
        pw.prefetch(pw.on_hosts(host_functions.typed), step, "batch", rows=4)


@pytest.mark.feature("training", "error")
def test_input_refuses_numbers_that_do_not_fit(devices):
    connected()
    step = step_on(devices, 0)
    source = pw.on_hosts(host_functions.numbered)
    for kwargs, text in (
        ({"rows": 12}, r"rows=12, but batch\['x'\] has 8 rows"),
        ({"shards": 3}, "shards=3 do not divide the 8 rows"),
        ({}, "expected rows= or shards="),
        ({"rows": 8, "shards": 4}, "expected rows= or shards="),
    ):
        with pytest.raises(ValueError, match=text):
            pw.prefetch(source, step, "batch", **kwargs)
    for kwargs in ({"shards": 2.0}, {"shards": "4"}, {"rows": True}):
        ((option, number),) = kwargs.items()
        with pytest.raises(TypeError, match=rf"{option} must be a whole number, got {number!r}"):
            pw.prefetch(source, step, "batch", **kwargs)
    with pytest.raises(TypeError, match=r"are for an input of pw\.on_hosts"):
        pw.prefetch([BATCH], step, "batch", rows=8)
    for batch in (Pair(BATCH["x"]), {1: BATCH["x"]}):
        odd = pw.program(lambda batch: pw.jit(lambda x: x.sum(), devices=devices.slices[0])(*batch.values()))
        with pytest.raises(
            TypeError, match=r"pw\.prefetch: the batch (is of type .*Pair|has the key 1): exp"
        ):
            pw.prefetch(source, odd.lower(batch).compile(), "batch", rows=8)
    wide = step_on(devices, 2)
    with pytest.raises(ValueError, match=r"host 2 \(island2\) reads 4 of 8 rows, .* shards=1 have 8"):
        pw.prefetch(source, wide, "batch", shards=1)
    source.set_state([{}] * 8)
    with pytest.raises(ValueError, match="starts at a position of shards=8, but shards=4"):
        pw.prefetch(source, step, "batch", shards=4)
    with pytest.raises(ValueError, match="starts at a position of shards=8, but rows= takes"):
        pw.prefetch(source, step, "batch", rows=8)
    source.set_state(3)
    with pytest.raises(ValueError, match="begins at position 3, which does not belong to shards=4"):
        pw.prefetch(source, step, "batch", shards=4)


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_input_reports_slow_and_lost_hosts(devices, caplog, how):
    """The last test of the file: the host is lost with its call of thirty seconds."""
    connected()
    step = step_on(devices, 0)
    source = pw.on_hosts(host_functions.numbered, slow=11)
    with pw.prefetch(source, step, "batch", rows=8, stall_report=0.3) as batches:
        next(batches)
        victim = controller().hosts[0].process.pid

        def reports() -> list[str]:
            return [text for text in caplog.messages if " s, batch 1, in " in text]

        def kill_when_reported() -> None:
            while not reports():
                time.sleep(0.01)
            os.kill(victim, how)

        with caplog.at_level(logging.WARNING, "pathways"):
            killer = threading.Thread(target=kill_when_reported, daemon=True)
            killer.start()
            with pytest.raises(pw.HostLostError, match=r"host 0 \(island0\) is lost"):
                next(batches)
        killer.join()
    report = reports()[0]
    assert "the steps wait for batch 1" in report
    assert f"__getitem__ at {host_functions.__file__}:" in report


@pytest.mark.not_attached
def test_input_has_the_same_errors_without_hosts(devices):
    pw.disconnect()
    step = step_on(devices)
    with pw.prefetch(pw.on_hosts(host_functions.numbered, bad=17), step, "batch", rows=8) as batches:
        next(itertools.islice(batches, 1, 2))
        with pytest.raises(pw.CallFailedError, match="numbered, batch 2 raised BadRow: row 17 is empty"):
            next(batches)
    with pw.prefetch(pw.on_hosts(host_functions.numbered, wrong=9), step, "batch", rows=8) as batches:
        next(batches)
        with pytest.raises(TypeError, match=r"batch 1: row 1\['x'\] is float64\[3\]: expected float32\[4\]"):
            next(batches)
    with pw.prefetch(pw.on_hosts(host_functions.shard_of), step, "batch", shards=2, count=2) as batches:
        assert [jnp.shape(batch["x"]) for batch in batches] == [(8, 4)] * 2
        assert batches.get_state() == [{"position": 7 + 3 * 8}] * 2
