"""The arrays of a worker, and those that are coming from the controller."""

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


@dataclasses.dataclass(frozen=True)
class FailedArray:
    """What stands for an array that a failed step should have made."""

    error: str


ELSEWHERE = object()
"""What stands for an array that other hosts of the island have alone."""


class PromisedArray:
    """What stands for an array that a call is about to make."""

    def __init__(self) -> None:
        self._made = threading.Event()
        self._array: Any = None

    def keep(self, array: Any) -> None:
        """Says what it is: an array, or the `FailedArray` in its place."""
        self._array = array
        self._made.set()

    def wait(self) -> Any:
        """Waits for it."""
        self._made.wait()
        return self._array


class IncomingShards:
    """An array that is coming from the controller, shard by shard.

    Args:
      put: what the controller said of it.
      handles: JAX's devices, by their ids.

    Attributes:
      put: what the controller said of it.
      reassembly: where its bytes go.
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
        """The array, on its devices; `ELSEWHERE` if none of them is here."""
        if not self._placed:
            return ELSEWHERE
        # Without x64 JAX would narrow what has 64 bits.
        with jax.enable_x64(True):
            placed = [jax.device_put(self._shards[shard], device) for shard, device in self._placed]
        return jax.make_array_from_single_device_arrays(self.put.shape, self._sharding, placed)


class ArrayStore:
    """The arrays of a worker, by their numbers.

    Steps come on another connection than arrays. So a step may ask for one that is still coming, and one
    may be freed before it has come.

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
        # Those that were freed before they had come.
        self._freed: set[int] = set()
        self._changed = threading.Condition()

    def get(self, number: int) -> Any:
        """An array, or the `FailedArray` in its place; waits while it is coming from the controller."""
        array = self._arrays.get(number)
        if array is None:
            with self._changed:
                self._changed.wait_for(lambda: number in self._arrays)
                array = self._arrays[number]
        if type(array) is PromisedArray:
            return array.wait()
        return array

    def look_up(self, number: int) -> Any:
        """As `get`, without waiting for a call: a `PromisedArray` is in the place of what one is to make."""
        array = self._arrays.get(number)
        return self.get(number) if array is None else array

    def promise(self, first: int, count: int) -> None:
        """Notes that a call is about to make arrays, by consecutive numbers."""
        promised = {number: PromisedArray() for number in range(first, first + count)}
        self._promised.update(promised)
        self._arrays.update(promised)

    def keep_promise(self, number: int, array: Any) -> None:
        """Keeps an array that a call has made, unless it was freed in the meantime."""
        promised = self._promised.pop(number)
        promised.keep(array)
        with self._changed:
            if self._arrays.get(number) is promised:
                self._arrays[number] = array

    def add(self, first: int, arrays: Iterable[Any]) -> None:
        """Keeps arrays that a step has made, by consecutive numbers."""
        self._arrays.update(enumerate(arrays, first))

    def free(self, numbers: Iterable[int]) -> None:
        """Forgets arrays."""
        for number in numbers:
            array = self._arrays.pop(number, None)
            if array is None:
                with self._changed:
                    # It may have come in the meantime.
                    if self._arrays.pop(number, None) is None:
                        self._freed.add(number)
            elif type(array) is PromisedArray:
                with self._changed:
                    # It may have been made in the meantime.
                    self._arrays.pop(number, None)

    def held(self) -> dict[int, Any]:
        """All arrays that are there now, by their numbers."""
        return {
            number: array
            for number, array in [*self._arrays.items()]
            if array is not ELSEWHERE and not isinstance(array, FailedArray | PromisedArray)
        }

    def begin(self, put: Put) -> None:
        """Makes room for an array."""
        try:
            self._incoming[put.array] = IncomingShards(put, self.handles)
        except MemoryError as error:
            self._finish(put.array, FailedArray(f"out of memory: {error}"))
            return
        self._finish_if_complete(put.array)

    def place(self, message: object, size: int) -> memoryview:
        """Where the bytes after a message go.

        Raises:
          MessageError: they are of no array.
        """
        if not isinstance(message, Chunk):
            raise MessageError(f"{type(message).__name__} comes with {size} bytes of an array")
        incoming = self._incoming.get(message.number)
        if incoming is None:
            if isinstance(self._arrays.get(message.number), FailedArray):
                return memoryview(bytearray(size))
            raise MessageError(f"array {message.number} was not announced")
        return incoming.reassembly.place(message, size)

    def take(self, chunk: Chunk) -> None:
        """Notes that some bytes are in their place."""
        if chunk.number in self._incoming:
            self._incoming[chunk.number].reassembly.take(chunk)
            self._finish_if_complete(chunk.number)

    def give_up(self, numbers: Iterable[int]) -> None:
        """Forgets arrays of which no more bytes come."""
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
    """How an array lies, as JAX says it."""
    devices = np.array([handles[number] for number in placement.devices], dtype=object)
    mesh = Mesh(devices.reshape(placement.mesh), placement.axis_names)
    return NamedSharding(mesh, _spec(placement))


def _spec(placement: DeviceLayout) -> PartitionSpec:
    dims = list(placement.dims)
    while dims and not dims[-1]:
        dims.pop()
    return PartitionSpec(*[axes[0] if len(axes) == 1 else axes or None for axes in dims])
