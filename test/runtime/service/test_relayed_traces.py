"""Traces that a service relays to its clients."""

from __future__ import annotations

from pathways.runtime.hosts.protocol.messages import SpanTimes, StartTrace, StopTrace, TraceStarted
from pathways.runtime.service.relaying.relayed_traces import RelayedTraces

WORKER = (0, 0)


def test_relayed_traces_give_spans_to_the_client_they_are_of():
    traces = RelayedTraces()
    (first,) = traces.start(WORKER, client=1, trace=10)
    stop, second = traces.start(WORKER, client=2, trace=20)
    assert (stop, second) == (StopTrace(first.trace), StartTrace(second.trace))
    assert (
        traces.route(WORKER, TraceStarted(second.trace))
        == [(2, TraceStarted(20)), (1, TraceStarted(10))][::-1]
    )
    span = SpanTimes(second.trace, 2, "snapshots", "snapshot 40", 5, 6)
    assert traces.route(WORKER, span) == [(2, SpanTimes(20, 2, "snapshots", "snapshot 40", 5, 6))]
