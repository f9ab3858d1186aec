"""Copies of arrays to other shardings."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pathways.runtime.proxy.arrays.local_engine import LocalEngine
from pathways.runtime.proxy.arrays.placements import ArrayPlacement, ArraySpec
from pathways.runtime.xla import ifrt

ENGINE = LocalEngine()

DEVICES = jax.devices("cpu")


def spec_of(dtype: str, on: list[jax.Device], spec: P) -> ArraySpec:
    mesh = jax.sharding.Mesh(np.array(on), ("x",))
    hlo = jax.NamedSharding(mesh, spec)._to_xla_hlo_sharding(1)
    return ArraySpec(np.dtype(dtype), (8,), ArrayPlacement(tuple(on), None, hlo))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize(
    "on",
    [
        pytest.param(DEVICES[:2], id="the same devices"),
        pytest.param(DEVICES[1::-1], id="in another order"),
        pytest.param(DEVICES[1:3], id="some others"),
        pytest.param(DEVICES[:4], id="more"),
    ],
)
@pytest.mark.parametrize("spec", [P("x"), P()])
def test_to_devices(dtype: str, on: list[jax.Device], spec: P) -> None:
    whole = np.arange(8).astype(dtype) * (1 << 20) ** 2
    array = ENGINE.make(spec_of(dtype, DEVICES[:2], P("x")), [whole[:4], whole[4:]])
    moved = ENGINE.reshard(spec_of(dtype, on, spec), array)
    assert [shard.devices() for shard in ENGINE.shards_of(moved)] == [{device} for device in on]
    expected = np.split(whole, len(on)) if spec == P("x") else [whole] * len(on)
    for shard, rows in zip(ENGINE.shards_of(moved), expected, strict=True):
        value = ifrt.host_value(shard)
        assert value.dtype == whole.dtype
        np.testing.assert_array_equal(value, rows)
