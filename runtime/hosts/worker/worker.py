"""Worker of a host: runs the host program of every step, in the order in which the controller sends steps.

The main thread reads and issues steps. One thread receives arrays from the controller, one answers its other
requests, and one waits for results; programs are compiled, and arrays sent to the controller, in threads of
their own. Arrays go from worker to worker over JAX's transfer server, never through the controller.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
import numpy as np
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.hosts.protocol import messages as m
from pathways.runtime.hosts.protocol.frames import CHUNK
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.hosts.splitting.prints import PRINT, take_prints
from pathways.runtime.hosts.worker.array_store import ELSEWHERE, ArrayStore, FailedArray, PromisedArray
from pathways.runtime.hosts.worker.call_runner import CallRunner
from pathways.runtime.hosts.worker.fetch_credits import FetchCredits
from pathways.runtime.hosts.worker.in_flight import LaunchesInFlight
from pathways.runtime.hosts.worker.probes import Probes
from pathways.runtime.hosts.worker.program_description import describe, memory_of
from pathways.runtime.hosts.worker.steps_in_progress import StepsInProgress
from pathways.runtime.hosts.worker.worker_target import Peers, TransferIds, WorkerTarget
from pathways.runtime.local import stalls
from pathways.runtime.local.load import Executable, load
from pathways.runtime.local.slots import aval_of
from pathways.runtime.plan.host_program import cut_host_program
from pathways.runtime.plan.lower import host_plans_of
from pathways.runtime.plan.stored import Stored
from pathways.runtime.resources.cluster import Device
from pathways.runtime.resources.manager import Binding
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.xla import pjrt

type WorkerExtension = Callable[[Worker], None]
"""Function that adds handlers of further messages to a worker."""

_NOTHING: dict[int, str] = {}


@dataclasses.dataclass(frozen=True)
class WorkerProgram:
    """Program of this host.

    Attributes:
      executable: the function.
      target: the target that its sends and receives are bound to.
      inputs: the indices of its arguments among the arguments of the island's program; None for all.
      donated: the indices of donated arguments among its own.
      outputs: the index of each of its results among the results of the island's program.
      count: number of results of the island's program.
      runs_with_failed: whether it runs also if an argument failed, which it gets as a `FailedArray`.
      operands: number of operands of the island's program, if an extension has loaded it.
      memory: the memory of a step, if an extension has loaded it.
    """

    name: str
    executable: Executable
    target: WorkerTarget
    inputs: tuple[int, ...] | None
    donated: tuple[int, ...]
    outputs: tuple[int, ...]
    count: int
    runs_with_failed: bool = False
    operands: int = 0
    memory: m.StepMemory | None = None

    def results(self, arrays: Sequence[Any]) -> list[Any]:
        """Returns the results of the island's program, with `ELSEWHERE` for results of other hosts."""
        if self.inputs is None:
            return list(arrays)
        results = [ELSEWHERE] * self.count
        for n, array in zip(self.outputs, arrays, strict=True):
            results[n] = array
        return results


class Worker:
    """State of a worker, and the threads that serve the controller.

    An extension adds handlers of further messages to `handlers`, and may add to `releases`.

    Args:
      config: its configuration.
      connections: the connections to the controller, by the names of `messages.CHANNELS`.
      peers: the data connections to other workers.
      probes: the heartbeats to other workers.
      extensions: each is called with the worker, before that serves the controller.

    Attributes:
      config: see above.
      current: the step that was issued last, or is being issued; the dispatch thread sets it.
      loaders: the loaders of programs of extensions, by the kinds of `LoadForeign`; each returns the program,
        if any, and facts for the controller.
      handlers: for each channel the handlers of its messages. Handlers of `steps` run in the dispatch thread.
      releases: functions that free the state of a client, by its number, when it disconnects.
    """

    def __init__(
        self,
        config: WorkerConfig,
        connections: Mapping[str, Connection[Any]],
        peers: Peers,
        devices: tuple[Device, ...],
        probes: Probes,
        extensions: Sequence[WorkerExtension] = (),
    ) -> None:
        self.config = config
        self.host = config.host
        self.island = range(config.host - config.rank, config.host - config.rank + config.size)
        self.connections = connections
        self.peers = peers
        self.probes = probes
        self.devices = {device.id: device for device in devices}
        self.store = ArrayStore({handle.id: handle for handle in jax.devices() if handle.id in self.devices})
        self.programs: dict[int, WorkerProgram] = {}
        # Programs that were unloaded before they were compiled.
        self.unneeded: set[int] = set()
        # The last step or call of each session, see `is_known`.
        self.last: collections.defaultdict[int, int] = collections.defaultdict(int)
        self.in_flight = LaunchesInFlight()
        self.in_progress = StepsInProgress()
        # Held while a step is issued.
        self.issuing = threading.Lock()
        stalls.monitor.awaited = self.in_progress.awaited
        self.credits = FetchCredits()
        self.calls = CallRunner(self.host, self.store, connections["steps"])
        self.current: m.Run | None = None
        self.waiting: queue.SimpleQueue[tuple[int, WorkerProgram, list[Any], list[Any]]] = queue.SimpleQueue()
        self.releases: list[Callable[[int], None]] = []
        self.loaders: dict[str, Callable[[m.LoadForeign], tuple[WorkerProgram | None, bytes]]] = {}
        self.handlers: dict[str, dict[type, Callable[[Any], None]]] = {
            "steps": {
                m.Run: self.run,
                m.Free: lambda message: self.store.free(message.arrays),
                m.Fetch: self.fetch,
                m.Unload: self.unload,
                m.Call: self.call,
                m.ReleaseClient: self.release_client,
                m.Cancel: self.cancel,
            },
            "arrays": {
                m.Put: self.store.begin,
                m.Chunk: self.store.add_chunk,
                m.Free: lambda message: self.store.abandon(message.arrays),
                m.Load: functools.partial(self.start, self.load),
                m.LoadForeign: functools.partial(self.start, self.load_foreign),
                m.Credit: self.credits.add,
            },
            "watch": {
                m.Ping: lambda message: connections["watch"].send(m.Pong(message.number)),
                m.RequestReport: self.send_report,
                m.Describe: functools.partial(self.start, self.describe),
                m.Lost: lambda message: peers.lose(message.addresses),
                m.Leave: lambda _: exit_now(),
            },
        }
        for extension in extensions:
            extension(self)

    def serve(self) -> None:
        """Serves the controller; exits the process when the connection closes."""
        self.connections["arrays"].place = self.store.place
        self.start(self.serve_channel, "arrays")
        self.start(self.serve_channel, "watch")
        self.start(self.wait)
        self.guarded(self.issue)

    def start(self, work: Callable[..., None], *args: Any) -> None:
        """Runs a function in a separate thread."""
        start_thread(functools.partial(self.guarded, functools.partial(work, *args)), work.__name__)

    def guarded(self, work: Callable[[], None]) -> None:
        """Runs a function; an error in it exits the process, which the controller notices."""
        try:
            work()
        except ConnectionEnded:
            exit_now()
        except m.MessageError as error:
            print(f"pathways worker: {error}", file=sys.stderr)
            exit_now()
        except BaseException:
            # Printing may fail itself, as without memory.
            try:
                traceback.print_exc()
            finally:
                exit_now()

    def serve_channel(self, channel: str) -> None:
        """Handles the messages of a channel, each before the next is read."""
        connection, handlers = self.connections[channel], self.handlers[channel]
        while True:
            message = connection.receive()
            handlers.get(type(message), refuse)(message)

    def issue(self) -> None:
        """Handles the ordered messages, in their order, in the dispatch thread."""
        connection, handlers = self.connections["steps"], self.handlers["steps"]
        while True:
            for message in connection.receive_available():
                handlers.get(type(message), refuse)(message)

    # Requests that may come while steps run.

    def send_report(self, message: m.RequestReport) -> None:
        """Sends the arrays, programs, steps and calls of this worker."""
        self.connections["watch"].send(m.Report(message.request, self.report()))

    def report(self) -> HostReport:
        """Returns the arrays, programs, steps and calls of this worker."""
        sizes = {number: local_bytes(array) for number, array in self.store.available().items()}
        clients: dict[int, tuple[int, int]] = {}
        for number, size in sizes.items():
            count, total = clients.get(number >> SESSION_BITS, (0, 0))
            clients[number >> SESSION_BITS] = count + 1, total + size
        programs = tuple(sorted(program.name for program in [*self.programs.values()]))
        steps, calls = self.in_progress.report(), self.calls.report()
        return HostReport(len(sizes), sum(sizes.values()), programs, steps, calls, clients)

    def report_lost_peer(self, host: int, address: str, why: str) -> None:
        """Notifies the controller that another host does not answer."""
        with contextlib.suppress(ConnectionEnded):
            self.connections["watch"].send(m.PeerLost(host, address, why))

    def report_found_peer(self, host: int, address: str) -> None:
        """Notifies the controller that another host answers again."""
        with contextlib.suppress(ConnectionEnded):
            self.connections["watch"].send(m.PeerFound(host, address))

    def report_leaving(self) -> None:
        """Notifies the controller that this process got SIGTERM."""
        with contextlib.suppress(ConnectionEnded):
            self.connections["watch"].send(m.Leaving())

    # Ordered messages, and loading.

    def unload(self, message: m.Unload) -> None:
        """Frees a program, now or when it is compiled."""
        if self.programs.pop(message.program, None) is None:
            self.unneeded.add(message.program)

    def cancel(self, message: m.Cancel) -> None:
        """Frees arrays that were sent to lost hosts."""
        for program, run in message.runs:
            if program in self.programs:
                self.programs[program].target.cancel(run, message.hosts)

    def release_client(self, message: m.ReleaseClient) -> None:
        """Frees the state of a client that has disconnected."""
        self.calls.release_client(message.client)
        self.last.pop(message.client, None)
        for release in self.releases:
            release(message.client)

    def fetch(self, message: m.Fetch) -> None:
        """Starts to send an array, as it is at this place in the order."""
        self.start(self.send_array, message, self.store.get_or_promise(message.array))

    def load(self, message: m.Load) -> None:
        """Compiles a program, and replies to the controller."""
        error = self.add_program(message)
        program = self.programs.get(message.program)
        memory = None if program is None else memory_of(program.executable, program.outputs)
        self.connections["steps"].send(m.LoadDone(message.request, error, memory=memory))

    def load_foreign(self, message: m.LoadForeign) -> None:
        """Loads a program of an extension, and replies to the controller."""
        error: str | None = None
        reply: m.ForeignFacts | None = None
        try:
            program, facts = self.loaders[message.kind](message)
        except Exception as failure:
            error = _described(failure)
        else:
            reply = m.ForeignFacts(facts)
            if program is not None:
                reply = m.ForeignFacts(
                    facts, True, program.operands, program.count, program.donated, program.memory
                )
                if message.program not in self.unneeded:
                    self.programs[message.program] = program
        self.connections["steps"].send(m.LoadDone(message.request, error, reply))

    def add_program(self, message: m.Load) -> str | None:
        """Compiles a program and adds it; returns the error if that fails."""
        try:
            program = self.compile(message)
        except Exception as error:
            return _described(error)
        if message.program in self.unneeded:
            return None
        peers = program.target.peers() | (set(self.island) - {self.host})
        if peers and (error_text := self.peers.port_conflict()) is not None:
            return error_text
        self.programs[message.program] = program
        self.probes.watch({host: message.probes[host] for host in peers})
        return None

    def compile(self, message: m.Load) -> WorkerProgram:
        """Compiles a program."""
        context = make_context()
        with context:
            module = ir.Module.parse(message.module)
            prints: Sequence[Callable[..., Any]] = ()
            if PRINT.encode() in message.module:
                prints = take_prints(module, f"host {self.host} (island{message.island})")
            plans = host_plans_of(
                module, message.name, Stored.of(message.computations, message.constants), proved=True
            )
        island_plan = plan = plans[message.island]
        inputs: tuple[int, ...] | None = None
        outputs: tuple[int, ...] = ()
        if len(self.island) > 1:
            host_program = cut_host_program(island_plan, message.owners, self.host, message.crossing)
            plan, inputs, outputs = host_program.plan, host_program.inputs, host_program.outputs
        # Only where it is needed, because it imports scipy.
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
            aval_of(result.type, result.memory_kind).update(weak_type=weak)
            for result, weak in zip(plan.results, message.weak_results, strict=True)
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
            callbacks=prints,
            argument_names=message.argument_names,
            progress=lambda *_: None,
            make_target=target,
        )
        if inputs is None:
            outputs = tuple(range(len(executable.outputs)))
        count = sum(len(result.slots) for result in island_plan.results)
        passed = [argument for argument in plan.arguments if argument.constant is None]
        donated = tuple(n for n, port in enumerate(executable.inputs) if passed[port.number].donated)
        return WorkerProgram(message.name, executable, targets[0], inputs, donated, outputs, count)

    def describe(self, message: m.Describe) -> None:
        """Sends memory, FLOPs and text of a compiled program."""
        program = self.programs.get(message.program)
        executable = None if program is None else program.executable
        for reply in describe(message.request, executable, text=message.text):
            self.connections["watch"].send(reply)

    def run(self, message: m.Run) -> None:
        """Issues a step."""
        if self.is_known(message.run):
            return
        self.store.free(message.free)
        program = self.programs[message.program]
        numbers = message.arguments
        if program.inputs is not None:
            numbers = tuple(numbers[n] for n in program.inputs)
        arguments = [self.store.get(number) for number in numbers]
        failure = None
        for array in arguments:
            if isinstance(array, FailedArray) and not program.runs_with_failed:
                failure = array.error
                break
        if program.donated and self.calls.holding:
            self.calls.wait_for([arguments[n] for n in program.donated])
        self.current = message
        program.target.begin(message.run, self.in_progress.begin(program.name, message.run))
        results: list[Any] = []
        if failure is None:
            try:
                # See `wait_for`, which must not read an array while a step donates it.
                with self.issuing:
                    results = program.executable.run(arguments)
            except Exception as error:
                failure = _described(error)
        if failure is not None:
            # Other hosts wait for the sends of this step.
            program.target.poison(failure)
            poisons = [FailedArray(failure)] * len(program.outputs)
            self.store.add(message.first, program.results(poisons))
            self.send_done(message.run, failure, {})
            return
        self.store.add(message.first, results if program.inputs is None else program.results(results))
        self.in_progress.issued(message.run)
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
        # All is ready already: spares short steps the switch to the thread that waits.
        self.send_done(message.run, None, self.wait_for(program, results) if results else _NOTHING)

    def call(self, message: m.Call) -> None:
        """Accepts a call of a function in its order among steps."""
        if not self.is_known(message.call):
            self.calls.accept(message)

    def is_known(self, number: int) -> bool:
        """Registers a step or call; returns whether it is a repetition of an interrupted controller."""
        session = number >> SESSION_BITS
        if number <= self.last[session]:
            return True
        self.last[session] = number
        return False

    def send_done(self, run: int, error: str | None, failed: dict[int, str]) -> None:
        """Notifies the controller that a step is done."""
        took = self.in_progress.done(run)
        self.connections["steps"].send(m.Done(run, error, failed, took))

    def wait(self) -> None:
        """Waits for steps, and notifies the controller of each that is done."""
        while True:
            run, program, results, tokens = self.waiting.get()
            failed = self.wait_for(program, results)
            error = _wait_for(tokens)
            # Before `get` blocks: nothing here may keep arrays alive.
            del program, results, tokens
            self.send_done(run, error, failed)

    def wait_for(self, program: WorkerProgram, results: list[Any]) -> dict[int, str]:
        """Waits for the results of a program; returns the errors of failed results, by their positions."""
        failed = {}
        for position, array in enumerate(results):
            try:
                array.block_until_ready()
            except Exception as error:
                # A later step may have donated it, or be about to, device by device.
                with self.issuing:
                    is_donated = array.is_deleted()
                # XLA has also said so of an array that was not deleted by then.
                if not is_donated and _DONATED not in str(error):
                    slice = program.executable.outputs[position].slice
                    failed[program.outputs[position]] = f"a result on slice {slice}: {_described(error)}"
        return failed

    def send_array(self, message: m.Fetch, array: Any) -> None:
        """Sends an array that the controller fetches, when it is ready."""
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
                    piece = raw[offset : offset + credit.acquire(min(CHUNK, len(raw) - offset))]
                    if not piece:
                        # The fetch was cancelled.
                        return
                    connection.send_with(m.Chunk(message.request, shard, offset, len(piece)), piece)
                    offset += len(piece)


_DONATED = "called on deleted or donated buffer"


def _wait_for(tokens: list[Any]) -> str | None:
    """Waits for launches; returns the error of the first that failed."""
    for token in tokens:
        try:
            token.block_until_ready()
        except Exception as error:
            return _described(error)
    return None


def _code(message: m.Load) -> Iterator[bytes]:
    """Yields all bytecode of a program."""
    yield message.module
    for computation in message.computations.values():
        yield computation.module


def local_bytes(array: Any) -> int:
    """Returns the bytes of the shards of an array on this host; 0 for one that was donated."""
    return 0 if array.is_deleted() else sum(shard.data.nbytes for shard in array.addressable_shards)


def refuse(message: object) -> NoReturn:
    """Rejects a message that no handler expects.

    Raises:
      MessageError: always.
    """
    raise m.MessageError(f"unexpected message {type(message).__name__} from the controller")


def exit_now(code: int = 0) -> NoReturn:
    """Exits at once: XLA's own cleanup would wait for threads that wait for lost workers."""
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)


def _described(error: Exception) -> str:
    notes = "; ".join(getattr(error, "__notes__", ()))
    text = str(error).strip() or type(error).__name__
    return f"{text} ({notes})" if notes else text
