"""The controller's side: it tells workers what to run, and knows what became of it."""

from __future__ import annotations

import abc
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pathways.runtime.control.core import REPORT_SECONDS
from pathways.runtime.control.records.errors import HostError, failed, lost
from pathways.runtime.control.records.replies import HostRequest
from pathways.runtime.control.records.step import FunctionCall, Step
from pathways.runtime.control.records.unused import Unused
from pathways.runtime.control.stalls import described
from pathways.runtime.hosts.cluster.answers import Fetched
from pathways.runtime.hosts.cluster.event_loop import EventLoop
from pathways.runtime.hosts.cluster.host import HostGang, HostProcess, Location
from pathways.runtime.hosts.cluster.hosted import HostedProgram
from pathways.runtime.hosts.cluster.islands import Islands
from pathways.runtime.hosts.cluster.round_trips import WindowWaits
from pathways.runtime.hosts.cluster.shared_core import SharedCore, ignore
from pathways.runtime.hosts.protocol.describing import HostFacts, facts_of
from pathways.runtime.hosts.protocol.frames import CHUNK
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.messages import Call, Chunk, Describe, Fetch, Free, Message, Put
from pathways.runtime.hosts.protocol.programs import BoundProgram, SplitProgram
from pathways.runtime.hosts.protocol.shards import cut
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.hosts.trace.host_traces import HostTraces
from pathways.runtime.resources.cluster import MORE_OF_HOSTS, Cluster
from pathways.runtime.resources.manager import ResourceManager
from pathways.runtime.resources.status import HostStatus, SpareStatus, StepStatus
from pathways.runtime.resources.virtual import VirtualSlice

Split = Callable[..., SplitProgram]
"""Cuts a program into parts: takes `ahead` and `together` of `splitting.split`."""


class Controller(abc.ABC):
    """What programs and arrays see of the workers of a cluster.

    Args:
      core: decides what becomes of them.
      islands: the islands.
      loop: reads what workers say about steps.

    Attributes:
      core: see above.
      islands: the islands, with the workers that each has now.
      hosts: these workers.
      cluster: the devices of all islands.
      order: held from the look at the numbers of arrays until the step that takes them is issued, and while
        arrays are deleted: a worker would wait for ever for what it has freed. `run` waits under it until
        there is room.
      asking: the same for numbers that are sent to fetch an array. Nothing waits while it is held.
      traces: those that the workers take part in.
    """

    traces: HostTraces

    def __init__(self, core: SharedCore, islands: Islands, loop: EventLoop) -> None:
        self.core = core
        self._is_several = core.core.is_several
        self.islands = islands
        self.hosts = islands.hosts
        self.cluster = islands.cluster
        self._loop = loop
        self._closed = threading.Event()
        # Submission is atomic, so that every host sees one order of steps.
        self.order = threading.RLock()
        self.asking = threading.Lock()
        self._unneeded: Unused[HostedProgram] = Unused()
        self._waits = WindowWaits()

    @property
    def step_deadline(self) -> float | None:
        """After how many seconds this process ends a loop without a known end; None for never."""
        return None

    def spares(self) -> SpareStatus | None:
        """Returns how many spare workers this process has ready; None where there shall be none."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of all workers; those that this process has started end."""

    def leave(self) -> None:
        """Lets go of the workers in a process that was forked from the one that they belong to.

        Of the threads of that process none is here, and any lock may be held by one of them for ever.
        """
        self.order, self.asking = threading.RLock(), threading.Lock()
        self._closed = threading.Event()
        self._closed.set()
        self._loop.leave()
        self.core.forget_threads()
        self.islands.forget_threads()
        # What is to be done, the other process does.
        self.core.act = ignore
        self.core.tell(*self._closed_events("belongs to the process that this one was forked from"))
        for host in self.hosts:
            host.leave()

    @abc.abstractmethod
    def _closed_events(self, how: str) -> Sequence[Any]:
        """What tells the core that no worker is there any more, and why."""

    def resource_manager(self, cluster: Cluster) -> ResourceManager[VirtualSlice]:
        """What binds the slices of this process to devices of the cluster."""
        return ResourceManager(cluster, MORE_OF_HOSTS)

    @abc.abstractmethod
    def load(self, program: BoundProgram, split: Split) -> HostedProgram:
        """Compiles the parts of a program on their hosts, all at the same time, and waits for all.

        Args:
          program: the program.
          split: cuts it into parts.

        Raises:
          HostError: one of them cannot; says which host and why.
          SplitError: it cannot be cut.
        """

    @abc.abstractmethod
    def _wait_for_room(self, program: HostedProgram) -> None:
        """Waits until one more step of a program may be issued.

        Raises:
          HostError: a host is gone.
        """

    @abc.abstractmethod
    def _frames(
        self, step: Step, program: HostedProgram, arguments: Mapping[int, Sequence[int]]
    ) -> list[bytes]:
        """What is sent for a step."""

    @abc.abstractmethod
    def _send_step(self, program: HostedProgram, frames: Sequence[bytes]) -> None:
        """Sends these; what is lost in the meantime is lost with the step."""

    @abc.abstractmethod
    def _send_call(self, hosts: Sequence[HostProcess], call: Call) -> None:
        """Sends a call to hosts; who is lost in the meantime is lost with it."""

    @abc.abstractmethod
    def _lose(self, host: HostProcess, error: ConnectionEnded) -> None:
        """A connection to a worker has ended."""

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

    def describe(self, program: HostedProgram, *, text: bool = False) -> HostFacts:
        """What XLA made of a program on its hosts, with the text of its modules or without.

        Raises:
          HostError: a host is gone.
        """
        request = self.core.ask(program.host_numbers)
        try:
            for host in program.hosts:
                self._speak(host, host.watch.send, Describe(request.number, program.number, text))
        except BaseException:
            self.core.drop(request)
            raise
        self.core.wait_for(request)
        for _, failure in request.first_failure():
            raise failure.error(f"program {program.name}")
        # All hosts of an island that run a computation say the same of it.
        pieces = [request.answers[host.index] for host in program.hosts]
        error = next((piece.error for said in pieces for piece in said if piece.error is not None), None)
        if error is not None:
            raise failed(error).error(f"program {program.name}")
        return facts_of(pieces)

    def unload(self, program: HostedProgram) -> None:
        """Notes that a program is no longer run; may be called by finalizers."""
        self._unneeded.add(program)

    def _take_number_to_send(self) -> int:
        """The number of an array that is sent from here."""
        return self.core.take_numbers()

    def put(self, value: np.ndarray[Any, Any], location: Location) -> int:
        """Sends an array to the hosts of a location; returns its number there.

        Raises:
          HostError: one of them is gone.
        """
        location.gang.life.check_open()
        value = location.part.of(value)
        number = self._take_number_to_send()
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
            self._wait_for_room(program)
            number = self.core.take_numbers(1 + program.most_outputs)
            step = Step(
                program.name, number, program.host_numbers, program.number, time.monotonic(), program.share
            )
            frames: list[bytes] = []

            def begin() -> None:
                self.core.issue(step, program.lives, made)
                if not frames:
                    frames.extend(self._frames(step, program, arguments))
                self._send_step(program, frames)

            _twice_if_interrupted(begin)
        return step

    def call(
        self,
        name: str,
        gang: HostGang,
        hosts: Sequence[HostProcess],
        message: Call,
        made: Sequence[Step | None] = (),
    ) -> FunctionCall:
        """Starts a call of a function; one message to each host, as for a step.

        Args:
          name: what it is called in messages.
          gang: the workers of the island.
          hosts: those of them that make the call.
          message: what they are told, but for the numbers and the hosts.
          made: the steps that made the arrays that it takes.

        Returns:
          The call. The first array that it makes has the number after that of the call, and others follow it.

        Raises:
          HostError: a host is gone.
        """
        with self.order:
            gang.life.check_open()
            number = self.core.take_numbers(1 + len(message.made or ()))
            indices = tuple(host.index for host in hosts)
            call = FunctionCall(name, number, indices, time.monotonic())
            whole = msgspec.structs.replace(message, call=number, first=number + 1, hosts=indices)

            def begin() -> None:
                self.core.issue(call, (gang.life,), made)
                # What it makes, all of the island may be asked for.
                self._send_call(gang.hosts if whole.made else hosts, whole)

            _twice_if_interrupted(begin)
        return call

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
        request = self.core.ask([host.index] if any(sizes) else [], Fetched(sizes))
        if not request.is_done():
            try:
                self._send(host, Fetch(request.number, number, tuple(devices), sum(sizes)))
            except BaseException:
                self.core.drop(request)
                raise
        return request

    def fetch(self, request: HostRequest) -> list[bytearray]:
        """The bytes that were asked for, when they are ready.

        Raises:
          HostError: the host is gone, or the array is an error.
        """
        self.core.wait_for(request)
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
        self._loop.wait(self._is_known(step, hosts))
        step.check(hosts, number)
        if location is not None:
            location.gang.life.check()

    def wait_for_call(self, call: FunctionCall) -> None:
        """Waits until all hosts have ended a call, or are gone.

        Raises:
          HostError: it is unknown what it took.
        """
        self._loop.wait(self._is_known(call, None))
        call.check_spoiled()

    def described(self, call: FunctionCall) -> str:
        """What the hosts are at that have not ended a call."""
        request = self.core.ask_reports(call.pending())
        self.core.wait_for(request, 2 * REPORT_SECONDS)
        reports = {host: said[-1] for host, said in request.answers.items()}
        return described(call, time.monotonic() - call.began, reports)

    def has_ended(self, call: FunctionCall) -> bool:
        """Whether all hosts have ended a call, or are gone."""
        if not call.is_done():
            self._loop.poll()
        return call.is_done()

    def settle(self, step: Step) -> None:
        """Waits until nothing can spoil what a step has made, where anything can.

        Raises:
          HostError: it is spoiled.
        """
        if self._is_several:
            self._loop.wait(step.is_settled)
            step.check_spoiled()

    def is_done(self, step: Step, location: Location) -> bool:
        """Whether the hosts of a location are done with a step; see `wait`."""
        hosts = [host.index for host in location.holders]
        is_done = self._is_known(step, hosts)
        if not is_done():
            self._loop.poll()
        return is_done()

    def _is_known(self, step: Step, hosts: Sequence[int] | None) -> Callable[[], bool]:
        """Says whether it is known what became of what some hosts, or all, make of a step."""
        is_done = step.is_settled if self._is_several else functools.partial(step.is_done, hosts)
        return lambda: is_done() or step.has_cut_hosts(hosts)

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
            self._lose(host, error)
            host.gang.life.check_open()
            raise lost(f"{host}: {error}").error() from None

    def status(self) -> tuple[tuple[HostStatus, ...], tuple[StepStatus, ...]]:
        """How all hosts are, and the steps that are not done."""
        request = self.core.ask_reports(range(len(self.hosts)))
        # Longer than the core lets it take, which has no clock when the cluster is closed meanwhile.
        self.core.wait_for(request, 2 * REPORT_SECONDS)
        self._loop.poll()
        reports = {host: said[-1] for host, said in request.answers.items()}
        now = time.monotonic()
        return (
            tuple(host.status(reports.get(host.index)) for host in self.hosts),
            tuple(step.status(now) for step in self.core.core.steps.unfinished()),
        )

    def waits_for_network(self) -> bool:
        """Whether steps wait for the round trip to the host that is the farthest, and for nothing else."""
        known = [trip for host in [*self.hosts] if (trip := host.round_trip.seconds) is not None]
        return self._waits.is_network(max(known, default=None))


def _twice_if_interrupted(begin: Callable[[], None]) -> None:
    """Sends something to several hosts; sending it twice is harmless.

    What only some of them have would be waited for without end; a worker knows what it has had.
    """
    try:
        begin()
    except HostError:
        raise
    except BaseException:
        with uninterrupted():
            begin()
        raise
