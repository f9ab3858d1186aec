"""A trace of workers that are played: with clocks of their own, in pieces, lost, or silent."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from pathways.runtime.hosts.protocol.messages import (
    ClockTime,
    ReadClock,
    RunTimes,
    StartTrace,
    StepTimes,
    StopTrace,
    TraceDone,
    TraceStarted,
)
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.hosts.trace import host_traces
from pathways.runtime.hosts.trace.host_traces import HostTraces
from pathways.runtime.local.recorder import Recorder
from pathways.runtime.plan import plan

TYPE = plan.ArrayType((), "float32")
AHEAD = {0: 10**15, 1: -(10**15)}
"""By how many nanoseconds the clocks of the workers are ahead."""


class List:
    """A sink that keeps what it takes."""

    def __init__(self) -> None:
        self.calls = []
        self.closed = False

    def begin(self):
        return len(self.calls)

    def write(self, calls):
        self.calls += calls

    def close(self):
        self.closed = True


class Worker:
    """A host as the controller has it, and the worker behind it."""

    def __init__(self, index: int, traces: list[HostTraces]) -> None:
        self.index = index
        self.error: str | None = None
        self.watch = self
        self.traces = traces
        self.at_the_end: list[RunTimes] = []

    def __str__(self) -> str:
        return f"host {self.index}"

    def send(self, message: object) -> None:
        if self.error is not None:
            raise ConnectionEnded("gone")
        match message:
            case ReadClock():
                self.say(ClockTime(message.number, time.monotonic_ns() + AHEAD[self.index]))
            case StartTrace():
                self.say(TraceStarted(message.trace))
            case StopTrace():
                for said in self.at_the_end:
                    self.say(said)
                self.say(TraceDone(message.trace))

    def say(self, message) -> None:
        # From another thread, as what is heard is.
        threading.Thread(target=self.traces[0].on_message, args=(self.index, message)).start()
        time.sleep(0.001)

    def die(self) -> None:
        self.error = f"host {self.index} is lost"
        self.traces[0].lose(self.index)


@pytest.fixture
def workers():
    traces: list[HostTraces] = []
    workers = [Worker(n, traces) for n in range(2)]

    def tell_all(message):
        for worker in workers:
            if worker.error is None:
                worker.send(message)

    traces.append(HostTraces(workers, tell_all))
    return workers


@pytest.fixture
def program(workers):
    """A program with one launch on each of two hosts, of the number 5."""
    whole = plan.Plan(
        name="program",
        slices={name: plan.SliceSpec(name, ("x",), (1,)) for name in ("s0", "s1")},
        computations={"f": plan.Computation("f", b"", (TYPE,), (TYPE,))},
        arguments=tuple(plan.Argument(TYPE, {name: n}) for n, name in enumerate(("s0", "s1"))),
        results=tuple(plan.Result(TYPE, {name: n + 2}) for n, name in enumerate(("s0", "s1"))),
        steps=tuple(plan.Launch("f", name, (n,), (n + 2,), "f") for n, name in enumerate(("s0", "s1"))),
        slot_types=(TYPE,) * 4,
    )

    class Loaded:
        pass

    loaded = Loaded()
    workers[0].traces[0].add(loaded, 5, whole, {"s0": (0,), "s1": (1,)})
    return loaded


def part(host: int, run: int, *, last: bool = True, trace: int = 1) -> RunTimes:
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
    workers[0].at_the_end = [part(0, 11), part(0, 12)]
    workers[1].at_the_end = [part(1, 12), part(1, 11)]
    calls = finish(workers, recorder)
    assert [call.name for call in calls] == [0, 1]
    ended = time.monotonic_ns()
    for call in calls:
        assert sorted(call.executed) == [0, 1]
        for start, _ in call.executed.values():
            # The messages here take a millisecond at most.
            assert began - 10**7 < start < ended + 10**7


def test_host_traces_write_runs_while_tracing(workers, program, monkeypatch):
    monkeypatch.setattr(host_traces, "_PAUSE", 0.01)
    recorder = record(workers)
    workers[0].say(part(0, 11))
    workers[1].say(part(1, 11))
    workers[1].say(part(1, 12))
    deadline = time.monotonic() + 10
    while not recorder.sink.calls and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(recorder.sink.calls) == 1
    assert [sorted(call.executed) for call in finish(workers, recorder)] == [[0, 1], [1]]


def test_host_traces_join_pieces(workers, program):
    recorder = record(workers)
    workers[0].at_the_end = [part(0, 11, last=False)]
    workers[1].at_the_end = [part(1, 11)]
    assert [sorted(call.executed) for call in finish(workers, recorder)] == [[1]]


def test_host_traces_name_a_lost_host(workers, program, caplog):
    recorder = record(workers)
    workers[0].at_the_end = [part(0, 11)]
    workers[1].say(part(1, 10))
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
    workers[0].at_the_end = [part(0, 11)]
    workers[1].say = lambda message: None
    workers[0].traces[0].close()
    assert [sorted(call.executed) for call in finish(workers, recorder)] == [[0]]
    assert "host 1 did not send it" in caplog.text
    # A trace that begins later has nothing to do with it.
    assert finish(workers, record(workers)) == []


def test_host_traces_keep_programs_only_while_they_may_run(workers, program):
    """But those that ran while a trace was recorded do until it ends."""
    traces = workers[0].traces[0]
    recorder = record(workers)
    workers[0].at_the_end = [part(0, 11)]
    del program
    assert len(finish(workers, recorder)) == 1
    assert traces._trace is None
