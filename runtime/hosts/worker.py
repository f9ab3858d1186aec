"""The process on a host: it runs the host's part of every step, in the order in which the controller asks.

The main thread reads and issues steps. One thread takes arrays from the controller, one answers what it
asks in the meantime, one waits for results; programs are compiled, and arrays sent to the controller, in
threads of their own. Arrays go from worker to worker over JAX's transfer server, never through the
controller.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.runtime.hosts.describing import answers
from pathways.runtime.hosts.frames import CHUNK
from pathways.runtime.hosts.launching import START_SECONDS, WorkerConfig
from pathways.runtime.hosts.listening import connect_to, free_port, own_address, server_socket
from pathways.runtime.hosts.messages import (
    CHANNELS,
    Ask,
    Chunk,
    Coordinator,
    Describe,
    Done,
    Failed,
    Fetch,
    Free,
    Hello,
    Join,
    Load,
    LoadDone,
    MessageError,
    PeerLost,
    Ping,
    Pong,
    Put,
    ReadClock,
    Ready,
    Report,
    Run,
    StartTrace,
    StopTrace,
    Unload,
    versions,
)
from pathways.runtime.hosts.probing import Probes
from pathways.runtime.hosts.store import Poison, Store
from pathways.runtime.hosts.target import Peers, WorkerTarget
from pathways.runtime.hosts.underway import StepsUnderway
from pathways.runtime.hosts.wire import Connection, ConnectionEnded, greet_controller
from pathways.runtime.hosts.worker_tracing import WorkerTracing
from pathways.runtime.local.devices import discover
from pathways.runtime.local.load import Executable, load
from pathways.runtime.local.slots import aval_of
from pathways.runtime.plan.lower import Stored, StoredComputation, host_plans_of
from pathways.runtime.resources.cluster import Cluster, Device
from pathways.runtime.resources.manager import Binding
from pathways.runtime.xla import distributed, pjrt

_NOTHING: dict[int, str] = {}


@dataclasses.dataclass(frozen=True)
class Hosted:
    """A program of this host: the function, and what its sends and receipts are bound to."""

    name: str
    executable: Executable
    target: WorkerTarget


class Worker:
    """The state of a worker.

    Args:
      connections: to the controller, by the names of `messages.CHANNELS`.
      peers: to the other workers.
      devices: those of this host.
      probes: ask the other workers whether they live.
    """

    def __init__(
        self,
        connections: Mapping[str, Connection[Any]],
        peers: Peers,
        devices: tuple[Device, ...],
        probes: Probes,
    ) -> None:
        self.connections = connections
        self.peers = peers
        self.probes = probes
        self.devices = {device.id: device for device in devices}
        self.store = Store({handle.id: handle for handle in jax.devices() if handle.id in self.devices})
        self.programs: dict[int, Hosted] = {}
        # Given up before it was compiled.
        self.unneeded: set[int] = set()
        self.last = 0
        self.underway = StepsUnderway()
        self.tracing = WorkerTracing(connections["watch"])
        self.waiting: queue.SimpleQueue[tuple[int, Executable, list[Any]]] = queue.SimpleQueue()

    def serve(self) -> None:
        """Serves the controller; the process ends with it."""
        for work in (self.take_arrays, self.answer, self.wait):
            self.start(work)
        self.guarded(self.issue)

    def start(self, work: Callable[..., None], *args: Any) -> None:
        """Does something in a thread of its own."""
        task = functools.partial(work, *args)
        threading.Thread(target=self.guarded, args=(task,), name=work.__name__, daemon=True).start()

    def guarded(self, work: Callable[[], None]) -> None:
        """Does something; what goes wrong in it ends the process, which the controller sees."""
        try:
            work()
        except ConnectionEnded:
            _end()
        except MessageError as error:
            print(f"pathways worker: {error}", file=sys.stderr)
            _end()
        except BaseException:
            traceback.print_exc()
            _end()

    def take_arrays(self) -> None:
        """Takes arrays that the controller sends."""
        connection = self.connections["arrays"]
        connection.place = self.store.place
        while True:
            message = connection.receive()
            match message:
                case Put():
                    self.store.begin(message)
                case Chunk():
                    self.store.take(message)
                case Free():
                    self.store.give_up(message.arrays)
                case _:
                    raise _unexpected(message)

    def answer(self) -> None:
        """Answers what the controller asks while steps run."""
        connection = self.connections["watch"]
        while True:
            message = connection.receive()
            match message:
                case Ping():
                    connection.send(Pong(message.number))
                case ReadClock():
                    self.tracing.tell_time(message)
                case Ask():
                    connection.send(self.report())
                case Describe():
                    self.start(self.describe, message)
                case _:
                    raise _unexpected(message)

    def report(self) -> Report:
        """How this worker is."""
        held = self.store.held()
        programs = tuple(sorted(program.name for program in [*self.programs.values()]))
        return Report(len(held), sum(map(bytes_here, held)), programs, self.underway.report())

    def lose_peer(self, host: int, why: str) -> None:
        """Tells the controller that another host does not answer."""
        with contextlib.suppress(ConnectionEnded):
            self.connections["watch"].send(PeerLost(host, why))

    def issue(self) -> None:
        """The dispatch thread: everything that has an order, in that order."""
        connection = self.connections["steps"]
        while True:
            for message in connection.receive_some():
                # Most are steps.
                if type(message) is Run:
                    self.run(message)
                else:
                    self.take_turn(message)

    def take_turn(self, message: object) -> None:
        """Does what a message of the dispatch thread says that is no step."""
        match message:
            case Free():
                self.store.free(message.arrays)
            case Fetch():
                self.start(self.send_array, message, self.store.get(message.array))
            case Unload():
                if self.programs.pop(message.program, None) is None:
                    self.unneeded.add(message.program)
            case Load():
                self.start(self.load, message)
            case StartTrace():
                self.tracing.start(message)
            case StopTrace():
                self.tracing.stop(message)
            case _:
                raise _unexpected(message)

    def load(self, message: Load) -> None:
        """Compiles a program, and tells the controller."""
        self.connections["steps"].send(LoadDone(message.program, self.loaded(message)))

    def loaded(self, message: Load) -> str | None:
        """Compiles a program; returns what is wrong with it."""
        try:
            context = make_context()
            with context:
                module = ir.Module.parse(message.module)
                plan = host_plans_of(module, message.name, _stored(message), proved=True)[message.host]
            # Where it is needed alone: it imports scipy.
            if any(b"lapack_" in code for code in _code(message)):
                pjrt.initialize_lapack()
            bindings = {
                name: Binding(
                    tuple(self.devices[number] for number in message.devices[name]),
                    spec.shape,
                    spec.axis_names,
                    message.name,
                )
                for name, spec in plan.slices.items()
            }
            avals = [
                jax.core.ShapedArray(aval.shape, aval.dtype, weak_type=weak)
                for aval, weak in zip(
                    (aval_of(result.type) for result in plan.results), message.weak_results, strict=True
                )
            ]
            targets: list[WorkerTarget] = []

            def target(*args: Any) -> WorkerTarget:
                targets.append(
                    WorkerTarget(
                        *args,
                        peers=self.peers,
                        addresses=message.peers,
                        base=message.base,
                        stride=message.stride,
                    )
                )
                return targets[0]

            executable = load(
                plan,
                bindings,
                result_avals=avals,
                argument_names=message.argument_names,
                progress=lambda *_: None,
                make_target=target,
            )
        except Exception as error:
            return _described(error)
        if message.program in self.unneeded:
            return None
        self.programs[message.program] = Hosted(message.name, executable, targets[0])
        self.probes.watch({host: message.probes[host] for host in targets[0].peers()})
        return None

    def describe(self, message: Describe) -> None:
        """Says what XLA made of a program."""
        hosted = self.programs.get(message.program)
        executable = None if hosted is None else hosted.executable
        for answer in answers(message.request, executable, text=message.text):
            self.connections["watch"].send(answer)

    def run(self, message: Run) -> None:
        """Issues a step."""
        if message.run <= self.last:
            # The controller was interrupted, and did not know whether it had asked.
            return
        self.last = message.run
        self.store.free(message.free)
        program = self.programs[message.program]
        taken = [self.store.get(number) for number in message.arguments]
        wrong = None
        for array in taken:
            if isinstance(array, Poison):
                wrong = array.error
                break
        self.tracing.run = message
        program.target.begin(message.run, self.underway.begin(program.name, message.run))
        results: list[Any] = []
        if wrong is None:
            try:
                results = program.executable.run(taken)
            except Exception as error:
                wrong = _described(error)
        if wrong is not None:
            program.target.poison(wrong)
            self.store.add(message.run + 1, [Poison(wrong)] * len(program.executable.outputs))
            self.done(message.run, wrong, {})
            return
        self.store.add(message.run + 1, results)
        self.underway.issued(message.run)
        for array in results:
            if not array.is_ready():
                self.waiting.put((message.run, program.executable, results))
                return
        self.done(message.run, None, _wait(program.executable, results) if results else _NOTHING)

    def done(self, run: int, wrong: str | None, failed: dict[int, str]) -> None:
        """Tells the controller that a step is done."""
        self.underway.done(run)
        self.connections["steps"].send(Done(run, wrong, failed))

    def wait(self) -> None:
        """Tells the controller of every step when it is done."""
        while True:
            run, executable, results = self.waiting.get()
            failed = _wait(executable, results)
            del executable, results
            self.done(run, None, failed)

    def send_array(self, message: Fetch, array: Any) -> None:
        """Sends what the controller fetches, when it is ready."""
        connection = self.connections["arrays"]
        if isinstance(array, Poison):
            connection.send(Failed(message.array, array.error))
            return
        try:
            shards = [np.asarray(array.addressable_shards[n].data) for n in message.devices]
        except Exception as error:
            connection.send(Failed(message.array, _described(error)))
            return
        for shard, data in enumerate(shards):
            raw = memoryview(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
            for offset in range(0, len(raw), CHUNK):
                piece = raw[offset : offset + CHUNK]
                connection.send_with(Chunk(message.array, shard, offset, len(piece)), piece)


def _wait(executable: Executable, results: list[Any]) -> dict[int, str]:
    """Waits for the results of a program; returns what is wrong with some of them, by their positions."""
    failed = {}
    for position, array in enumerate(results):
        try:
            array.block_until_ready()
        except Exception as error:
            # A later step may have taken it over.
            if not array.is_deleted():
                slice = executable.outputs[position].slice
                failed[position] = f"a result on slice {slice}: {_described(error)}"
    return failed


def _stored(message: Load) -> Stored | None:
    """What the module of a program only declares; None when it has all."""
    if not message.computations:
        return None
    return Stored(
        {name: StoredComputation(c.module, c.local, c.effects) for name, c in message.computations.items()},
        {
            name: np.frombuffer(c.data, jax.numpy.dtype(c.dtype)).reshape(c.shape)
            for name, c in message.constants.items()
        },
    )


def _code(message: Load) -> Iterator[bytes]:
    """All bytecode of a program."""
    yield message.module
    for computation in message.computations.values():
        yield computation.module


def bytes_here(array: Any) -> int:
    """The bytes of the shards of an array; none of one that was donated."""
    return 0 if array.is_deleted() else sum(shard.data.nbytes for shard in array.addressable_shards)


def _unexpected(message: object) -> MessageError:
    return MessageError(f"a worker does not take {type(message).__name__} here")


def _end() -> None:
    """Ends the process, past XLA's own end, which waits for threads that wait for workers that are gone."""
    sys.stderr.flush()
    os._exit(0)


def _described(error: Exception) -> str:
    notes = "; ".join(getattr(error, "__notes__", ()))
    text = str(error).strip() or type(error).__name__
    return f"{text} ({notes})" if notes else text


def main() -> int:
    """Runs a worker; what it has to know comes as a line of JSON on standard input."""
    # Ctrl-C is for the controller, whose end is that of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = WorkerConfig.from_json(sys.stdin.readline())
    secret = bytes.fromhex(config.secret)

    def hello(proof: bytes, nonce: bytes, channel: str) -> Hello:
        return Hello(proof, nonce, versions(), config.host, config.epoch, channel)

    def connect(channel: str) -> tuple[Connection[Any], str]:
        sock = connect_to(config.controller, config.heartbeat)
        greeted = greet_controller(sock, secret, lambda proof, nonce: hello(proof, nonce, channel))
        return greeted, own_address(sock)

    try:
        connected = {channel: connect(channel) for channel in CHANNELS}
        connections = {channel: connection for channel, (connection, _) in connected.items()}
        # What reaches the controller is what other workers shall reach.
        address = connected["watch"][1]
        cluster = _devices(config, address, connections["watch"])
        peers = Peers(jax.devices()[0].client, address, config.ports)
        server = server_socket(address, config.ports)
    except (OSError, MessageError) as error:
        print(f"pathways worker: {error}", file=sys.stderr)
        return 1
    probes = Probes(server, secret, hello, lambda host, why: worker.lose_peer(host, why), config.heartbeat)
    own = tuple(device for device in cluster.devices if device.host.index == jax.process_index())
    worker = Worker(connections, peers, own, probes)
    connections["watch"].send(
        Ready(
            cluster.platform,
            tuple(device.id for device in own),
            tuple(device.memory for device in own),
            peers.address,
            probes.address,
        )
    )
    worker.serve()
    return 0


def _devices(config: WorkerConfig, address: str, watch: Connection[Any]) -> Cluster:
    """The devices of all hosts of the island, with which this one joins them."""
    if config.size == 1:
        return discover(cpu_devices=config.cpu_devices)
    if config.rank == 0:
        watch.send(Coordinator(f"{address}:{free_port(address, config.ports)}"))
    told = watch.receive()
    if not isinstance(told, Join):
        raise _unexpected(told)
    distributed.join(
        told.address,
        address,
        rank=config.rank,
        size=config.size,
        cpu_devices=config.cpu_devices,
        start_seconds=round(START_SECONDS),
    )
    return discover()


if __name__ == "__main__":
    sys.exit(main())
