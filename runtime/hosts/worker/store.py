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


@dataclasses.dataclass(frozen=True)
class Poison:
    """What stands for an array that a failed step should have made."""

    error: str


ELSEWHERE = object()
"""What stands for an array that other hosts of the island have alone."""


class Incoming:
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
        mesh = Mesh(np.array(devices, dtype=object).reshape(placement.mesh), placement.axis_names)
        self._placed = [
            (shard, device) for shard, device in zip(put.shards, devices, strict=True) if shard >= 0
        ]
        self._sharding = NamedSharding(mesh, _spec(placement))
        dtype = jax.numpy.dtype(put.dtype)
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


class Store:
    """The arrays of a worker, by their numbers.

    Steps come on another connection than arrays. So a step may ask for one that is still coming, and one
    may be freed before it has come.

    Args:
      handles: JAX's devices, by their ids.
    """

    def __init__(self, handles: Mapping[int, jax.Device]) -> None:
        self._handles = handles
        self._arrays: dict[int, Any] = {}
        self._incoming: dict[int, Incoming] = {}
        # Those that were freed before they had come.
        self._freed: set[int] = set()
        self._changed = threading.Condition()

    def get(self, number: int) -> Any:
        """An array, or the `Poison` in its place; waits while it is coming from the controller."""
        array = self._arrays.get(number)
        if array is None:
            with self._changed:
                self._changed.wait_for(lambda: number in self._arrays)
                array = self._arrays[number]
        return array

    def add(self, first: int, arrays: Iterable[Any]) -> None:
        """Keeps arrays that a step has made, by consecutive numbers."""
        self._arrays.update(enumerate(arrays, first))

    def free(self, numbers: Iterable[int]) -> None:
        """Forgets arrays."""
        for number in numbers:
            if self._arrays.pop(number, None) is None:
                with self._changed:
                    # It may have come in the meantime.
                    if self._arrays.pop(number, None) is None:
                        self._freed.add(number)

    def held(self) -> list[Any]:
        """All arrays that are there now."""
        return [
            array
            for array in [*self._arrays.values()]
            if array is not ELSEWHERE and not isinstance(array, Poison)
        ]

    def begin(self, put: Put) -> None:
        """Makes room for an array."""
        try:
            self._incoming[put.array] = Incoming(put, self._handles)
        except MemoryError as error:
            self._finish(put.array, Poison(f"there is no memory for it: {error}"))
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
            if isinstance(self._arrays.get(message.number), Poison):
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
            array = Poison(str(error))
        self._finish(number, array)

    def _finish(self, number: int, array: Any) -> None:
        with self._changed:
            if number in self._freed:
                self._freed.discard(number)
                return
            self._arrays[number] = array
            self._changed.notify_all()


def _spec(placement: DeviceLayout) -> PartitionSpec:
    dims = list(placement.dims)
    while dims and not dims[-1]:
        dims.pop()
    return PartitionSpec(*[axes[0] if len(axes) == 1 else axes or None for axes in dims])
