"""Traces in the controller: it makes all workers record, measures their clocks, and merges their times."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, get_args

from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.messages import (
    ClockTime,
    FromTracing,
    ReadClock,
    RunTimes,
    SpanTimes,
    StartTrace,
    StepTimes,
    StopTrace,
    TraceDone,
    TraceStarted,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.local import recording
from pathways.runtime.local.recording import CallRecorder, RecordedSpan
from pathways.runtime.plan.host_program import Owners
from pathways.runtime.plan.plan import Plan
from pathways.runtime.resources.threads import Condition, RunningThread, start_thread
from pathways.runtime.traces.clocks import HostClock, RoundTrip
from pathways.runtime.traces.merging import PlanOnHosts
from pathways.runtime.traces.recorder import TraceSink

_PAUSE = 1.0
"""Seconds between two measurements of clocks; each is followed by writing the finished runs."""
_TRIPS = 16
"""Number of round trips of a measurement."""
_PATIENCE = 1.0
"""Timeout of a round trip, in seconds."""
_START_SECONDS = 5.0
"""Seconds that the start of a trace waits for workers, which may be busy compiling."""
_CLOSE_SECONDS = 5.0
"""Seconds that closing a cluster waits for the times that its workers have recorded."""

log = logging.getLogger("pathways")


class TracedHost(Protocol):
    """Interface of a worker for traces; `str` names its host."""

    index: int
    steps: Connection[Any]
    watch: Connection[Any]

    @property
    def error(self) -> str | None:
        """Reason why the worker is lost; None while it is connected."""


def trace_hosts(session: HostSession) -> HostTraces:
    """Includes the steps on the hosts of a session in the traces of this process."""
    traces = HostTraces(session.pool.hosts, session.pool.send_to_all)
    session.pool.observers.append(traces)
    session.listener.handlers.update(dict.fromkeys(get_args(FromTracing), traces.on_message))
    recording.register(traces)
    return traces


class HostTraces:
    """Traces of the workers of a cluster; see `PoolObserver`.

    Workers record for one at a time. Times of earlier calls may still arrive for those before it.

    Args:
      hosts: the workers.
      broadcast: sends messages to all connected workers, to all of them between the same two steps.
    """

    def __init__(self, hosts: Sequence[TracedHost], broadcast: Callable[..., None]) -> None:
        self._hosts = hosts
        self._broadcast = broadcast
        self._lock = threading.Lock()
        self._programs: weakref.WeakKeyDictionary[Any, tuple[int, PlanOnHosts]] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count(1)
        # The traces that have not ended, in their order.
        self._traces: list[_HostTrace] = []
        self._closed = False

    def load(self, program: HostedProgram, plan: Plan, owners: Owners) -> None:
        """Adds a program that was loaded; see `PoolObserver`."""
        loaded = PlanOnHosts(plan, owners)
        with self._lock:
            self._programs[program] = program.number, loaded
            for trace in self._traces:
                trace.programs[program.number] = loaded

    def observe(self, recorder: CallRecorder | None) -> None:
        """Starts to record all runs on the workers for a recorder, instead of others; with None stops."""
        if recorder is None:
            self._stop()
            return
        with self._lock:
            if self._closed:
                return
            before, programs = [*self._traces], dict(self._programs.values())
            trace = _HostTrace(next(self._numbers), self._hosts, programs, recorder.sink, self._broadcast)
            self._traces.append(trace)
        recorder.wait_for(functools.partial(self._wait, trace))
        trace.start(before)

    def on_message(self, host: TracedHost, message: FromTracing) -> None:
        """Handles a message of a worker, in the thread that receives it."""
        for trace in [*self._traces]:
            trace.on_message(host.index, message)

    def lose(self, host: int) -> None:
        """Stops waiting for messages of a lost host."""
        for trace in [*self._traces]:
            trace.lose(host)

    def attach(self, host: TracedHost) -> None:
        """Starts to record on a restarted worker, before it gets any step."""
        for trace in [*self._traces]:
            trace.attach(host)

    def close(self) -> None:
        """Stops the traces, if there are any, while the workers can still send their times."""
        self._closed = True
        for trace in self._stop():
            if not trace.wait(_CLOSE_SECONDS):
                trace.give_up()
            self._wait(trace)

    def _stop(self) -> list[_HostTrace]:
        traces = [*self._traces]
        for trace in traces:
            trace.stop()
        return traces

    def _wait(self, trace: _HostTrace) -> None:
        trace.wait()
        with self._lock:
            if trace in self._traces:
                self._traces.remove(trace)


class _HostTrace:
    """One trace of all workers.

    A thread measures the clocks about once a second. Then it writes the runs that were complete before the
    measurement: so all their times are between two measurements, and their translation is final.

    Args:
      hosts: the workers.
      programs: the programs that they may run, by number.
      sink: consumes the merged runs.
      broadcast: see `HostTraces`.
    """

    # Of all traces: workers send the number back, without the number of a trace.
    _trip_numbers = itertools.count()

    def __init__(
        self,
        number: int,
        hosts: Sequence[TracedHost],
        programs: dict[int, PlanOnHosts],
        sink: TraceSink,
        broadcast: Callable[..., None],
    ) -> None:
        self.programs = programs
        self._number = number
        self._hosts = [host for host in hosts if host.error is None]
        self._sink = sink
        self._broadcast = broadcast
        self._changed = Condition()
        self._started: set[int] = set()
        self._done: set[int] = set()
        self._lost = {host.index for host in hosts if host.error is not None}
        # For each run its program, and the times of each host with the clock of the worker that sent them.
        self._runs: dict[int, tuple[int, dict[int, tuple[HostClock, list[StepTimes]]]]] = {}
        # For each program the hosts whose worker was replaced since it was loaded: the new one lacks the
        # program.
        self._replaced: dict[int, set[int]] = {}
        self._complete: dict[int, set[int]] = {}
        # Work that belongs to no run, with its host and the clock of the worker that sent it.
        self._spans: list[tuple[str, HostClock, SpanTimes]] = []
        self._clocks = {host.index: HostClock() for host in self._hosts}
        self._new: list[TracedHost] = []
        # The pending round trips, without a reply first.
        self._trips: dict[tuple[int, int], tuple[int, int] | None] = {}
        self._stopping = threading.Event()
        self._thread: RunningThread | None = None

    def start(self, before: Sequence[_HostTrace]) -> None:
        """Starts to record on all workers, instead of earlier traces; waits for them, up to a timeout."""
        start = StartTrace(self._number)
        # With the end of the trace before, so that each step has one of both.
        if not any(trace.stop(start) for trace in before):
            self._broadcast(start)
        # At once: the times of a host that is lost before its clock was measured cannot be translated.
        self._measure()
        self._thread = start_thread(self._work, "trace hosts")
        with self._changed:
            self._changed.wait_for(lambda: self._all_in(self._started), _START_SECONDS)

    def attach(self, host: TracedHost) -> None:
        """Starts to record on a restarted worker."""
        with self._changed:
            if self._stopping.is_set():
                return
            for other in self._hosts:
                if other.index == host.index:
                    log.warning("the trace lacks the last steps of a host: %s", other.error)
            self._hosts = [*(other for other in self._hosts if other.index != host.index), host]
            for number, program in self.programs.items():
                if host.index in program.host_steps:
                    self._replaced.setdefault(number, set()).add(host.index)
            self._clocks[host.index] = HostClock()
            self._lost.discard(host.index)
            self._new.append(host)
            with contextlib.suppress(ConnectionEnded):
                host.steps.send(StartTrace(self._number))

    def stop(self, *after: StartTrace) -> bool:
        """Stops recording of runs that are issued from now on; returns whether it was recording.

        Args:
          after: the start of the next trace, for all workers.
        """
        with self._changed:
            if self._stopping.is_set():
                return False
            self._stopping.set()
        self._broadcast(StopTrace(self._number), *after)
        # Restarted workers may not get broadcasts yet.
        for host in self._new:
            with contextlib.suppress(ConnectionEnded):
                host.steps.send(StopTrace(self._number), *after)
        return True

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until all recorded runs are written; returns False after the timeout."""
        return self._thread is None or self._thread.join(seconds)

    def give_up(self) -> None:
        """Stops waiting for messages of all hosts."""
        for host in self._hosts:
            if host.index not in self._done:
                self.lose(host.index)

    def lose(self, host: int) -> None:
        """Stops waiting for messages of a lost host."""
        with self._changed:
            self._lost.add(host)
            self._changed.notify_all()

    def on_message(self, host: int, message: FromTracing) -> None:
        """Handles a message of a worker."""
        now = time.monotonic_ns()
        with self._changed:
            match message:
                case ClockTime() if (host, message.number) in self._trips:
                    self._trips[host, message.number] = message.time, now
                case RunTimes() if message.trace == self._number:
                    self._add(host, message)
                case SpanTimes() if message.trace == self._number:
                    named = next(str(traced) for traced in self._hosts if traced.index == host)
                    self._spans.append((named, self._clocks[host], message))
                case TraceStarted() if message.trace == self._number:
                    self._started.add(host)
                case TraceDone() if message.trace == self._number:
                    self._done.add(host)
                case _:
                    return
            self._changed.notify_all()

    def _add(self, host: int, message: RunTimes) -> None:
        _, by_host = self._runs.setdefault(message.run, (message.program, {}))
        by_host.setdefault(host, (self._clocks[host], []))[1].extend(message.steps)
        if message.last:
            self._complete.setdefault(message.run, set()).add(host)

    def _all_in(self, hosts: set[int]) -> bool:
        return all(host.index in hosts | self._lost for host in self._hosts)

    def _work(self) -> None:
        while not self._stopping.wait(_PAUSE):
            runs, spans = self._finished()
            self._measure()
            self._write(runs, spans)
        with self._changed:
            self._changed.wait_for(lambda: self._all_in(self._done))
            runs, spans = sorted(self._runs), self._spans
        self._measure()
        self._write(runs, spans)
        for host in self._hosts:
            if host.index not in self._done:
                why = host.error or f"{host} did not send it"
                log.warning("the trace lacks the last steps of a host: %s", why)

    def _finished(self) -> tuple[list[int], list[tuple[str, HostClock, SpanTimes]]]:
        """Returns the runs whose times have arrived from all hosts that are not lost, and new spans."""
        with self._changed:
            spans, self._spans = self._spans, []
            runs = [
                run
                for run, (program, _) in sorted(self._runs.items())
                if self.programs[program].host_steps.keys()
                <= self._complete.get(run, set()) | self._lost | self._replaced.get(program, set())
            ]
            return runs, spans

    def _write(self, runs: Sequence[int], spans: Sequence[tuple[str, HostClock, SpanTimes]]) -> None:
        for track, clock, span in spans:
            if clock.is_measured:
                start, end = clock.to_local(span.start), clock.to_local(span.end)
                self._sink.write_span(RecordedSpan(track, span.row, span.name, start, end))
        for run in runs:
            with self._changed:
                program, by_host = self._runs.pop(run)
                complete = self._complete.pop(run, set())
            # The times of a host that was lost while it sent them lack their last messages.
            complete_hosts = {
                host: (clock, steps)
                for host, (clock, steps) in by_host.items()
                if host in complete and clock.is_measured
            }
            times = {host: steps for host, (_, steps) in complete_hosts.items()}
            to_local = {host: clock.to_local for host, (clock, _) in complete_hosts.items()}
            if times:
                self._sink.write([self.programs[program].merged(self._sink.begin(), times, to_local)])

    def _measure(self) -> None:
        """Measures the clocks of all connected workers."""
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
        """Reads the clock of a worker; returns None if it does not answer."""
        key = host.index, next(self._trip_numbers)
        if host.index in self._lost:
            return None
        self._trips[key] = None
        sent = time.monotonic_ns()
        with contextlib.suppress(ConnectionEnded):
            host.watch.send(ReadClock(key[1]))
        with self._changed:
            self._changed.wait_for(
                lambda: self._trips[key] is not None or host.index in self._lost, _PATIENCE
            )
            reply = self._trips.pop(key)
        return None if reply is None else RoundTrip(sent, *reply)
