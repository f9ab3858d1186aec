"""Functions that tests call on hosts, which import this module and no other one of the tests."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pathways.runtime.hosts.worker.call_runner import context
from pathways.runtime.local import memory

NOT_A_FUNCTION = 3


def total(x: Any, scale: float = 1.0) -> Any:
    """Returns the sum of this host's shards of an array, and its process."""
    shards = {shard.index: shard.data for shard in x.addressable_shards}
    return {"sum": scale * float(sum(np.asarray(data).sum() for data in shards.values())), "pid": os.getpid()}


def computed(x: Any) -> Any:
    """Returns the sum that JAX computes, and the shape."""
    return [float(jax.numpy.sum(x)), list(x.shape)]


def same(x: Any) -> Any:
    """Returns its argument, twice."""
    return x, x


def described(tree: Any, key: Any, *, words: Any) -> Any:
    """Returns its arguments, in plain values."""
    leaf = tree["w"][0]
    noise = np.asarray(jax.random.normal(key, (2,))).tolist()
    return [sorted(tree), str(leaf.dtype), list(leaf.shape), type(tree["w"]).__name__, noise, words]


def kept() -> int:
    """Returns the number of objects that calls keep on this host, such as copies of saves."""
    return len(context().objects)


def wait_for(path: str, *arrays: Any) -> float:
    """Waits until there is a file, at most 30 seconds; then sums the arrays."""
    deadline = time.monotonic() + 30
    # Neither calls a function in Python, so that reports of what this host does always name this one.
    while not os.access(path, os.F_OK):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return float(sum(np.asarray(x).sum() for x in arrays))


def wait_with(*arrays: Any, path: str) -> float:
    return wait_for(path, *arrays)


def value_when_exists(path: str) -> Any:
    """Returns an array, created when there is a file."""
    wait_for(path)
    return np.full(4, 5, np.float32)


def append(path: str, text: str) -> None:
    """Adds a line to a file, slowly."""
    with Path(path).open("a") as file:
        for character in f"{text}\n":
            file.write(character)
            file.flush()
            time.sleep(0.002)


def filled(value: float) -> Any:
    """Returns a whole array, and this host's rows of another."""
    local = np.full((4 // jax.process_count(), 2), value + jax.process_index(), np.float32)
    return {"whole": np.full(3, value, np.int32), "part": local}


class Kept:
    """Object that a call keeps for later calls."""


def keep() -> None:
    context().objects["kept"] = Kept()


_MACHINE_MEMORY = memory.machine_memory


def assume_memory(size: int | None) -> None:
    """Has programs checked as if the machine had so many bytes of memory; None for the bytes that it has."""
    memory.machine_memory = _MACHINE_MEMORY if size is None else lambda: (size, "the test assumes")


def kept_of_all() -> Any:
    """Returns the number of objects that calls keep here for all clients, and whether this client has one."""
    return [sum(type(one).__name__ == "Kept" for one in gc.get_objects()), "kept" in context().objects]


def three() -> Any:
    return np.zeros(3, np.int32)


def number() -> float:
    return 1.5


def same_value(value: float) -> float:
    return value


def key_of(seed: int) -> Any:
    return jax.random.key(seed)


def plain(value: str) -> Any:
    """Returns a value of some kind, of JSON or not."""
    endless: list[Any] = []
    endless.append(endless)
    return {
        "number": 2.5,
        "nested": {"a": [1, None, True, "x"]},
        "array": {"loss": [np.float32(1.0)]},
        "keys": {3: 1},
        "object": threading,
        "endless": endless,
        "huge": 10**5000,
        "long": "x" * (17 << 20),
    }[value]


class BadRow(Exception):
    """User-defined error."""


def fail(host: int | None = None) -> int:
    if host is None or jax.process_index() == host:
        raise BadRow("row 17 is empty")
    return 1


def leave() -> None:
    sys.exit(3)


class Numbered:
    """Rows that have their numbers as values; `bad` raises, `slow` takes its time."""

    def __init__(self, seed: int, count: int, bad: int, slow: int, seconds: float, wrong: int) -> None:
        self.seed, self.count, self.seconds = seed, count, seconds
        self.bad, self.slow, self.wrong = bad, slow, wrong

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        if number == self.bad:
            raise BadRow(f"row {number} is empty")
        if number == self.slow:
            time.sleep(self.seconds)
        noise = np.random.default_rng((self.seed, number)).normal(size=4)
        # 64 bits, as NumPy has them: JAX narrows them to 32.
        return {"x": noise[: 3 if number == self.wrong else 4], "y": (number, {"z": np.int32(-number)})}


def numbered(
    seed: int = 0, count: int = 1000, bad: int = -1, slow: int = -1, seconds: float = 30.0, wrong: int = -1
) -> Any:
    return Numbered(seed, count, bad, slow, seconds, wrong)


class Shard:
    """Iterator over rows with a position, which is not the number of its rows so far."""

    def __init__(self, shard: int, shards: int, count: int) -> None:
        self.shard, self.shards, self.count, self.position = shard, shards, count, 7

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.position >= 7 + 3 * self.count:
            raise StopIteration
        self.position += 3
        value = 1000 * self.shard + self.position
        return {"x": np.full(4, value, np.float32), "y": (value, {"z": np.int32(self.shards)})}

    def get_state(self) -> Any:
        return {"position": self.position}

    def set_state(self, state: Any) -> None:
        self.position = state["position"]


def shard_of(shard: int, shards: int, count: int = 100) -> Any:
    return Shard(shard, shards, count)


class Refilled:
    """Rows that are one object, whose memory each row fills again; by number, or one after the other."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.x, self.z = np.zeros(4, np.float32), np.zeros((), np.int32)
        self.row = {"x": self.x, "y": (self.z, {"z": self.z})}

    def __getitem__(self, number: int) -> Any:
        self.x[:] = self.z[...] = self.first + number
        return self.row

    def __iter__(self) -> Any:
        return map(self.__getitem__, range(100))


def refilled(shard: int = 0, shards: int = 1) -> Any:
    return Refilled(1000 * shard)


class BytesShard(Shard):
    """Shard whose position is bytes, like that of Grain's `DataLoader`."""

    def get_state(self) -> Any:
        return str(self.position).encode()

    def set_state(self, state: Any) -> None:
        assert isinstance(state, bytes)
        self.position = int(state)


def bytes_of(shard: int, shards: int) -> Any:
    return BytesShard(shard, shards, 100)


def uneven(shard: int, shards: int) -> Any:
    """Returns a shard that ends with shard 0 where the last one raises."""
    for n, row in enumerate(Shard(shard, shards, 100)):
        if n == 4 and shard == 0:
            return
        if n == 4 and shard == shards - 1:
            raise BadRow("row 4 is empty")
        yield row


def slow_to_open(seconds: float) -> Any:
    time.sleep(seconds)
    return numbered()


def generated(shard: int, shards: int) -> Any:
    """Returns an iterator without positions."""
    return (next(rows) for rows in [Shard(shard, shards, 100)] for _ in range(6))


class Typed:
    """Rows of other types."""

    def __getitem__(self, number: int) -> Any:
        half = np.full(3, number, jax.numpy.bfloat16)
        return {"half": half, "bit": number % 2 == 0, "none": np.zeros(0, np.float32)}


def typed() -> Any:
    return Typed()


def no_rows() -> int:
    return 3


class Untold(Exception):
    """Error without a message."""

    def __str__(self) -> str:
        return self.args[1]


def fail_untold(how: str) -> None:
    """Raises an error that is hard to report."""
    match how:
        case "surrogate":
            raise ValueError("a line of \udcff")
        case "path":
            raise FileNotFoundError(2, "no file", b"\xff")
        case "number":
            raise OSError(10**20, "large")
        case "note":
            error = ValueError("noted")
            error.__notes__ = [Untold("a")]
            raise error
    raise Untold("b")


class Pairs:
    """Rows of two vectors, which follow from their numbers."""

    def __getitem__(self, number: int) -> Any:
        return tuple(np.random.default_rng(number).normal(size=(2, 8)).astype(np.float32))


def pairs() -> Any:
    return Pairs()


class ShardOfPairs(Shard):
    """Iterator over rows of two vectors."""

    def __next__(self) -> Any:
        self.position += 1
        return tuple(
            np.random.default_rng((self.shard, self.position)).normal(size=(2, 8)).astype(np.float32)
        )


def shard_of_pairs(shard: int, shards: int) -> Any:
    return ShardOfPairs(shard, shards, 0)
