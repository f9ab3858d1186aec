"""What the sends and receipts of a plan are bound to in a worker: JAX's transfer server."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from pathways.runtime.hosts.worker.in_flight import LaunchesInFlight
from pathways.runtime.hosts.worker.steps_in_progress import PendingReceive
from pathways.runtime.local.codegen import Arrays, Kernel
from pathways.runtime.local.local_target import LocalTarget
from pathways.runtime.plan.host_program import Owners, routes_of
from pathways.runtime.plan.plan import Launch, Plan, Receive, Send, Slot, Transfer
from pathways.runtime.resources.ports import is_shared, listen_alone
from pathways.runtime.xla import transfer

_LARGE = 1 << 20
"""Bytes from which on arrays have a connection of their own: what is small need not wait behind them."""


_NUMBERS = 1 << 63
"""Where the first numbers of runs begin anew: JAX's have 64 bits."""


class PeerError(RuntimeError):
    """Another host is lost."""


class Peers:
    """The connections to other workers, one for small arrays and one for large ones.

    Args:
      client: the client of JAX whose devices give and take.
      address: that of this machine.
      ports: the first and the last port to listen on; None for any.

    Attributes:
      server: JAX's transfer server, alone on its port.
      address: its address and port.
      lost: the addresses of those that are lost.

    Raises:
      OSError: all ports are taken.
    """

    def __init__(self, client: Any, address: str, ports: tuple[int, int] | None) -> None:
        self.server = listen_alone(
            address, ports, lambda port: transfer.start_server(client, f"{address}:{port}")
        )
        self.address: str = self.server.address()
        self.lost: set[str] = set()
        self._connections: dict[tuple[str, bool], Any] = {}

    def connection(self, address: str, nbytes: int) -> Any:
        """The connection for arrays of a size from a worker; see `WorkerHandle.data_address`."""
        key = address, nbytes >= _LARGE
        if key not in self._connections:
            self._connections[key] = self.server.connect(address.partition("#")[0])
        return self._connections[key]

    def shared(self) -> str | None:
        """The error that another process has come to listen on the port; None while none has.

        Those of this package stay away, but not any that uses JAX's transfer server.
        """
        address, _, port = self.address.rpartition(":")
        if not is_shared(address, int(port)):
            return None
        return f"another process listens on {self.address} too, and could get what is asked of this one"

    def lose(self, addresses: Iterable[str]) -> None:
        """Nothing more comes from some workers: what was asked for is an error."""
        self.lost.update(addresses)
        for key, connection in [*self._connections.items()]:
            if key[0] in self.lost:
                transfer.poison(connection)
                self._connections.pop(key, None)


@dataclasses.dataclass(frozen=True)
class TransferIds:
    """The numbers under which a program sends arrays from host to host; all its hosts have the same.

    Nobody can guess them, and no two hosts send under the same one: a process that is pulled from by mistake
    has nothing under the number, so that its arrays are never taken for those of another one.

    Attributes:
      base: a random number, which this program has alone.
      stride: how many transfers a run has at most.
      hosts: how many hosts there are.
    """

    base: int
    stride: int
    hosts: int

    def first(self, run: int) -> int:
        """The first number of a run."""
        return (self.base + run * self.stride * self.hosts * self.hosts) % _NUMBERS

    def offset(self, index: int, source: int, target: int) -> int:
        """After that, the number of what a host sends to another one in a transfer."""
        return (index * self.hosts + source) * self.hosts + target


class WorkerTarget(LocalTarget):
    """A `codegen.HostTarget` of the devices of this process.

    Args:
      *local: of a `LocalTarget`.
      peers: the connections to other workers.
      addresses: the data address of each host.
      owners: the host of each device of each slice of the program.
      host: the number of this host.
      numbers: those under which arrays are sent.
      in_flight: the launches of all programs of this process.
      is_shared: whether other hosts have a part of the slices, and meet this one in its launches.

    Attributes:
      tokens: those of the launches of this step that other hosts have a part of.
      missed: why something that another host was to send did not come; None while all has. Hosts that share
        a slice go on with zeros in its place: a launch that one of them leaves out is one in which the others
        meet a later one of it, and compute nonsense or wait for ever.
    """

    def __init__(
        self,
        *local: Any,
        peers: Peers,
        addresses: Mapping[int, str],
        owners: Owners,
        host: int,
        numbers: TransferIds,
        in_flight: LaunchesInFlight,
        is_shared: bool,
    ) -> None:
        super().__init__(*local)
        self._peers = peers
        self._addresses = addresses
        self._owners = owners
        self._host = host
        self._numbers = numbers
        self._first = numbers.first(0)
        self._in_flight = in_flight
        self._is_shared = is_shared
        self._received = _received(self._plan) if is_shared else frozenset()
        self.tokens: list[Any] = []
        self.missed: str | None = None
        self._sent: set[int] = set()
        self._asked: list[PendingReceive] = []
        self._poisons = {
            step.index: self._poison(step) for step in self._plan.steps if isinstance(step, Send)
        }

    def begin(self, run: int, asked: list[PendingReceive]) -> None:
        """Begins a step: what is sent and asked for from now on has its numbers.

        Args:
          run: the number of the step.
          asked: gets what it asks for.
        """
        self._first = self._numbers.first(run)
        self._asked = asked
        self._sent.clear()
        self.tokens = []
        self.missed = None

    def peers(self) -> set[int]:
        """The hosts that arrays are exchanged with."""
        slices = {
            slice
            for step in self._plan.steps
            if isinstance(step, Send | Receive)
            for slice in (step.src, step.dst)
        }
        return {host for slice in slices for host in self._owners[slice]} - {self._host}

    def kernel(self, launch: Launch) -> Kernel:
        """See `LocalTarget.kernel`."""
        kernel = super().kernel(launch)
        received = tuple(n for n, slot in enumerate(launch.operands) if slot in self._received)
        key = "on hosts", id(kernel), launch.slice, received
        if key not in self._kernels:
            self._kernels[key] = self._on_hosts(launch, kernel, received)
        return self._kernels[key]

    def _on_hosts(self, launch: Launch, kernel: Kernel, received: Sequence[int]) -> Kernel:
        """A launch, with what hosts add to it: operands that come from other hosts, and tokens."""
        execute, keepers = kernel.execute, []
        if received:
            execute = self._with_received(launch, execute, received)
        if kernel.handlers is not None:
            if len(self._devices[launch.slice]) > 1:
                keepers.append(self._in_flight.keeper(self._devices[launch.slice]))
            if self._is_shared:
                keepers.append(lambda token: self.tokens.append(token))
            if kernel.keep_token is not None:
                keepers.append(kernel.keep_token)

        def keep(token: Any) -> None:
            for keeper in keepers:
                keeper(token)

        keep_token = keep if len(keepers) > 1 else next(iter(keepers), None)
        return dataclasses.replace(kernel, execute=execute, keep_token=keep_token)

    def _with_received(
        self, launch: Launch, execute: Callable[..., Any], received: Sequence[int]
    ) -> Callable[..., Any]:
        """A launch that waits for operands which come from other hosts."""
        waits = [(n, self._arrival(launch.operands[n], launch.slice)) for n in received]

        def launched(operands: Arrays, *options: Any) -> Any:
            for n, arrived in waits:
                operands[n] = arrived(operands[n])
            return execute(operands, *options)

        return launched

    def _arrival(self, slot: Slot, slice: str) -> Callable[[Any], Any]:
        """Waits for what is in a slot; zeros when it does not come."""
        (make,) = self._makers((slot,))
        shapes = [self._shape(slot, device) for device in self._devices[slice]]

        def arrived(array: Any) -> Any:
            try:
                return jax.block_until_ready(array)
            except Exception as error:
                self.missed = self.missed or str(error)
                return make([_zeros(shape) for shape in shapes])

        return arrived

    def finish(self, result: int, slice: str) -> Callable[[Any], Any] | None:
        """See `LocalTarget.finish`."""
        finish = super().finish(result, slice)
        slot = self._plan.results[result].slots[slice]
        if slot not in self._received:
            return finish
        arrived = self._arrival(slot, slice)
        return arrived if finish is None else lambda array: finish(arrived(array))

    def poison(self, error: str) -> None:
        """Sends an error in the place of all that the step has not sent."""
        for index, send in self._poisons.items():
            if index not in self._sent:
                send(error)

    def cancel(self, run: int, hosts: Container[int]) -> None:
        """Keeps nothing more that a run has sent to some hosts, which will not fetch it."""
        first = self._numbers.first(run)
        for step in self._plan.steps:
            if isinstance(step, Send):
                for host in self._picks(step):
                    if host in hosts:
                        transfer.cancel(self._peers.server, first + self._sent_as(step, host))

    def send(self, send: Send) -> Callable[[Arrays], None]:
        """How to give arrays to other hosts; takes one for each operand, and returns at once."""
        readers = self._readers(send.operands)
        size = sum(self._plan.shard_type(slot).nbytes for slot in send.operands)
        if not size:
            return lambda arrays: None
        copies = self._copier(send) if send.copy else None
        picks = [(self._sent_as(send, host), own) for host, own in self._picks(send).items()]

        def give(arrays: Arrays) -> None:
            if copies is not None:
                arrays = copies(arrays)
            shards = [read(array) for read, array in zip(readers, arrays, strict=True)]
            self._sent.add(send.index)
            for offset, own in picks:
                self._peers.server.await_pull(
                    self._first + offset, [shards[operand][device] for operand, device in own]
                )

        return give

    def receive(self, receive: Receive) -> Callable[[], Arrays]:
        """How to ask other hosts for arrays; returns one for each result at once, which may be pending."""
        makers = self._makers(receive.results)
        shapes = self._shapes(receive)
        size = sum(math.prod(shape.shape) * shape.dtype.itemsize for shape in shapes)
        count = len(self._devices[receive.dst])
        if not size:
            # An array without elements never arrives. Anew each time: a launch may take it over.
            return lambda: [
                make([_zeros(shape) for shape in shapes[n * count : (n + 1) * count]])
                for n, make in enumerate(makers)
            ]
        pulls = [
            (
                host,
                address,
                self._peers.connection(address, size),
                self._numbers.offset(receive.index, host, self._host),
                wanted,
                [shapes[n] for n in wanted],
            )
            for host, wanted in self._wanted(receive).items()
            for address in [self._addresses[host]]
        ]
        lost = self._peers.lost

        def take() -> Arrays:
            shards: list[Any] = [None] * len(shapes)
            for host, address, connection, offset, wanted, of_host in pulls:
                if address not in lost:
                    pulled = connection.pull(self._first + offset, of_host)
                elif self._is_shared:
                    pulled = [transfer.error_array(shape, f"host {host} is lost") for shape in of_host]
                else:
                    raise PeerError(f"host {host} is lost")
                for n, shard in zip(wanted, pulled, strict=True):
                    shards[n] = shard
            arrays = [make(shards[n * count : (n + 1) * count]) for n, make in enumerate(makers)]
            # An array is kept in shards where its readers want it so.
            first = [array[0] if isinstance(array, list | tuple) else array for array in arrays]
            self._asked.append(PendingReceive(receive, *pulls[0][:2], first))
            return arrays

        return take

    def _sent_as(self, send: Send, host: int) -> int:
        """The number, after the first of a run, of what another host gets of this one."""
        return self._numbers.offset(send.index, self._host, host)

    def _shapes(self, receive: Receive) -> list[jax.ShapeDtypeStruct]:
        """What this host gets, result by result and device by device."""
        return [
            self._shape(slot, device) for slot in receive.results for device in self._devices[receive.dst]
        ]

    def _wanted(self, receive: Receive) -> dict[int, list[int]]:
        """Which of these each host sends."""
        owners = self._owners[receive.src]
        targets = self._owners[receive.dst]
        routes = routes_of(receive, len(targets))
        own = [source for target, _, source in routes if targets[target] == self._host]
        wanted: dict[int, list[int]] = {}
        for n, source in enumerate(own):
            wanted.setdefault(owners[source], []).append(n)
        return wanted

    def _picks(self, send: Send) -> dict[int, list[tuple[int, int]]]:
        """What each host gets of this one, in its order: operands, and which of the devices here have it."""
        here = [n for n, owner in enumerate(self._owners[send.src]) if owner == self._host]
        targets = self._owners[send.dst]
        picks: dict[int, list[tuple[int, int]]] = {}
        for target, operand, source in routes_of(send, len(targets)):
            if source in here:
                picks.setdefault(targets[target], []).append((operand, here.index(source)))
        return picks

    def _copier(self, send: Send) -> Callable[[Arrays], Arrays]:
        if not self._is_here(send.operands[0]):
            return self._shard_by_shard(send.operands, send.operands, send.src)
        devices = [transfer.device_list(self._devices[send.src])] * len(send.operands)
        shardings = [self._slots.shardings[slot] for slot in send.operands]
        return lambda arrays: transfer.copied(arrays, devices, shardings)

    def _poison(self, send: Send) -> Callable[[str], None]:
        """Sends errors in the place of arrays."""
        devices = self._devices[send.src]
        shapes = {
            host: [self._shape(send.operands[operand], devices[device]) for operand, device in own]
            for host, own in self._picks(send).items()
        }

        def give(error: str) -> None:
            for host, own in shapes.items():
                if sum(math.prod(shape.shape) for shape in own):
                    arrays = [transfer.error_array(shape, error) for shape in own]
                    number = self._first + self._sent_as(send, host)
                    self._peers.server.await_pull(number, arrays)

        return give

    def _shape(self, slot: Slot, device: jax.Device) -> jax.ShapeDtypeStruct:
        shard, aval = self._plan.shard_type(slot), self._slots.avals[slot]
        return jax.ShapeDtypeStruct(shard.shape, aval.dtype, sharding=SingleDeviceSharding(device))


def _zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    with jax.enable_x64(True):
        return jax.device_put(jax.numpy.zeros(shape.shape, shape.dtype), shape.sharding)


def _received(plan: Plan) -> frozenset[Slot]:
    """The slots of what comes from other hosts, and of its copies."""
    received: set[Slot] = set()
    for step in plan.steps:
        if isinstance(step, Receive) or (
            isinstance(step, Transfer) and not received.isdisjoint(step.operands)
        ):
            received.update(step.results)
    return frozenset(received)
