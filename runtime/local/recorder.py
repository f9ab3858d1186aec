"""Records what programs do, step by step, without waiting for it.

While a trace is recorded, programs run by other generated functions, which note when each launch and transfer
was dispatched and pass what can be waited for (the token of an execution, an array that arrives) to threads,
one for each slice and link, which note when it was done. A program that is not traced runs by the function
that it has always had.

When launches ran is read from a profile that this process takes of XLA. Threads that wait are woken too late
to tell, and of a launch that no profile has, its times are estimated from what they saw. A transferred array
that its reader donates cannot be waited for. Its transfer counts as done when its source was ready.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from pathways.runtime.local.call_trace import RecordedCall, Seen
from pathways.runtime.plan.plan import Launch, Plan, Release, Slot
from pathways.runtime.resources.threads import RunningThread, start_thread
from pathways.runtime.xla.profile import Profile, TimeSpan

_PAUSE = 1.0
"""Seconds from one time that finished steps are written to the next: writing holds up the other threads."""
_LONGEST = 30.0
"""Seconds after which a piece of a profile, some MB a second, ends at the cost of the calls under way."""
_LAUNCH_IDS = range(2**30, 2**31)
"""XLA counts other launches itself: from 0, or from a hash of what is launched."""

_Place = tuple[str, ...]
"""A slice, or the two slices of a link: what one thread watches."""


class Sink(Protocol):
    """Where what was recorded goes; `str` of it says where."""

    def begin(self) -> Any:
        """What names a call that begins now; asked in the thread that makes the call."""

    def take(self, calls: Iterable[RecordedCall]) -> None:
        """Takes calls that are done."""

    def close(self) -> None:
        """Comes after the last call."""


_Note = tuple[int, int, tuple[Any, ...]]
"""The number of a step, when it was dispatched, and what can be waited for."""


class _CallTrace:
    """One call of a program.

    Attributes:
      name: what the sink calls it.
      first_launch_id: the `launch_id` of a launch is this and the number of its step.
      profile: the piece of a profile in which it began; None while none is taken.
      seen: what was seen of each step, by its number.
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
        self.seen: dict[int, Seen] = {}
        self._notes: list[_Note] = []
        self.note = self._notes.append

    def hand_over(self) -> None:
        """Gives what was noted to the threads that wait for it."""
        by_place: dict[_Place, list[_Note]] = {}
        for note in self._notes:
            by_place.setdefault(self.program.places[note[0]], []).append(note)
        self._notes.clear()
        for place, notes in by_place.items():
            self.recorder.watcher(place).put((self, notes))

    def recorded(self, executions: Mapping[int, list[TimeSpan]]) -> RecordedCall:
        """What was recorded of it, when it is done."""
        plan = self.program.plan
        ran = {}
        for n, step in enumerate(plan.steps):
            on_devices = executions.get(self.first_launch_id + n, ())
            # From when all devices are at it: a device is at one launch at a time, so these do not overlap.
            if isinstance(step, Launch) and len(on_devices) == self.program.devices[step.slice]:
                begun, ended = zip(*on_devices, strict=True)
                ran[n] = max(begun), max(ended)
        return RecordedCall(self.name, plan, self.seen, ran)


class ProgramTrace:
    """What the traced function of one program reports to; see `codegen.generate`.

    Args:
      recorder: what writes it down.
      plan: the plan of the program.
      profiled: whether a profile says when its launches ran.
      devices: how many devices of each slice are those of this process.
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

    def begin(self) -> _CallTrace:
        """Begins the record of a call."""
        return self._recorder.begin(self)

    def lasting(self, slot: Slot) -> bool:
        """Returns whether an array can be waited for at any time: no later step donates it."""
        return slot not in self._donated


class Recorder:
    """Records the calls of programs until it is closed.

    About once a second calls that begin are held up, for as long as calls that are under way take but for
    no more than another second, and the profile is read up to there. What runs while a profile is read
    would be missing in it.

    Args:
      sink: takes them when they are done.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._lock = threading.Lock()
        self._waits: list[Callable[[], None]] = []
        self._next_launch_id = _LAUNCH_IDS.start
        # Held while a call begins, and while all have to wait.
        self._gate = threading.Lock()
        self._profile: Profile | None = None
        # A call that fails is forgotten by all others.
        self._under_way: weakref.WeakSet[_CallTrace] = weakref.WeakSet()
        self._watchers: dict[_Place, tuple[queue.SimpleQueue[Any], RunningThread]] = {}
        self._finished: queue.SimpleQueue[_CallTrace] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._writer = start_thread(self._write, "trace")

    def begin(self, program: ProgramTrace) -> _CallTrace:
        """Begins the record of a call."""
        with self._gate:
            if self._profile is None and program.profiled and not self._closing.is_set():
                self._profile = Profile.start()
            if self._next_launch_id + len(program.plan.steps) > _LAUNCH_IDS.stop:
                self._next_launch_id = _LAUNCH_IDS.start
            call = _CallTrace(program, self, self.sink.begin(), self._next_launch_id, self._profile)
            self._next_launch_id += len(program.plan.steps)
            self._under_way.add(call)
        return call

    def watcher(self, place: _Place) -> queue.SimpleQueue[Any]:
        """Takes what happens at one place, in order, with the call that it belongs to."""
        with self._lock:
            if place not in self._watchers:
                notes: queue.SimpleQueue[Any] = queue.SimpleQueue()
                watch = functools.partial(self._watch, notes)
                self._watchers[place] = notes, start_thread(watch, f"trace {' -> '.join(place)}")
            return self._watchers[place][0]

    def wait_for(self, wait: Callable[[], None]) -> None:
        """Has `close` wait for others who give calls to the sink."""
        self._waits.append(wait)

    def close(self) -> None:
        """Waits until everything dispatched is done and written. A call that failed is left out."""
        for wait in self._waits:
            wait()
        # A call in another thread may still come to a place that is new.
        while self._watchers:
            with self._lock:
                _, (notes, thread) = self._watchers.popitem()
            notes.put(None)
            thread.join()
        self._closing.set()
        self._writer.join()
        self.sink.close()

    def _watch(self, handed_over: queue.SimpleQueue[Any]) -> None:
        before = 0
        while (handed := handed_over.get()) is not None:
            call, notes = handed
            # Nothing is kept alive once it was waited for.
            del handed
            for step, dispatched, waited_for in _consume(notes):
                for one in waited_for:
                    # What goes wrong is for the reader of the results to find out.
                    with contextlib.suppress(Exception):
                        _wait(one)
                done = time.monotonic_ns() if waited_for else None
                self._note(call, step, Seen(dispatched, done, before))
                before = done or before
                del waited_for
            del call, notes

    def _note(self, call: _CallTrace, step: int, seen: Seen) -> None:
        with self._lock:
            call.seen[step] = seen
            complete = len(call.seen) == len(call.program.places)
        if complete:
            self._finished.put(call)
            self._under_way.discard(call)

    def _write(self) -> None:
        read = time.monotonic()
        while not self._closing.wait(_PAUSE):
            with self._gate:
                late = time.monotonic() - read > _LONGEST
                if self._profile is not None and not self._calls_end() and not late:
                    continue
                calls = self._read()
            self.sink.take(calls)
            read = time.monotonic()
        with self._gate:
            calls = self._read()
        self.sink.take(calls)

    def _calls_end(self) -> bool:
        """Waits until no call is under way, but not for long: one may wait for another that is held up."""
        end = time.monotonic() + _PAUSE
        while self._under_way and time.monotonic() < end:
            time.sleep(1e-3)
        return not self._under_way

    def _read(self) -> Iterator[RecordedCall]:
        """Ends the piece of the profile; gives all calls that are done."""
        profile, self._profile = self._profile, None
        executions = {} if profile is None else profile.stop()
        calls = [self._finished.get_nowait() for _ in range(self._finished.qsize())]
        # One that was under way when its piece ended is not in it as a whole.
        return (call.recorded(executions if call.profile is profile else {}) for call in calls)


def _wait(what: Any) -> None:
    """Waits for a token, an array, or its shards."""
    for one in what if isinstance(what, list | tuple) else (what,):
        one.block_until_ready()


def _consume(notes: list[_Note]) -> Iterator[_Note]:
    notes.reverse()
    while notes:
        yield notes.pop()
