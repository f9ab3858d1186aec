"""Recorder of the steps of programs, which does not delay them.

While a trace is recorded, other generated functions run the programs. They note the time at which each launch
and transfer was dispatched, and pass its token or array to threads, one for each slice and link, which wait
for it and note the time at which it was ready. A program that is not traced runs its usual function.

The times of launches are read from a profile of XLA that this process records: waiting threads wake up too
late for exact times. A launch that is not in a profile gets an estimate from the times of the threads. A
transferred array that its reader donates cannot be waited for; its transfer counts as complete when its
source was ready.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from pathways.runtime.local.recording import RecordedSpan
from pathways.runtime.plan.plan import Launch, Plan, Release, Slot
from pathways.runtime.resources.threads import RunningThread, start_thread
from pathways.runtime.traces.profile import Profile, TimeSpan


@dataclasses.dataclass
class ObservedTimes:
    """Observed times of a launch or transfer, in nanoseconds of one clock.

    Attributes:
      dispatched: the time at which it was passed to XLA.
      done: the time at which it was observed to be complete, maybe late; None for a step that could not be
        waited for.
      before: the time at which the step was complete that the same thread observed before.
    """

    dispatched: int
    done: int | None
    before: int


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """Record of a call, which `traces.timeline_of_call` draws.

    Attributes:
      name: the name that the sink of the recorder has given it.
    """

    name: Any
    plan: Plan
    observed: Mapping[int, ObservedTimes]
    executed: Mapping[int, tuple[int, int]]
    hosts: Mapping[str, int] = dataclasses.field(default_factory=dict)


_WRITE_INTERVAL_S = 1.0
"""Seconds between writes of finished calls. A write delays the other threads."""
_MAX_PIECE_S = 30.0
"""Maximal length of a piece of a profile, which has some MB a second. A piece that must end during a call
loses the times of that call."""
_LAUNCH_IDS = range(2**30, 2**31)
"""Range that XLA does not use for other launches, which it counts from 0 or from a hash of the module."""

_Place = tuple[str, ...]
"""A slice, or the two slices of a link: each place has a thread that waits for its steps."""


class TraceSink(Protocol):
    """Destination of recorded calls; `str` names it."""

    def begin(self) -> Any:
        """Returns the name of a call that starts now; called in the thread of the call."""

    def write(self, calls: Iterable[RecordedCall]) -> None:
        """Writes finished calls."""

    def write_span(self, span: RecordedSpan) -> None:
        """Writes work that belongs to no call; any thread may call it, also after `close`."""

    def close(self) -> None:
        """Closes the destination, after the last call."""


_Note = tuple[int, int, tuple[Any, ...]]
"""The number of a step, the time at which it was dispatched, and the tokens or arrays to wait for."""


class _CallRecord:
    """Record of one call of a program.

    Attributes:
      name: the name that the sink has given it.
      first_launch_id: the number to add to the number of a step for the `launch_id` of its launch.
      profile: the piece of a profile in which the call started; None if none was recorded.
      observed: the observed times of each step, by its number.
    """

    def __init__(
        self,
        program: ProgramTrace,
        recorder: Recorder,
        name: Any,
        first_launch_id: int,
        profile: Profile | None,
    ) -> None:
        self.program = program
        self.recorder = recorder
        self.name = name
        self.first_launch_id = first_launch_id
        self.profile = profile
        self.observed: dict[int, ObservedTimes] = {}
        self._notes: list[_Note] = []
        self.note = self._notes.append

    def flush(self) -> None:
        """Passes the notes so far to the threads that wait for the steps."""
        by_place: dict[_Place, list[_Note]] = {}
        for note in self._notes:
            by_place.setdefault(self.program.places[note[0]], []).append(note)
        self._notes.clear()
        for place, notes in by_place.items():
            self.recorder.queue_of(place).put((self, notes))

    def to_recorded_call(self, executions: Mapping[int, list[TimeSpan]]) -> RecordedCall:
        """Returns the record of a finished call, with the times of its launches in a profile."""
        plan = self.program.plan
        executed = {}
        for n, step in enumerate(plan.steps):
            on_devices = executions.get(self.first_launch_id + n, ())
            # From the last start on any device: a device runs one launch at a time, so that these spans of
            # the launches of a slice never overlap.
            if isinstance(step, Launch) and len(on_devices) == self.program.devices[step.slice]:
                starts, ends = zip(*on_devices, strict=True)
                executed[n] = max(starts), max(ends)
        return RecordedCall(self.name, plan, self.observed, executed)


class ProgramTrace:
    """Observer of the traced function of one program; see `codegen.generate`.

    Args:
      profiled: whether profiles have the times of its launches.
      devices: the number of devices of this process in each slice.
    """

    now = staticmethod(time.monotonic_ns)

    def __init__(self, recorder: Recorder, plan: Plan, profiled: bool, devices: Mapping[str, int]) -> None:
        self.plan = plan
        self.devices = devices
        self.profiled = profiled
        self.places: dict[int, _Place] = {
            n: (step.slice,) if isinstance(step, Launch) else (step.src, step.dst)
            for n, step in enumerate(plan.steps)
            if not isinstance(step, Release)
        }
        self._donated = frozenset(
            slot for step in plan.steps if isinstance(step, Launch) for slot in plan.donated_operands(step)
        )
        self._recorder = recorder

    def begin(self) -> _CallRecord:
        """Returns the record of a new call."""
        return self._recorder.begin(self)

    def is_awaitable(self, slot: Slot) -> bool:
        """Returns whether an array can be waited for at any time, since no later step donates it."""
        return slot not in self._donated


class Recorder:
    """Recorder of the calls of programs, until it is closed.

    About once a second, new calls are delayed until the pending calls are complete, or for at most a second,
    and the profile is read. Executions while a profile is read would be missing in it.

    Args:
      sink: the destination of finished calls.
    """

    def __init__(self, sink: TraceSink) -> None:
        self.sink = sink
        self._lock = threading.Lock()
        self._waits: list[Callable[[], None]] = []
        self._next_launch_id = _LAUNCH_IDS.start
        # Held while a call starts, and while a profile is read, so that no call starts then.
        self._gate = threading.Lock()
        self._profile: Profile | None = None
        # Weak, so that a call that failed, which nothing else refers to, is not pending forever.
        self._pending: weakref.WeakSet[_CallRecord] = weakref.WeakSet()
        self._waiting_threads: dict[_Place, tuple[queue.SimpleQueue[Any], RunningThread]] = {}
        self._finished: queue.SimpleQueue[_CallRecord] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._writer = start_thread(self._write_calls, "trace")

    def observer_of(self, plan: Plan, profiled: bool, devices: Mapping[str, int]) -> ProgramTrace:
        """Returns the observer of the calls of a program, see `ProgramTrace`."""
        return ProgramTrace(self, plan, profiled, devices)

    def write_span(self, span: RecordedSpan) -> None:
        """Writes work that belongs to no call, see `TraceSink`."""
        self.sink.write_span(span)

    def begin(self, program: ProgramTrace) -> _CallRecord:
        """Returns the record of a new call."""
        with self._gate:
            if self._profile is None and program.profiled and not self._closing.is_set():
                self._profile = Profile.start()
            if self._next_launch_id + len(program.plan.steps) > _LAUNCH_IDS.stop:
                self._next_launch_id = _LAUNCH_IDS.start
            call = _CallRecord(program, self, self.sink.begin(), self._next_launch_id, self._profile)
            self._next_launch_id += len(program.plan.steps)
            self._pending.add(call)
        return call

    def queue_of(self, place: _Place) -> queue.SimpleQueue[Any]:
        """Returns the queue of the thread of a place, which gets pairs of a call and notes of its steps."""
        with self._lock:
            if place not in self._waiting_threads:
                notes: queue.SimpleQueue[Any] = queue.SimpleQueue()
                work = functools.partial(self._wait_for_steps, notes)
                self._waiting_threads[place] = notes, start_thread(work, f"trace {' -> '.join(place)}")
            return self._waiting_threads[place][0]

    def wait_for(self, wait: Callable[[], None]) -> None:
        """Registers a function that `close` calls first, which waits for other writers of the sink."""
        self._waits.append(wait)

    def close(self) -> None:
        """Waits until all dispatched calls are complete and written. A call that failed is left out."""
        for wait in self._waits:
            wait()
        # Popped one by one: a call in another thread may still add a place.
        while self._waiting_threads:
            with self._lock:
                _, (notes, thread) = self._waiting_threads.popitem()
            notes.put(None)
            thread.join()
        self._closing.set()
        self._writer.join()
        self.sink.close()

    def _wait_for_steps(self, incoming: queue.SimpleQueue[Any]) -> None:
        before = 0
        while (item := incoming.get()) is not None:
            call, notes = item
            # All references are dropped at once, so that this thread keeps no array alive.
            del item
            for step, dispatched, awaited in _drain(notes):
                for value in awaited:
                    # An error is for the reader of the results.
                    with contextlib.suppress(Exception):
                        _wait(value)
                done = time.monotonic_ns() if awaited else None
                self._add_step(call, step, ObservedTimes(dispatched, done, before))
                before = done or before
                del awaited
            del call, notes

    def _add_step(self, call: _CallRecord, step: int, observed: ObservedTimes) -> None:
        with self._lock:
            call.observed[step] = observed
            complete = len(call.observed) == len(call.program.places)
        if complete:
            self._finished.put(call)
            self._pending.discard(call)

    def _write_calls(self) -> None:
        last_read = time.monotonic()
        while not self._closing.wait(_WRITE_INTERVAL_S):
            with self._gate:
                is_late = time.monotonic() - last_read > _MAX_PIECE_S
                if self._profile is not None and not self._wait_for_calls() and not is_late:
                    continue
                calls = self._read()
            self.sink.write(calls)
            last_read = time.monotonic()
        with self._gate:
            calls = self._read()
        self.sink.write(calls)

    def _wait_for_calls(self) -> bool:
        """Waits until no call is pending; returns whether that is so.

        The wait is limited: a pending call may wait for another one, which the gate delays.
        """
        deadline = time.monotonic() + _WRITE_INTERVAL_S
        while self._pending and time.monotonic() < deadline:
            time.sleep(1e-3)
        return not self._pending

    def _read(self) -> Iterator[RecordedCall]:
        """Stops the piece of the profile; returns all finished calls."""
        profile, self._profile = self._profile, None
        executions = {} if profile is None else profile.stop()
        calls = [self._finished.get_nowait() for _ in range(self._finished.qsize())]
        # The piece is incomplete for a call that was pending when it ended, whose `profile` is another one.
        return (call.to_recorded_call(executions if call.profile is profile else {}) for call in calls)


def _wait(value: Any) -> None:
    """Waits for a token, an array, or a list of shards."""
    for item in value if isinstance(value, list | tuple) else (value,):
        item.block_until_ready()


def _drain(notes: list[_Note]) -> Iterator[_Note]:
    """Yields notes in order, and removes each from the list first, which would keep its arrays alive."""
    notes.reverse()
    while notes:
        yield notes.pop()
