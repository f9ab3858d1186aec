"""Versions of `pw.resilient` on disk: their contents, and runs that resume from damaged or other ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import pathways as pw

STEPS = 10


@pytest.fixture(autouse=True)
def islands() -> Iterator[None]:
    """Connects to two islands of a device."""
    pytest.importorskip("orbax.checkpoint.experimental.v1", reason="orbax-checkpoint is not installed")
    pw.disconnect()
    pw.connect(cpu_devices=2, islands=2)
    yield
    pw.disconnect()


def adding() -> Any:
    """Returns a program that adds batches up, and passes other leaves of the state through."""
    devices = pw.make_virtual_device_set()
    one = pw.jit(lambda w, x: w + x, devices=devices.add_slice((1,), ("x",)))

    @pw.program
    def step(state: Any, x: Any) -> Any:
        return {**state, "w": one(state["w"], x)}, {"w": one(state["w"], x)}

    return step


def start() -> Any:
    return {"w": np.float32(0)}


def batches() -> list[Any]:
    return [np.float32(n) for n in range(20)]


def run_to(count: int, disk: Path, source: Any = None, state: Any = None) -> tuple[int, Any]:
    """Runs steps in a folder; returns how many it ran, and the state."""
    source = batches() if source is None else source
    state = start() if state is None else state
    with pw.resilient(adding(), state, source, every=2, directory=disk, disk_every=1) as run:
        steps = list(run.steps(count))
        state = run.state
    assert float(state["w"]) == sum(range(count))
    return len(steps), state


def damage(disk: Path, step: int, pattern: str) -> None:
    """Truncates files of a version, as when a machine loses power."""
    files = [file for file in (disk / str(step)).rglob(pattern) if file.is_file()]
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    "pattern", ["*METADATA*", "process_*.json", "*"], ids=["metadata", "position", "all"]
)
def test_resilient_continues_from_the_version_before_a_damaged_one(
    tmp_path: Path, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_to(4, tmp_path)
    run_to(6, tmp_path)
    damage(tmp_path, 6, pattern)
    steps, _ = run_to(8, tmp_path)
    assert steps > 2
    assert f"version 6 on disk cannot be read: {tmp_path}/6: " in caplog.text
    # What could not be read does not keep a later version from having its number.
    assert (tmp_path / "6.damaged").exists()
    assert run_to(9, tmp_path)[0] == 1


def test_resilient_names_the_folder_when_no_version_can_be_read(tmp_path: Path) -> None:
    run_to(2, tmp_path)
    for step in [int(file.name) for file in tmp_path.iterdir() if file.name.isdecimal()]:
        damage(tmp_path, step, "*METADATA*")
    with pytest.raises(ValueError, match=f"cannot be read: {tmp_path}/.*; pass another folder as directory="):
        run_to(4, tmp_path)


class Source:
    """Batches with positions of a type."""

    def __init__(self, position: Any) -> None:
        self._position = position
        self._number = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self._number += 1
        return batches()[self._number - 1]

    def get_state(self) -> Any:
        return self._position(self._number)

    def set_state(self, state: Any) -> None:
        assert type(state) is type(self._position(0))
        self._number = int(state["i"] if isinstance(state, dict) else state)


POSITIONS = {
    "dict": lambda n: {"i": n},
    "bytes": lambda n: str(n).encode(),
    "text": str,
    "bytes other than JSON": lambda n: b"0%d" % n,
}


def test_resilient_names_a_position_that_is_not_json(tmp_path: Path) -> None:
    run_to(4, tmp_path, Source(lambda n: b"abc%d" % n))
    with pytest.raises(
        ValueError, match=f"{tmp_path}/.*: the position of the source is b'abc.', which is no"
    ):
        run_to(8, tmp_path)


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
def test_resilient_continues_at_positions_of_any_type(tmp_path: Path, position: Any) -> None:
    run_to(4, tmp_path, Source(position))
    assert run_to(8, tmp_path, Source(position))[0] == 4


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Source(POSITIONS["dict"]), batches()),
        (batches(), Source(POSITIONS["dict"])),
        (Source(POSITIONS["dict"]), Source(str)),
        (batches(), batches()[:2]),
    ],
    ids=["dict, list", "list, dict", "dict, text", "a shorter list"],
)
def test_resilient_names_the_position_of_another_source(tmp_path: Path, first: Any, second: Any) -> None:
    run_to(4, tmp_path, first)
    with pytest.raises(ValueError, match=f"{tmp_path}/4: the position of the source is .* does not accept"):
        run_to(8, tmp_path, second)


def test_resilient_saves_leaves_without_elements_and_keys(tmp_path: Path) -> None:
    def state() -> Any:
        return {
            **start(),
            "none": np.zeros((0, 4), np.float32),
            "no keys": jax.random.split(jax.random.key(0, impl="rbg"), 0),
            "key": jax.random.key(3, impl="rbg"),
        }

    run_to(4, tmp_path, state=state())
    steps, found = run_to(8, tmp_path, state=state())
    assert steps == 4
    assert (found["none"].shape, found["none"].dtype) == ((0, 4), np.float32)
    assert (found["no keys"].shape, found["no keys"].dtype) == ((0,), found["key"].dtype)
    np.testing.assert_array_equal(*map(jax.random.key_data, (found["key"], state()["key"])))


def test_resilient_refuses_states_that_no_file_can_have(tmp_path: Path) -> None:
    for leaf, error in ((object(), "is a object"), (2**70, "more than 64 bits")):
        with (
            pytest.raises((TypeError, ValueError), match=error),
            pw.resilient(
                lambda state, x: (state, None),
                {**start(), "odd": leaf},
                batches(),
                feeds=(adding(), "x"),
                directory=tmp_path,
            ),
        ):
            pass


def test_resilient_has_the_first_version_on_disk_at_the_start(tmp_path: Path) -> None:
    found = []
    with pw.resilient(adding(), start(), batches(), directory=tmp_path) as run:
        for n, metrics in run.steps(STEPS):
            found.append(float(metrics["w"]))
            if n == 3:
                for island in range(2):
                    run.lose(f"island{island}", memory=True)
    assert found == [n * (n + 1) / 2 for n in range(STEPS)]


def test_resilient_says_where_the_last_state_is_that_was_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pw.resilient(adding(), start(), batches(), directory=tmp_path)
    with pytest.raises(OSError, match="disk is full") as caught, run:  # noqa: PT012 # at its end
        list(run.steps(3))
        run._disk.wait()

        def fail(*_: Any) -> None:
            raise OSError("disk is full")

        monkeypatch.setattr(run._disk, "save", fail)
    assert caught.value.__notes__ == [
        "pw.resilient: the state after step 3 is in memory, as run.state of this process"
    ]
    assert float(run.state["w"]) == 3


LONG = "x" * 70_000


def test_resilient_repeats_no_long_strings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    step = adding()
    # Compiled, so that the name of an argument is checked.
    step(start(), np.float32(0))
    for options in (
        {"every": LONG},
        {"disk_every": LONG},
        {"max_to_keep": -(10**5000)},
        {"min_replicas": LONG},
        {"patience": LONG},
        {"feeds": LONG},
        {"feeds": (step, LONG)},
        {"directory": LONG},
        {"directory": ""},
        {"directory": b"run"},
        {"directory": 7},
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            pw.resilient(step, start(), batches(), **options)
        assert len(str(caught.value)) < 400
        assert next(iter(options)) in str(caught.value)
    with (
        pw.resilient(step, start(), batches()) as run,
        pytest.raises(ValueError, match="no island") as caught,
    ):
        run.lose(LONG)
    assert len(str(caught.value)) < 400

    # States and positions, too.
    class Odd(Source):
        def set_state(self, state: Any) -> None:
            raise ValueError(LONG)

    caplog.set_level(logging.INFO)
    long_source = Source(lambda n: {"i": n, LONG: 0})
    run_to(4, tmp_path, long_source)
    with pytest.raises(ValueError, match="does not accept") as caught:
        run_to(8, tmp_path, Odd(str))
    assert len(str(caught.value)) < 3000
    assert all(len(record.getMessage()) < 3000 for record in caplog.records)
