"""The worker's part of a trace: it records its part of each run, and tells the controller."""

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
    StartTrace,
    StepTimes,
    StopTrace,
    TraceDone,
    TraceStarted,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.local import recording
from pathways.runtime.local.call_trace import RecordedCall
from pathways.runtime.local.recorder import Recorder
from pathways.runtime.resources.threads import start_thread

_STEPS = 10_000
"""How many steps one message tells of, in some 40 bytes each."""


class WorkerRecording:
    """Records what a worker runs while the controller asks for it.

    Args:
      connection: to the controller.

    Attributes:
      run: what is being issued; the thread that issues it sets it.
    """

    def __init__(self, connection: Connection[Any]) -> None:
        self.run: Run | None = None
        self._connection = connection
        self._recorder: Recorder | None = None

    def tell_time(self, message: ReadClock) -> None:
        """Tells the time, as soon as it was asked for."""
        self._connection.send(ClockTime(message.number, time.monotonic_ns()))

    def start(self, message: StartTrace) -> None:
        """Records all runs that are issued from now on."""
        self._recorder = recording.start(lambda: _MessageSink(self, self._connection, message.trace))
        self._connection.send(TraceStarted(message.trace))

    def stop(self, message: StopTrace) -> None:
        """Records no run that is issued from now on; what was recorded is told when it is done."""
        if self._recorder is not None:
            recording.stop(self._recorder)
            # Apart: later runs need not wait for those before to be done.
            start_thread(self._recorder.close, "trace ends")
            self._recorder = None


class _MessageSink:
    """Tells the controller of each run that is done."""

    def __init__(self, worker: WorkerRecording, connection: Connection[Any], trace: int) -> None:
        self._worker = worker
        self._connection = connection
        self._trace = trace

    def __str__(self) -> str:
        return "the controller"

    def begin(self) -> Run:
        assert self._worker.run is not None
        return self._worker.run

    def write(self, calls: Iterable[RecordedCall]) -> None:
        for call in calls:
            steps = steps_of(call)
            for first in range(0, len(steps), _STEPS):
                piece = tuple(steps[first : first + _STEPS])
                last = first + _STEPS >= len(steps)
                self._send(RunTimes(self._trace, call.name.program, call.name.run, piece, last))

    def close(self) -> None:
        self._send(TraceDone(self._trace))

    def _send(self, message: RunTimes | TraceDone) -> None:
        # The worker is about to end when the connection is gone.
        with contextlib.suppress(ConnectionEnded):
            self._connection.send(message)


def steps_of(call: RecordedCall) -> list[StepTimes]:
    """When the steps of a call ran, numbered without releases."""
    return [
        StepTimes(number, seen.dispatched, seen.done, seen.before, call.executed.get(n))
        for number, (n, seen) in enumerate(sorted(call.observed.items()))
    ]
