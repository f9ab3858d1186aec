"""Traces in a worker: it records its steps of each run, and sends their times to the controller."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from pathways.runtime.hosts.protocol.messages import (
    ClockTime,
    ReadClock,
    Run,
    RunTimes,
    SpanTimes,
    StartTrace,
    StepTimes,
    StopTrace,
    TraceDone,
    TraceStarted,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.hosts.worker.worker import Worker
from pathways.runtime.local import recording
from pathways.runtime.local.recording import RecordedSpan
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.traces.recorder import RecordedCall, Recorder

_STEPS = 10_000
"""Number of steps in one message, of some 40 bytes each."""


def record_steps(worker: Worker) -> None:
    """Makes a worker record its steps while the controller traces them."""
    recording = WorkerRecording(worker)
    worker.handlers["steps"].update({StartTrace: recording.start, StopTrace: recording.stop})
    worker.handlers["watch"][ReadClock] = recording.send_time


class WorkerRecording:
    """Recorder of the steps of a worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._connection = worker.connections["watch"]
        self._recorder: Recorder | None = None
        self._trace = 0

    def send_time(self, message: ReadClock) -> None:
        """Sends the time at once: a delay would make the measurement worse."""
        self._connection.send(ClockTime(message.number, time.monotonic_ns()))

    def start(self, message: StartTrace) -> None:
        """Starts to record all runs that are issued from now on; a second start of a trace does nothing."""
        if self._trace == message.trace:
            return
        self._trace = message.trace
        self._recorder = recording.start(
            lambda: Recorder(_MessageSink(self._worker, self._connection, message.trace))
        )
        self._connection.send(TraceStarted(message.trace))

    def stop(self, message: StopTrace) -> None:
        """Stops recording of runs that are issued from now on; recorded runs are sent when they are done."""
        if self._recorder is not None and self._trace == message.trace:
            recording.stop(self._recorder)
            # In a thread, because `close` waits for the recorded runs, and later runs should not.
            start_thread(self._recorder.close, "trace ends")
            self._recorder, self._trace = None, 0


class _MessageSink:
    """Sink that sends the times of each run to the controller."""

    def __init__(self, worker: Worker, connection: Connection[Any], trace: int) -> None:
        self._worker = worker
        self._connection = connection
        self._trace = trace

    def __str__(self) -> str:
        return "the controller"

    def begin(self) -> Run:
        assert self._worker.current is not None
        return self._worker.current

    def write(self, calls: Iterable[RecordedCall]) -> None:
        for call in calls:
            steps = steps_of(call)
            for first in range(0, len(steps), _STEPS):
                piece = tuple(steps[first : first + _STEPS])
                last = first + _STEPS >= len(steps)
                self._send(RunTimes(self._trace, call.name.program, call.name.run, piece, last))

    def write_span(self, span: RecordedSpan) -> None:
        self._send(SpanTimes(self._trace, span.client, span.row, span.name, span.start, span.end))

    def close(self) -> None:
        self._send(TraceDone(self._trace))

    def _send(self, message: RunTimes | SpanTimes | TraceDone) -> None:
        # When the connection is closed, the worker is about to exit.
        with contextlib.suppress(ConnectionEnded):
            self._connection.send(message)


def steps_of(call: RecordedCall) -> list[StepTimes]:
    """Returns the times of the steps of a call, numbered without releases."""
    return [
        StepTimes(number, seen.dispatched, seen.done, seen.before, call.executed.get(n))
        for number, (n, seen) in enumerate(sorted(call.observed.items()))
    ]
