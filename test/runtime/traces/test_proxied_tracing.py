"""Traces of a simulated server: on another clock, with too little memory, or lost."""

from __future__ import annotations

import time
import types
from typing import Any

import msgspec
import pytest

from pathways.runtime.local.server_requests import ProxiedCall, ProxiedStep, TimedReply, TraceReply
from pathways.runtime.plan import plan
from pathways.runtime.traces import proxied_traces
from pathways.runtime.traces.proxied_traces import ProxiedTraces
from pathways.runtime.traces.recorder import Recorder

TYPE = plan.ArrayType((), "float32")
AHEAD = 10**15
"""Nanoseconds by which the clock of the server is ahead."""


class List:
    """Sink that keeps the calls in a list."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self) -> int:
        return len(self.calls)

    def write(self, calls: Any) -> None:
        self.calls += calls

    def close(self) -> None:
        pass


class Server:
    """Simulated server: replies to a request with the next list of calls."""

    def __init__(self) -> None:
        self.actions: list[str] = []
        self.calls: list[ProxiedCall] = []
        self.dropped = 0
        self.problem: Exception | None = None

    def reply(self, client: Any, kind: str, body: Any, type_: Any) -> TimedReply[TraceReply]:
        if self.problem is not None:
            raise self.problem
        self.actions.append(body.action)
        sent = time.monotonic_ns()
        # One by one.
        calls = tuple(msgspec.Raw(msgspec.json.encode(call)) for call in self.calls[:1])
        del self.calls[:1]
        reply = TraceReply(time.monotonic_ns() + AHEAD, calls, self.dropped, bool(self.calls))
        self.dropped = 0
        return TimedReply(reply, sent, time.monotonic_ns())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(proxied_traces, "send_request", server.reply)
    return server


def program(owners: Any = None) -> Any:
    """Returns a program with a launch on each of two slices."""
    names = ("s0", "s1")
    whole = plan.Plan(
        name="program",
        slices={name: plan.SliceSpec(name, ("x",), (2,)) for name in names},
        computations={"f": plan.Computation("f", b"", (TYPE,), (TYPE,))},
        arguments=tuple(plan.Argument(TYPE, {name: n}) for n, name in enumerate(names)),
        results=tuple(plan.Result(TYPE, {name: n + 2}) for n, name in enumerate(names)),
        steps=tuple(plan.Launch("f", name, (n,), (n + 2,), "f") for n, name in enumerate(names)),
        slot_types=(TYPE,) * 4,
    )

    class Program(types.SimpleNamespace):
        __hash__ = object.__hash__

    return Program(plans={"digest": whole}, owners=owners)


def call(digest: str = "digest") -> ProxiedCall:
    now = time.monotonic_ns() + AHEAD
    return ProxiedCall(
        digest, (ProxiedStep(0, now, None, 0, (now, now + 1000)), ProxiedStep(1, now, now, 0, None))
    )


def test_calls_are_on_the_clock_of_this_process_in_all_pieces(server: Server) -> None:
    traces, recorder, loaded = ProxiedTraces(None), Recorder(List()), program()
    traces.add(loaded)
    traces.observe(recorder)
    began = time.monotonic_ns()
    server.calls = [call(), call("of no program here"), call(), call()]
    traces.observe(None)
    recorder.close()
    assert [recorded.name for recorded in recorder.sink.calls] == [0, 1, 2]
    for recorded in recorder.sink.calls:
        assert (recorded.plan, recorded.hosts) == (loaded.plans["digest"], {})
        start, end = recorded.executed[0]
        # The round trips take a millisecond at most.
        assert abs(start - began) < 10**7
        assert end - start == pytest.approx(1000, abs=10)
        assert recorded.observed[0].done is None
        assert recorded.observed[1].before == 0
    assert server.actions[0] == "start"
    assert server.actions[-4:] == ["stop", "read", "read", "read"]


def test_a_slice_of_several_hosts_has_a_track_for_each(server: Server) -> None:
    traces, recorder = ProxiedTraces(None), Recorder(List())
    loaded = program({"s0": (0, 1), "s1": (2, 2)})
    traces.observe(recorder)
    # Loaded while the trace is recorded.
    traces.add(loaded)
    server.calls = [call()]
    traces.observe(None)
    recorder.close()
    (recorded,) = recorder.sink.calls
    assert recorded.hosts == {"s0/0": 0, "s0/1": 1, "s1": 2}
    assert [step.slice for step in recorded.plan.steps] == ["s0/0", "s0/1", "s1"]


def test_a_lost_server_is_a_warning(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    traces, recorder = ProxiedTraces(None), Recorder(List())
    traces.observe(recorder)
    server.dropped = 3
    traces.observe(None)
    recorder.close()
    assert "the trace lacks 3 calls, which the server had no memory for" in caplog.text
    recorder = Recorder(List())
    traces.observe(recorder)
    server.problem = RuntimeError("the server is lost")
    traces.observe(None)
    recorder.close()
    assert "the trace lacks the last calls that the server ran: the server is lost" in caplog.text


def test_calls_are_read_while_the_trace_is_recorded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxied_traces, "_PAUSE_S", 0.01)
    traces, recorder, loaded = ProxiedTraces(None), Recorder(List()), program()
    traces.add(loaded)
    traces.observe(recorder)
    server.calls = [call()]
    deadline = time.monotonic() + 10
    while not recorder.sink.calls:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    traces.observe(None)
    recorder.close()
