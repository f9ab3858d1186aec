"""Shards of arrays in the memory of the host, which XLA can take as they are. Never imports jax."""

from __future__ import annotations

import functools
import math
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from pathways.runtime.plan.parts import Index, Shard

_LARGE = 4 << 20
"""Bytes that several threads copy, which numpy allows. Below, one is done before another wakes."""

_HEAP = 32 << 20
"""Bytes above which an allocator gives memory back to the system, which then clears every page anew."""

_KEPT = 256 << 20
_spare: dict[int, np.ndarray] = {}
"""At most one, by its size."""

_ALIGNMENT = 64
"""XLA takes an array of the host as it is from such addresses, and copies it from others."""


_Copies = Sequence[tuple[int, int, tuple[slice, ...], tuple[slice, ...]]]
"""The numbers of an array of the target and of a shard of the source, and what goes where from where."""


class Views(tuple[np.ndarray, ...]):
    """The shards of a value that is ready, in place of its pieces."""


def fill(
    shards: Sequence[Shard], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Callable[[Views], list[np.ndarray]]:
    """A function that makes the shards of the target; devices whose shards are equal share one array."""
    numbers = {shard: number for number, shard in enumerate(dict.fromkeys(shards))}
    order = [numbers[shard] for shard in shards]
    copies = [
        (number, part.source, _slices(part.here), _slices(part.there))
        for shard, number in numbers.items()
        for part in shard
    ]
    large = len(numbers) * math.prod(shape) * dtype.itemsize >= _LARGE
    threads = min(4, os.cpu_count() or 1) if large else 1
    mine, *others = [copies[n::threads] for n in range(threads)]

    def make(views: Views) -> list[np.ndarray]:
        made = [_empty(shape, dtype) for _ in numbers]

        def copy(some: _Copies) -> None:
            for number, source, here, there in some:
                made[number][here] = views[source][there]

        waiting = [_in_thread(copy, some) for some in others if some]
        copy(mine)
        for wait in waiting:
            wait()
        return [made[number] for number in order]

    return make


def _in_thread(copy: Callable[[_Copies], None], some: _Copies) -> Callable[[], None]:
    """Begins to copy in another thread; returns what waits for it."""
    try:
        return _copiers().submit(copy, some).result
    except RuntimeError:  # The interpreter shuts down, and starts no threads any more.
        return functools.partial(copy, some)


@functools.cache
def _copiers() -> futures.ThreadPoolExecutor:
    """The threads that copy besides the one that issues steps."""
    return futures.ThreadPoolExecutor(thread_name_prefix="pathways copy")


def _slices(index: Index) -> tuple[slice, ...]:
    return tuple(slice(begin, end) for begin, end in index)


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array that XLA can take as it is."""
    size = math.prod(shape) * dtype.itemsize
    raw = _memory(size + _ALIGNMENT)
    begin = -raw.ctypes.data % _ALIGNMENT
    return raw[begin : begin + size].view(dtype).reshape(shape)


def _memory(size: int) -> np.ndarray:
    """Bytes of the host. Of the large ones the last that is not needed any more is kept for the next time."""
    if not _HEAP < size <= _KEPT:
        return np.empty(size, np.uint8)
    memory = _spare.pop(size, None)
    if memory is None:
        memory = np.empty(size, np.uint8)
    # All that looks at the memory keeps this array alive, which does not own it.
    array = np.frombuffer(memoryview(memory), np.uint8)
    weakref.finalize(array, _keep, memory).atexit = False
    return array


def _keep(memory: np.ndarray) -> None:
    _spare.clear()
    _spare[memory.size] = memory
