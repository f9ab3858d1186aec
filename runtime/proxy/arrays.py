"""Arrays of clients: values on devices, or errors in their places."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Layout

from pathways.runtime.proxy.devices import ArrayPlacement, ArraySpec, on_device
from pathways.runtime.proxy.memory.layouts import put_in_layout
from pathways.runtime.proxy.memory.memory_account import Allocation
from pathways.runtime.proxy.wire.events import Buffer
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of
from pathways.runtime.xla import ifrt, pjrt
from pathways.runtime.xla.launch_order import launch_order


@dataclasses.dataclass(frozen=True)
class ProxyArray:
    """Array of a client, or the error in its place: the value of a handle.

    Attributes:
      spec: its type and placement; None for an array that failed before these were known.
      value: the array, or the status that is raised when a client reads it.
      memory: the allocation of the buffer of each shard in the memory account; empty without a limit.
    """

    spec: ArraySpec | None
    value: jax.Array | StatusError
    memory: tuple[Allocation, ...] = ()

    @property
    def error(self) -> StatusError | None:
        """The error in the place of the array; None if there is none, or none yet."""
        return self.value if isinstance(self.value, StatusError) else None

    def read(self) -> tuple[ArraySpec, jax.Array]:
        """Returns the spec and the value.

        Raises:
          StatusError: the array has no value.
        """
        if isinstance(self.value, StatusError):
            raise status_of(self.value)
        assert self.spec is not None
        return self.spec, self.value

    @property
    def shards(self) -> list[jax.Array]:
        """The shards, which share the buffers of the array."""
        spec, value = self.read()
        return [value] if len(spec.placement.devices) == 1 else ifrt.shards(value)

    @property
    def shard_memory(self) -> list[tuple[Allocation, ...]]:
        """The allocation of each of `shards`."""
        spec, _ = self.read()
        return [(allocation,) for allocation in self.memory] or [()] * len(spec.placement.devices)

    def with_memory(self, memory: tuple[Allocation, ...]) -> ProxyArray:
        """Returns the array with its allocations."""
        return dataclasses.replace(self, memory=memory)

    def free(self) -> None:
        """Returns the memory of an array to the account, after its buffers were deleted."""
        for allocation in self.memory:
            allocation.free()

    def wait(self) -> None:
        """Waits until the value is computed.

        Raises:
          StatusError, JaxRuntimeError: the array has no value.
        """
        self.read()[1].block_until_ready()

    @property
    def is_ready(self) -> bool:
        """Whether `wait` would not wait. A deleted array is ready: reading it raises."""
        if isinstance(self.value, StatusError):
            return True
        return self.value.is_deleted() or ifrt.is_ready(self.value)


class PendingArray(ProxyArray):
    """Array that another thread creates; reading it waits."""

    def __init__(self, spec: ArraySpec) -> None:
        self._future: concurrent.futures.Future[jax.Array | StatusError]
        # The base is a frozen dataclass.
        object.__setattr__(self, "spec", spec)
        object.__setattr__(self, "_future", concurrent.futures.Future())

    @property
    def value(self) -> jax.Array | StatusError:
        """The array, or its error."""
        return self._future.result()

    @property
    def is_ready(self) -> bool:
        return self._future.done() and super().is_ready

    @property
    def error(self) -> StatusError | None:
        return super().error if self._future.done() else None

    def with_memory(self, memory: tuple[Allocation, ...]) -> ProxyArray:
        object.__setattr__(self, "memory", memory)
        return self

    def resolve(self, value: jax.Array | StatusError) -> None:
        """Sets the value or the error; no-op for an array that has one."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self._future.set_result(value)


def view_host_buffer(data: Buffer, spec: ArraySpec, byte_strides: Sequence[int] | None) -> np.ndarray:
    """Returns a host buffer as an array of NumPy, without a copy.

    Raises:
      StatusError: the buffer has another size, or the strides are not positive.
    """
    size = host_size(spec.shape, spec.dtype, byte_strides)
    if len(data) != size:
        raise StatusError(
            StatusCode.INVALID_ARGUMENT,
            f"a host buffer has {len(data)} bytes; {spec.dtype.name}{list(spec.shape)} needs {size}",
        )
    if size == 0 or byte_strides is None:
        return np.frombuffer(data, spec.dtype).reshape(spec.shape)
    return np.ndarray(spec.shape, spec.dtype, buffer=data, strides=tuple(byte_strides))


def host_size(shape: Sequence[int], dtype: np.dtype[Any], byte_strides: Sequence[int] | None) -> int:
    """Returns the number of bytes that an array spans in host memory.

    Raises:
      StatusError: the protocol does not allow the strides.
    """
    if byte_strides is None or not shape:
        return math.prod(shape) * dtype.itemsize
    if len(byte_strides) != len(shape):
        raise StatusError(
            StatusCode.INVALID_ARGUMENT, f"{len(byte_strides)} strides of {len(shape)} dimensions"
        )
    if 0 in shape:
        return 0
    used = [(size, stride) for size, stride in zip(shape, byte_strides, strict=True) if size > 1]
    if any(stride <= 0 or stride % dtype.itemsize for _, stride in used):
        raise StatusError(
            StatusCode.INVALID_ARGUMENT, f"invalid strides {list(byte_strides)} of {dtype.name}"
        )
    return sum((size - 1) * stride for size, stride in used) + dtype.itemsize


def make(spec: ArraySpec, shards: Sequence[np.ndarray]) -> ProxyArray:
    """Creates an array of shards in host memory, one for each device."""
    placement = spec.placement
    if len(shards) != len(placement.devices):
        raise StatusError(
            StatusCode.INVALID_ARGUMENT, f"{len(shards)} shards for {len(placement.devices)} devices"
        )
    if any(shard.dtype != spec.dtype for shard in shards):
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"shards of {spec.dtype.name} have another type")
    shape = placement.shard_shape or spec.shape
    value = ifrt.put(shards, shape, placement.sharding, placement.devices)
    return ProxyArray(spec, value if spec.layout is None else _put(value, spec))


def _put(value: jax.Array, spec: ArraySpec) -> jax.Array:
    # JAX implements a copy to another layout as a computation.
    with launch_order(spec.placement.devices):
        return put_in_layout(value, spec.placement.sharding, spec.layout)


def _in_layout(
    spec: ArraySpec, value: jax.Array, layout: Layout | None, memory: tuple[Allocation, ...]
) -> ProxyArray:
    """Returns an array of existing buffers, or a copy if they have another layout."""
    return ProxyArray(spec, value, memory) if spec.layout == layout else ProxyArray(spec, _put(value, spec))


def assemble(spec: ArraySpec, arrays: Sequence[ProxyArray]) -> ProxyArray:
    """Joins single shards, or arrays with some of the shards each, to one array."""
    shards = [shard for array in arrays for shard in array.shards]
    if len(shards) != len(spec.placement.devices):
        raise StatusError(
            StatusCode.INVALID_ARGUMENT, f"{len(shards)} shards for {len(spec.placement.devices)} devices"
        )
    memory = tuple(allocation for array in arrays for allocation in array.memory)
    spec = dataclasses.replace(spec, layout=_common_layout(arrays))
    return ProxyArray(spec, spec.make(shards), memory)


def _common_layout(arrays: Iterable[ProxyArray]) -> Layout | None:
    """Returns the layout of arrays whose shards are joined. Clients expect that of the first array.

    Raises:
      StatusError: the arrays have different layouts.
    """
    layouts = {array.read()[0].layout for array in arrays}
    if len(layouts) != 1:
        raise StatusError(StatusCode.UNIMPLEMENTED, "shards of different layouts cannot be one array")
    return layouts.pop()


def disassemble(array: ProxyArray) -> list[ProxyArray]:
    """Returns an array of one device for each shard."""
    spec, _ = array.read()
    kind = spec.placement.memory_kind
    return [
        ProxyArray(ArraySpec(spec.dtype, shard.shape, on_device(device, kind), spec.layout), shard, memory)
        for device, shard, memory in zip(
            spec.placement.devices, array.shards, array.shard_memory, strict=True
        )
    ]


def copy(
    arrays: Sequence[ProxyArray], devices: Sequence[jax.Device], memory_kind: str | None
) -> list[ProxyArray]:
    """Copies arrays, which all have the same devices, to other devices or another memory.

    Args:
      devices: as many devices as each array has; empty for its own devices.
      memory_kind: a kind of memory; None for that of the array, the empty string for the default.
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
            on_device(to[0], memory) if len(to) == 1 else ArrayPlacement(to, memory, old.hlo, old.shard_shape)
        )
        # A copy has the layout of its source.
        specs.append(ArraySpec(spec.dtype, spec.shape, placement, spec.layout))
        values.append(value)
    copied = pjrt.copy_arrays(
        values,
        [pjrt.device_list(spec.placement.devices) for spec in specs],
        [spec.placement.sharding for spec in specs],
        [pjrt.ALWAYS_COPY] * len(values),
    )
    return [ProxyArray(spec, value) for spec, value in zip(specs, copied, strict=True)]


def fully_replicated_shard(array: ProxyArray) -> ProxyArray:
    """Returns the shard on the first device of a fully replicated array."""
    first = disassemble(array)[0]
    spec, _ = array.read()
    if first.read()[0].shape != spec.shape:
        raise StatusError(
            StatusCode.INVALID_ARGUMENT,
            f"an array of shape {list(spec.shape)} is not on each device as a whole",
        )
    return first


def remap(specs: Sequence[ArraySpec], plan: Any, arrays: Sequence[ProxyArray]) -> list[ProxyArray]:
    """Creates arrays from shards of others by a `RemapPlanProto`: by intervals of shards, or by devices."""
    sources = [list(zip(array.shards, array.shard_memory, strict=True)) for array in arrays]
    results: list[list[tuple[jax.Array, tuple[Allocation, ...]] | None]] = [
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
            # Clients expect the layout of the sources then, and that of the specification otherwise.
            spec = dataclasses.replace(spec, layout=layout)
        value = spec.make([shard for shard, _ in complete])
        remapped.append(_in_layout(spec, value, layout, memory))
    return remapped


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


def bitcast(spec: ArraySpec, array: ProxyArray) -> ProxyArray:
    """Returns an array of the same buffers with another shape and sharding.

    Raises:
      StatusError: the type of elements, or the shape of shards, would change.
    """
    old, _ = array.read()
    same = old.dtype == spec.dtype and len(old.placement.devices) == len(spec.placement.devices)
    same = same and spec.placement.shard_shape_of(spec.shape) in (None, array.shards[0].shape)
    if not same:
        raise StatusError(
            StatusCode.UNIMPLEMENTED,
            f"bitcasts of {old.dtype.name}{list(old.shape)} to {spec.dtype.name}{list(spec.shape)} are not "
            "supported by the server: the type of elements and the shapes of shards have to stay",
        )
    return _in_layout(spec, spec.make(array.shards), old.layout, array.memory)


def reshard(spec: ArraySpec, array: ProxyArray) -> ProxyArray:
    """Copies an array into another sharding, on the same or on other devices."""
    old, value = array.read()
    if old.shape != spec.shape or old.dtype != spec.dtype:
        raise StatusError(
            StatusCode.INVALID_ARGUMENT,
            f"cannot reshard {old.dtype.name}{list(old.shape)} into {spec.dtype.name}{list(spec.shape)}",
        )
    before, after = old.placement.devices, spec.placement.devices
    # For shardings without axis names, JAX cannot copy to the same devices in another order: copy in NumPy.
    source = np.asarray(value) if before != after and set(before) == set(after) else value
    # Without x64, JAX would narrow values of 64 bits.
    with jax.enable_x64(True):
        # No alias: a client may delete or donate one of the two arrays.
        moved = pjrt.device_put(source, spec.placement.sharding, may_alias=False)
    return ProxyArray(spec, moved if spec.layout is old.layout is None else _put(moved, spec))


def fetch(array: ProxyArray) -> np.ndarray:
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
    return ifrt.host_value(array.shards[0])


_MIN_VIEWED_BYTES = 1 << 20
"""Smaller values are copied, so that the buffers of their arrays can be donated soon."""


def to_host_buffer(value: np.ndarray, byte_strides: Sequence[int] | None) -> Buffer:
    """Returns a value as a host buffer of the size that the strides need: copied, or viewed if large."""
    if byte_strides is None or not value.shape:
        if value.nbytes >= _MIN_VIEWED_BYTES and value.flags.c_contiguous:
            # Viewed as bytes: NumPy exports no buffers of types that are not its own.
            return memoryview(value.reshape(-1).view(np.uint8))
        return value.tobytes()
    data = bytearray(host_size(value.shape, value.dtype, byte_strides))
    if data:
        np.ndarray(value.shape, value.dtype, buffer=data, strides=tuple(byte_strides))[...] = value
    return data
