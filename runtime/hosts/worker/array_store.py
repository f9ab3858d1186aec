"""Arrays of a worker, and arrays that the controller is still sending."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pathways.runtime.hosts.protocol.messages import Chunk, DeviceLayout, MessageError, Put
from pathways.runtime.hosts.protocol.reassembly import Reassembly
from pathways.runtime.hosts.protocol.shards import dtype_of
from pathways.runtime.xla import pjrt


@dataclasses.dataclass(frozen=True)
class FailedArray:
    """Placeholder of an array whose step or call failed."""

    error: str


ELSEWHERE = object()
"""Placeholder of an array whose shards are all on other hosts of the island."""


class PromisedArray:
    """Placeholder of an array that a call in flight returns."""

    def __init__(self) -> None:
        self._is_set = threading.Event()
        self._array: Any = None

    def set_array(self, array: Any) -> None:
        """Fulfills the promise with an array, or with the `FailedArray` in its place."""
        self._array = array
        self._is_set.set()

    def wait(self) -> Any:
        """Waits for the array, and returns it."""
        self._is_set.wait()
        return self._array


class IncomingShards:
    """Array that the controller is sending, shard by shard.

    Args:
      put: the message that announced it.
      handles: JAX's devices, by their ids.

    Attributes:
      put: the message that announced it.
      reassembly: the memory that its bytes are received into.
    """

    def __init__(self, put: Put, handles: Mapping[int, jax.Device]) -> None:
        self.put = put
        placement = put.placement
        devices = [handles[number] for number in placement.devices]
        self._placed = [
            (shard, device) for shard, device in zip(put.shards, devices, strict=True) if shard >= 0
        ]
        self._sharding = sharding_of(placement, handles)
        dtype = dtype_of(put)
        shape = self._sharding.shard_shape(put.shape)
        self._shards = [np.empty(shape, dtype) for _ in range(max(put.shards, default=-1) + 1)]
        self.reassembly = Reassembly([memoryview(shard.reshape(-1).view(np.uint8)) for shard in self._shards])

    def array(self) -> Any:
        """Returns the array, on its devices; `ELSEWHERE` if this host has none of them."""
        if not self._placed:
            return ELSEWHERE
        # Without x64 JAX would narrow 64-bit elements.
        with jax.enable_x64(True):
            placed = [
                pjrt.put_shard(self._shards[shard], device, self._sharding) for shard, device in self._placed
            ]
        return jax.make_array_from_single_device_arrays(self.put.shape, self._sharding, placed)


class ArrayStore:
    """Arrays of a worker, by their numbers.

    Steps and arrays arrive on different connections. So a step may read an array that is still incoming, and
    an array may be freed before it has arrived.

    Args:
      handles: JAX's devices, by their ids.

    Attributes:
      handles: see above.
    """

    def __init__(self, handles: Mapping[int, jax.Device]) -> None:
        self.handles = handles
        self._promised: dict[int, PromisedArray] = {}
        self._arrays: dict[int, Any] = {}
        self._incoming: dict[int, IncomingShards] = {}
        # Numbers of arrays that were freed before they arrived.
        self._freed: set[int] = set()
        self._changed = threading.Condition()

    def get(self, number: int) -> Any:
        """Returns an array, or the `FailedArray` in its place; waits until it has arrived or is computed."""
        # Without the lock, because most arrays are results of earlier steps, which the same thread has added.
        array = self._arrays.get(number)
        if array is None:
            with self._changed:
                self._changed.wait_for(lambda: number in self._arrays)
                array = self._arrays[number]
        if type(array) is PromisedArray:
            return array.wait()
        return array

    def get_or_promise(self, number: int) -> Any:
        """Returns an array as `get` does, but the `PromisedArray` for a result of a call in flight."""
        array = self._arrays.get(number)
        return self.get(number) if array is None else array

    def promise(self, first: int, count: int) -> None:
        """Reserves consecutive numbers for the results of a call that starts now."""
        promised = {number: PromisedArray() for number in range(first, first + count)}
        self._promised.update(promised)
        self._arrays.update(promised)

    def keep_promise(self, number: int, array: Any) -> None:
        """Stores a result of a call, unless it was freed in the meantime."""
        promised = self._promised.pop(number)
        promised.set_array(array)
        with self._changed:
            if self._arrays.get(number) is promised:
                self._arrays[number] = array

    def add(self, first: int, arrays: Iterable[Any]) -> None:
        """Stores the results of a step, by consecutive numbers."""
        self._arrays.update(enumerate(arrays, first))

    def free(self, numbers: Iterable[int]) -> None:
        """Frees arrays; one that has not arrived yet is dropped as soon as it does."""
        for number in numbers:
            array = self._arrays.pop(number, None)
            if array is None:
                with self._changed:
                    # It may have arrived since, in the thread that receives arrays.
                    if self._arrays.pop(number, None) is None:
                        self._freed.add(number)
            elif type(array) is PromisedArray:
                with self._changed:
                    # Its call may have replaced the promise since.
                    self._arrays.pop(number, None)

    def available(self) -> dict[int, Any]:
        """Returns all arrays that have shards on this host now, by their numbers."""
        return {
            number: array
            for number, array in [*self._arrays.items()]
            if array is not ELSEWHERE and not isinstance(array, FailedArray | PromisedArray)
        }

    def begin(self, put: Put) -> None:
        """Allocates memory for an incoming array."""
        try:
            self._incoming[put.array] = IncomingShards(put, self.handles)
        except MemoryError as error:
            self._finish(put.array, FailedArray(f"out of memory: {error}"))
            return
        self._finish_if_complete(put.array)

    def place(self, message: object, size: int) -> memoryview:
        """Returns the memory for the bytes that follow a message.

        Raises:
          MessageError: they belong to no array.
        """
        if not isinstance(message, Chunk):
            raise MessageError(f"unexpected {size} array bytes after {type(message).__name__}")
        incoming = self._incoming.get(message.number)
        if incoming is None:
            if isinstance(self._arrays.get(message.number), FailedArray):
                return memoryview(bytearray(size))
            raise MessageError(f"array {message.number} was not announced")
        return incoming.reassembly.place(message, size)

    def add_chunk(self, chunk: Chunk) -> None:
        """Counts a chunk as received; stores its array if it was the last one."""
        if chunk.number in self._incoming:
            self._incoming[chunk.number].reassembly.add(chunk)
            self._finish_if_complete(chunk.number)

    def abandon(self, numbers: Iterable[int]) -> None:
        """Drops incoming arrays whose sender has stopped."""
        for number in numbers:
            self._incoming.pop(number, None)

    def _finish_if_complete(self, number: int) -> None:
        incoming = self._incoming[number]
        if not incoming.reassembly.is_complete():
            return
        del self._incoming[number]
        try:
            array: Any = incoming.array()
        except Exception as error:
            array = FailedArray(str(error))
        self._finish(number, array)

    def _finish(self, number: int, array: Any) -> None:
        with self._changed:
            if number in self._freed:
                self._freed.discard(number)
                return
            self._arrays[number] = array
            self._changed.notify_all()


def sharding_of(placement: DeviceLayout, handles: Mapping[int, jax.Device]) -> NamedSharding:
    """Returns the sharding that a device layout describes."""
    devices = np.array([handles[number] for number in placement.devices], dtype=object)
    mesh = Mesh(devices.reshape(placement.mesh), placement.axis_names)
    return NamedSharding(mesh, _spec(placement), memory_kind=placement.memory_kind)


def _spec(placement: DeviceLayout) -> PartitionSpec:
    dims = list(placement.dims)
    while dims and not dims[-1]:
        dims.pop()
    return PartitionSpec(*[axes[0] if len(axes) == 1 else axes or None for axes in dims])
