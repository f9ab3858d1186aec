"""Layouts of arrays on hosts: named blocks on each host, also when fewer replicas run."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pathways.compiler.resilience.layouts.host_replicas import (
    HostReplicaLayout,
    HostReplicaLayouts,
    SlicePlacement,
)
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.hosts.protocol.messages import DeviceLayout, ResultArray
from pathways.runtime.hosts.protocol.programs import ReplicaBlock
from pathways.runtime.hosts.protocol.shards import shard_indices
from pathways.runtime.plan.block_rows import Bounds, Rows, block_name, blocks_in, common_bounds, rows_within
from pathways.runtime.resilience.records import Blocks, Holdings


@dataclasses.dataclass(frozen=True)
class PlacedBlock:
    """A block of an array on a device.

    Attributes:
      name: its name; blocks of one name are the same bytes.
      shard: the number of its shard, among the shards of the array on that host.
      own_rows: its rows in the block of the array that its island has.
    """

    name: str
    host: int
    shard: int
    rows: Rows
    own_rows: Rows
    shard_rows: Rows


@dataclasses.dataclass(frozen=True)
class ArrayPlace:
    """The place of an array on an island.

    Attributes:
      part: the block of the array that the island has.
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
      bounds: the bounds of its blocks; None where each shard is one block.
      replicas: its layouts on slices of replicas; empty where fewer replicas never run, or the array is
        elsewhere.
    """

    name: str
    aval: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    places: tuple[ArrayPlace, ...]
    bounds: Bounds | None = None
    replicas: tuple[HostReplicaLayout, ...] = ()

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """The bytes of each block."""
        return {
            block.name: self.dtype.itemsize * math.prod(stop - start for start, stop in block.rows)
            for place in self.places
            for block in place.blocks
        }

    def allows(self, counts: Sequence[int], islands: Sequence[Collection[int]]) -> bool:
        """Returns whether the array can be restored for each number of replicas on these islands.

        Args:
          counts: the numbers of replicas that may run, ascending.
          islands: the islands of each replica.
        """
        return self.bounds is not None and all(
            {*counts} <= dict(layout.splits).keys()
            and len(layout.slices) == len(islands)
            and all(
                slice.island in replica_islands
                for slice, replica_islands in zip(layout.slices, islands, strict=True)
            )
            for layout in self.replicas
        )

    def at(self, island: int) -> list[ArrayPlace]:
        """Returns the places on an island."""
        return [place for place in self.places if place.island == island]

    def result(self, place: ArrayPlace) -> ResultArray:
        """Returns the result type of a call that creates the array at a place."""
        return ResultArray(place.shape, self.dtype.name, place.layout)

    def places_of(self, replicas: tuple[int, ...], layouts: HostReplicaLayouts) -> tuple[ArrayPlace, ...]:
        """Returns the places for a set of running replicas.

        Args:
          layouts: the slices of all replicas.
        """
        if self.replicas:
            return self._placed(
                placement for layout in self.replicas for placement in layout.placements(replicas)
            )
        # Arrays outside of replicated slices keep their hosts while an island with a full copy remains.
        left = tuple(place for place in self.places if place.island in layouts.islands(replicas))
        if {block.name for place in left for block in place.blocks} == self.sizes.keys():
            return left
        return self._placed([layouts.on_one_device(replicas, len(self.shape))])

    def _placed(self, placements: Iterable[SlicePlacement]) -> tuple[ArrayPlace, ...]:
        return tuple(_place(self.name, self.shape, placement, self.bounds) for placement in placements)


@dataclasses.dataclass
class StateOnHosts:
    """State of a version.

    Attributes:
      tree: its structure.
      leaves: the layout of each array on hosts; any other leaf itself.
      arrays: the arrays on hosts by positions of leaves, until their copies have started.
      replicas: the replicas that ran.
      layouts: the slices of all replicas; None where fewer never run.
      copies: the blocks that each host has in its memory.
      record: the record on hosts that the version is committed; None without one.
    """

    tree: Any
    leaves: list[Any]
    arrays: dict[int, Array]
    replicas: tuple[int, ...]
    layouts: HostReplicaLayouts | None
    copies: dict[int, Blocks] = dataclasses.field(default_factory=dict)
    record: str | None = None

    def places(self, replicas: tuple[int, ...]) -> list[tuple[int, ArrayPlace]]:
        """Returns the places of all arrays on hosts for running replicas, with the positions of leaves."""
        layouts = self.layouts if replicas != self.replicas else None
        return [
            (n, place)
            for n, leaf in enumerate(self.leaves)
            if isinstance(leaf, HostArrayLayout)
            for place in (leaf.places if layouts is None else leaf.places_of(replicas, layouts))
        ]

    @property
    def array_layouts(self) -> list[HostArrayLayout]:
        """The layouts of all arrays on hosts."""
        return [leaf for leaf in self.leaves if isinstance(leaf, HostArrayLayout)]

    def holdings(self, replicas: tuple[int, ...]) -> Holdings:
        """Returns the blocks on the devices of each host for running replicas."""
        holdings: dict[int, set[str]] = {}
        for _, place in self.places(replicas):
            for block in place.blocks:
                holdings.setdefault(block.host, set()).add(block.name)
        return {host: frozenset(blocks) for host, blocks in sorted(holdings.items())}

    @property
    def sizes(self) -> Mapping[str, int]:
        """The bytes of each block."""
        return collections.ChainMap(*(layout.sizes for layout in self.array_layouts))


def layout_of_array(name: str, array: Array, replicas: HostReplicaLayouts | None) -> HostArrayLayout:
    """Returns the layout of an array; of typed PRNG keys the layout of their words.

    Args:
      replicas: the slices of all replicas, if fewer may run.

    Raises:
      ValueError: fewer replicas may run, and the array is on an island without a replica.
    """
    placements = [placement_at(location) for location in array.locations]
    if replicas is None:
        return layout_at(name, array.aval, placements, None)
    shape, _ = _data_of(array.aval)
    layouts = replicas.find(name, shape, placements)
    if layouts:
        # Copies on other devices are made again when a program reads them there.
        placements = [placement for layout in layouts for placement in layout.placements(replicas.running)]
    else:
        replicas.check_islands(name, placements)
    of_counts = [
        placement
        for layout in layouts
        for count, _ in layout.splits
        for placement in layout.placements(range(count))
    ]
    shards = (rows for placement in (*placements, *of_counts) for *_, rows in _shards(shape, placement))
    bounds = common_bounds(len(shape), shards)
    return layout_at(name, array.aval, placements, bounds, layouts)


def layout_at(
    name: str,
    aval: Any,
    placements: Sequence[SlicePlacement],
    bounds: Bounds | None,
    replicas: tuple[HostReplicaLayout, ...] = (),
) -> HostArrayLayout:
    """Returns the layout of an array from its type and placements, see `HostArrayLayout`."""
    shape, dtype = _data_of(aval)
    places = tuple(_place(name, shape, placement, bounds) for placement in placements)
    return HostArrayLayout(name, aval, shape, dtype, places, bounds, replicas)


def placement_at(location: Location) -> SlicePlacement:
    """Returns the placement of an array at a location."""
    holders = {host.index: positions for host, positions in location.holders.items()}
    return SlicePlacement(location.gang.number, location.placement, location.block, holders)


def _data_of(aval: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Returns the shape and dtype of the data of an array, which for typed PRNG keys are their words."""
    is_key = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
    data = jax.eval_shape(jax.random.key_data, aval) if is_key else aval
    return tuple(data.shape), np.dtype(data.dtype)


def _place(name: str, shape: tuple[int, ...], placement: SlicePlacement, bounds: Bounds | None) -> ArrayPlace:
    """Returns the place of an array; each shard is a block where `bounds` is None."""
    first = placement.first_row(shape)
    blocks = [
        PlacedBlock(
            block_name(name, rows, shape),
            host,
            shard,
            rows,
            rows_within(rows, first),
            rows_within(rows, own_rows),
        )
        for host, shard, own_rows in _shards(shape, placement)
        for rows in ([own_rows] if bounds is None else blocks_in(own_rows, bounds))
    ]
    return ArrayPlace(
        placement.island, placement.layout, placement.part, placement.part.shape(shape), tuple(blocks)
    )


def _shards(shape: tuple[int, ...], placement: SlicePlacement) -> list[tuple[int, int, Rows]]:
    """Returns the host, the number on that host, and the rows of each shard of an array."""
    first = placement.first_row(shape)
    indices = shard_indices(placement.part.shape(shape), placement.layout)
    return [
        (
            host,
            shard,
            tuple(
                (at + side.start, at + side.stop)
                for (at, _), side in zip(first, indices[position], strict=True)
            ),
        )
        for host, positions in placement.holders.items()
        for shard, position in enumerate(positions)
    ]
