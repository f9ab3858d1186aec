"""Blocks of arrays of the state: each number of replicas puts its shards together from whole blocks."""

from __future__ import annotations

import itertools
import types
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given

from pathways.compiler.resilience.layouts.host_layouts import HostArrayLayout, layout_of_array
from pathways.compiler.resilience.layouts.host_replicas import HostReplicaLayouts, SlicePlacement
from pathways.runtime.hosts.protocol.messages import DeviceLayout
from pathways.runtime.hosts.protocol.programs import WHOLE_ARRAY, ReplicaBlock
from pathways.runtime.hosts.protocol.shards import shard_indices
from pathways.runtime.plan.block_rows import Rows, block_name, blocks_in, common_bounds, rows_within
from pathways.runtime.resilience.snapshots.worker_snapshots import _blocks_of
from pathways.runtime.resources.cluster import Device, Host
from pathways.runtime.resources.manager import Binding
from pathways.runtime.resources.virtual import make_virtual_device_set


def test_blocks_are_the_common_refinement_of_layouts() -> None:
    # Four replicas share the rows, three of them the columns.
    four = [((n * 2, n * 2 + 2), (0, 6)) for n in range(4)]
    three = [((0, 8), (n * 2, n * 2 + 2)) for n in range(3)]
    bounds = common_bounds(2, [*four, *three])
    assert bounds == ((0, 2, 4, 6, 8), (0, 2, 4, 6))
    assert blocks_in(four[1], bounds) == [((2, 4), (0, 2)), ((2, 4), (2, 4)), ((2, 4), (4, 6))]
    assert rows_within(((2, 4), (2, 4)), four[1]) == ((0, 2), (2, 4))
    assert [block_name("w", rows, (8, 6)) for rows in (four[1], ((0, 8), (0, 6)))] == ["w[2:4, :]", "w"]
    # Without elements, and without dimensions.
    assert blocks_in(((0, 0),), common_bounds(1, [((0, 0),)])) == [((0, 0),)]
    assert blocks_in((), common_bounds(0, [()])) == [()]


class Replicas:
    """Replicas of slices of two devices, each on an island of its own with a host for each device.

    Args:
      counts: the numbers of replicas that may run.
      running: those that run.
    """

    def __init__(self, counts: Sequence[int], running: Sequence[int]) -> None:
        self.counts = tuple(counts)
        self.running = tuple(running)
        self.all = tuple(range(counts[-1]))
        self.islands = [frozenset((n,)) for n in self.all]
        first = make_virtual_device_set(replicas=counts[-1]).add_slice((2,), ("x",))
        self.bindings = {
            one: Binding(
                tuple(Device(2 * n + k, k, "cpu", Host(2 * n + k), f"island{n}") for k in range(2)),
                (2,),
                ("x",),
                "step",
            )
            for n, one in enumerate(first.replicas)
        }


def array_of(shape: tuple[int, ...], placements: Sequence[SlicePlacement]) -> Any:
    """Returns what `layout_of_array` reads of an array."""
    locations = [
        types.SimpleNamespace(
            gang=types.SimpleNamespace(number=one.island),
            placement=one.layout,
            block=one.part,
            holders={Host(host): positions for host, positions in one.holders.items()},
        )
        for one in placements
    ]
    return types.SimpleNamespace(aval=jax.core.ShapedArray(shape, np.float32), locations=locations)


def index_of(rows: Rows) -> tuple[slice, ...]:
    return tuple(slice(*side) for side in rows)


@st.composite
def placed_arrays(draw: st.DrawFn) -> tuple[tuple[int, ...], Replicas, list[SlicePlacement]]:
    """Returns the shape of an array, the replicas, and where it is."""
    counts = sorted(draw(st.sets(st.integers(1, 4), min_size=2)))
    running = tuple(sorted(draw(st.permutations(range(counts[-1])))[: draw(st.sampled_from(counts))]))
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 6, 8, 24]), max_size=3)))
    sharded = draw(st.sampled_from([None, *(n for n, size in enumerate(shape) if size % 2 == 0)]))
    dims = tuple(("x",) if n == sharded else () for n in range(len(shape)))
    able = [n for n, size in enumerate(shape) if size % (len(running) * (2 if n == sharded else 1)) == 0]
    split = draw(st.sampled_from([None, *able])) if len(running) > 1 else None
    placements = [
        SlicePlacement(
            number,
            DeviceLayout((0, 1), (2,), ("x",), dims),
            WHOLE_ARRAY if split is None else ReplicaBlock(position, len(running), split),
            {2 * number: (0,), 2 * number + 1: (1,)},
        )
        for position, number in enumerate(running)
    ]
    return shape, Replicas(counts, running), placements


def check_blocks(
    shape: tuple[int, ...], layout: HostArrayLayout, replicas: Any, choices: Sequence[tuple[int, ...]]
) -> None:
    """Checks that the shards of an array, for each choice of replicas, consist of its blocks."""
    whole = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    blocks: dict[str, np.ndarray] = {}
    for place in layout.places:
        own = place.part.of(whole)
        for block in place.blocks:
            position = place.layout.devices.index(block.host % 2)
            shard = own[shard_indices(place.shape, place.layout)[position]]
            data = shard[index_of(block.shard_rows)]
            np.testing.assert_array_equal(data, blocks.setdefault(block.name, data))
            np.testing.assert_array_equal(data, whole[index_of(block.rows)])
            assert layout.sizes[block.name] == 4 * data.size
    for choice in choices:
        for place in layout.places_of(choice, replicas):
            own = place.part.of(whole)
            named = [([list(side) for side in block.own_rows], block.name) for block in place.blocks]
            for position, index in enumerate(shard_indices(place.shape, place.layout)):
                host = 2 * place.island + position
                found = np.full_like(own[index], -1)
                for rows, name in _blocks_of(tuple((side.start, side.stop) for side in index), named):
                    found[index_of(rows)] = blocks[name]
                    assert host in {block.host for block in place.blocks if block.name == name}
                np.testing.assert_array_equal(found, own[index])


@given(placed_arrays())
def test_blocks_of_replicas_make_up_the_shards_of_any_number_of_them(placed: Any) -> None:
    shape, replicas, placements = placed
    layouts = HostReplicaLayouts(replicas)  # type: ignore[arg-type]
    layout = layout_of_array("a", array_of(shape, placements), layouts)
    assert len(layout.replicas) == 1
    choices = [choice for count in replicas.counts for choice in itertools.combinations(replicas.all, count)]
    check_blocks(shape, layout, layouts, choices)
    for choice in choices:
        # It is on exactly these replicas, and each of the same number has the same blocks.
        assert {place.island for place in layout.places_of(choice, layouts)} == {*choice}
    assert layout.places_of(replicas.running, layouts) == layout.places


def test_blocks_of_arrays_that_an_earlier_run_has_left_on_fewer_replicas() -> None:
    """Three of four have the array: it goes to a device of those that run if they do not have all of it."""
    replicas = Replicas((3, 4), range(4))
    layouts = HostReplicaLayouts(replicas)  # type: ignore[arg-type]
    layout = DeviceLayout((0, 1), (2,), ("x",), ((), ()))

    def place(split: bool) -> HostArrayLayout:
        placements = [
            SlicePlacement(
                n,
                layout,
                ReplicaBlock(position, 3, 0) if split else WHOLE_ARRAY,
                {2 * n: (0,), 2 * n + 1: (1,)},
            )
            for position, n in enumerate((0, 2, 3))
        ]
        return layout_of_array("a", array_of((6, 4), placements), layouts)

    whole, shared = place(split=False), place(split=True)
    assert whole.replicas == shared.replicas == ()
    assert [place.island for place in whole.places_of((1, 2, 3), layouts)] == [2, 3]
    (alone,) = shared.places_of((1, 2, 3), layouts)
    assert (alone.island, alone.layout.devices, alone.part) == (1, (0,), WHOLE_ARRAY)
    check_blocks((6, 4), shared, layouts, [(0, 2, 3), (0, 1, 2, 3)])
    outside = SlicePlacement(4, layout, WHOLE_ARRAY, {8: (0,), 9: (1,)})
    with pytest.raises(ValueError, match=r"a is on island4, on which no replica runs, so that min_replicas="):
        layout_of_array("a", array_of((6, 4), [outside]), layouts)
