"""Target that executes the sends and receives of a host's plan, over JAX's transfer server."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, override

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
"""Size in bytes from which on arrays use a second connection, so that small ones do not queue behind them."""

_NUMBERS = 1 << 63
"""Modulus of the first ids of runs, which leaves room for the offsets: ids of JAX have 64 bits."""


class PeerError(RuntimeError):
    """Error of a step that receives from a lost host."""


class Peers:
    """Data connections to other workers, one for small arrays and one for large ones.

    Args:
      client: the PJRT client of the devices of this process.
      ports: the first and the last port to listen on; None for any.

    Attributes:
      server: JAX's transfer server, alone on its port.
      address: its address and port.
      lost: the data addresses of lost workers.

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
        """Returns the connection for arrays of a size from a worker; see `WorkerHandle.data_address`."""
        key = address, nbytes >= _LARGE
        if key not in self._connections:
            self._connections[key] = self.server.connect(address.partition("#")[0])
        return self._connections[key]

    def port_conflict(self) -> str | None:
        """Returns the error that another process listens on the same port; None if there is no such process.

        Processes of this package claim their ports, but others that use JAX's transfer server may share one.
        """
        address, _, port = self.address.rpartition(":")
        if not is_shared(address, int(port)):
            return None
        return f"another process listens on {self.address} too, and could get requests meant for this one"

    def lose(self, addresses: Iterable[str]) -> None:
        """Closes the connections to lost workers; pending receives from them become errors."""
        self.lost.update(addresses)
        # A copy of the items, because the dispatch thread may add connections meanwhile.
        for key, connection in [*self._connections.items()]:
            if key[0] in self.lost:
                transfer.poison(connection)
                self._connections.pop(key, None)


@dataclasses.dataclass(frozen=True)
class TransferIds:
    """Ids under which the hosts of a program send arrays to each other; all its hosts compute the same ones.

    Ids cannot be guessed, and no two hosts send under the same id: a pull that reaches the wrong process by
    mistake finds nothing under its id there, so it never gets an array of another transfer.

    Attributes:
      base: a random number, unique to the program.
      stride: maximum number of transfers of a run.
    """

    base: int
    stride: int
    hosts: int

    def first(self, run: int) -> int:
        """Returns the first id of a run."""
        return (self.base + run * self.stride * self.hosts * self.hosts) % _NUMBERS

    def offset(self, index: int, source: int, target: int) -> int:
        """Returns the id of a transfer from a host to another, relative to the first id of the run."""
        return (index * self.hosts + source) * self.hosts + target


class WorkerTarget(LocalTarget):
    """`codegen.HostTarget` of the devices of this process.

    Args:
      *local: the arguments of `LocalTarget`.
      peers: the connections to other workers.
      addresses: the data address of each host.
      owners: the host of each device of each slice of the program.
      numbers: the ids of transfers.
      in_flight: the launches of all programs of this process.
      is_shared: whether slices span several hosts, whose launches run collectives with this one.

    Attributes:
      tokens: the tokens of the launches of this step that other hosts take part in.
      missed: the error of an array that another host did not send; None if all arrived. Hosts that share a
        slice continue with zeros in its place: if one of them skipped a launch, the collectives of the others
        would match a later launch of it, and compute nonsense or hang.
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
        self._receives: list[PendingReceive] = []
        self._poisons = {
            step.index: self._poison(step) for step in self._plan.steps if isinstance(step, Send)
        }

    def begin(self, run: int, receives: list[PendingReceive]) -> None:
        """Begins a step: sends and receives use its ids from now on.

        Args:
          run: the number of the step.
          receives: the list to which its receives are appended.
        """
        self._first = self._numbers.first(run)
        self._receives = receives
        self._sent.clear()
        self.tokens = []
        self.missed = None

    def peers(self) -> set[int]:
        """Returns the hosts that arrays are exchanged with."""
        slices = {
            slice
            for step in self._plan.steps
            if isinstance(step, Send | Receive)
            for slice in (step.src, step.dst)
        }
        return {host for slice in slices for host in self._owners[slice]} - {self._host}

    @override
    def kernel(self, launch: Launch) -> Kernel:
        kernel = super().kernel(launch)
        received = tuple(n for n, slot in enumerate(launch.operands) if slot in self._received)
        key = "on hosts", id(kernel), launch.slice, received
        if key not in self._kernels:
            self._kernels[key] = self._on_hosts(launch, kernel, received)
        return self._kernels[key]

    def _on_hosts(self, launch: Launch, kernel: Kernel, received: Sequence[int]) -> Kernel:
        """Returns a kernel that also waits for received operands and passes on its tokens."""
        execute, token_sinks = kernel.execute, []
        if received:
            execute = self._with_received(launch, execute, received)
        if kernel.handlers is not None:
            if len(self._devices[launch.slice]) > 1:
                token_sinks.append(self._in_flight.limiter(self._devices[launch.slice]))
            if self._is_shared:
                token_sinks.append(lambda token: self.tokens.append(token))
            if kernel.keep_token is not None:
                token_sinks.append(kernel.keep_token)

        def pass_on(token: Any) -> None:
            for sink in token_sinks:
                sink(token)

        keep_token = pass_on if len(token_sinks) > 1 else next(iter(token_sinks), None)
        return dataclasses.replace(kernel, execute=execute, keep_token=keep_token)

    def _with_received(
        self, launch: Launch, execute: Callable[..., Any], received: Sequence[int]
    ) -> Callable[..., Any]:
        """Returns the `execute` of a launch that waits for its received operands."""
        waits = [(n, self._arrival(launch.operands[n], launch.slice)) for n in received]

        def execute_when_arrived(operands: Arrays, *options: Any) -> Any:
            for n, wait in waits:
                operands[n] = wait(operands[n])
            return execute(operands, *options)

        return execute_when_arrived

    def _arrival(self, slot: Slot, slice: str) -> Callable[[Any], Any]:
        """Returns a function that waits for the array of a slot, and returns zeros if it does not arrive."""
        (make,) = self._makers((slot,))
        shapes = [self._shape(slot, device) for device in self._devices[slice]]

        def wait(array: Any) -> Any:
            try:
                return jax.block_until_ready(array)
            except Exception as error:
                self.missed = self.missed or str(error)
                return make([_zeros(shape) for shape in shapes])

        return wait

    @override
    def finish(self, result: int, slice: str) -> Callable[[Any], Any] | None:
        finish = super().finish(result, slice)
        slot = self._plan.results[result].slots[slice]
        if slot not in self._received:
            return finish
        wait = self._arrival(slot, slice)
        return wait if finish is None else lambda array: finish(wait(array))

    def poison(self, error: str) -> None:
        """Sends an error in place of all arrays that the step has not sent."""
        for index, send in self._poisons.items():
            if index not in self._sent:
                send(error)

    def cancel(self, run: int, hosts: Container[int]) -> None:
        """Frees the arrays that a run has sent to lost hosts, which will not fetch them."""
        first = self._numbers.first(run)
        for step in self._plan.steps:
            if isinstance(step, Send):
                for host in self._picks(step):
                    if host in hosts:
                        transfer.cancel(self._peers.server, first + self._send_offset(step, host))

    def send(self, send: Send) -> Callable[[Arrays], None]:
        """Returns a function that offers an array for each operand to other hosts, without waiting."""
        readers = self._readers(send.operands)
        size = sum(self._plan.shard_type(slot).nbytes for slot in send.operands)
        if not size:
            return lambda arrays: None
        copies = self._copier(send) if send.copy else None
        picks = [
            (self._send_offset(send, host), shards_of_host)
            for host, shards_of_host in self._picks(send).items()
        ]

        def offer(arrays: Arrays) -> None:
            if copies is not None:
                arrays = copies(arrays)
            shards = [read(array) for read, array in zip(readers, arrays, strict=True)]
            self._sent.add(send.index)
            for offset, shards_of_host in picks:
                self._peers.server.await_pull(
                    self._first + offset, [shards[operand][device] for operand, device in shards_of_host]
                )

        return offer

    def receive(self, receive: Receive) -> Callable[[], Arrays]:
        """Returns a function that pulls arrays from other hosts, and returns one for each result at once.

        The arrays may be pending.
        """
        makers = self._makers(receive.results)
        shapes = self._shapes(receive)
        size = sum(math.prod(shape.shape) * shape.dtype.itemsize for shape in shapes)
        count = len(self._devices[receive.dst])
        if not size:
            # The transfer server does not send empty arrays. New ones each time: a launch may donate them.
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
                shards,
                [shapes[n] for n in shards],
            )
            for host, shards in self._shards_by_source(receive).items()
            for address in [self._addresses[host]]
        ]
        lost = self._peers.lost

        def pull() -> Arrays:
            shards: list[Any] = [None] * len(shapes)
            for host, address, connection, offset, positions, of_host in pulls:
                if address not in lost:
                    pulled = connection.pull(self._first + offset, of_host)
                elif self._is_shared:
                    pulled = [transfer.error_array(shape, f"host {host} is lost") for shape in of_host]
                else:
                    raise PeerError(f"host {host} is lost")
                for n, shard in zip(positions, pulled, strict=True):
                    shards[n] = shard
            arrays = [make(shards[n * count : (n + 1) * count]) for n, make in enumerate(makers)]
            # An array is a list of shards where its readers use them one by one.
            first = [array[0] if isinstance(array, list | tuple) else array for array in arrays]
            self._receives.append(PendingReceive(receive, *pulls[0][:2], first))
            return arrays

        return pull

    def _send_offset(self, send: Send, host: int) -> int:
        """Returns the id of a transfer to another host, relative to the first id of the run."""
        return self._numbers.offset(send.index, self._host, host)

    def _shapes(self, receive: Receive) -> list[jax.ShapeDtypeStruct]:
        """Returns the shards that this host receives, result by result and device by device."""
        return [
            self._shape(slot, device) for slot in receive.results for device in self._devices[receive.dst]
        ]

    def _shards_by_source(self, receive: Receive) -> dict[int, list[int]]:
        """Returns for each host the positions in `_shapes` of the shards that it sends."""
        owners = self._owners[receive.src]
        targets = self._owners[receive.dst]
        routes = routes_of(receive, len(targets))
        shards_of_host = [source for target, _, source in routes if targets[target] == self._host]
        shards: dict[int, list[int]] = {}
        for n, source in enumerate(shards_of_host):
            shards.setdefault(owners[source], []).append(n)
        return shards

    def _picks(self, send: Send) -> dict[int, list[tuple[int, int]]]:
        """Returns for each host the shards that it gets: pairs of an operand and a device of this host.

        They have the order of `_shards_by_source` on the other host.
        """
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
        """Returns a function that sends errors in place of arrays."""
        devices = self._devices[send.src]
        shapes = {
            host: [self._shape(send.operands[operand], devices[device]) for operand, device in shards_of_host]
            for host, shards_of_host in self._picks(send).items()
        }

        def offer(error: str) -> None:
            for host, shards_of_host in shapes.items():
                if sum(math.prod(shape.shape) for shape in shards_of_host):
                    arrays = [transfer.error_array(shape, error) for shape in shards_of_host]
                    number = self._first + self._send_offset(send, host)
                    self._peers.server.await_pull(number, arrays)

        return offer

    def _shape(self, slot: Slot, device: jax.Device) -> jax.ShapeDtypeStruct:
        shard, aval = self._plan.shard_type(slot), self._slots.avals[slot]
        sharding = SingleDeviceSharding(device, memory_kind=self._plan.memory_kind(slot))
        return jax.ShapeDtypeStruct(shard.shape, aval.dtype, sharding=sharding)


def _zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    with jax.enable_x64(True):
        return jax.device_put(jax.numpy.zeros(shape.shape, shape.dtype), shape.sharding)


def _received(plan: Plan) -> frozenset[Slot]:
    """Returns the slots of received arrays, and of their copies."""
    received: set[Slot] = set()
    for step in plan.steps:
        if isinstance(step, Receive) or (
            isinstance(step, Transfer) and not received.isdisjoint(step.operands)
        ):
            received.update(step.results)
    return frozenset(received)
