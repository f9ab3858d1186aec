"""Operations on the arrays of clients, for any place where their values may be."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Layout

from pathways.runtime.proxy.arrays.memory_account import Allocation
from pathways.runtime.proxy.arrays.placements import ArrayPlacement, ArraySpec, on_device
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError


class ArrayEngine(abc.ABC):
    """Memory of devices, and the operations on arrays there.

    A value has the methods `delete`, `is_deleted`, `is_ready` and `block_until_ready` of a `jax.Array`, and
    its `nbytes`; the value of a shard has a `shape` and a `dtype`, too.
    """

    def make(self, spec: ArraySpec, shards: Sequence[np.ndarray]) -> ProxyArray:
        """Creates an array of shards in host memory, one for each device."""
        placement = spec.placement
        if len(shards) != len(placement.devices):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, f"{len(shards)} shards for {len(placement.devices)} devices"
            )
        if any(shard.dtype != spec.dtype for shard in shards):
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"shards of {spec.dtype.name} have another type")
        return ProxyArray(spec, self._put(spec, shards))

    def assemble(self, spec: ArraySpec, arrays: Sequence[ProxyArray]) -> ProxyArray:
        """Joins single shards, or arrays with some of the shards each, to one array."""
        shards = [shard for array in arrays for shard in self.shards_of(array)]
        if len(shards) != len(spec.placement.devices):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, f"{len(shards)} shards for {len(spec.placement.devices)} devices"
            )
        memory = tuple(allocation for array in arrays for allocation in array.memory)
        spec = dataclasses.replace(spec, layout=_common_layout(arrays))
        return ProxyArray(spec, self._make(spec, shards), memory)

    def disassemble(self, array: ProxyArray) -> list[ProxyArray]:
        """Returns an array of one device for each shard."""
        spec, _ = array.read()
        kind = spec.placement.memory_kind
        return [
            ProxyArray(
                ArraySpec(spec.dtype, shard.shape, on_device(device, kind), spec.layout), shard, memory
            )
            for device, shard, memory in zip(
                spec.placement.devices, self.shards_of(array), array.shard_memory, strict=True
            )
        ]

    def copy(
        self, arrays: Sequence[ProxyArray], devices: Sequence[jax.Device], memory_kind: str | None
    ) -> list[ProxyArray]:
        """Copies arrays, which all have the same devices, to other devices or another memory.

        Args:
          devices: as many devices as each array has; empty for its own devices.
          memory_kind: a kind of memory; None for the array's kind, the empty string for the default.
        """
        specs, values = [], []
        for array in arrays:
            spec, value = array.read()
            old = spec.placement
            if devices and len(devices) != len(old.devices):
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT,
                    f"cannot copy an array on {len(old.devices)} devices to {len(devices)}",
                )
            memory = old.memory_kind if memory_kind is None else memory_kind or None
            to = tuple(devices) or old.devices
            placement = (
                on_device(to[0], memory)
                if len(to) == 1
                else ArrayPlacement(to, memory, old.hlo, old.shard_shape)
            )
            # A copy has the layout of its source.
            specs.append(ArraySpec(spec.dtype, spec.shape, placement, spec.layout))
            values.append(value)
        copied = self._copy(specs, values)
        return [ProxyArray(spec, value) for spec, value in zip(specs, copied, strict=True)]

    def fully_replicated_shard(self, array: ProxyArray) -> ProxyArray:
        """Returns the shard on the first device of a fully replicated array."""
        first = self.disassemble(array)[0]
        spec, _ = array.read()
        if first.read()[0].shape != spec.shape:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"an array of shape {list(spec.shape)} is not on each device as a whole",
            )
        return first

    def remap(self, specs: Sequence[ArraySpec], plan: Any, arrays: Sequence[ProxyArray]) -> list[ProxyArray]:
        """Creates arrays from shards of others by a `RemapPlanProto`: by intervals, or by devices."""
        sources = [list(zip(self.shards_of(array), array.shard_memory, strict=True)) for array in arrays]
        results: list[list[tuple[Any, tuple[Allocation, ...]] | None]] = [
            [None] * len(spec.placement.devices) for spec in specs
        ]
        used: list[dict[int, ProxyArray]] = [{} for _ in specs]
        try:
            for to_array, to_shard, from_array, from_shard in _moves(specs, plan, arrays):
                # Python would count these from the end of a list.
                if min(to_array, to_shard, from_array, from_shard) < 0:
                    raise IndexError
                results[to_array][to_shard] = sources[from_array][from_shard]
                used[to_array][from_array] = arrays[from_array]
        except (IndexError, ValueError):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, "a remap plan names shards that do not exist"
            ) from None
        remapped = []
        for spec, shards, of_result in zip(specs, results, used, strict=True):
            complete = [shard for shard in shards if shard is not None]
            if len(complete) != len(spec.placement.devices):
                raise StatusError(StatusCode.INVALID_ARGUMENT, "a remap plan leaves a shard of a result out")
            memory = tuple(allocation for _, allocations in complete for allocation in allocations)
            layout = _common_layout(of_result.values())
            if plan.mappings:
                # Clients expect the layout of the sources then, and the specified layout otherwise.
                spec = dataclasses.replace(spec, layout=layout)
            value = self._make(spec, [shard for shard, _ in complete])
            remapped.append(self._in_layout(spec, value, layout, memory))
        return remapped

    def bitcast(self, spec: ArraySpec, array: ProxyArray) -> ProxyArray:
        """Returns an array of the same buffers with another shape and sharding.

        Raises:
          StatusError: the type of elements, or the shape of shards, would change.
        """
        old, _ = array.read()
        same = old.dtype == spec.dtype and len(old.placement.devices) == len(spec.placement.devices)
        same = same and spec.placement.shard_shape_of(spec.shape) in (None, self.shards_of(array)[0].shape)
        if not same:
            raise StatusError(
                StatusCode.UNIMPLEMENTED,
                f"bitcasts of {old.dtype.name}{list(old.shape)} to {spec.dtype.name}{list(spec.shape)} are "
                "not supported by the server: the type of elements and the shapes of shards have to stay",
            )
        return self._in_layout(spec, self._make(spec, self.shards_of(array)), old.layout, array.memory)

    def reshard(self, spec: ArraySpec, array: ProxyArray) -> ProxyArray:
        """Copies an array into another sharding, on the same or on other devices."""
        old, value = array.read()
        if old.shape != spec.shape or old.dtype != spec.dtype:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"cannot reshard {old.dtype.name}{list(old.shape)} into {spec.dtype.name}{list(spec.shape)}",
            )
        return ProxyArray(spec, self._reshard(old, spec, value))

    def fetch(self, array: ProxyArray) -> np.ndarray:
        """Returns the value of an array; waits until it is computed.

        Raises:
          StatusError: the array is sharded, or has no value.
          JaxRuntimeError: the computation failed.
        """
        spec, _ = array.read()
        if not spec.placement.is_replicated:
            count = len(spec.placement.devices)
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, f"cannot fetch an array that is sharded over {count} devices"
            )
        return self.read(self.shards_of(array)[0])

    def shards_of(self, array: ProxyArray) -> list[Any]:
        """Returns the value of each shard of an array, which shares its buffers."""
        spec, value = array.read()
        return [value] if len(spec.placement.devices) == 1 else self._shards(spec, value)

    def _make(self, spec: ArraySpec, shards: Sequence[Any]) -> Any:
        """Joins shards to the value of an array, without a copy.

        Raises:
          StatusError: they have another type or shape, which JAX does not check.
        """
        shape = spec.placement.shard_shape_of(spec.shape)
        for shard in shards:
            if shard.dtype != spec.dtype or shard.shape != (shape or shard.shape):
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT,
                    f"{shard.dtype.name}{list(shard.shape)} is no shard of "
                    f"{spec.dtype.name}{list(spec.shape)}",
                )
        return self._join(spec, shards)

    def _in_layout(
        self, spec: ArraySpec, value: Any, layout: Layout | None, memory: tuple[Allocation, ...]
    ) -> ProxyArray:
        """Returns an array of existing buffers, or a copy if they have another layout."""
        if spec.layout == layout:
            return ProxyArray(spec, value, memory)
        return ProxyArray(spec, self._copy_to_layout(spec, value))

    @abc.abstractmethod
    def read(self, shard: Any) -> np.ndarray:
        """Returns the elements of a shard; waits until they are computed.

        Raises:
          JaxRuntimeError: the computation failed.
        """

    @abc.abstractmethod
    def _put(self, spec: ArraySpec, shards: Sequence[np.ndarray]) -> Any:
        """Returns the value of an array whose shards are in host memory."""

    @abc.abstractmethod
    def _shards(self, spec: ArraySpec, value: Any) -> list[Any]:
        """Returns the value of each shard of an array of several devices.

        Raises:
          RuntimeError: the array was deleted.
        """

    @abc.abstractmethod
    def _join(self, spec: ArraySpec, shards: Sequence[Any]) -> Any:
        """Returns the value of an array of checked shards, without a copy."""

    @abc.abstractmethod
    def _copy(self, specs: Sequence[ArraySpec], values: Sequence[Any]) -> list[Any]:
        """Returns copies on other devices or in other memory, with as many shards each."""

    @abc.abstractmethod
    def _copy_to_layout(self, spec: ArraySpec, value: Any) -> Any:
        """Returns the value in the layout of a spec, and a copy if it has another."""

    @abc.abstractmethod
    def _reshard(self, before: ArraySpec, after: ArraySpec, value: Any) -> Any:
        """Returns a copy in another sharding, on the same or on other devices."""


def _common_layout(arrays: Iterable[ProxyArray]) -> Layout | None:
    """Returns the layout of arrays whose shards are joined. Clients expect the layout of the first array.

    Raises:
      StatusError: the arrays have different layouts.
    """
    layouts = {array.read()[0].layout for array in arrays}
    if len(layouts) != 1:
        raise StatusError(StatusCode.UNIMPLEMENTED, "shards of different layouts cannot be one array")
    return layouts.pop()


def _moves(
    specs: Sequence[ArraySpec], plan: Any, arrays: Sequence[ProxyArray]
) -> Iterator[tuple[int, int, int, int]]:
    """Yields the array and shard of each target, and the array and shard of its source."""
    for mapping in plan.mappings:
        sides = [
            zip(*(getattr(mapping, f"{side}_{part}") for part in ("start", "end", "step")), strict=True)
            for side in ("from", "to")
        ]
        for source, result in zip(*sides, strict=True):
            for from_shard, to_shard in zip(range(*source), range(*result), strict=True):
                yield mapping.out_array, to_shard, mapping.in_array, from_shard
    for output in plan.input_devices_for_output:
        devices = [device.id for device in specs[output.out_array].placement.devices]
        for entry in output.input_devices:
            placed = [device.id for device in arrays[entry.in_array].read()[0].placement.devices]
            for number in entry.device_list.device_ids:
                yield output.out_array, devices.index(number), entry.in_array, placed.index(number)
