"""Prefetch of batches to their slices, and errors of the input."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import pathways as pw

BATCH = {"x": np.ones((4, 8), np.float32), "y": np.zeros(4, np.float32)}


@pytest.fixture(scope="module")
def step() -> pw.Program:
    """Returns a program of two slices: the first reads inputs, over its axis, the second targets."""
    devices = pw.make_virtual_device_set()
    first, second = devices.add_slice((2,), ("data",)), devices.add_slice((1,), ("x",))
    front = pw.jit(lambda w, x: x @ w, devices=first, in_shardings=(P(), P("data")))
    back = pw.jit(lambda h, y: ((h.sum(1) - y) ** 2).mean(), devices=second)

    @pw.program
    def step(w, batch):
        return back(front(w, batch["x"]), batch["y"])

    return step


@pytest.fixture(scope="module")
def compiled(step: pw.Program) -> pw.Compiled:
    return step.lower(np.ones((8, 8), np.float32), BATCH).compile()


def numbered(count: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of their own numbers, all in the same memory, as loaders do that reuse it."""
    x, y = np.empty((4, 8), np.float32), np.empty(4, np.float32)
    for n in range(count):
        x[:], y[:] = n, n
        yield {"x": x, "y": y}


class Counter:
    """Input with positions, as iterators of Grain are."""

    def __init__(self) -> None:
        self.number = -1

    def __iter__(self) -> Counter:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        self.number += 1
        return {"x": np.full((4, 8), self.number, np.float32), "y": np.zeros(4, np.float32)}

    def get_state(self) -> dict[str, int]:
        return {"number": self.number}


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "pathways prefetch"]


@pytest.mark.parametrize(
    "batch",
    [
        np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-3],
        np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
        np.array(3, np.int8),
        np.array([True, False]),
        np.zeros((0, 3), np.float32),
        np.arange(5).astype(jax.numpy.bfloat16),
    ],
    ids=lambda batch: f"{batch.dtype}{list(batch.shape)}",
)
def test_prefetch_copies_arrays_of_all_kinds(batch: np.ndarray) -> None:
    slice = pw.make_virtual_device_set().add_slice((1,), ("x",))
    step = pw.program(lambda batch: pw.jit(lambda x: x, devices=slice)(batch)).lower(batch).compile()
    expected = batch.copy()
    with pw.prefetch([batch], step, "batch") as ready:
        (placed,) = ready
    batch[...] = 0
    assert placed.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(placed), expected)


def test_prefetch_places_batches_as_the_step_reads_them(compiled: pw.Compiled) -> None:
    (_, wanted), _ = compiled.input_shardings
    with pw.prefetch(numbered(5), compiled, "batch") as batches:
        seen = list(batches)
    assert [jax.tree.map(lambda a: a.sharding, batch) for batch in seen] == [wanted] * 5
    assert [float(batch["x"].max()) for batch in seen] == [0, 1, 2, 3, 4]
    assert [float(batch["y"].min()) for batch in seen] == [0, 1, 2, 3, 4]
    assert threads() == []


def test_prefetch_does_not_change_results(compiled: pw.Compiled) -> None:
    w = np.ones((8, 8), np.float32)
    with pw.prefetch(numbered(3), compiled, "batch", depth=1) as batches:
        ours = [float(compiled(w, batch)) for batch in batches]
    assert ours == [float(compiled(w, batch)) for batch in numbered(3)]


def test_prefetch_yields_batches_unchanged_until_the_program_is_compiled(step: pw.Program) -> None:
    fresh = step.with_options()
    w = np.ones((8, 8), np.float32)
    with pw.prefetch(Counter(), fresh, "batch", depth=1) as batches:
        assert isinstance(next(batches)["x"], np.ndarray)
        fresh(w, next(batches))
        next(batches)  # It may have been read before the program was compiled.
        assert len(next(batches)["x"].sharding.device_set) == 2


def test_prefetch_reads_at_most_depth_ahead_and_count_in_all(compiled: pw.Compiled) -> None:
    counter = Counter()
    with pw.prefetch(counter, compiled, "batch", depth=2, count=4) as batches:
        next(batches)
        assert counter.number <= 2
        assert len(list(batches)) == 3
    assert counter.number == 3


def test_prefetch_has_the_position_after_the_last_batch(compiled: pw.Compiled) -> None:
    with pw.prefetch(Counter(), compiled, "batch", depth=3) as batches:
        assert batches.get_state() == {"number": -1}
        for n in range(3):
            next(batches)
            assert batches.get_state() == {"number": n}
    with (
        pw.prefetch(numbered(1), compiled, "batch") as batches,
        pytest.raises(TypeError, match=r"generator has no get_state\(\), which iterators of Grain have"),
    ):
        batches.get_state()


def test_prefetch_raises_an_error_of_the_input_after_earlier_batches(compiled: pw.Compiled) -> None:
    def broken() -> Iterator[dict[str, np.ndarray]]:
        yield from numbered(2)
        raise OSError("no such shard: 7")

    batches = pw.prefetch(broken(), compiled, "batch")
    assert len([next(batches), next(batches)]) == 2
    for _ in range(2):
        with pytest.raises(OSError, match="no such shard: 7") as raised:
            next(batches)
        assert raised.value.__notes__ == ["pw.prefetch: batch 2 of the input"]
    batches.close()
    assert threads() == []


def test_prefetch_leaves_batches_on_their_slices() -> None:
    """A program without placed functions runs on the slices that its arguments are on."""
    devices = pw.make_virtual_device_set()
    ones = [pw.jit(np.ones, devices=devices.add_slice((1,), ("x",)), static_argnums=0)(8) for _ in range(2)]
    add = pw.program(lambda x, y: x + y)
    assert add(ones[0], BATCH["x"][0]).devices() == ones[0].devices()
    for one in ones:
        with pw.prefetch([one], add, "x") as batches:
            assert next(batches) is one
        # A batch of the host goes to the slice of the last call.
        add(one, BATCH["x"][0])
        with pw.prefetch([BATCH["x"][0]], add, "y") as batches:
            assert next(batches).devices() == one.devices()


def test_prefetch_is_collected_after_an_error(compiled: pw.Compiled) -> None:
    """The traceback of the error, which the reader keeps, refers to it."""
    batches = pw.prefetch(numbered(1), compiled, "batch", count=2)
    with pytest.raises(ValueError, match="after 1 of 2 batches"):
        list(batches)
    collected = weakref.ref(batches)
    del batches
    gc.collect()
    assert collected() is None


def test_prefetch_frees_batches_when_it_is_closed_after_an_error(compiled: pw.Compiled) -> None:
    """Not only when Python collects cycles: a host that leaves waits until none of its arrays is held."""
    collected = []

    def wrong() -> Iterator[dict[str, np.ndarray]]:
        wrong = [{"x": np.ones((4, 7), np.float32), "y": BATCH["y"]}]
        collected.append(weakref.ref(wrong[0]["x"]))
        yield wrong.pop()

    gc.disable()
    try:
        with pw.prefetch(wrong(), compiled, "batch") as batches:
            while threads():
                time.sleep(0.001)
        assert collected[0]() is None
        del batches
    finally:
        gc.enable()


def test_prefetch_refuses_an_input_shorter_than_count(compiled: pw.Compiled) -> None:
    batches = pw.prefetch(numbered(3), compiled, "batch", count=10)
    with pytest.raises(ValueError, match="the input ended after 3 of 10 batches"):
        list(batches)


def test_prefetch_refuses_a_batch_of_another_type(compiled: pw.Compiled) -> None:
    odd = {**BATCH, "y": np.zeros(3, np.float32)}
    with pytest.raises(TypeError, match=r"compiled for batch\['y'\] of type float32\[4\], got float32\[3\]"):
        next(pw.prefetch([odd], compiled, "batch"))
    with pytest.raises(TypeError, match="compiled for batch of structure"):
        next(pw.prefetch([BATCH["x"]], compiled, "batch"))


def test_prefetch_refuses_wrong_options(compiled: pw.Compiled) -> None:
    with pytest.raises(ValueError, match="program 'step' has no argument 'data', only w, batch"):
        pw.prefetch([], compiled, "data")
    with pytest.raises(TypeError, match="depth must be a whole number, got '2'"):
        pw.prefetch([], compiled, "batch", depth="2")
    with pytest.raises(TypeError, match=r"count must be a whole number, got 2\.5"):
        pw.prefetch([], compiled, "batch", count=2.5)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        pw.prefetch([], compiled, "batch", depth=0)
    with pytest.raises(TypeError, match="step must be a program, got function"):
        pw.prefetch([], lambda batch: batch, "batch")
    assert threads() == []


def test_prefetch_names_a_slow_input(compiled: pw.Compiled, caplog) -> None:
    go_on = threading.Event()

    def slow() -> Iterator[dict[str, np.ndarray]]:
        go_on.wait()
        yield BATCH

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            go_on.set()

    seen = Seen()
    logging.getLogger("pathways").addHandler(seen)
    try:
        with pw.prefetch(slow(), compiled, "batch", stall_report=0.01) as batches:
            next(batches)
            assert batches.waited >= 0.01
    finally:
        logging.getLogger("pathways").removeHandler(seen)
    assert "the steps wait for the input, which has given no batch 0 for" in caplog.text
    assert "it is in wait at" in caplog.text


@pytest.mark.parametrize("how", ["close", "forget", "stop in the middle"])
def test_prefetch_leaves_no_thread(compiled: pw.Compiled, how: str) -> None:
    batches = pw.prefetch(Counter(), compiled, "batch")
    if how == "stop in the middle":
        for _ in batches:
            break
    if how == "close":
        batches.close()
        assert list(batches) == []
    del batches
    gc.collect()
    while threads():
        time.sleep(0.01)  # The timeout of the test ends it.
