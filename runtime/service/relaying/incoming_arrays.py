"""Relay of the arrays that clients send to the workers of an island, chunk by chunk as they arrive."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.protocol.messages import Chunk, DeviceLayout, Free, Message, MessageError, Put
from pathways.runtime.hosts.protocol.shards import dtype_of
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.service.protocol.service_messages import ForHost
from pathways.runtime.service.sharing.memory import DeviceBytes

_DEVICE_MEMORY = (None, "device", "unpinned_host")
"""Kinds of memory that count as memory of devices; CPU devices have the latter."""

_MAX_ELEMENTS = 1 << 48
"""Limit on the elements of an array; a larger shape is invalid."""


class IncomingPut:
    """Array that a client sends to an island.

    Args:
      gang: the workers.
      put: its first announcement.

    Attributes:
      gang: the workers.
      left: the bytes that each host has not been sent; -1 before its announcement.
      memory: its bytes on the devices of the island.
      bytes: its bytes, all shards together.

    Raises:
      MessageError: the shape, the layout or the dtype is invalid.
    """

    def __init__(self, gang: HostGang, put: Put) -> None:
        self.gang = gang
        self.left = {host.index: -1 for host in gang.hosts}
        self._bytes = shard_bytes(f"array {put.array}", put.shape, dtype_of(put), put.placement)
        self.bytes = self._bytes * len(put.placement.devices)
        # In the memory of the devices, not of their host.
        devices = put.placement.devices if put.placement.memory_kind in _DEVICE_MEMORY else ()
        self.memory: DeviceBytes = tuple((device, self._bytes) for device in devices)

    def announce(self, host: int, put: Put) -> None:
        """Adds the announcement for a host.

        Raises:
          MessageError: its shards do not match its devices.
        """
        if len(put.shards) != len(put.placement.devices):
            raise MessageError(f"array {put.array} has {len(put.shards)} shards for {put.placement.devices}")
        count = max(put.shards, default=-1) + 1
        if any(not -1 <= shard < len(put.shards) for shard in put.shards):
            raise MessageError(f"array {put.array} has invalid shards: {put.shards}")
        self.left[host] = count * self._bytes

    def add(self, host: int, chunk: Chunk) -> None:
        """Counts a chunk as sent to a host.

        Raises:
          MessageError: the chunk exceeds the array.
        """
        exceeds_shard = chunk.shard < 0 or chunk.offset < 0 or chunk.offset + chunk.size > self._bytes
        # Before the announcement `left` is -1, less than any size.
        if exceeds_shard or self.left[host] < chunk.size:
            raise MessageError(f"array {chunk.number} is smaller than the data sent for it")
        self.left[host] -= chunk.size

    def is_complete(self) -> bool:
        """Returns whether all of it was sent to all hosts."""
        return not any(self.left.values())


def shard_bytes(name: str, array_shape: Sequence[int], dtype: np.dtype[Any], layout: DeviceLayout) -> int:
    """Returns the size in bytes of each shard of an array.

    Args:
      name: names the array, for messages.
      array_shape: its shape.

    Raises:
      MessageError: the shape or the layout is invalid.
    """
    sizes = dict(zip(layout.axis_names, layout.mesh, strict=True))
    shape = list(array_shape)
    if any(size < 0 for size in shape) or math.prod(shape) > _MAX_ELEMENTS or len(layout.dims) > len(shape):
        raise MessageError(f"{name} has invalid shape {tuple(array_shape)}")
    for dim, axes in enumerate(layout.dims):
        blocks = math.prod(sizes.get(axis, 0) for axis in axes)
        if not blocks or shape[dim] % blocks:
            raise MessageError(f"{name} of shape {tuple(array_shape)} cannot be cut along {layout.dims}")
        shape[dim] //= blocks
    return math.prod(shape) * dtype.itemsize


class IncomingArrays:
    """Arrays that one client sends, which the thread that receives them relays to workers.

    Args:
      is_of_client: returns whether a number is of an array of the client.
      pool: the workers.
      arrived: is called with the island, the number and the bytes of an array that was sent to its workers
        entirely.
      freed: is called with the island and the number of an array that the client frees after it arrived.
      lose: is called with workers whose connections were closed.
      admit: waits until an array may be sent to its island, and returns whether it may; by default all may.
    """

    def __init__(
        self,
        is_of_client: Callable[[int], bool],
        pool: WorkerPool,
        arrived: Callable[[HostGang, int, int], None],
        freed: Callable[[HostGang, int], None],
        lose: Callable[[WorkerHandle, ConnectionEnded], None],
        admit: Callable[[HostGang, int, DeviceBytes], bool] = lambda *_: True,
    ) -> None:
        self._admit = admit
        # The arrays that may not be sent, until the client frees them.
        self._denied: set[int] = set()
        self._is_of_client = is_of_client
        self._pool = pool
        self._arrived = arrived
        self._freed = freed
        self._lose = lose
        self._puts: dict[int, IncomingPut] = {}
        # The bytes of the last chunk.
        self._data = bytearray()

    def place(self, message: object, size: int) -> memoryview:
        """Returns a buffer for the bytes after a message.

        Raises:
          MessageError: the message has no bytes of an array.
        """
        if not (isinstance(message, ForHost) and isinstance(message.message, Chunk)):
            raise MessageError(f"unexpected {size} bytes of an array after message {type(message).__name__}")
        self._data = bytearray(size)
        return memoryview(self._data)

    def handle(self, message: object) -> None:
        """Handles a message of the client.

        Raises:
          MessageError: the message is invalid.
        """
        if not isinstance(message, ForHost):
            raise MessageError(f"unexpected message {type(message).__name__} from a client")
        host = self._pool.host(message.host)
        # Messages for workers that were lost have no effect.
        is_current = host.gang.life.key.start == message.start
        match message.message:
            case Put() as put:
                self._check_own(put.array)
                if is_current:
                    self._announce(host, put)
            case Chunk() as chunk:
                incoming = self._puts.get(chunk.number)
                if is_current and incoming is not None and incoming.gang is host.gang:
                    if chunk.size != len(self._data):
                        raise MessageError(f"array {chunk.number} has no chunk of {chunk.size} bytes")
                    incoming.add(host.index, chunk)
                    self._relay(host, chunk, memoryview(self._data))
                    self._finish_if_complete(chunk.number, incoming)
            case Free() as free:
                for number in free.arrays:
                    self._check_own(number)
                    self._denied.discard(number)
                    canceled = self._puts.pop(number, None)
                    if canceled is not None:
                        for each in canceled.gang.hosts:
                            self._relay(each, Free((number,)))
                    elif is_current:
                        # It has arrived: the scheduler knows it, and has it freed in order.
                        self._freed(host.gang, number)
            case other:
                raise MessageError(f"unexpected message {type(other).__name__} from a client")

    def close(self) -> None:
        """Frees the incomplete arrays on workers."""
        for number, put in self._puts.items():
            for host in put.gang.hosts:
                with contextlib.suppress(ConnectionEnded):
                    host.arrays.send(Free((number,)))

    def _check_own(self, number: int) -> None:
        if not self._is_of_client(number):
            raise MessageError(f"array {number} is not one of this client")

    def _announce(self, host: WorkerHandle, put: Put) -> None:
        check_layout(host.gang, put.placement)
        if put.array in self._denied:
            return
        incoming = self._puts.get(put.array)
        if incoming is None or incoming.gang is not host.gang:
            incoming = IncomingPut(host.gang, put)
            if not self._admit(host.gang, put.array, incoming.memory):
                # Its chunks have no effect.
                self._denied.add(put.array)
                return
            self._puts[put.array] = incoming
        incoming.announce(host.index, put)
        self._relay(host, put)
        self._finish_if_complete(put.array, incoming)

    def _relay(self, host: WorkerHandle, message: Message, data: memoryview | None = None) -> None:
        try:
            if data is None:
                host.arrays.send(message)
            else:
                host.arrays.send_with(message, data)
        except ConnectionEnded as error:
            self._lose(host, error)

    def _finish_if_complete(self, number: int, incoming: IncomingPut) -> None:
        if incoming.is_complete():
            del self._puts[number]
            self._arrived(incoming.gang, number, incoming.bytes)


def check_layout(gang: HostGang, layout: DeviceLayout) -> None:
    """Checks that a layout is valid on an island.

    Raises:
      MessageError: the island has no such devices, or the mesh does not match them.
    """
    devices = {device for host in gang.hosts for device in host.ready.devices}
    axes = [axis for dim in layout.dims for axis in dim]
    is_mesh = (
        len(layout.mesh) == len(layout.axis_names) == len(set(layout.axis_names))
        and all(size > 0 for size in layout.mesh)
        and math.prod(layout.mesh) == len(layout.devices) == len(set(layout.devices))
    )
    if not is_mesh or not devices.issuperset(layout.devices):
        raise MessageError(f"{gang.name} has no such mesh: {layout}")
    if len(set(axes)) < len(axes) or not set(layout.axis_names).issuperset(axes):
        raise MessageError(f"invalid layout of an array: {layout}")
