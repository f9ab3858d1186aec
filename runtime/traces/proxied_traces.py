"""Traces in a process behind `pw-proxy`: its server records the calls, and this process reads their times."""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from pathways.runtime.local import recording
from pathways.runtime.local.proxied_load import ProxiedExecutable
from pathways.runtime.local.recording import CallRecorder
from pathways.runtime.local.server_requests import (
    TRACE,
    ProxiedCall,
    TimedReply,
    TraceReply,
    TraceRequest,
    send_request,
)
from pathways.runtime.plan.plan import Plan
from pathways.runtime.resources.threads import RunningThread, start_thread
from pathways.runtime.traces.clocks import HostClock, RoundTrip
from pathways.runtime.traces.merging import PlanOnHosts
from pathways.runtime.traces.recorder import ObservedTimes, RecordedCall, TraceSink

_PAUSE_S = 1.0
"""Seconds between two requests for finished calls; each measures the clock, too."""

_TRIPS = 8
"""Number of round trips of the first measurement of the clock."""

log = logging.getLogger("pathways")


def trace_proxied(program: ProxiedExecutable) -> None:
    """Includes the calls of a program that a server runs in the traces of this process."""
    _traces_of(program.client).add(program)


@functools.cache
def _traces_of(client: Any) -> ProxiedTraces:
    traces = ProxiedTraces(client)
    recording.register(traces)
    return traces


class ProxiedTraces:
    """Traces of the programs that a server runs for this process, one at a time.

    Args:
      client: the IFRT client of the server's devices.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._programs: weakref.WeakSet[ProxiedExecutable] = weakref.WeakSet()
        self._trace: _ProxiedTrace | None = None

    def add(self, program: ProxiedExecutable) -> None:
        """Adds a program that was loaded."""
        with self._lock:
            self._programs.add(program)
            if self._trace is not None:
                self._trace.add(program)

    def observe(self, recorder: CallRecorder | None) -> None:
        """Requests the server to record all calls for a recorder; with None to stop.

        Raises:
          JaxRuntimeError: the server cannot trace, or is lost.
        """
        if self._trace is not None:
            self._trace.stop()
        if recorder is None:
            return
        if self._trace is not None:
            # The server has one trace for each client.
            self._trace.wait()
        trace = _ProxiedTrace(self._client, recorder.sink)
        with self._lock:
            self._trace = trace
            for program in self._programs:
                trace.add(program)
        trace.start()
        recorder.wait_for(trace.wait)


class _ProxiedTrace:
    """One trace of the calls that a server runs, which a thread reads about once a second."""

    def __init__(self, client: Any, sink: TraceSink) -> None:
        self._client = client
        self._sink = sink
        # By digest: programs that were released meanwhile, too.
        self._plans: dict[str, tuple[Plan, Mapping[str, int]]] = {}
        self._clock = HostClock()
        self._stopping = threading.Event()
        self._thread: RunningThread | None = None

    def add(self, program: ProxiedExecutable) -> None:
        """Adds a program whose calls may be recorded."""
        for digest, plan in program.plans.items():
            if digest in self._plans:
                continue
            # The server numbers the steps of the same plan.
            if program.owners is None:
                self._plans[digest] = plan, {}
            else:
                on_hosts = PlanOnHosts(plan, program.owners)
                self._plans[digest] = on_hosts.plan, on_hosts.hosts

    def start(self) -> None:
        """Starts to record.

        Raises:
          JaxRuntimeError: the server cannot trace, or is lost.
        """
        self._read("start")
        for _ in range(_TRIPS - 1):
            self._read("read")
        self._thread = start_thread(self._work, "trace server")

    def stop(self) -> None:
        """Stops recording, soon."""
        self._stopping.set()

    def wait(self) -> None:
        """Waits until all recorded calls are written."""
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            while not self._stopping.wait(_PAUSE_S):
                self._read("read")
            self._read("stop")
        except Exception as error:
            log.warning("the trace lacks the last calls that the server ran: %s", error)

    def _read(self, action: Literal["start", "read", "stop"]) -> None:
        """Sends a request, and writes the calls that are finished."""
        reply = self._request(action)
        self._write(reply.body)
        while reply.body.more:
            reply = self._request("read")
            self._write(reply.body)

    def _request(self, action: Literal["start", "read", "stop"]) -> TimedReply[TraceReply]:
        reply = send_request(self._client, TRACE, TraceRequest(action), TraceReply)
        self._clock.measure([RoundTrip(reply.sent, reply.body.time, reply.received)])
        return reply

    def _write(self, reply: TraceReply) -> None:
        if reply.dropped:
            log.warning("the trace lacks %d calls, which the server had no memory for", reply.dropped)
        for data in reply.calls:
            call = msgspec.json.decode(data, type=ProxiedCall)
            if call.program in self._plans:
                self._sink.write([self._recorded(call, *self._plans[call.program])])

    def _recorded(self, call: ProxiedCall, plan: Plan, hosts: Mapping[str, int]) -> RecordedCall:
        local = self._clock.to_local
        observed = {
            step.number: ObservedTimes(
                local(step.dispatched),
                None if step.done is None else local(step.done),
                local(step.before) if step.before else 0,
            )
            for step in call.steps
        }
        ran = {step.number: (local(step.ran[0]), local(step.ran[1])) for step in call.steps if step.ran}
        return RecordedCall(self._sink.begin(), plan, observed, ran, hosts)
