"""What the sends and receipts of a plan are bound to in a worker: JAX's transfer server."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from pathways.runtime.hosts.listening import free_port
from pathways.runtime.hosts.underway import Asked
from pathways.runtime.local.codegen import Arrays
from pathways.runtime.local.target import LocalTarget
from pathways.runtime.plan.plan import Receive, Send
from pathways.runtime.xla import transfer

_LARGE = 1 << 20
"""Bytes from which on arrays have a connection of their own: what is small need not wait behind them."""


class Peers:
    """The connections to other workers, one for small arrays and one for large ones.

    Args:
      client: the client of JAX whose devices give and take.
      address: that of this machine.
      ports: the first and the last port to listen on; None for any.
    """

    def __init__(self, client: Any, address: str, ports: tuple[int, int] | None) -> None:
        port = 0 if ports is None else free_port(address, ports)
        self.server = transfer.start_server(client, f"{address}:{port}")
        self.address: str = self.server.address()
        self._connections: dict[tuple[str, bool], Any] = {}

    def connection(self, address: str, nbytes: int) -> Any:
        """The connection for arrays of a size from a worker."""
        key = address, nbytes >= _LARGE
        if key not in self._connections:
            self._connections[key] = self.server.connect(address)
        return self._connections[key]


class WorkerTarget(LocalTarget):
    """A `codegen.HostTarget` of the devices of this process.

    Args:
      *local: of a `LocalTarget`.
      peers: the connections to other workers.
      addresses: the data address of each host.
      base: the number of what is sent first; both ends know it.
      stride: how many transfers between hosts a step has.
    """

    def __init__(
        self, *local: Any, peers: Peers, addresses: Mapping[int, str], base: int, stride: int
    ) -> None:
        super().__init__(*local)
        self._peers = peers
        self._addresses = addresses
        self._first = self._base = base
        self._stride = stride
        self._sent: set[int] = set()
        self._asked: list[Asked] = []
        self._poisons = {
            step.index: self._poison(step) for step in self._plan.steps if isinstance(step, Send)
        }

    def begin(self, run: int, asked: list[Asked]) -> None:
        """Begins a step: what is sent and asked for from now on has its numbers.

        Args:
          run: the number of the step.
          asked: gets what it asks for.
        """
        self._first = self._base + run * self._stride
        self._asked = asked
        self._sent.clear()

    def peers(self) -> set[int]:
        """The hosts that arrays are exchanged with."""
        return {step.peer for step in self._plan.steps if isinstance(step, Send | Receive)}

    def poison(self, error: str) -> None:
        """Sends an error in the place of all that the step has not sent."""
        for index, send in self._poisons.items():
            if index not in self._sent:
                send(error)

    def send(self, send: Send) -> Callable[[Arrays], None]:
        """How to give arrays to another host; takes one for each operand, and returns at once."""
        picks = self._picks(send)
        readers = self._readers(send.operands)
        size = sum(self._plan.shard_type(slot).nbytes for slot in send.operands)
        if not size:
            return lambda arrays: None
        copies = self._copier(send) if send.copy else None

        def give(arrays: Arrays) -> None:
            if copies is not None:
                arrays = copies(arrays)
            shards = [read(array) for read, array in zip(readers, arrays, strict=True)]
            self._sent.add(send.index)
            self._peers.server.await_pull(
                self._first + send.index, [shards[operand][device] for operand, device in picks]
            )

        return give

    def receive(self, receive: Receive) -> Callable[[], Arrays]:
        """How to ask another host for arrays; returns one for each result at once, which may be pending."""
        devices = self._devices[receive.dst]
        makers = self._makers(receive.results)
        shapes = [
            jax.ShapeDtypeStruct(shard.shape, aval.dtype, sharding=SingleDeviceSharding(device))
            for slot in receive.results
            for shard, aval in [(self._plan.shard_type(slot), self._slots.avals[slot])]
            for device in devices
        ]
        size = sum(math.prod(shape.shape) * shape.dtype.itemsize for shape in shapes)
        count = len(devices)
        if not size:
            # An array without elements never arrives. Anew each time: a launch may take it over.
            return lambda: [
                make([_empty(shape) for shape in shapes[n * count : (n + 1) * count]])
                for n, make in enumerate(makers)
            ]
        connection = self._peers.connection(self._addresses[receive.peer], size)

        def take() -> Arrays:
            shards = connection.pull(self._first + receive.index, shapes)
            arrays = [make(shards[n * count : (n + 1) * count]) for n, make in enumerate(makers)]
            # An array is kept in shards where its readers want it so.
            first = [array[0] if isinstance(array, list | tuple) else array for array in arrays]
            self._asked.append(Asked(receive, first))
            return arrays

        return take

    def _picks(self, send: Send) -> Sequence[tuple[int, int]]:
        """For each shard that the other host gets, in its order, the operand and the device that have it."""
        if send.routes is not None:
            return [pick for result in send.routes for pick in result]
        return [(0, device) for device in range(len(self._devices[send.src]))]

    def _copier(self, send: Send) -> Callable[[Arrays], Arrays]:
        devices = [transfer.device_list(self._devices[send.src])] * len(send.operands)
        shardings = [self._slots.shardings[slot] for slot in send.operands]
        return lambda arrays: transfer.copied(arrays, devices, shardings)

    def _poison(self, send: Send) -> Callable[[str], None]:
        """Sends errors in the place of arrays."""
        devices = self._devices[send.src]
        shapes = []
        for operand, device in self._picks(send):
            slot = send.operands[operand]
            shard, aval = self._plan.shard_type(slot), self._slots.avals[slot]
            sharding = SingleDeviceSharding(devices[device])
            shapes.append(jax.ShapeDtypeStruct(shard.shape, aval.dtype, sharding=sharding))

        def give(error: str) -> None:
            if sum(math.prod(shape.shape) for shape in shapes):
                arrays = [transfer.error_array(shape, error) for shape in shapes]
                self._peers.server.await_pull(self._first + send.index, arrays)

        return give


def _empty(shape: jax.ShapeDtypeStruct) -> jax.Array:
    with jax.enable_x64(True):
        return jax.device_put(jax.numpy.zeros(shape.shape, shape.dtype), shape.sharding)
