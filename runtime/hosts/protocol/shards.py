"""Which part of an array each device of a host has, how it is cut into these, and of what they are."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy the names of small floats)
import numpy as np

from pathways.dialect.attributes.dtypes import DTYPES
from pathways.runtime.hosts.protocol.messages import DeviceLayout, MessageError, Put

_DTYPES = frozenset(DTYPES.values())


def dtype_of(put: Put) -> np.dtype[Any]:
    """The dtype of an array that is sent.

    Raises:
      MessageError: no array of a program has it, such as one of objects.
    """
    if put.dtype not in _DTYPES:
        raise MessageError(f"array {put.array} is of {put.dtype!r}, which no array of a program is")
    return np.dtype(put.dtype)


def shard_indices(shape: Sequence[int], placement: DeviceLayout) -> list[tuple[slice, ...]]:
    """For each device of a placement, in the order of its mesh, the part of an array that it has."""
    sizes = dict(zip(placement.axis_names, placement.mesh, strict=True))
    indices = []
    for position in range(len(placement.devices)):
        coordinates = dict(zip(placement.axis_names, np.unravel_index(position, placement.mesh), strict=True))
        parts = []
        for dim, size in enumerate(shape):
            axes = placement.dims[dim] if dim < len(placement.dims) else ()
            part, count = 0, 1
            for axis in axes:
                part = part * sizes[axis] + int(coordinates[axis])
                count *= sizes[axis]
            parts.append(slice(part * size // count, (part + 1) * size // count))
        indices.append(tuple(parts))
    return indices


def different_shards(
    shape: Sequence[int], placement: DeviceLayout
) -> Iterator[tuple[int, tuple[slice, ...]]]:
    """The positions of devices that together have each part of an array once, with the parts."""
    seen: set[tuple[tuple[int, int], ...]] = set()
    for position, parts in enumerate(shard_indices(shape, placement)):
        key = tuple((part.start, part.stop) for part in parts)
        if key not in seen:
            seen.add(key)
            yield position, parts


def cut(
    value: np.ndarray[Any, Any], placement: DeviceLayout, positions: Container[int]
) -> tuple[list[np.ndarray[Any, Any]], tuple[int, ...]]:
    """The different shards of an array, and for each device the number of its own.

    Args:
      value: the array.
      placement: how it lies.
      positions: those of the devices whose shards are wanted; the number of others is -1.
    """
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    shards: list[np.ndarray[Any, Any]] = []
    order = []
    for position, parts in enumerate(shard_indices(value.shape, placement)):
        if position not in positions:
            order.append(-1)
            continue
        key = tuple((part.start, part.stop) for part in parts)
        if key not in numbers:
            numbers[key] = len(shards)
            shards.append(value[parts])
        order.append(numbers[key])
    return shards, tuple(order)
