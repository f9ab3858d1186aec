"""Layouts of arrays on hosts, in blocks with names."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.hosts.protocol.messages import DeviceLayout, ResultArray
from pathways.runtime.hosts.protocol.programs import ReplicaBlock
from pathways.runtime.hosts.protocol.shards import shard_indices

Rows = tuple[tuple[int, int], ...]
"""The rows of a block in each dimension, from the first to the one after the last."""


@dataclasses.dataclass(frozen=True)
class PlacedBlock:
    """A block of an array on a device.

    Attributes:
      name: its name; blocks of one name are the same bytes.
      host: the number of the host.
      shard: its number among the shards of the array on that host.
      rows: its rows in the array.
      own_rows: its rows in what its island has of the array.
    """

    name: str
    host: int
    shard: int
    rows: Rows
    own_rows: Rows


@dataclasses.dataclass(frozen=True)
class ArrayPlace:
    """The place of an array on an island.

    Attributes:
      island: the number of the island.
      layout: the layout there.
      part: what the island has of the array.
      shape: the shape of that.
      blocks: the block on each device.
    """

    island: int
    layout: DeviceLayout
    part: ReplicaBlock
    shape: tuple[int, ...]
    blocks: tuple[PlacedBlock, ...]


@dataclasses.dataclass(frozen=True)
class HostArrayLayout:
    """Layout of an array on hosts.

    Attributes:
      name: the name of the array in messages.
      aval: its type.
      dtype: the dtype of its data.
      places: its places.
    """

    name: str
    aval: Any
    dtype: np.dtype[Any]
    places: tuple[ArrayPlace, ...]

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """The bytes of each block."""
        return {
            block.name: self.dtype.itemsize * math.prod(stop - start for start, stop in block.rows)
            for place in self.places
            for block in place.blocks
        }

    def at(self, island: int) -> list[ArrayPlace]:
        """Returns its places on an island."""
        return [place for place in self.places if place.island == island]

    def result(self, place: ArrayPlace) -> ResultArray:
        """Returns what a call on hosts that creates it there has to know."""
        return ResultArray(place.shape, self.dtype.name, place.layout)


def layout_of_array(name: str, array: Array) -> HostArrayLayout:
    """Returns the layout of an array; of typed PRNG keys that of their words."""
    return layout_at(name, array.aval, array.locations)


def layout_at(name: str, aval: Any, locations: Sequence[Location]) -> HostArrayLayout:
    """Returns the layout of an array of some type at some locations."""
    is_key = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
    data = jax.eval_shape(jax.random.key_data, aval) if is_key else aval
    shape = tuple(data.shape)
    places = tuple(_place(name, shape, where) for where in locations)
    return HostArrayLayout(name, aval, np.dtype(data.dtype), places)


def _place(name: str, shape: tuple[int, ...], where: Location) -> ArrayPlace:
    own_shape, first = where.block_of(shape)
    indices = shard_indices(own_shape, where.placement)
    blocks = []
    for host, positions in where.holders.items():
        for shard, position in enumerate(positions):
            own_rows = tuple((side.start, side.stop) for side in indices[position])
            rows = tuple((at + start, at + stop) for at, (start, stop) in zip(first, own_rows, strict=True))
            blocks.append(PlacedBlock(f"{name}{_rows(rows, shape)}", host.index, shard, rows, own_rows))
    return ArrayPlace(where.gang.number, where.placement, where.block, own_shape, tuple(blocks))


def _rows(rows: Rows, shape: Sequence[int]) -> str:
    """Returns rows for messages, such as `[0:4, :]`; nothing for all of an array."""
    parts = [
        ":" if own == (0, count) else f"{own[0]}:{own[1]}" for own, count in zip(rows, shape, strict=True)
    ]
    return f"[{', '.join(parts)}]" if any(part != ":" for part in parts) else ""
