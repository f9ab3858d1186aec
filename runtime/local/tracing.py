"""Records what programs do, step by step, without waiting for it: `pw.trace` and PW_TRACE.

While a trace is recorded, programs run by other generated functions, which note when each launch and transfer
was dispatched and hand what can be waited for (the token of an execution, an array that arrives) to threads,
one for each slice and link, which note when it was done. A program that is not traced runs by the function
that it has always had.

What the threads cannot see is derived: a launch begins when it was dispatched, the launch before it on its
slice was done, and what it reads had arrived, whichever came last. A transferred array that its reader
donates cannot be waited for. Its transfer counts as done when its source was ready, and the time on the way
belongs to the reader.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from pathways.runtime.plan.plan import Launch, Plan, Release, Send, Slot
from pathways.runtime.timelines.events import SECONDS, EventLog
from pathways.runtime.timelines.from_plan import StepSpan, timeline_of
from pathways.runtime.timelines.trace_file import TraceFile

_NANOSECOND = 1e-9
_PAUSE = 1.0
"""Seconds from one time that finished steps are written to the next: writing holds up the other threads."""

_Place = tuple[str, ...]
"""A slice, or the two slices of a link: what one thread watches."""


@contextlib.contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Records every call of a program while the context is entered.

    The file is for Perfetto (ui.perfetto.dev) and for `pw-viz`, and grows with each step. Leaving the context
    waits until all steps are done. With PW_TRACE=<path> in the environment all of a process is recorded.

    Args:
      path: the file to write; an existing one is replaced.

    Raises:
      OSError: when the file cannot be written.
      RuntimeError: when another trace is being recorded.

    Example:
      ```python
      step(params, batch)  # compiles
      with pw.trace("run.json"):
          for _ in range(3):
              params = step(params, batch)
      ```
    """
    recorder = _start(Path(path))
    try:
        yield
    finally:
        _stop(recorder)


class Traceable(Protocol):
    """A loaded program that can be traced."""

    plan: Plan

    def observe(self, observer: ProgramTrace | None) -> None:
        """Reports every call from now on, or none any more."""


_state = threading.RLock()
_programs: weakref.WeakSet[Any] = weakref.WeakSet()
_current: Recorder | None = None


def register(program: Traceable) -> None:
    """Lets a program that was loaded take part in traces, from now on."""
    _start_from_environment()
    with _state:
        _programs.add(program)
        if _current is not None:
            program.observe(ProgramTrace(_current, program.plan))


@functools.cache
def _start_from_environment() -> None:
    path = os.environ.get("PW_TRACE")
    if not path:
        return
    try:
        recorder = _start(Path(path))
    except OSError as error:
        raise OSError(error.errno, f"PW_TRACE names no file to write: {error.strerror}", path) from None
    atexit.register(_stop, recorder)


def _start(path: Path) -> Recorder:
    global _current
    with _state:
        if _current is not None:
            raise RuntimeError(f"a trace is being recorded to {_current.path} already")
        _current = Recorder(path)
        for program in list(_programs):
            program.observe(ProgramTrace(_current, program.plan))
        return _current


def _stop(recorder: Recorder) -> None:
    global _current
    with _state:
        _current = None
        for program in list(_programs):
            program.observe(None)
    recorder.close()


@dataclasses.dataclass
class _Moments:
    """What was seen of one launch or transfer, in nanoseconds of `time.monotonic_ns`.

    Attributes:
      dispatched: when it was handed to XLA.
      done: when it was done; None for what could not be waited for.
      before: when the launch or transfer was done that this thread watched before.
    """

    dispatched: int
    done: int | None
    before: int


_Note = tuple[int, int, tuple[Any, ...]]
"""The number of a step, when it was dispatched, and what can be waited for."""


class _CallTrace:
    """One call of a program."""

    def __init__(self, program: ProgramTrace, recorder: Recorder, number: int) -> None:
        self.program = program
        self.recorder = recorder
        self.number = number
        self.moments: dict[int, _Moments] = {}
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

    def timeline(self) -> tuple[int, EventLog]:
        """When the first event began, and the timeline from there on."""
        done = self._done()
        steps: dict[int, tuple[int, int, int | None]] = {}
        ready: dict[Slot, tuple[int, int | None]] = {}
        on_slice: dict[str, tuple[int, int | None]] = {}
        for n, step in self.program.steps.items():
            seen = self.moments[n]
            waits = [(seen.dispatched, None), *(ready[slot] for slot in step.operands if slot in ready)]
            if isinstance(step, Launch):
                # The first on its slice waits for the call before.
                waits.append(on_slice.get(step.slice, (min(seen.before, done[n]), None)))
            start, after = max(waits, key=lambda wait: wait[0])
            end = start if seen.done is None else done[n]
            steps[n] = start, end, after
            ready.update(dict.fromkeys(step.results, (end, n)))
            if isinstance(step, Launch):
                on_slice[step.slice] = end, n
        origin = min((start for start, _, _ in steps.values()), default=0)
        spans = {
            n: StepSpan((start - origin) * _NANOSECOND, (end - origin) * _NANOSECOND, after)
            for n, (start, end, after) in steps.items()
        }
        return origin, timeline_of(self.program.plan, spans, SECONDS, f"measured, step {self.number}")

    def _done(self) -> dict[int, int]:
        """When each step was done: when that was seen, or what waited for it was done, the earlier."""
        done: dict[int, int] = {}
        limits: dict[Slot | str, int] = {}
        for n, step in reversed(self.program.steps.items()):
            within: list[Slot | str] = [step.slice] if isinstance(step, Launch) else []
            seen = [limits[key] for key in (*step.results, *within) if key in limits]
            if (observed := self.moments[n].done) is not None:
                seen.append(observed)
            done[n] = min(seen, default=self.moments[n].dispatched)
            for key in (*step.operands, *within):
                limits[key] = min(done[n], limits.get(key, done[n]))
        return done


class ProgramTrace:
    """What the traced function of one program reports to; see `codegen.generate`."""

    now = staticmethod(time.monotonic_ns)

    def __init__(self, recorder: Recorder, plan: Plan) -> None:
        self.plan = plan
        self.steps = {n: step for n, step in enumerate(plan.steps) if not isinstance(step, Send | Release)}
        self.places: dict[int, _Place] = {
            n: (step.slice,) if isinstance(step, Launch) else (step.src, step.dst)
            for n, step in self.steps.items()
        }
        self._donated = frozenset(
            slot for step in plan.steps if isinstance(step, Launch) for slot in plan.donated_operands(step)
        )
        self._recorder = recorder

    def begin(self) -> _CallTrace:
        """Begins the record of a call."""
        return self._recorder.begin(self)

    def lasting(self, slot: Slot) -> bool:
        """Whether an array can be waited for at any time: no later step donates it."""
        return slot not in self._donated


class Recorder:
    """Writes the calls of programs to a trace file until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = TraceFile(path)
        self._began = time.monotonic_ns()
        self._lock = threading.Lock()
        self._count = 0
        self._watchers: dict[_Place, tuple[queue.SimpleQueue[Any], threading.Thread]] = {}
        self._finished: queue.SimpleQueue[_CallTrace] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write, name="pathways trace", daemon=True)
        self._writer.start()

    def begin(self, program: ProgramTrace) -> _CallTrace:
        """Begins the record of a call."""
        with self._lock:
            number, self._count = self._count, self._count + 1
        return _CallTrace(program, self, number)

    def watcher(self, place: _Place) -> queue.SimpleQueue[Any]:
        """Takes what happens at one place, in order, with the call that it belongs to."""
        with self._lock:
            if place not in self._watchers:
                notes: queue.SimpleQueue[Any] = queue.SimpleQueue()
                name = f"pathways trace {' -> '.join(place)}"
                thread = threading.Thread(target=self._watch, args=(notes,), name=name, daemon=True)
                self._watchers[place] = notes, thread
                thread.start()
            return self._watchers[place][0]

    def close(self) -> None:
        """Waits until everything dispatched is done and written. A call that failed is left out."""
        # A call in another thread may still come to a place that is new.
        while self._watchers:
            with self._lock:
                _, (notes, thread) = self._watchers.popitem()
            notes.put(None)
            thread.join()
        self._closing.set()
        self._writer.join()
        self._file.close()

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
                self._note(call, step, _Moments(dispatched, done, before))
                before = done or before
                del waited_for
            del call, notes

    def _note(self, call: _CallTrace, step: int, moments: _Moments) -> None:
        with self._lock:
            call.moments[step] = moments
            complete = len(call.moments) == len(call.program.places)
        if complete:
            self._finished.put(call)

    def _write(self) -> None:
        while not self._closing.wait(_PAUSE):
            self._write_finished()
        self._write_finished()

    def _write_finished(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                origin, timeline = self._finished.get_nowait().timeline()
                self._file.append(timeline, (origin - self._began) * _NANOSECOND)


def _wait(what: Any) -> None:
    """Waits for a token, an array, or its shards."""
    for one in what if isinstance(what, list | tuple) else (what,):
        one.block_until_ready()


def _consume(notes: list[_Note]) -> Iterator[_Note]:
    notes.reverse()
    while notes:
        yield notes.pop()
