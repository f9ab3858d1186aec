"""Arrays that clients send: passed on to the workers of an island, piece by piece, as they come."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.protocol.messages import Chunk, DeviceLayout, Free, Message, MessageError, Put
from pathways.runtime.hosts.protocol.service_messages import ForHost
from pathways.runtime.hosts.protocol.shards import dtype_of
from pathways.runtime.hosts.protocol.wire import ConnectionEnded

_MOST_ELEMENTS = 1 << 48


class IncomingPut:
    """An array that a client sends to an island.

    Args:
      gang: the workers.
      put: what the client says of it.

    Raises:
      MessageError: it cannot be.
    """

    def __init__(self, gang: HostGang, put: Put) -> None:
        self.gang = gang
        self.left = {host.index: -1 for host in gang.hosts}
        self._bytes = _shard_bytes(put)

    def begin(self, host: int, put: Put) -> None:
        """The announcement for a host; see `IncomingPut`."""
        if len(put.shards) != len(put.placement.devices):
            raise MessageError(f"array {put.array} has {len(put.shards)} shards for {put.placement.devices}")
        count = max(put.shards, default=-1) + 1
        if any(not -1 <= shard < len(put.shards) for shard in put.shards):
            raise MessageError(f"array {put.array} has no such shards: {put.shards}")
        self.left[host] = count * self._bytes

    def take(self, host: int, chunk: Chunk) -> None:
        """Notes that bytes went to a host.

        Raises:
          MessageError: they are not of this array.
        """
        if chunk.shard < 0 or chunk.offset < 0 or chunk.offset + chunk.size > self._bytes:
            raise MessageError(f"array {chunk.number} is smaller than what comes of it")
        if self.left[host] < chunk.size:
            raise MessageError(f"array {chunk.number} is smaller than what comes of it")
        self.left[host] -= chunk.size

    def is_whole(self) -> bool:
        """Whether all of it went to all hosts."""
        return not any(self.left.values())


def _shard_bytes(put: Put) -> int:
    """The bytes of one of its shards."""
    layout = put.placement
    sizes = dict(zip(layout.axis_names, layout.mesh, strict=True))
    itemsize = dtype_of(put).itemsize
    shape = list(put.shape)
    if any(size < 0 for size in shape) or math.prod(shape) > _MOST_ELEMENTS or len(layout.dims) > len(shape):
        raise MessageError(f"array {put.array} cannot have the shape {put.shape}")
    for dim, axes in enumerate(layout.dims):
        parts = math.prod(sizes.get(axis, 0) for axis in axes)
        if not parts or shape[dim] % parts:
            raise MessageError(f"array {put.array} of shape {put.shape} cannot be cut along {layout.dims}")
        shape[dim] //= parts
    return math.prod(shape) * itemsize


class IncomingArrays:
    """The arrays that one client sends. Its thread that listens for them alone is here.

    Args:
      owns: says whether a number is one of the client's.
      pool: the workers.
      arrived: is called with the island and the number of an array of which all is on its way.
      freed: is called with those of an array that has arrived and that the client frees all the same.
      lose: is told of workers whose connections have ended.
    """

    def __init__(
        self,
        owns: Callable[[int], bool],
        pool: WorkerPool,
        arrived: Callable[[HostGang, int], None],
        freed: Callable[[HostGang, int], None],
        lose: Callable[[WorkerHandle, ConnectionEnded], None],
    ) -> None:
        self._owns = owns
        self._pool = pool
        self._arrived = arrived
        self._freed = freed
        self._lose = lose
        self._puts: dict[int, IncomingPut] = {}
        # The bytes that came last.
        self._piece = bytearray()

    def place(self, message: object, size: int) -> memoryview:
        """Where the bytes after a message go.

        Raises:
          MessageError: they are of no array.
        """
        if not (isinstance(message, ForHost) and isinstance(message.message, Chunk)):
            raise MessageError(f"{type(message).__name__} comes with {size} bytes of an array")
        self._piece = bytearray(size)
        return memoryview(self._piece)

    def take(self, message: object) -> None:
        """Takes what the client says.

        Raises:
          MessageError: it makes no sense.
        """
        if not isinstance(message, ForHost):
            raise MessageError(f"a client does not say {type(message).__name__} here")
        host = self._pool.host(message.host)
        is_there = host.gang.life.key.start == message.start
        match message.message:
            case Put() as put:
                self._check_own(put.array)
                if is_there:
                    self._begin(host, put)
            case Chunk() as chunk:
                incoming = self._puts.get(chunk.number)
                if is_there and incoming is not None and incoming.gang is host.gang:
                    if chunk.size != len(self._piece):
                        raise MessageError(f"array {chunk.number} has no piece of {chunk.size} bytes")
                    incoming.take(host.index, chunk)
                    self._relay(host, chunk, memoryview(self._piece))
                    self._note_if_whole(chunk.number, incoming)
            case Free() as free:
                for number in free.arrays:
                    self._check_own(number)
                    canceled = self._puts.pop(number, None)
                    if canceled is not None:
                        for each in canceled.gang.hosts:
                            self._relay(each, Free((number,)))
                    elif is_there:
                        # It has arrived, so that the scheduler knows of it.
                        self._freed(host.gang, number)
            case other:
                raise MessageError(f"a client does not say {type(other).__name__} here")

    def close(self) -> None:
        """Tells workers of what does not come any more."""
        for number, put in self._puts.items():
            for host in put.gang.hosts:
                with contextlib.suppress(ConnectionEnded):
                    host.arrays.send(Free((number,)))

    def _check_own(self, number: int) -> None:
        if not self._owns(number):
            raise MessageError(f"{number} is not the number of an array of this client")

    def _begin(self, host: WorkerHandle, put: Put) -> None:
        check_layout(host.gang, put.placement)
        incoming = self._puts.get(put.array)
        if incoming is None or incoming.gang is not host.gang:
            incoming = self._puts[put.array] = IncomingPut(host.gang, put)
        incoming.begin(host.index, put)
        self._relay(host, put)
        self._note_if_whole(put.array, incoming)

    def _relay(self, host: WorkerHandle, message: Message, data: memoryview | None = None) -> None:
        try:
            if data is None:
                host.arrays.send(message)
            else:
                host.arrays.send_with(message, data)
        except ConnectionEnded as error:
            self._lose(host, error)

    def _note_if_whole(self, number: int, incoming: IncomingPut) -> None:
        if incoming.is_whole():
            del self._puts[number]
            self._arrived(incoming.gang, number)


def check_layout(gang: HostGang, layout: DeviceLayout) -> None:
    """Checks that arrays may lie so on an island.

    Raises:
      MessageError: there are no such devices, or they form no such mesh.
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
        raise MessageError(f"no array is laid out like this: {layout}")
