"""The process on a host: it runs the host's part of every step, in the order in which the controller asks.

The main thread reads and issues steps. One thread takes arrays from the controller, one answers what it
asks in the meantime, one waits for results; programs are compiled, and arrays sent to the controller, in
threads of their own. Arrays go from worker to worker over JAX's transfer server, never through the
controller.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
import queue
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pathways.runtime.bundle.process_limits import exit_with_parent

if __name__ == "__main__":
    # The libraries that follow make threads, of which none may get it: `SigtermHandler` waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # To import them takes seconds. Its standard input may stay open, in processes forked from its parent.
    if len(sys.argv) > 1:
        exit_with_parent(int(sys.argv[1]))

import jax
import numpy as np
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.runtime.control.gang import START_SECONDS
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.hosts.launch.cores import pin
from pathways.runtime.hosts.launch.ready import FOLDER, ReadyFile
from pathways.runtime.hosts.launch.sockets import connect_to, own_address, server_socket
from pathways.runtime.hosts.protocol import messages as m
from pathways.runtime.hosts.protocol.acceptor import call
from pathways.runtime.hosts.protocol.frames import CHUNK, decode_for_worker
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.hosts.trace.worker_recording import WorkerRecording
from pathways.runtime.hosts.worker.array_store import ELSEWHERE, ArrayStore, FailedArray, PromisedArray
from pathways.runtime.hosts.worker.call_runner import CallRunner
from pathways.runtime.hosts.worker.fetch_credits import FetchCredits
from pathways.runtime.hosts.worker.in_flight import LaunchesInFlight
from pathways.runtime.hosts.worker.probes import Probes
from pathways.runtime.hosts.worker.program_description import answers
from pathways.runtime.hosts.worker.sigterm import SigtermHandler
from pathways.runtime.hosts.worker.steps_in_progress import StepsInProgress
from pathways.runtime.hosts.worker.worker_target import Peers, TransferIds, WorkerTarget
from pathways.runtime.local import stalls
from pathways.runtime.local.devices import discover
from pathways.runtime.local.load import Executable, load
from pathways.runtime.local.slots import aval_of
from pathways.runtime.plan.host_program import cut_host_program
from pathways.runtime.plan.lower import host_plans_of
from pathways.runtime.plan.stored import Stored
from pathways.runtime.resources.cluster import Cluster, Device
from pathways.runtime.resources.manager import Binding, ResourceError
from pathways.runtime.resources.ports import claimed_port, is_shared
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.xla import distributed, pjrt

_NOTHING: dict[int, str] = {}

_chance = random.SystemRandom()
"""The numbers of the user's `random.seed` are not ours to draw, and forked processes share no state."""

_AGAIN_SECONDS = 0.5
"""How long a worker that was turned away waits at most before it tries again."""


@dataclasses.dataclass(frozen=True)
class WorkerProgram:
    """A program of this host.

    Attributes:
      name: its name.
      executable: the function.
      target: what its sends and receipts are bound to.
      inputs: which of the arrays that its island takes it takes; None for all.
      donated: which of these it donates.
      outputs: the number of each array that it makes among those that its island makes.
      count: how many its island makes.
    """

    name: str
    executable: Executable
    target: WorkerTarget
    inputs: tuple[int, ...] | None
    donated: tuple[int, ...]
    outputs: tuple[int, ...]
    count: int

    def results(self, arrays: Sequence[Any]) -> list[Any]:
        """What stands for all that its island makes."""
        if self.inputs is None:
            return list(arrays)
        results = [ELSEWHERE] * self.count
        for n, array in zip(self.outputs, arrays, strict=True):
            results[n] = array
        return results


class Worker:
    """The state of a worker.

    Args:
      config: what it was told when it was started.
      connections: to the controller, by the names of `messages.CHANNELS`.
      peers: to the other workers.
      devices: those of its island.
      probes: ask the other workers whether they live.
    """

    def __init__(
        self,
        config: WorkerConfig,
        connections: Mapping[str, Connection[Any]],
        peers: Peers,
        devices: tuple[Device, ...],
        probes: Probes,
    ) -> None:
        self.host = config.host
        self.island = range(config.host - config.rank, config.host - config.rank + config.size)
        self.connections = connections
        self.peers = peers
        self.probes = probes
        self.devices = {device.id: device for device in devices}
        self.store = ArrayStore({handle.id: handle for handle in jax.devices() if handle.id in self.devices})
        self.programs: dict[int, WorkerProgram] = {}
        # Given up before it was compiled.
        self.unneeded: set[int] = set()
        # Of each session: what was asked for twice has no other number.
        self.last: collections.defaultdict[int, int] = collections.defaultdict(int)
        self.in_flight = LaunchesInFlight()
        self.underway = StepsInProgress()
        # Held while a step is issued.
        self.issuing = threading.Lock()
        stalls.monitor.awaited = self.underway.awaited
        self.credits = FetchCredits()
        self.recording = WorkerRecording(connections["watch"])
        self.calls = CallRunner(self.host, self.store, connections["steps"])
        self.waiting: queue.SimpleQueue[tuple[int, WorkerProgram, list[Any], list[Any]]] = queue.SimpleQueue()

    def serve(self) -> None:
        """Serves the controller; the process ends with it."""
        for work in (self.take_arrays, self.answer, self.wait):
            self.start(work)
        self.guarded(self.issue)

    def start(self, work: Callable[..., None], *args: Any) -> None:
        """Does something in a thread of its own."""
        start_thread(functools.partial(self.guarded, functools.partial(work, *args)), work.__name__)

    def guarded(self, work: Callable[[], None]) -> None:
        """Does something; what goes wrong in it ends the process, which the controller sees."""
        try:
            work()
        except ConnectionEnded:
            _end()
        except m.MessageError as error:
            print(f"pathways worker: {error}", file=sys.stderr)
            _end()
        except BaseException:
            # Whatever that needs itself, such as memory.
            try:
                traceback.print_exc()
            finally:
                _end()

    def take_arrays(self) -> None:
        """Takes arrays that the controller sends."""
        connection = self.connections["arrays"]
        connection.place = self.store.place
        while True:
            message = connection.receive()
            match message:
                case m.Put():
                    self.store.begin(message)
                case m.Chunk():
                    self.store.take(message)
                case m.Free():
                    self.store.give_up(message.arrays)
                case m.Load():
                    self.start(self.load, message)
                case m.Credit():
                    self.credits.add(message)
                case _:
                    raise _unexpected(message)

    def answer(self) -> None:
        """Answers what the controller asks while steps run."""
        connection = self.connections["watch"]
        while True:
            message = connection.receive()
            match message:
                case m.Ping():
                    connection.send(m.Pong(message.number))
                case m.ReadClock():
                    self.recording.tell_time(message)
                case m.RequestReport():
                    connection.send(m.Report(message.request, self.report()))
                case m.Describe():
                    self.start(self.describe, message)
                case m.Lost():
                    self.peers.lose(message.addresses)
                case m.Leave():
                    _end()
                case _:
                    raise _unexpected(message)

    def report(self) -> HostReport:
        """How this worker is."""
        held = {number: bytes_here(array) for number, array in self.store.held().items()}
        clients: dict[int, tuple[int, int]] = {}
        for number, size in held.items():
            count, total = clients.get(number >> SESSION_BITS, (0, 0))
            clients[number >> SESSION_BITS] = count + 1, total + size
        programs = tuple(sorted(program.name for program in [*self.programs.values()]))
        steps, calls = self.underway.report(), self.calls.report()
        return HostReport(len(held), sum(held.values()), programs, steps, calls, clients)

    def lose_peer(self, host: int, address: str, why: str) -> None:
        """Tells the controller that another host does not answer."""
        with contextlib.suppress(ConnectionEnded):
            self.connections["watch"].send(m.PeerLost(host, address, why))

    def find_peer(self, host: int, address: str) -> None:
        """Tells the controller that another host answers again."""
        with contextlib.suppress(ConnectionEnded):
            self.connections["watch"].send(m.PeerFound(host, address))

    def ask_to_leave(self) -> None:
        """Tells the controller that this process was asked to end."""
        with contextlib.suppress(ConnectionEnded):
            self.connections["watch"].send(m.Leaving())

    def issue(self) -> None:
        """The dispatch thread: everything that has an order, in that order."""
        connection = self.connections["steps"]
        while True:
            for message in connection.receive_some():
                # Most are steps.
                if type(message) is m.Run:
                    self.run(message)
                else:
                    self.take_turn(message)

    def take_turn(self, message: object) -> None:
        """Does what a message of the dispatch thread says that is no step."""
        match message:
            case m.Free():
                self.store.free(message.arrays)
            case m.Fetch():
                self.start(self.send_array, message, self.store.look_up(message.array))
            case m.Unload():
                if self.programs.pop(message.program, None) is None:
                    self.unneeded.add(message.program)
            case m.Call():
                self.call(message)
            case m.ReleaseClient():
                self.calls.forget(message.client)
                self.last.pop(message.client, None)
            case m.Cancel():
                for program, run in message.runs:
                    if program in self.programs:
                        self.programs[program].target.cancel(run, message.hosts)
            case m.StartTrace():
                self.recording.start(message)
            case m.StopTrace():
                self.recording.stop(message)
            case _:
                raise _unexpected(message)

    def load(self, message: m.Load) -> None:
        """Compiles a program, and tells the controller."""
        self.connections["steps"].send(m.LoadDone(message.request, self.loaded(message)))

    def loaded(self, message: m.Load) -> str | None:
        """Compiles a program; returns what is wrong with it."""
        try:
            hosted = self.hosted(message)
        except Exception as error:
            return _described(error)
        if message.program in self.unneeded:
            return None
        others = hosted.target.peers() | (set(self.island) - {self.host})
        if others and (wrong := self.peers.shared()) is not None:
            return wrong
        self.programs[message.program] = hosted
        self.probes.watch({host: message.probes[host] for host in others})
        return None

    def hosted(self, message: m.Load) -> WorkerProgram:
        """Compiles a program."""
        context = make_context()
        with context:
            module = ir.Module.parse(message.module)
            plans = host_plans_of(
                module, message.name, Stored.of(message.computations, message.constants), proved=True
            )
        whole = plan = plans[message.island]
        inputs: tuple[int, ...] | None = None
        outputs: tuple[int, ...] = ()
        if len(self.island) > 1:
            own = cut_host_program(whole, message.owners, self.host, message.crossing)
            plan, inputs, outputs = own.plan, own.inputs, own.outputs
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
                    owners=message.owners,
                    host=self.host,
                    numbers=TransferIds(message.base, message.stride, 1 + max(message.peers)),
                    in_flight=self.in_flight,
                    is_shared=len(self.island) > 1,
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
        if inputs is None:
            outputs = tuple(range(len(executable.outputs)))
        count = sum(len(result.slots) for result in whole.results)
        passed = [argument for argument in plan.arguments if argument.constant is None]
        donated = tuple(n for n, port in enumerate(executable.inputs) if passed[port.number].donated)
        return WorkerProgram(message.name, executable, targets[0], inputs, donated, outputs, count)

    def describe(self, message: m.Describe) -> None:
        """Says what XLA made of a program."""
        hosted = self.programs.get(message.program)
        executable = None if hosted is None else hosted.executable
        for answer in answers(message.request, executable, text=message.text):
            self.connections["watch"].send(answer)

    def run(self, message: m.Run) -> None:
        """Issues a step."""
        if self.is_known(message.run):
            return
        self.store.free(message.free)
        program = self.programs[message.program]
        taken = [self.store.get(number) for number in message.arguments]
        if program.inputs is not None:
            taken = [taken[n] for n in program.inputs]
        wrong = None
        for array in taken:
            if isinstance(array, FailedArray):
                wrong = array.error
                break
        if program.donated and self.calls.holding:
            self.calls.wait_for([taken[n] for n in program.donated])
        self.recording.run = message
        program.target.begin(message.run, self.underway.begin(program.name, message.run))
        results: list[Any] = []
        if wrong is None:
            try:
                with self.issuing:
                    results = program.executable.run(taken)
            except Exception as error:
                wrong = _described(error)
        if wrong is not None:
            program.target.poison(wrong)
            poisons = [FailedArray(wrong)] * len(program.outputs)
            self.store.add(message.first, program.results(poisons))
            self.done(message.run, wrong, {})
            return
        self.store.add(message.first, results if program.inputs is None else program.results(results))
        self.underway.issued(message.run)
        if program.target.missed is not None:
            self.connections["steps"].send(m.Missed(message.run, program.target.missed))
        tokens = program.target.tokens
        if tokens:
            self.waiting.put((message.run, program, results, tokens))
            return
        for array in results:
            if not array.is_ready():
                self.waiting.put((message.run, program, results, tokens))
                return
        self.done(message.run, None, self.wait_for(program, results) if results else _NOTHING)

    def call(self, message: m.Call) -> None:
        """Takes a call of a function in its turn."""
        if not self.is_known(message.call):
            self.calls.take(message)

    def is_known(self, number: int) -> bool:
        """Notes a step or call; says if it is known already: a controller that was interrupted asks again."""
        session = number >> SESSION_BITS
        if number <= self.last[session]:
            return True
        self.last[session] = number
        return False

    def done(self, run: int, wrong: str | None, failed: dict[int, str]) -> None:
        """Tells the controller that a step is done."""
        took = self.underway.done(run)
        self.connections["steps"].send(m.Done(run, wrong, failed, took))

    def wait(self) -> None:
        """Tells the controller of every step when it is done."""
        while True:
            run, program, results, tokens = self.waiting.get()
            failed = self.wait_for(program, results)
            wrong = _wait_for(tokens)
            del program, results, tokens
            self.done(run, wrong, failed)

    def wait_for(self, program: WorkerProgram, results: list[Any]) -> dict[int, str]:
        """Waits for the results of a program; returns what is wrong with some of them, by their positions."""
        failed = {}
        for position, array in enumerate(results):
            try:
                array.block_until_ready()
            except Exception as error:
                # A later step may have taken it over, or be about to, device by device.
                with self.issuing:
                    is_taken = array.is_deleted()
                if not is_taken:
                    slice = program.executable.outputs[position].slice
                    failed[program.outputs[position]] = f"a result on slice {slice}: {_described(error)}"
        return failed

    def send_array(self, message: m.Fetch, array: Any) -> None:
        """Sends what the controller fetches, when it is ready."""
        connection = self.connections["arrays"]
        if isinstance(array, PromisedArray):
            array = array.wait()
        if isinstance(array, FailedArray):
            connection.send(m.Failed(message.request, array.error))
            return
        try:
            shards = [np.asarray(array.addressable_shards[n].data) for n in message.devices]
        except Exception as error:
            connection.send(m.Failed(message.request, _described(error)))
            return
        size = sum(shard.nbytes for shard in shards)
        if message.credit is not None and size != message.size:
            connection.send(m.Failed(message.request, f"it has {size} bytes, not {message.size}"))
            return
        with self.credits.of(message) as credit:
            for shard, data in enumerate(shards):
                raw = memoryview(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
                offset = 0
                while offset < len(raw):
                    piece = raw[offset : offset + credit.take(min(CHUNK, len(raw) - offset))]
                    if not piece:
                        # Nobody wants the rest.
                        return
                    connection.send_with(m.Chunk(message.request, shard, offset, len(piece)), piece)
                    offset += len(piece)


def _wait_for(tokens: list[Any]) -> str | None:
    """Waits for launches; returns what is wrong with the first that failed."""
    for token in tokens:
        try:
            token.block_until_ready()
        except Exception as error:
            return _described(error)
    return None


def _code(message: m.Load) -> Iterator[bytes]:
    """All bytecode of a program."""
    yield message.module
    for computation in message.computations.values():
        yield computation.module


def bytes_here(array: Any) -> int:
    """The bytes of the shards of an array; none of one that was donated."""
    return 0 if array.is_deleted() else sum(shard.data.nbytes for shard in array.addressable_shards)


def _unexpected(message: object) -> m.MessageError:
    return m.MessageError(f"a worker does not take {type(message).__name__} here")


def _end(code: int = 0) -> None:
    """Ends the process, past XLA's own end, which waits for threads that wait for workers that are gone."""
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)


def _described(error: Exception) -> str:
    notes = "; ".join(getattr(error, "__notes__", ()))
    text = str(error).strip() or type(error).__name__
    return f"{text} ({notes})" if notes else text


def main() -> int:
    """Runs a worker; what it has to know comes as a line of JSON on standard input.

    A worker on the machine of its parent has the id of that as its argument. To a spare worker the line comes
    when it is used.
    """
    # Ctrl-C is for the controller, whose end is that of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    if not (line := sys.stdin.readline()):
        return 0
    # Nobody reads what functions of users print.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    config = WorkerConfig.from_json(line)
    start_thread(_end_with_input, "standard input")
    jax.config.update("jax_platforms", config.platform)
    secret = bytes.fromhex(config.secret)
    sigterm = SigtermHandler(config.grace, _end)

    try:
        if config.cores is not None:
            pin(config.first_core, config.cores)
        connected = {channel: _connected(config, secret, channel) for channel in m.CHANNELS}
        connections = {channel: connection for channel, (connection, _) in connected.items()}
        # What reaches the controller is what other workers shall reach.
        address = connected["watch"][1]
        cluster = _devices(config, address, connections["watch"])
        peers = Peers(jax.devices()[0].client, address, config.ports)
        server = server_socket(address, config.ports)
        mark = ReadyFile(os.environ.get(FOLDER), config.host)
    except (OSError, m.MessageError, ResourceError) as error:
        print(f"pathways worker: {error}", file=sys.stderr)
        return 1
    probes = Probes(
        server,
        secret,
        config.host,
        config.epoch,
        lambda *lost: worker.lose_peer(*lost),
        lambda *found: worker.find_peer(*found),
        config.heartbeat,
    )
    own = tuple(device for device in cluster.devices if device.host.index == jax.process_index())
    worker = Worker(config, connections, peers, cluster.devices, probes)
    connections["watch"].send(
        m.Ready(
            cluster.platform,
            tuple(device.id for device in own),
            tuple(device.memory for device in own),
            peers.address,
            probes.address,
        )
    )

    def ask_to_leave() -> None:
        mark.remove()
        worker.ask_to_leave()

    sigterm.ask = ask_to_leave
    worker.serve()
    return 0


def _end_with_input() -> None:
    """Ends the process when its standard input ends: whoever started it is gone, or wants it gone.

    The connections to the controller may not tell, as while the network is cut.
    """
    # Past `sys.stdin`, which Python locks when it ends.
    while os.read(0, 1024):
        pass
    _end()


def _connected(config: WorkerConfig, secret: bytes, channel: str) -> tuple[Connection[Any], str]:
    """A connection to the controller, and the address of this machine on it.

    Raises:
      OSError: nothing listens there, or it is not reached until the start has had its time.
      MessageError: who listens there does not know the secret.
    """
    purpose = m.Purpose(channel, "worker", config.host, config.epoch, "controller")
    deadline = time.monotonic() + START_SECONDS
    is_told = False
    while True:
        try:
            sock = connect_to(config.controller, config.heartbeat)
            address = own_address(sock)
            return call(sock, secret, purpose, decode_for_worker), address
        except (ConnectionRefusedError, FileNotFoundError):
            raise
        except OSError as error:
            # The network is cut, or too many strangers are at the door.
            if time.monotonic() > deadline:
                raise
            if not is_told:
                is_told, where = True, config.controller
                print(
                    f"pathways worker: it does not reach {where}, and tries again: {error}", file=sys.stderr
                )
            time.sleep(_AGAIN_SECONDS * _chance.random())


def _devices(config: WorkerConfig, address: str, watch: Connection[Any]) -> Cluster:
    """The devices of all hosts of the island, with which this one joins them."""
    if config.size == 1:
        is_cpu = config.platform == "cpu"
        return discover(config.cpu_devices if is_cpu else None, platform=config.platform)
    with contextlib.ExitStack() as stack:
        port = None
        if config.rank == 0:
            # Until JAX listens there.
            port = stack.enter_context(claimed_port(address, config.ports))
            watch.send(m.Coordinator(f"{address}:{port}"))
        told = watch.receive()
        if not isinstance(told, m.Join):
            raise _unexpected(told)
        distributed.join(
            told.address,
            address,
            rank=config.rank,
            size=config.size,
            cpu_devices=config.cpu_devices,
            start_seconds=round(START_SECONDS),
        )
        if port is not None and is_shared(address, port):
            raise OSError(f"another process listens on {address}:{port} too, where hosts of the island meet")
    return discover()


if __name__ == "__main__":
    sys.exit(main())
