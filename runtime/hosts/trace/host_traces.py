"""The controller's part of a trace: it has all workers record, reads their clocks, merges what they say."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pathways.runtime.hosts.protocol.messages import (
    ClockTime,
    FromTracing,
    ReadClock,
    RunTimes,
    StartTrace,
    StepTimes,
    StopTrace,
    TraceDone,
    TraceStarted,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.hosts.trace.clocks import HostClock, RoundTrip
from pathways.runtime.hosts.trace.merging import PlanOnHosts
from pathways.runtime.plan.host_program import Owners
from pathways.runtime.plan.plan import Plan
from pathways.runtime.resources.threads import RunningThread, start_thread

if TYPE_CHECKING:
    # It imports JAX, which the service of many clients does without.
    from pathways.runtime.local.recorder import Recorder, TraceSink

_PAUSE = 1.0
"""Seconds from one time that clocks are read and finished runs are written to the next."""
_TRIPS = 16
"""How many round trips a measurement of a clock has."""
_PATIENCE = 1.0
"""Seconds that a round trip may take."""
_START_SECONDS = 5.0
"""How long the beginning of a trace waits for workers: one may be compiling."""
_CLOSE_SECONDS = 5.0
"""How long the end of a cluster waits for what its workers have recorded."""

log = logging.getLogger("pathways")


class TracedHost(Protocol):
    """A worker, as a trace sees it; `str` names its host."""

    index: int
    steps: Connection[Any]
    watch: Connection[Any]

    @property
    def error(self) -> str | None:
        """Why it is gone; None while it is not."""


class HostTraces:
    """Lets the workers of a cluster take part in traces.

    Args:
      hosts: the workers.
      tell_all: sends messages to all that are left, to all of them between the same two steps.
    """

    def __init__(self, hosts: Sequence[TracedHost], tell_all: Callable[..., None]) -> None:
        self._hosts = hosts
        self._tell_all = tell_all
        self._lock = threading.Lock()
        self._programs: weakref.WeakKeyDictionary[Any, tuple[int, PlanOnHosts]] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count(1)
        self._trace: _HostTrace | None = None
        self._closed = False

    def add(self, program: object, number: int, plan: Plan, owners: Owners) -> None:
        """Tells of a program that was loaded.

        Args:
          program: lives as long as it may be run.
          number: its number.
          plan: the whole of it.
          owners: for each of its slices the host of each device.
        """
        loaded = PlanOnHosts(plan, owners)
        with self._lock:
            self._programs[program] = number, loaded
            if self._trace is not None:
                self._trace.programs[number] = loaded

    def observe(self, recorder: Recorder | None) -> None:
        """Has the workers record all runs from now on, or none any more."""
        if recorder is None:
            self._stop()
            return
        with self._lock:
            if self._closed:
                return
            programs = dict(self._programs.values())
            trace = _HostTrace(next(self._numbers), self._hosts, programs, recorder.sink, self._tell_all)
            self._trace = trace
        recorder.wait_for(lambda: self._wait(trace))
        trace.start()

    def on_message(self, host: int, message: FromTracing) -> None:
        """Takes a message of a worker, in the thread that receives it."""
        trace = self._trace
        if trace is not None:
            trace.on_message(host, message)

    def lose(self, host: int) -> None:
        """Expects nothing more of a host."""
        trace = self._trace
        if trace is not None:
            trace.lose(host)

    def attach(self, host: TracedHost) -> None:
        """Lets a worker that was started anew take part, before it is told anything else."""
        trace = self._trace
        if trace is not None:
            trace.attach(host)

    def close(self) -> None:
        """Ends the trace, if there is one, while the workers can still say what they recorded."""
        self._closed = True
        trace = self._stop()
        if trace is not None:
            if not trace.wait(_CLOSE_SECONDS):
                trace.give_up()
            self._wait(trace)

    def _stop(self) -> _HostTrace | None:
        trace = self._trace
        if trace is not None:
            trace.stop()
        return trace

    def _wait(self, trace: _HostTrace) -> None:
        trace.wait()
        with self._lock:
            if self._trace is trace:
                self._trace = None


class _HostTrace:
    """One trace of all workers.

    A thread measures the clocks about once a second. After that, runs whose hosts had all said their part
    before are written: so all their times lie between measurements.

    Args:
      number: its number.
      hosts: the workers.
      programs: what they may run.
      sink: takes the runs.
      tell_all: sends messages to all workers.
    """

    def __init__(
        self,
        number: int,
        hosts: Sequence[TracedHost],
        programs: dict[int, PlanOnHosts],
        sink: TraceSink,
        tell_all: Callable[..., None],
    ) -> None:
        self.programs = programs
        self._number = number
        self._hosts = [host for host in hosts if host.error is None]
        self._sink = sink
        self._tell_all = tell_all
        self._changed = threading.Condition()
        self._started: set[int] = set()
        self._done: set[int] = set()
        self._lost = {host.index for host in hosts if host.error is not None}
        # For each run its program, and what each host has said of it, by the clock that it had.
        self._runs: dict[int, tuple[int, dict[int, tuple[HostClock, list[StepTimes]]]]] = {}
        # For each program the hosts that were lost since it was loaded: those that came for them have it not.
        self._gone: dict[int, set[int]] = {}
        self._complete: dict[int, set[int]] = {}
        self._clocks = {host.index: HostClock() for host in self._hosts}
        self._new: list[TracedHost] = []
        self._asked = itertools.count()
        self._trips: dict[tuple[int, int], tuple[int, int]] = {}
        self._stopping = threading.Event()
        self._thread: RunningThread | None = None

    def start(self) -> None:
        """Has all workers record; waits until they do, but not for long."""
        self._tell_all(StartTrace(self._number))
        # At once: nothing can be said of a host that is lost before its clock was read.
        self._measure()
        self._thread = start_thread(self._work, "trace hosts")
        with self._changed:
            self._changed.wait_for(lambda: self._all_in(self._started), _START_SECONDS)

    def attach(self, host: TracedHost) -> None:
        """Has a worker record that was started anew."""
        with self._changed:
            if self._stopping.is_set():
                return
            for other in self._hosts:
                if other.index == host.index:
                    log.warning("the trace lacks what a host did last: %s", other.error)
            self._hosts = [*(other for other in self._hosts if other.index != host.index), host]
            for number, program in self.programs.items():
                if host.index in program.parts:
                    self._gone.setdefault(number, set()).add(host.index)
            self._clocks[host.index] = HostClock()
            self._lost.discard(host.index)
            self._new.append(host)
            with contextlib.suppress(ConnectionEnded):
                host.steps.send(StartTrace(self._number))

    def stop(self) -> None:
        """Has the workers record no run that is issued from now on."""
        with self._changed:
            if self._stopping.is_set():
                return
            self._stopping.set()
        self._tell_all(StopTrace(self._number))
        # They may not be among all yet.
        for host in self._new:
            with contextlib.suppress(ConnectionEnded):
                host.steps.send(StopTrace(self._number))

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until all is written that the workers recorded; says whether it is."""
        return self._thread is None or self._thread.join(seconds)

    def give_up(self) -> None:
        """Expects nothing more."""
        for host in self._hosts:
            if host.index not in self._done:
                self.lose(host.index)

    def lose(self, host: int) -> None:
        """Expects nothing more of a host."""
        with self._changed:
            self._lost.add(host)
            self._changed.notify_all()

    def on_message(self, host: int, message: FromTracing) -> None:
        """Takes what a worker says."""
        now = time.monotonic_ns()
        with self._changed:
            match message:
                case ClockTime():
                    self._trips[host, message.number] = message.time, now
                case RunTimes() if message.trace == self._number:
                    self._take(host, message)
                case TraceStarted() if message.trace == self._number:
                    self._started.add(host)
                case TraceDone() if message.trace == self._number:
                    self._done.add(host)
                case _:
                    return
            self._changed.notify_all()

    def _take(self, host: int, message: RunTimes) -> None:
        _, parts = self._runs.setdefault(message.run, (message.program, {}))
        parts.setdefault(host, (self._clocks[host], []))[1].extend(message.steps)
        if message.last:
            self._complete.setdefault(message.run, set()).add(host)

    def _all_in(self, hosts: set[int]) -> bool:
        return all(host.index in hosts | self._lost for host in self._hosts)

    def _work(self) -> None:
        while not self._stopping.wait(_PAUSE):
            runs = self._finished()
            self._measure()
            self._write(runs)
        with self._changed:
            self._changed.wait_for(lambda: self._all_in(self._done))
            runs = sorted(self._runs)
        self._measure()
        self._write(runs)
        for host in self._hosts:
            if host.index not in self._done:
                log.warning("the trace lacks what a host did last: %s", host.error or f"{host} did not say")

    def _finished(self) -> list[int]:
        """The runs of which all hosts have said their part, and those that are lost will not."""
        with self._changed:
            return [
                run
                for run, (program, _) in sorted(self._runs.items())
                if self.programs[program].parts.keys()
                <= self._complete.get(run, set()) | self._lost | self._gone.get(program, set())
            ]

    def _write(self, runs: Sequence[int]) -> None:
        for run in runs:
            with self._changed:
                program, said = self._runs.pop(run)
                complete = self._complete.pop(run, set())
            # In pieces, and maybe one short: of a host that was lost while it spoke.
            known = {host: part for host, part in said.items() if host in complete and part[0].is_measured}
            parts = {host: steps for host, (_, steps) in known.items()}
            here = {host: clock.here for host, (clock, _) in known.items()}
            if parts:
                self._sink.write([self.programs[program].merged(self._sink.begin(), parts, here)])

    def _measure(self) -> None:
        """Reads the clocks of all workers that are left."""
        for host in self._hosts:
            trips = []
            for _ in range(_TRIPS):
                trip = self._round_trip(host)
                if trip is None:
                    break
                trips.append(trip)
            if trips:
                clock = self._clocks[host.index]
                clock.measure(trips)
                log.debug("the clock of %s is known to %.0f us", host, clock.error / 1e3)

    def _round_trip(self, host: TracedHost) -> RoundTrip | None:
        """Asks a worker for its time; None when it does not answer."""
        key = host.index, next(self._asked)
        if host.index in self._lost:
            return None
        sent = time.monotonic_ns()
        with contextlib.suppress(ConnectionEnded):
            host.watch.send(ReadClock(key[1]))
        with self._changed:
            self._changed.wait_for(lambda: key in self._trips or host.index in self._lost, _PATIENCE)
            answer = self._trips.pop(key, None)
        return None if answer is None else RoundTrip(sent, *answer)
