"""Layouts of arrays in memory: each array has the layout that its client expects."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.layout import Layout
from jax.sharding import PartitionSpec as P

from pathways.runtime.proxy.arrays.layouts import layout_of, parse_layout
from pathways.runtime.proxy.arrays.local_engine import LocalEngine
from pathways.runtime.proxy.arrays.placements import ArrayPlacement, ArraySpec
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.wire import descriptors
from pathways.runtime.proxy.wire.statuses import StatusError
from pathways.runtime.xla import ifrt

ENGINE = LocalEngine()

MESSAGES = descriptors.messages()
DEVICES = jax.devices("cpu")
SERVED = ServedDevices(LocalBackend(DEVICES), MESSAGES)
VALUE = np.arange(32, dtype=np.float32).reshape(8, 4)
TURNED = Layout((1, 0), ())


def placed(spec: P, devices: list[jax.Device]) -> ArrayPlacement:
    mesh = jax.sharding.Mesh(np.array(devices), ("x",))
    return ArrayPlacement(tuple(devices), None, jax.NamedSharding(mesh, spec)._to_xla_hlo_sharding(2))


ROWS = placed(P("x"), DEVICES[:2])


def spec_of(placement: ArrayPlacement = ROWS, layout: Layout | None = None) -> ArraySpec:
    return ArraySpec(np.dtype(np.float32), (8, 4), placement, layout)


def turned() -> ProxyArray:
    return ENGINE.make(spec_of(layout=TURNED), [VALUE[:4], VALUE[4:]])


def check(array: ProxyArray, layout: Layout | None) -> None:
    """Checks the recorded layout, the actual layout, and the value."""
    spec, value = array.read()
    assert spec.layout == layout
    assert layout_of(value) == layout
    np.testing.assert_array_equal(
        np.concatenate([ifrt.host_value(s) for s in ENGINE.shards_of(array)]).reshape(8, 4), VALUE
    )


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("", None),
        ("{1,0}", None),
        ("{0,1}", TURNED),
        ("{1,0:E(4)}", None),
        ("{0,1:T(8,128)(2,1)E(4)}", Layout((1, 0), ((8, 128), (2, 1)))),
    ],
)
def test_layouts_as_text(text: str, layout: Layout | None) -> None:
    assert parse_layout(text.encode(), 2) == layout


@pytest.mark.parametrize(
    ("kind", "fields", "layout"),
    [
        ("CompactLayout", {"major_to_minor": [1, 0]}, TURNED),
        ("CompactLayout", {"major_to_minor": [0, 1]}, None),
        ("PjRtLayout", {"xla_layout": {"minor_to_major": [0, 1]}}, TURNED),
        (
            "PjRtLayout",
            {"xla_layout": {"minor_to_major": [1, 0], "tiles": [{"dimensions": [2, 2]}]}},
            Layout((0, 1), ((2, 2),)),
        ),
    ],
)
def test_layouts_as_messages(kind: str, fields: dict[str, Any], layout: Layout | None) -> None:
    data = MESSAGES[f"xla.ifrt.{kind}Proto"](**fields).SerializeToString()
    serialized = {"type_name": f"xla::ifrt::{kind}", "data": data}
    proto = MESSAGES["xla.ifrt.LayoutProto"](serialized_layout=serialized)
    assert SERVED.layout(proto, 2) == layout


def test_no_layout_is_the_default() -> None:
    assert SERVED.layout(MESSAGES["xla.ifrt.LayoutProto"](), 2) is None


@pytest.mark.parametrize(
    "text", ["{0}", "{0,0}", "{1,0:T(0)}", "{1,0:T(99999999)}", "{1,0:T(1)(1)(1)(1)(1)}"]
)
def test_layouts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="no layout of 2 dimensions"):
        parse_layout(text.encode(), 2)


@pytest.mark.parametrize("text", ["{1,0:S(5)}", "row by row", "\xff"])
def test_layouts_that_the_server_does_not_have(text: str) -> None:
    with pytest.raises(NotImplementedError, match=r"the layout .* is not supported by the server"):
        parse_layout(text.encode("latin-1"), 2)


def test_an_array_is_created_in_a_layout() -> None:
    check(turned(), TURNED)


def test_requests_that_keep_the_layout_of_an_array() -> None:
    check(ENGINE.assemble(spec_of(), ENGINE.disassemble(turned())), TURNED)
    check(ENGINE.copy([turned()], DEVICES[4:6], None)[0], TURNED)
    check(ENGINE.copy([turned()], (), "pinned_host")[0], TURNED)


@pytest.mark.parametrize("layout", [None, TURNED])
@pytest.mark.parametrize("placement", [ROWS, placed(P("x"), DEVICES[4:6]), placed(P("x"), DEVICES[:4])])
def test_requests_with_a_layout(layout: Layout | None, placement: ArrayPlacement) -> None:
    check(ENGINE.reshard(spec_of(placement, layout), turned()), layout)
    if placement is ROWS:
        check(ENGINE.bitcast(spec_of(placement, layout), turned()), layout)


def plan(**fields: Any) -> Any:
    return MESSAGES["xla.ifrt.RemapPlanProto"](**fields)


def test_remapped_arrays() -> None:
    step = {
        "from_start": [0],
        "from_end": [2],
        "from_step": [1],
        "to_start": [0],
        "to_end": [2],
        "to_step": [1],
    }
    check(ENGINE.remap([spec_of()], plan(mappings=[step]), [turned()])[0], TURNED)
    # For a plan by devices, clients expect the default.
    by_devices = {"input_devices": [{"device_list": {"device_ids": [0, 1]}}]}
    check(ENGINE.remap([spec_of()], plan(input_devices_for_output=[by_devices]), [turned()])[0], None)


def test_shards_of_different_layouts_are_refused() -> None:
    shards = [
        ENGINE.disassemble(turned())[0],
        ENGINE.disassemble(ENGINE.make(spec_of(), [VALUE[:4], VALUE[4:]]))[1],
    ]
    with pytest.raises(StatusError, match="shards of different layouts cannot be one array"):
        ENGINE.assemble(spec_of(), shards)
