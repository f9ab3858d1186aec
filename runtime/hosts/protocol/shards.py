"""Shards of arrays: their indices by device, their dtypes, and the cutting of arrays into them."""

from __future__ import annotations

import functools
from collections.abc import Container, Sequence
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy the names of small floats)
import numpy as np

from pathways.dialect.attributes.dtypes import DTYPES
from pathways.runtime.hosts.protocol.messages import DeviceLayout, MessageError, Put

_DTYPES = frozenset(DTYPES.values())


def dtype_of(put: Put) -> np.dtype[Any]:
    """Returns the dtype of an array that is sent.

    Raises:
      MessageError: no array of a program can have the dtype, such as `object`.
    """
    if put.dtype not in _DTYPES:
        raise MessageError(f"array {put.array} has dtype {put.dtype!r}, which programs do not support")
    return np.dtype(put.dtype)


def shard_indices(shape: Sequence[int], placement: DeviceLayout) -> list[tuple[slice, ...]]:
    """Returns for each device of a layout, in the order of its mesh, the index of its shard."""
    sizes = dict(zip(placement.axis_names, placement.mesh, strict=True))
    indices = []
    for position in range(len(placement.devices)):
        coordinates = dict(zip(placement.axis_names, np.unravel_index(position, placement.mesh), strict=True))
        index = []
        for dim, size in enumerate(shape):
            axes = placement.dims[dim] if dim < len(placement.dims) else ()
            number, count = 0, 1
            for axis in axes:
                number = number * sizes[axis] + int(coordinates[axis])
                count *= sizes[axis]
            index.append(slice(number * size // count, (number + 1) * size // count))
        indices.append(tuple(index))
    return indices


@functools.lru_cache(maxsize=4096)
def different_shards(
    shape: tuple[int, ...], placement: DeviceLayout
) -> tuple[tuple[int, tuple[slice, ...]], ...]:
    """Returns the position of a device and the index of its shard, once for each different shard."""
    by_bounds: dict[tuple[tuple[int, int], ...], tuple[int, tuple[slice, ...]]] = {}
    for position, index in enumerate(shard_indices(shape, placement)):
        by_bounds.setdefault(tuple((of_dim.start, of_dim.stop) for of_dim in index), (position, index))
    return tuple(by_bounds.values())


def cut_shards(
    value: np.ndarray[Any, Any], placement: DeviceLayout, positions: Container[int]
) -> tuple[list[np.ndarray[Any, Any]], tuple[int, ...]]:
    """Returns the different shards of an array, and for each device the number of its shard.

    Args:
      value: the array.
      placement: its layout.
      positions: the positions of the devices whose shards are needed; the others get -1.
    """
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    shards: list[np.ndarray[Any, Any]] = []
    order = []
    for position, index in enumerate(shard_indices(value.shape, placement)):
        if position not in positions:
            order.append(-1)
            continue
        key = tuple((of_dim.start, of_dim.stop) for of_dim in index)
        if key not in numbers:
            numbers[key] = len(shards)
            shards.append(value[index])
        order.append(numbers[key])
    return shards, tuple(order)
