"""Requests of programs that import Pathways to their server: status, and traces of the calls of a session."""

from __future__ import annotations

import json
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from session_client import MESSAGES, Client

import pathways as pw
from pathways.compiler.lower.bundles import packed
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.bundle.carrier import carrier_of, digest_of
from pathways.runtime.local import recording
from pathways.runtime.local.server_requests import (
    DEVICES,
    PROGRAM,
    STATUS,
    TRACE,
    ProgramReply,
    ProxiedCall,
    ServedDevice,
    TraceReply,
)
from pathways.runtime.plan.plan import Launch, Transfer
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading import call_traces
from pathways.runtime.proxy.loading.call_traces import CallTraces, SessionTrace
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.wire.statuses import StatusError
from pathways.runtime.resources.status import Status
from pathways.runtime.traces.recorder import ObservedTimes, Recorder


@pytest.fixture(scope="module")
def served() -> ServedDevices:
    return ServedDevices(LocalBackend(jax.devices("cpu"), 2), MESSAGES, make_recorder=Recorder)


@pytest.fixture(scope="module")
def step() -> tuple[Any, bytes]:
    """Returns a program of two slices with one device each, compiled and as a bundle."""
    devices = pw.make_virtual_device_set()
    first, second = (
        pw.jit(function, devices=devices.add_slice((1,), ("x",))) for function in (jnp.sin, jnp.cos)
    )
    lowered = pw.program(lambda x: second(first(x))).lower(np.ones(4, "f"))
    bundle = packed(lowered._forms.scheduled, "step", lowered._interface, lowered._signature)
    return lowered.compile(), bundle


def send(client: Client, data: str | bytes) -> Any:
    """Sends a request instead of a program; returns the reply, or its status."""
    reply = client.request(
        "compile",
        program={
            "type_name": "xla::ifrt::PluginProgram",
            "data": b"__serialized_plugin_program " + (data.encode() if isinstance(data, str) else data),
        },
    )
    if reply.response_metadata.status.code:
        return reply.response_metadata.status.code, reply.response_metadata.status.message
    handle = {"loaded_executable_handle": reply.compile_response.loaded_executable_handle}
    text = client.request("loaded_executable_human_readable_program_text", **handle)
    client.request("loaded_executable_destruct", **handle)
    return text.loaded_executable_human_readable_program_text_response.human_readable_program_text


def trace(client: Client, action: str) -> TraceReply:
    return msgspec.json.decode(send(client, json.dumps({TRACE: {"action": action}})), type=TraceReply)


def calls_in(reply: TraceReply) -> list[ProxiedCall]:
    return [msgspec.json.decode(call, type=ProxiedCall) for call in reply.calls]


def load(client: Client, bundle: bytes) -> int:
    """Compiles a bundle as a client sends it; returns the handle."""
    proto = MESSAGES["xla.ifrt.IfrtIrProgramProto"](ifrt_program=bytecode_of(carrier_of(bundle)))
    options = MESSAGES["xla.ifrt.IfrtIrCompileOptionsProto"](device_ids=[0, 1])
    return client.request(
        "compile",
        program={"type_name": "xla::ifrt::IfrtIRProgram", "data": proto.SerializeToString()},
        compile_options={"data": options.SerializeToString()},
    ).compile_response.loaded_executable_handle


def call(client: Client, program: int, times: int = 1) -> None:
    client.put(1, np.ones(4, np.float32))
    for _ in range(times):
        client.request(
            "loaded_executable_execute",
            loaded_executable_handle=program,
            args_handles=[1],
            result_array_handle=[2],
        )
    np.testing.assert_allclose(client.fetch(2), np.cos(np.sin(np.ones(4, "f"))), rtol=1e-6)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff", "a plugin program is no request in JSON"),
        pytest.param("[" * 100_000, "a plugin program is no request in JSON", id="nested deeply"),
        (f'{{"{STATUS}": 1}}', "invalid pathwaysStatusRequest: it has no fields"),
        (f'{{"{DEVICES}": []}}', "invalid pathwaysDevicesRequest: it has no fields"),
        (f'{{"{PROGRAM}": {{}}}}', "invalid pathwaysProgramRequest: Object missing required field `program`"),
        (f'{{"{PROGRAM}": {{"program": "0"}}}}', "pathwaysProgramRequest: the session has no such program"),
        (f'{{"{TRACE}": null}}', "invalid pathwaysTraceRequest: Expected `object`, got `null`"),
        (f'{{"{TRACE}": {{}}}}', "invalid pathwaysTraceRequest: Object missing required field `action`"),
        (f'{{"{TRACE}": {{"action": "x"}}}}', "invalid pathwaysTraceRequest: Invalid enum value 'x'"),
        (f'{{"{TRACE}": {{"action": "read", "a": 1}}}}', "invalid pathwaysTraceRequest: Object contains"),
        (f'{{"{TRACE}": {{"action": "read"}}}}', "the session is not traced"),
        (f'{{"{TRACE}": {{"action": "stop"}}}}', "the session is not traced"),
    ],
)
def test_a_malformed_request_is_one_status(served: ServedDevices, data: str | bytes, message: str) -> None:
    client = Client(served)
    code, text = send(client, data)
    assert code in (3, 9)
    assert text.startswith(message)
    status = msgspec.json.decode(send(client, json.dumps({STATUS: {}})), type=Status)
    assert status.hosts[0].devices == len(jax.devices("cpu"))
    client.session.close()


def test_devices_of_a_lost_slice_are_lost() -> None:
    served = ServedDevices(LocalBackend(jax.devices("cpu")[:4], 2), MESSAGES, make_recorder=Recorder)
    client = Client(served)
    served.island_states = served.island_states.lose(1)
    reply = msgspec.json.decode(send(client, json.dumps({DEVICES: {}})), type=tuple[ServedDevice, ...])
    assert reply == (
        *(ServedDevice(number, 0, None, "running") for number in range(2)),
        *(ServedDevice(number, 0, None, "lost") for number in range(2, 4)),
    )
    client.session.close()


def test_the_status_has_the_islands_and_programs_of_the_server(served: ServedDevices, step: Any) -> None:
    client = Client(served)
    load(client, step[1])
    status = msgspec.json.decode(send(client, json.dumps({STATUS: {}})), type=Status)
    (host,) = status.hosts
    assert (status.backend, host.island, host.error) == ("server", "island0 island1", None)
    assert "step" in host.programs
    assert str(status).startswith("devices of a server (pw-proxy): ")
    client.session.close()


def test_facts_of_a_program_are_those_of_the_same_program_here(served: ServedDevices, step: Any) -> None:
    compiled, bundle = step
    client = Client(served)
    load(client, bundle)
    request = {"program": digest_of(bundle), "text": True}
    reply = msgspec.json.decode(send(client, json.dumps({PROGRAM: request})), type=ProgramReply)
    assert reply.memory == dict(compiled.memory_analysis())
    for launch in (step for step in compiled.plan.steps if isinstance(step, Launch)):
        assert reply.flops[launch.computation] == compiled.flops(launch.computation, launch.slice)
        assert f"// computation {launch.computation} on slice {launch.slice}" in reply.text
    assert reply.text.count("ENTRY") == 2
    client.session.close()


def test_a_reply_cannot_be_executed(served: ServedDevices) -> None:
    client = Client(served)
    data = b"__serialized_plugin_program " + json.dumps({STATUS: {}}).encode()
    reply = client.request("compile", program={"type_name": "xla::ifrt::PluginProgram", "data": data})
    handle = reply.compile_response.loaded_executable_handle
    client.request("loaded_executable_execute", loaded_executable_handle=handle, result_array_handle=[3])
    assert client.fetch(3)[0] == 3
    client.session.close()


def test_sessions_that_trace_at_once_get_their_own_calls(served: ServedDevices, step: Any) -> None:
    """Both have the same program."""
    plan, bundle = step[0].plan, step[1]
    ann, bob = Client(served), Client(served)
    of_ann, of_bob = load(ann, bundle), load(bob, bundle)
    assert trace(ann, "start").calls == ()
    call(bob, of_bob, 5)
    assert trace(bob, "start").calls == ()
    call(ann, of_ann, 2)
    call(bob, of_bob, 3)
    # Loaded while the session is traced.
    call(bob, load(bob, bundle))
    calls = calls_in(trace(ann, "stop"))
    call(ann, of_ann)
    call(bob, of_bob)
    calls_of_bob = calls_in(trace(bob, "stop"))
    assert (len(calls), len(calls_of_bob)) == (2, 5)
    timed = [n for n, each in enumerate(plan.steps) if isinstance(each, Launch | Transfer)]
    for recorded in calls + calls_of_bob:
        assert recorded.program == digest_of(bundle)
        assert sorted(each.number for each in recorded.steps) == timed
        launches = [each for each in recorded.steps if isinstance(plan.steps[each.number], Launch)]
        assert len(launches) == 2
    # A recorder that starts while the one before ends has no profile.
    assert all(each.ran or not isinstance(plan.steps[each.number], Launch) for each in calls[0].steps)
    assert recording._current is None
    # Both may trace again.
    trace(ann, "start")
    call(ann, of_ann)
    assert len(calls_in(trace(ann, "stop"))) == 1
    for client in (ann, bob):
        client.session.close()


def test_the_plan_of_a_bundle_has_the_steps_of_its_client(served: ServedDevices, step: Any) -> None:
    plan, bundle = step[0].plan, step[1]
    client = Client(served)
    program = client.session.state.programs[load(client, bundle)]
    assert program.executable.plan.steps == plan.steps
    client.session.close()


def test_a_session_that_ends_stops_its_trace(served: ServedDevices, step: Any) -> None:
    client = Client(served)
    program = load(client, step[1])
    trace(client, "start")
    assert send(client, json.dumps({TRACE: {"action": "start"}})) == (9, "the session is traced already")
    call(client, program)
    client.session.close()
    deadline = time.monotonic() + 30
    while served.call_traces._written:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert recording._current is None
    # Such as a request that another thread handles afterwards.
    with pytest.raises(StatusError, match="the session is traced already"):
        client.session.state.trace.start(list)


def test_a_server_that_traces_itself_or_has_no_traces_says_so(served: ServedDevices, tmp_path: Any) -> None:
    start = json.dumps({TRACE: {"action": "start"}})
    client = Client(served)
    with pw.trace(tmp_path / "run.json"):
        code, message = send(client, start)
    assert (code, message.partition(":")[0]) == (9, "the server cannot trace")
    client.session.close()
    client = Client(ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES))
    assert send(client, start) == (12, "the server has no traces")
    client.session.close()


def test_calls_that_no_client_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_traces, "_MAX_BYTES", 4000)
    monkeypatch.setattr(call_traces, "_REPLY_BYTES", 1000)
    traces = CallTraces(Recorder)
    session = SessionTrace(traces)
    session.start(list)
    plan = types.SimpleNamespace(computations={})
    session._digests[id(plan.computations)] = plan, "digest"
    late = 1 << 62
    recorded = types.SimpleNamespace(plan=plan, observed={0: ObservedTimes(late, late, late)}, executed={})
    traces.write([recorded] * 1000)
    session.stop()
    replies = [session.read()]
    while replies[-1].more:
        replies.append(session.read())
    read = sum(len(reply.calls) for reply in replies)
    assert 4 <= len(replies) < 10
    assert read + replies[0].dropped == 1000
    assert read * len(msgspec.json.encode(calls_in(replies[0])[0])) <= 4000
