"""Traces of simulated workers: with different clocks, in several messages, lost, or silent."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.messages import (
    ClockTime,
    ReadClock,
    RunTimes,
    SpanTimes,
    StartTrace,
    StepTimes,
    StopTrace,
    TraceDone,
    TraceStarted,
)
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.plan import plan
from pathways.runtime.traces import host_traces
from pathways.runtime.traces.host_traces import HostTraces
from pathways.runtime.traces.recorder import Recorder

TYPE = plan.ArrayType((), "float32")
AHEAD = {0: 10**15, 1: -(10**15)}
"""Nanoseconds by which the clocks of the workers are ahead."""


class List:
    """Sink that keeps the calls in a list."""

    def __init__(self) -> None:
        self.calls = []
        self.spans = []
        self.closed = False

    def begin(self):
        return len(self.calls)

    def write(self, calls):
        self.calls += calls

    def write_span(self, span):
        self.spans.append(span)

    def close(self):
        self.closed = True


class Worker:
    """Simulated worker, which is also its handle in the controller."""

    def __init__(self, index: int, traces: list[HostTraces]) -> None:
        self.index = index
        self.error: str | None = None
        self.watch = self
        self.traces = traces
        self.at_the_end: list[RunTimes] = []

    def __str__(self) -> str:
        return f"host {self.index}"

    def send(self, *messages: object) -> None:
        if self.error is not None:
            raise ConnectionEnded("the connection has ended")
        for message in messages:
            match message:
                case ReadClock():
                    self.reply(ClockTime(message.number, time.monotonic_ns() + AHEAD[self.index]))
                case StartTrace():
                    self.reply(TraceStarted(message.trace))
                case StopTrace():
                    for times in self.at_the_end:
                        self.reply(times)
                    self.reply(TraceDone(message.trace))

    def reply(self, message) -> None:
        # From another thread, as messages of a worker are received.
        threading.Thread(target=self.traces[0].on_message, args=(self, message)).start()
        time.sleep(0.001)

    def die(self) -> None:
        self.error = f"host {self.index} is lost"
        self.traces[0].lose(self.index)


@pytest.fixture
def workers():
    traces: list[HostTraces] = []
    workers = [Worker(n, traces) for n in range(2)]

    def broadcast(*messages):
        for worker in workers:
            if worker.error is None:
                worker.send(*messages)

    traces.append(HostTraces(workers, broadcast))
    return workers


@pytest.fixture
def program(workers):
    """Program number 5, with one launch on each of two hosts."""
    whole = plan.Plan(
        name="program",
        slices={name: plan.SliceSpec(name, ("x",), (1,)) for name in ("s0", "s1")},
        computations={"f": plan.Computation("f", b"", (TYPE,), (TYPE,))},
        arguments=tuple(plan.Argument(TYPE, {name: n}) for n, name in enumerate(("s0", "s1"))),
        results=tuple(plan.Result(TYPE, {name: n + 2}) for n, name in enumerate(("s0", "s1"))),
        steps=tuple(plan.Launch("f", name, (n,), (n + 2,), "f") for n, name in enumerate(("s0", "s1"))),
        slot_types=(TYPE,) * 4,
    )

    loaded = HostedProgram(5, "program", (), {}, {})
    workers[0].traces[0].load(loaded, whole, {"s0": (0,), "s1": (1,)})
    return loaded


def times_of(host: int, run: int, *, last: bool = True, trace: int = 1) -> RunTimes:
    now = time.monotonic_ns() + AHEAD[host]
    return RunTimes(trace, 5, run, (StepTimes(0, now, now, 0, (now, now)),), last)


def record(workers):
    recorder = Recorder(List())
    workers[0].traces[0].observe(recorder)
    return recorder


def finish(workers, recorder):
    workers[0].traces[0].observe(None)
    recorder.close()
    assert recorder.sink.closed
    return recorder.sink.calls


def test_host_traces_order_runs_on_one_clock(workers, program):
    began = time.monotonic_ns()
    recorder = record(workers)
    workers[0].at_the_end = [times_of(0, 11), times_of(0, 12)]
    workers[1].at_the_end = [times_of(1, 12), times_of(1, 11)]
    calls = finish(workers, recorder)
    assert [call.name for call in calls] == [0, 1]
    ended = time.monotonic_ns()
    for call in calls:
        assert sorted(call.executed) == [0, 1]
        for start, _ in call.executed.values():
            # The round trips take a millisecond at most.
            assert began - 10**7 < start < ended + 10**7


def test_host_traces_write_runs_while_tracing(workers, program, monkeypatch):
    monkeypatch.setattr(host_traces, "_PAUSE", 0.01)
    recorder = record(workers)
    workers[0].reply(times_of(0, 11))
    workers[1].reply(times_of(1, 11))
    workers[1].reply(times_of(1, 12))
    deadline = time.monotonic() + 10
    while not recorder.sink.calls and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(recorder.sink.calls) == 1
    assert [sorted(call.executed) for call in finish(workers, recorder)] == [[0, 1], [1]]


def test_host_traces_follow_each_other_without_a_gap(workers, program):
    """The end of one and the start of the next are sent together."""
    first = record(workers)
    for host in (0, 1):
        workers[host].at_the_end = [times_of(host, 11)]
    second = record(workers)
    for host in (0, 1):
        workers[host].at_the_end = [times_of(host, 12, trace=2), times_of(host, 13, trace=2)]
    first.close()
    assert [sorted(call.executed) for call in first.sink.calls] == [[0, 1]]
    assert not second.sink.closed
    assert [sorted(call.executed) for call in finish(workers, second)] == [[0, 1]] * 2


def test_host_traces_write_spans_of_hosts_on_one_clock(workers):
    recorder = record(workers)
    began = time.monotonic_ns()
    read = began + AHEAD[1]
    workers[1].at_the_end = [SpanTimes(1, 0, "snapshots", "snapshot 40", read, read + 10**6)]
    assert finish(workers, recorder) == []
    (span,) = recorder.sink.spans
    assert (span.track, span.row, span.name) == ("host 1", "snapshots", "snapshot 40")
    # The round trips take a millisecond at most.
    assert abs(span.start - began) < 10**7


def test_host_traces_join_pieces(workers, program):
    recorder = record(workers)
    workers[0].at_the_end = [times_of(0, 11, last=False)]
    workers[1].at_the_end = [times_of(1, 11)]
    assert [sorted(call.executed) for call in finish(workers, recorder)] == [[1]]


def test_host_traces_name_a_lost_host(workers, program, caplog):
    recorder = record(workers)
    workers[0].at_the_end = [times_of(0, 11)]
    workers[1].reply(times_of(1, 10))
    time.sleep(0.05)
    workers[1].die()
    with caplog.at_level(logging.WARNING):
        calls = finish(workers, recorder)
    assert [sorted(call.executed) for call in calls] == [[1], [0]]
    assert [r.getMessage() for r in caplog.records] == [
        "the trace lacks the last steps of a host: host 1 is lost"
    ]


def test_host_traces_do_not_delay_closing(workers, program, monkeypatch, caplog):
    monkeypatch.setattr(host_traces, "_CLOSE_SECONDS", 0.05)
    recorder = record(workers)
    workers[0].at_the_end = [times_of(0, 11)]
    workers[1].reply = lambda message: None
    workers[0].traces[0].close()
    assert [sorted(call.executed) for call in finish(workers, recorder)] == [[0]]
    assert "host 1 did not send it" in caplog.text
    # It does not affect a later trace.
    assert finish(workers, record(workers)) == []


def test_host_traces_keep_programs_only_while_they_may_run(workers, program):
    """A program that ran in a trace is kept until the trace ends."""
    traces = workers[0].traces[0]
    recorder = record(workers)
    workers[0].at_the_end = [times_of(0, 11)]
    del program
    assert len(finish(workers, recorder)) == 1
    assert traces._traces == []
