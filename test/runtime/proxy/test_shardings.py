"""Shardings of clients that would crash XLA."""

from __future__ import annotations

from typing import Any

import pytest

from pathways.runtime.proxy.arrays.shardings import check_op_sharding
from pathways.runtime.proxy.wire import descriptors
from pathways.runtime.proxy.wire.statuses import StatusError
from pathways.runtime.xla import ifrt

MESSAGES = descriptors.messages()
MESH = {"axes": [{"name": "x", "size": 4}, {"name": "y", "size": 2}]}
OTHER = {"type": "OTHER", "tile_assignment_dimensions": [8]}
IOTA = {"iota_reshape_dims": [8], "iota_transpose_perm": [0]}


def named(*axes: dict[str, Any], mesh: dict[str, Any] = MESH) -> dict[str, Any]:
    """Returns a sharding of one dimension along some axes."""
    return {"named_sharding": {"mesh": mesh, "dim_shardings": [{"axes": axes}]}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"type": "MANUAL"},
        OTHER | IOTA,
        OTHER | {"tile_assignment_devices": [0, 2, 4, 6, 1, 3, 5, 7]},
        {**OTHER, **IOTA, "tile_assignment_dimensions": [2, 4], "replicate_on_last_tile_dim": True},
        {**OTHER, **IOTA, "tile_assignment_dimensions": [4, 2], "last_tile_dims": ["MANUAL"]},
        named({"mesh_axis_index": 1}, {"mesh_axis_index": 0}),
        named({"mesh_axis_index": 0, "sub_axis_info": {"pre_size": 2, "size": 2}}),
        named(mesh=MESH | {"device_ids": [7, 6, 5, 4, 3, 2, 1, 0]}),
    ],
)
def test_shardings_that_xla_reads(fields: dict[str, Any]) -> None:
    proto = MESSAGES["xla.OpSharding"](**fields)
    check_op_sharding(proto, 8)
    ifrt.hlo_sharding(proto.SerializeToString())


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"type": "TUPLE"}, "type 2"),
        ({"type": "MAXIMAL", "tile_assignment_devices": [3]}, "one device of several"),
        ({"type": "OTHER"}, "tiles []"),
        ({**OTHER, **IOTA, "tile_assignment_dimensions": [2**62, 4]}, "tiles [4611686018427387904, 4]"),
        ({**OTHER, **IOTA, "tile_assignment_dimensions": [0]}, "tiles [0]"),
        (OTHER | {"tile_assignment_devices": [0] * 8}, "a device is missing or listed twice"),
        (OTHER | {"iota_reshape_dims": [8]}, "an invalid order of devices"),
        ({**OTHER, **IOTA, "last_tile_dims": ["OTHER"]}, "invalid subgroups"),
        (named({"mesh_axis_index": 2}), "an axis that the mesh does not have"),
        (named({}, mesh={}), "an axis that the mesh does not have"),
        (named({}, {}), "an axis that is used twice"),
        (
            named(
                {"mesh_axis_index": 2},
                {"mesh_axis_index": 2},
                mesh={"axes": [*MESH["axes"], {"name": "z", "size": 1}]},
            ),
            "an axis that is used twice",
        ),
        (named({"sub_axis_info": {"pre_size": 3, "size": 2}}), "an invalid sub-axis"),
        (named(mesh={"axes": [{"name": "x", "size": 7}]}), "a mesh of [7]"),
        (named(mesh=MESH | {"device_ids": [0, 0]}), "a device is missing or listed twice"),
    ],
)
def test_shardings_that_would_crash_the_server(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(StatusError) as raised:
        check_op_sharding(MESSAGES["xla.OpSharding"](**fields), 8)
    assert raised.value.message == f"invalid sharding over 8 devices: {problem}"
