"""Arrays on the devices of this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, override

import jax
import numpy as np

from pathways.runtime.proxy.arrays.array_engine import ArrayEngine
from pathways.runtime.proxy.arrays.layouts import put_in_layout
from pathways.runtime.proxy.arrays.placements import ArrayPlacement, ArraySpec
from pathways.runtime.xla import ifrt, pjrt
from pathways.runtime.xla.launch_order import launch_order

Maker = Callable[[Sequence[jax.Array]], jax.Array]
"""Function that joins shards to an array."""


class LocalEngine(ArrayEngine):
    """Engine whose values are arrays of JAX."""

    def __init__(self) -> None:
        self._makers: weakref.WeakKeyDictionary[ArrayPlacement, dict[Any, Maker]] = (
            weakref.WeakKeyDictionary()
        )

    def maker(self, spec: ArraySpec) -> Maker:
        """Returns a function that joins shards to an array of a type and placement."""
        placement = spec.placement
        makers = self._makers.setdefault(placement, {})
        key = spec.shape, spec.dtype
        if key not in makers:
            shape = placement.shard_shape or spec.shape
            makers[key] = ifrt.array_maker(shape, spec.dtype, placement.sharding)
        return makers[key]

    @override
    def read(self, shard: Any) -> np.ndarray:
        return ifrt.host_value(shard)

    @override
    def _put(self, spec: ArraySpec, shards: Sequence[np.ndarray]) -> jax.Array:
        placement = spec.placement
        shape = placement.shard_shape or spec.shape
        value = ifrt.put(shards, shape, placement.sharding, placement.devices)
        return value if spec.layout is None else self._copy_to_layout(spec, value)

    @override
    def _shards(self, spec: ArraySpec, value: Any) -> list[jax.Array]:
        return ifrt.shards(value)

    @override
    def _join(self, spec: ArraySpec, shards: Sequence[Any]) -> jax.Array:
        return self.maker(spec)(shards)

    @override
    def _copy(self, specs: Sequence[ArraySpec], values: Sequence[Any]) -> list[jax.Array]:
        return pjrt.copy_arrays(
            values,
            [pjrt.device_list(spec.placement.devices) for spec in specs],
            [spec.placement.sharding for spec in specs],
            [pjrt.ALWAYS_COPY] * len(values),
        )

    @override
    def _copy_to_layout(self, spec: ArraySpec, value: Any) -> jax.Array:
        # JAX implements a copy to another layout as a computation.
        with launch_order(spec.placement.devices):
            return put_in_layout(value, spec.placement.sharding, spec.layout)

    @override
    def _reshard(self, before: ArraySpec, after: ArraySpec, value: Any) -> jax.Array:
        old, new = before.placement.devices, after.placement.devices
        # For shardings without axis names, JAX cannot copy to the same devices in another order: NumPy can.
        source = np.asarray(value) if old != new and set(old) == set(new) else value
        # Without x64, JAX would narrow values of 64 bits.
        with jax.enable_x64(True):
            # No alias: a client may delete or donate one of the two arrays.
            moved = pjrt.device_put(source, after.placement.sharding, may_alias=False)
        return moved if after.layout is before.layout is None else self._copy_to_layout(after, moved)
