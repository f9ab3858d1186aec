"""The controller's side: it tells workers what to run, and knows what became of it."""

from __future__ import annotations

import contextlib
import functools
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pathways.runtime.control.core import REPORT_SECONDS, ClusterCore, Limits
from pathways.runtime.control.errors import HostError, HostLostError, ProgramFailedError
from pathways.runtime.control.events import Closed, Tick
from pathways.runtime.control.replies import HostRequest
from pathways.runtime.control.step import Step
from pathways.runtime.control.unused import Unused
from pathways.runtime.hosts.controller.effect_runner import EffectRunner
from pathways.runtime.hosts.controller.fetching import Fetched
from pathways.runtime.hosts.controller.host import HostGang, HostProcess, Location
from pathways.runtime.hosts.controller.hosted import HostedProgram, HostPart
from pathways.runtime.hosts.controller.islands import Islands
from pathways.runtime.hosts.controller.listener import Listener
from pathways.runtime.hosts.controller.round_trips import WindowWaits
from pathways.runtime.hosts.controller.shared_core import SharedCore, ignore
from pathways.runtime.hosts.controller.starting import Starter
from pathways.runtime.hosts.launch.options import AUTO, MOST_AHEAD, HostOptions
from pathways.runtime.hosts.launch.settings import Settings
from pathways.runtime.hosts.protocol.describing import HostFacts, facts_of
from pathways.runtime.hosts.protocol.frames import CHUNK, encode
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.messages import (
    Chunk,
    Describe,
    Fetch,
    Free,
    Load,
    Message,
    Put,
    Run,
    Unload,
)
from pathways.runtime.hosts.protocol.shards import cut
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.hosts.trace.host_traces import HostTraces
from pathways.runtime.resources import cluster as resources
from pathways.runtime.resources.status import HostStatus, StepStatus
from pathways.runtime.resources.threads import start_thread

_TICK_SECONDS = 0.05
_FREE_SECONDS = 0.05


class Controller:
    """All workers of a cluster.

    What becomes of them is decided by a core (`runtime.control`); `Listener` tells it what they say, and
    `EffectRunner` carries out its effects.

    Args:
      starter: starts the workers.
      settings: what the user says of them.

    Attributes:
      settings: what the user says of them.
      islands: the islands, with the workers that each has now.
      hosts: these workers.
      cluster: the devices of all islands.
      order: held from the look at the numbers of arrays until the step that takes them is issued, and while
        arrays are deleted: a worker would wait for ever for what it has freed. `run` waits under it until
        there is room.
      asking: the same for numbers that are sent to fetch an array. Nothing waits while it is held.
      traces: those that the workers take part in.

    Raises:
      HostError: a worker does not start.
    """

    def __init__(self, starter: Starter, settings: Settings) -> None:
        self.settings = settings
        self._closed = threading.Event()
        # Submission is atomic, so that every host sees one order of steps.
        self.order = threading.RLock()
        self.asking = threading.Lock()
        self._unneeded: Unused[HostedProgram] = Unused()
        self._waits = WindowWaits()
        started = starter.start(range(len(settings.islands)), self._closed)
        numbers = [[host.index for host in hosts] for hosts in started]
        core = ClusterCore(numbers, _limits(settings.options), time.monotonic())
        self._core = SharedCore(core)
        self._is_several = core.is_several
        self.islands = Islands([HostGang(life, own) for life, own in zip(core.gangs, started, strict=True)])
        self.hosts = self.islands.hosts
        self.cluster = self.islands.cluster
        self.traces = HostTraces(self.hosts, self.tell_all)
        listener = Listener(self._core, self.islands, self.traces)
        self._listener, self._answers = listener, listener.answers
        self._effect_runner = EffectRunner(
            self._core, self.islands, listener, self.traces, starter, self.order, self._closed
        )
        self._core.act = self._effect_runner.run
        for gang in self.islands.gangs:
            listener.attach(gang)
        start_thread(self._keep_time, "clock")
        # Apart: a worker that is stopped takes nothing, and only the clock finds that out.
        start_thread(self._free, "free")

    def close(self) -> None:
        """Ends all workers."""
        if self._closed.is_set():
            return
        self.traces.close()
        self._closed.set()
        # Not with a message, which a worker that is stopped would not take: it hears that this side is gone.
        self._core.tell(*(Closed(gang.life.key, "is closed") for gang in self.islands.gangs))
        self._effect_runner.close()

    def leave(self) -> None:
        """Lets go of the workers in a process that was forked from the one that they belong to.

        Of the threads of that process none is here, and any lock may be held by one of them for ever.
        """
        self.order, self.asking = threading.RLock(), threading.Lock()
        self._closed = threading.Event()
        self._closed.set()
        self._answers.forget_threads()
        self._core.forget_threads()
        self.islands.forget_threads()
        # What is to be done, the other process does.
        self._core.act = ignore
        how = "belongs to the process that this one was forked from"
        self._core.tell(*(Closed(gang.life.key, how) for gang in self.islands.gangs))
        for host in self.hosts:
            host.leave()

    def is_usable(self) -> bool:
        """Whether it is not closed, and all islands have workers, or will have new ones."""
        return not self._closed.is_set() and not any(gang.life.is_dead() for gang in self.islands.gangs)

    def is_whole(self) -> bool:
        """Whether no host is lost or leaves, and the cluster is not closed."""
        return not self._closed.is_set() and all(gang.life.problem is None for gang in self.islands.gangs)

    def tell_all(self, *messages: Message) -> None:
        """Sends messages to all hosts that are left, to all of them between the same two steps."""
        with self.order:
            for host in self.hosts:
                with contextlib.suppress(HostError):
                    self._send(host, *messages)

    def load(
        self,
        name: str,
        gangs: Sequence[HostGang],
        parts: Mapping[int, HostPart],
        devices: Mapping[str, tuple[resources.Device, ...]],
        crossing: int = 0,
        inner: int = 0,
        share: int = 1,
    ) -> HostedProgram:
        """Compiles the parts of a program on their hosts, all at the same time, and waits for all.

        Args:
          name: the name of the program.
          gangs: the workers of the islands that have a part.
          parts: what each island gets.
          devices: those of each slice.
          crossing: how many transfers between islands a run has, on all islands together.
          inner: how many within an island it has at most.
          share: for how many steps under way each of its steps counts.

        Raises:
          HostError: one of them cannot; says which host and why.
        """
        number = self._core.take_numbers()
        # What is sent under which number cannot be guessed.
        base = secrets.randbelow(1 << 61)
        hosts = [host for gang in gangs for host in gang.hosts]
        request = self._core.ask([host.index for host in hosts])
        loads = {
            gang: Load(
                request.number,
                number,
                name,
                part.module,
                part.declared_computations(),
                part.declared_constants(),
                gang.number,
                {slice: tuple(device.id for device in own) for slice, own in devices.items()},
                {slice: tuple(device.host.index for device in own) for slice, own in devices.items()},
                {host.index: host.data_address for host in hosts},
                {host.index: host.ready.probe_address for host in hosts},
                base,
                crossing,
                crossing + inner,
                part.argument_names,
                part.weak_results,
            )
            for gang in gangs
            for part in [parts[gang.number]]
        }
        program = HostedProgram(
            number,
            name,
            tuple(gangs),
            {island: part.inputs for island, part in parts.items()},
            {island: part.outputs for island, part in parts.items()},
            share,
        )
        try:
            for gang, load in loads.items():
                for host in gang.hosts:
                    self._send(host, load)
            self._answers.wait(lambda: request.is_done() or bool(request.failures))
            for index, failure in request.first_failure():
                raise failure.error(f"program {name}, host {index}")
        except BaseException:
            self._core.drop(request)
            # Others may have it.
            self.unload(program)
            raise
        return program

    def describe(self, program: HostedProgram, *, text: bool = False) -> HostFacts:
        """What XLA made of a program on its hosts, with the text of its modules or without.

        Raises:
          HostError: a host is gone.
        """
        request = self._core.ask(program.host_numbers)
        try:
            for host in program.hosts:
                self._speak(host, host.watch.send, Describe(request.number, program.number, text))
        except BaseException:
            self._core.drop(request)
            raise
        self._core.wait_for(request)
        for _, failure in request.first_failure():
            raise failure.error(f"program {program.name}")
        # All hosts of an island that run a computation say the same of it.
        pieces = [request.answers[host.index] for host in program.hosts]
        error = next((piece.error for said in pieces for piece in said if piece.error is not None), None)
        if error is not None:
            raise ProgramFailedError(f"program {program.name}: {error}")
        return facts_of(pieces)

    def unload(self, program: HostedProgram) -> None:
        """Notes that a program is no longer run; may be called by finalizers."""
        self._unneeded.add(program)

    def put(self, value: np.ndarray[Any, Any], location: Location) -> int:
        """Sends an array to the hosts of a location; returns its number there.

        Raises:
          HostError: one of them is gone.
        """
        location.gang.life.check_open()
        value = location.part.of(value)
        number = self._core.take_numbers()
        try:
            for host in location.gang.hosts:
                shards, order = cut(value, location.placement, location.holders.get(host, ()))
                put = Put(number, value.shape, value.dtype.name, location.placement, order)
                self._speak(host, host.arrays.send, put)
                for n, shard in enumerate(shards):
                    raw = memoryview(np.ascontiguousarray(shard).reshape(-1).view(np.uint8))
                    for offset in range(0, len(raw), CHUNK):
                        piece = raw[offset : offset + CHUNK]
                        chunk = Chunk(number, n, offset, len(piece))
                        self._speak(host, host.arrays.send_with, chunk, piece)
        except BaseException:
            # Ctrl-C, such as while something large is sent.
            for host in location.gang.hosts:
                with contextlib.suppress(HostError):
                    self._speak(host, host.arrays.send, Free((number,)))
            raise
        return number

    def run(
        self,
        program: HostedProgram,
        arguments: Mapping[int, Sequence[int]],
        made: Sequence[Step | None] = (),
    ) -> Step:
        """Issues a step: one message to each host, to all of them before any answer.

        Args:
          program: the program.
          arguments: for each island the numbers of the arrays that its part takes.
          made: the steps that made these arrays.

        Returns:
          The step. The first array that a part makes has the number after that of the step on its hosts, and
          others follow it.

        Raises:
          HostError: a host is gone.
        """
        with self.order:
            for life in program.lives:
                life.check_open()
                while (oldest := life.window.blocker(program.share)) is not None:
                    self._answers.wait(oldest.is_done)
                    self._waits.add(time.monotonic() - oldest.began)
            number = self._core.take_numbers(1 + program.most_outputs)
            step = Step(
                program.name, number, program.host_numbers, program.number, time.monotonic(), program.share
            )
            frames: list[bytes] = []
            try:
                self._begin(step, program, arguments, made, frames)
            except HostError:
                raise
            except BaseException:
                # A step that only some hosts have would wait for ever; a worker knows those that it has had.
                with uninterrupted():
                    self._begin(step, program, arguments, made, frames)
                raise
        return step

    def _begin(
        self,
        step: Step,
        program: HostedProgram,
        arguments: Mapping[int, Sequence[int]],
        made: Sequence[Step | None],
        frames: list[bytes],
    ) -> None:
        """Sends a step to its hosts; doing that twice is harmless, with the same `frames`."""
        self._core.issue(step, program.lives, made)
        if not frames:
            frames += self._frames(step, program, arguments)
        for host, frame in zip(program.hosts, frames, strict=True):
            # What is lost since the step began is lost with the step.
            try:
                host.steps.send_frames(frame)
            except ConnectionEnded as error:
                self._listener.lose(host, error)

    def _frames(
        self, step: Step, program: HostedProgram, arguments: Mapping[int, Sequence[int]]
    ) -> list[bytes]:
        """What each host of a step is told."""
        frames: list[bytes] = []
        # Islands that take and free nothing are told the same.
        plain: bytes | None = None
        for gang in program.gangs:
            own, unused = tuple(arguments[gang.number]), gang.life.unused.take()
            if own or unused:
                frame = encode(Run(program.number, step.number, step.number + 1, own, unused))
            else:
                frame = plain = plain or encode(Run(program.number, step.number, step.number + 1, ()))
            frames += [frame] * len(gang.hosts)
        return frames

    def ask(
        self, host: HostProcess, number: int, devices: Sequence[int], sizes: Sequence[int]
    ) -> HostRequest:
        """Asks for the bytes of some shards of an array; `fetch` waits for them.

        Args:
          host: the host.
          number: the number of the array there.
          devices: the positions of the shards, among those of the host.
          sizes: their bytes.

        Raises:
          HostError: the host is gone.
        """
        # What has no bytes is there.
        request = self._core.ask([host.index] if any(sizes) else [], Fetched(sizes))
        if not request.is_done():
            try:
                self._send(host, Fetch(request.number, number, tuple(devices)))
            except BaseException:
                self._core.drop(request)
                raise
        return request

    def fetch(self, request: HostRequest) -> list[bytearray]:
        """The bytes that were asked for, when they are ready.

        Raises:
          HostError: the host is gone, or the array is an error.
        """
        self._core.wait_for(request)
        for _, failure in request.first_failure():
            raise failure.error()
        assert isinstance(request.sink, Fetched)
        return request.sink.shards

    def wait(self, step: Step, location: Location | None = None, number: int | None = None) -> None:
        """Waits until the hosts of a location, or all hosts, are done with a step.

        Where islands have several hosts, until nothing can spoil it any more.

        Args:
          step: the step.
          location: the location; None for all hosts.
          number: the number of an array that its part makes; None for all.

        Raises:
          HostError: the array failed, or a host is gone.
        """
        hosts = None if location is None else [host.index for host in location.holders]
        self._answers.wait(self._is_known(step, hosts))
        step.check(hosts, number)
        if location is not None:
            location.gang.life.check()

    def settle(self, step: Step) -> None:
        """Waits until nothing can spoil what a step has made, where anything can.

        Raises:
          HostError: it is spoiled.
        """
        if self._is_several:
            self._answers.wait(step.is_settled)
            step.check_spoiled()

    def is_done(self, step: Step, location: Location) -> bool:
        """Whether the hosts of a location are done with a step; see `wait`."""
        hosts = [host.index for host in location.holders]
        is_done = self._is_known(step, hosts)
        if not is_done():
            self._answers.poll()
        return is_done()

    def _is_known(self, step: Step, hosts: Sequence[int] | None) -> Callable[[], bool]:
        """Says whether it is known what became of what some hosts, or all, make of a step."""
        is_done = step.is_settled if self._is_several else functools.partial(step.is_done, hosts)
        return lambda: is_done() or step.is_cut(hosts)

    def forget(self, location: Location, number: int) -> None:
        """Notes that an array is no longer held; may be called by finalizers."""
        location.gang.life.unused.add(number)

    def _send(self, host: HostProcess, *messages: Message) -> None:
        """Sends a host what has an order.

        Raises:
          HostError: it is gone.
        """
        self._speak(host, host.steps.send, *messages)

    def _speak(self, host: HostProcess, send: Callable[..., None], *what: Any) -> None:
        """Sends something to a host.

        Raises:
          HostError: it is gone.
        """
        host.gang.life.check()
        try:
            with uninterrupted():
                send(*what)
        except ConnectionEnded as error:
            self._listener.lose(host, error)
            host.gang.life.check_open()
            raise HostLostError(f"{host}: {error}") from None

    def _keep_time(self) -> None:
        """Tells the core how time goes by."""
        while not self._closed.wait(_TICK_SECONDS):
            self._answers.poll()
            self._core.tell(Tick())

    def status(self) -> tuple[tuple[HostStatus, ...], tuple[StepStatus, ...]]:
        """How all hosts are, and the steps that are not done."""
        request = self._core.ask_reports(range(len(self.hosts)))
        # Longer than the core lets it take, which has no clock when the cluster is closed meanwhile.
        self._core.wait_for(request, 2 * REPORT_SECONDS)
        self._answers.poll()
        reports = {host: said[-1] for host, said in request.answers.items()}
        now = time.monotonic()
        return (
            tuple(host.status(reports.get(host.index)) for host in self.hosts),
            tuple(step.status(now) for step in self._core.core.steps.unfinished()),
        )

    def waits_for_network(self) -> bool:
        """Whether steps wait for the round trip to the host that is the farthest, and for nothing else."""
        known = [trip for host in [*self.hosts] if (trip := host.round_trip.seconds) is not None]
        return self._waits.is_network(max(known, default=None))

    def _free(self) -> None:
        """Frees what is no longer held, in batches, where no step does so."""
        while not self._closed.wait(_FREE_SECONDS):
            for gang in [*self.islands.gangs]:
                unused = gang.life.unused.take()
                for host in gang.hosts if unused else ():
                    with contextlib.suppress(HostError):
                        self._send(host, Free(unused))
            for program in self._unneeded.take():
                for host in program.hosts:
                    # Steps that were issued still run.
                    with contextlib.suppress(HostError):
                        self._send(host, Unload(program.number))


def _limits(options: HostOptions) -> Limits:
    return Limits(
        MOST_AHEAD if options.ahead == AUTO else options.ahead,
        options.heartbeat,
        options.grace,
        options.stall_report,
        options.step_deadline,
        options.restart_seconds,
    )
