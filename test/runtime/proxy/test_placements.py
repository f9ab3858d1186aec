"""Placements of arrays of clients: shapes and rows of shards, as JAX has them."""

from __future__ import annotations

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pathways.runtime.plan.block_rows import rows_of
from pathways.runtime.proxy.arrays.layouts import default_layout
from pathways.runtime.proxy.arrays.placements import DTYPES, STRING, ArrayPlacement
from pathways.runtime.proxy.worker.tile_layouts import layout_of
from pathways.runtime.xla import ifrt

DEVICES = jax.devices("cpu")


@st.composite
def shardings(draw: st.DrawFn) -> tuple[NamedSharding, tuple[int, ...]]:
    """Draws a sharding over eight devices in any order, and a shape that it divides."""
    sizes = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2)]))
    axes = [f"x{n}" for n in range(len(sizes))]
    devices = np.array(draw(st.permutations(DEVICES)), dtype=object).reshape(sizes)
    used = draw(st.permutations(axes))[: draw(st.integers(0, len(axes)))]
    rank = draw(st.integers(1, 3))
    spec: list[list[str]] = [[] for _ in range(rank)]
    for axis in used:
        spec[draw(st.integers(0, rank - 1))].append(axis)
    count = dict(zip(axes, sizes, strict=True))
    shape = tuple(
        int(np.prod([count[axis] for axis in dim], dtype=int)) * draw(st.integers(1, 2)) for dim in spec
    )
    return NamedSharding(Mesh(devices, axes), PartitionSpec(*map(tuple, spec))), shape


def placement_of(sharding: NamedSharding, rank: int) -> ArrayPlacement:
    devices = tuple(sharding._device_assignment)
    return ArrayPlacement(devices, None, ifrt.hlo_of(sharding, rank))


@given(shardings())
def test_rows_of_shards_are_those_of_jax(drawn):
    sharding, shape = drawn
    placement = placement_of(sharding, len(shape))
    indices = sharding.devices_indices_map(shape)
    assert placement.shard_shape_of(shape) == sharding.shard_shape(shape)
    assert placement.rows_of(shape) == [rows_of(indices[device], shape) for device in placement.devices]


@given(shardings())
def test_a_layout_of_hosts_has_the_same_rows(drawn):
    sharding, shape = drawn
    placement = placement_of(sharding, len(shape))
    ids = [device.id for device in placement.devices]
    layout = layout_of(ids, placement.hlo, len(shape), None)
    by_id = {device.id: device for device in DEVICES}
    devices = np.array([by_id[number] for number in layout.devices], dtype=object).reshape(layout.mesh)
    again = NamedSharding(Mesh(devices, layout.axis_names), PartitionSpec(*layout.dims))
    indices = again.devices_indices_map(shape)
    assert placement.rows_of(shape) == [rows_of(indices[device], shape) for device in placement.devices]


def test_a_shape_that_is_not_divided_is_an_error():
    placement = placement_of(NamedSharding(jax.make_mesh((8,), ("x",)), PartitionSpec("x")), 1)
    with pytest.raises(ValueError, match=r"dimension 0 of \[7\] cannot be divided into 8 equal parts"):
        placement.shard_shape_of((7,))


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_the_default_layout_is_that_of_xla(rank):
    device = DEVICES[0]
    for dtype in DTYPES.values():
        if dtype != STRING:
            of_xla = device.client.get_default_layout(dtype, (2,) * rank, device)
            assert default_layout(dtype, rank) == str(of_xla)
