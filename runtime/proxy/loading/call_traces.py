"""Traces of the calls that a server runs: each client reads the calls of its own programs."""

from __future__ import annotations

import collections
import enum
import functools
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from pathways.runtime.local import recording
from pathways.runtime.local.recording import CallRecorder, RecordedSpan
from pathways.runtime.local.server_requests import ProxiedCall, ProxiedStep, TraceReply
from pathways.runtime.plan.plan import Plan
from pathways.runtime.proxy.loading.mpmd_program import MpmdProgram
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.resources.threads import start_thread

MakeRecorder = Callable[[Any], CallRecorder]
"""Function that creates the recorder of a sink, see `traces.recorder`."""

_MAX_BYTES = 64 << 20
"""Maximum of the bytes of calls that wait for a client, which reads them every second."""

_REPLY_BYTES = 1 << 20


class CallTraces:
    """Recording of calls by one recorder for all sessions that trace, which has this object as its sink.

    Args:
      make_recorder: creates recorders; None if the server has no traces.
    """

    def __init__(self, make_recorder: MakeRecorder | None = None) -> None:
        self._make_recorder = make_recorder
        self._lock = threading.Lock()
        self._recorder: CallRecorder | None = None
        self._recording: set[SessionTrace] = set()
        # The traces that get calls: a trace that has stopped still gets its last calls.
        self._written: tuple[SessionTrace, ...] = ()

    def start(self, trace: SessionTrace) -> None:
        """Records the calls of a session from now on.

        Raises:
          StatusError: the server cannot record.
        """
        if self._make_recorder is None:
            raise StatusError(StatusCode.UNIMPLEMENTED, "the server has no traces")
        with self._lock:
            if self._recorder is None:
                self._recorder = self._replace(None)
            self._recording.add(trace)
            self._written += (trace,)

    def stop(self, trace: SessionTrace) -> None:
        """Stops recording the calls of a session, after those so far are written."""
        with self._lock:
            self._recording.remove(trace)
            before = self._recorder
            assert before is not None
            if self._recording:
                # A new one for the other sessions: closing the old one waits for its calls.
                self._recorder = self._replace(before)
            else:
                self._recorder = None
                recording.stop(before)
        before.close()
        with self._lock:
            self._written = tuple(other for other in self._written if other is not trace)

    def _replace(self, before: CallRecorder | None) -> CallRecorder:
        assert self._make_recorder is not None
        try:
            return recording.start(functools.partial(self._make_recorder, self), before)
        except RuntimeError as error:
            # The program that serves may trace itself.
            raise StatusError(StatusCode.FAILED_PRECONDITION, f"the server cannot trace: {error}") from None

    def __str__(self) -> str:
        return "clients of pw-proxy"

    def begin(self) -> None:
        """Gives calls no name: clients do."""

    def write(self, calls: Iterable[Any]) -> None:
        """Passes finished calls to their sessions."""
        for call in calls:
            for trace in self._written:
                trace.write(call)

    def write_span(self, span: RecordedSpan) -> None:
        """Drops work that belongs to no call, and so to no client."""

    def close(self) -> None:
        """Does nothing: further recorders may follow."""


class _State(enum.Enum):
    IDLE = "idle"
    RECORDING = "recording"
    STOPPING = "waiting for calls in flight"
    ENDED = "ended"
    CLOSED = "closed"


class SessionTrace:
    """Recorded calls of a session that its client has not read. Any thread may call its methods.

    Args:
      traces: the traces of the server.
    """

    def __init__(self, traces: CallTraces) -> None:
        self._traces = traces
        self._changing = threading.Lock()
        self._state = _State.IDLE
        self._start = 0
        # By the identity of the computations of the plan: with hosts, the plan of a recorded call is another
        # one, with a slice for each host, which has the same computations.
        self._digests: dict[int, tuple[Plan, str]] = {}
        self._calls: collections.deque[bytes] = collections.deque()
        self._bytes = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def start(self, programs: Callable[[], Iterable[Any]]) -> None:
        """Starts to record the calls of the session.

        Args:
          programs: returns its programs so far.

        Raises:
          StatusError: it is traced already or closed, or the server cannot record.
        """
        with self._changing:
            if self._state is not _State.IDLE:
                raise StatusError(StatusCode.FAILED_PRECONDITION, "the session is traced already")
            self._start = time.monotonic_ns()
            self._traces.start(self)
            self._state = _State.RECORDING
        for program in programs():
            self.add_program(program)

    def stop(self) -> None:
        """Stops recording, after the calls so far are finished.

        Raises:
          StatusError: the session is not traced.
        """
        with self._changing:
            self._check_active(_State.RECORDING)
            self._state = _State.STOPPING
        self._traces.stop(self)
        with self._changing:
            if self._state is _State.STOPPING:
                self._state = _State.ENDED

    def close(self) -> None:
        """Stops recording for good, without waiting for calls."""
        with self._changing:
            before, self._state = self._state, _State.CLOSED
            if before is _State.RECORDING:
                start_thread(functools.partial(self._traces.stop, self), "proxy trace ends")

    def _check_active(self, *states: _State) -> None:
        if self._state not in states:
            raise StatusError(StatusCode.FAILED_PRECONDITION, "the session is not traced")

    def add_program(self, program: Any) -> None:
        """Includes a program, if it is one of Pathways and the session is traced."""
        if self._state is _State.RECORDING and isinstance(program, MpmdProgram):
            for digest, plan in program.traced.items():
                self._digests[id(plan.computations)] = plan, digest

    def write(self, call: Any) -> None:
        """Adds a `RecordedCall`, if it is one of the session."""
        _, digest = self._digests.get(id(call.plan.computations), (None, None))
        first = min((seen.dispatched for seen in call.observed.values()), default=0)
        # Other sessions may have traced before. Hosts may dispatch a call after the client has stopped.
        if digest is None or first < self._start:
            return
        steps = tuple(
            ProxiedStep(n, seen.dispatched, seen.done, seen.before, call.executed.get(n))
            for n, seen in call.observed.items()
        )
        data = msgspec.json.encode(ProxiedCall(digest, steps))
        with self._lock:
            if self._bytes + len(data) > _MAX_BYTES:
                self._dropped += 1
                return
            self._calls.append(data)
            self._bytes += len(data)

    def read(self) -> TraceReply:
        """Removes calls that were not read, and returns them.

        Raises:
          StatusError: the session is not traced.
        """
        with self._changing, self._lock:
            self._check_active(_State.RECORDING, _State.STOPPING, _State.ENDED)
            calls, size = [], 0
            while self._calls and size < _REPLY_BYTES:
                calls.append(self._calls.popleft())
                size += len(calls[-1])
            self._bytes -= size
            dropped, self._dropped = self._dropped, 0
            if self._state is _State.ENDED and not self._calls:
                self._state = _State.IDLE
                self._digests.clear()
            raws = tuple(map(msgspec.Raw, calls))
            return TraceReply(time.monotonic_ns(), raws, dropped, bool(self._calls))
