"""Clients of a service that end in all ways, beside other clients, which are not disturbed."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import host_functions
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from attached import ServiceInThreads
from inside import service_connection, worker_process
from on_hosts import refused

import pathways as pw
from pathways.passes.analysis.measured.trace_file import read_trace
from pathways.runtime.clusters import connect
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.step import FunctionCall
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.cluster.worker_cluster import Split
from pathways.runtime.hosts.cluster.worker_listener import WorkerListener
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.hosts.protocol import plain
from pathways.runtime.hosts.protocol.messages import Call, DeviceLayout, Ping, Put
from pathways.runtime.hosts.protocol.programs import BoundProgram
from pathways.runtime.local.devices import process_cluster
from pathways.runtime.resources import child_process
from pathways.runtime.resources.status import ClientStatus
from pathways.runtime.service.protocol.service_messages import ReleaseArrays
from pathways.runtime.service.relaying.incoming_arrays import IncomingArrays

RAW_CLIENT = Path(__file__).parents[1] / "support" / "raw_client.py"

pytestmark = pytest.mark.hosts


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceInThreads]:
    """Starts a service with two islands."""
    pw.disconnect()
    served = ServiceInThreads(Settings((Island(),) * 2), tmp_path_factory.mktemp("service"))
    yield served
    served.close()


@pytest.fixture
def ann(service: ServiceInThreads) -> Iterator[None]:
    """Attaches this process as a client."""
    with service.attached("ann", hosts=2):
        yield


@pytest.fixture
def program(ann: None, devices: pw.VirtualDeviceSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Writes a program of one slice into a file."""
    del ann
    captured: list[BoundProgram] = []
    load = HostSession.load

    def noted(self: HostSession, program: BoundProgram, split: Split) -> HostedProgram:
        captured.append(program)
        return load(self, program, split)

    monkeypatch.setattr(HostSession, "load", noted)
    double = pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), ("x",), island="island0"))
    np.testing.assert_array_equal(double(np.ones(4, np.float32)), np.full(4, 2, np.float32))
    path = tmp_path / "program"
    path.write_bytes(msgspec.msgpack.encode(captured[0]))
    return path


@pytest.fixture
def start(
    service: ServiceInThreads, program: Path, tmp_path: Path
) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """Starts other clients, by their names and what they do."""
    token = service.write_token(tmp_path / "token")
    started: list[subprocess.Popen[str]] = []

    def begin(name: str, way: str) -> subprocess.Popen[str]:
        command = [sys.executable, RAW_CLIENT, service.place, token, name, program, way]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def client(service: ServiceInThreads, name: str) -> ClientStatus | None:
    return next((each for each in service.service.status().clients if each.name == name), None)


def wait_until(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.quick
def test_service_frees_all_of_a_killed_client(service, start):
    """A stopped client does not delay the steps of others; it keeps its arrays."""
    process = start("bob", "steps")
    wait_until(lambda: (bob := client(service, "bob")) is not None and bob.steps_done > 20)
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    assert client(service, "bob").arrays > 0
    assert_steps_go_on(service)
    process.kill()
    wait_until(lambda: client(service, "bob") is None)
    wait_until(lambda: all(owner_is_ann(host, service) for host in (0, 1)))
    assert_steps_go_on(service)


def owner_is_ann(host: int, service: ServiceInThreads) -> bool:
    """Returns whether a host has arrays of no other client."""
    held = [each for island in service.service.status().islands for each in island.hosts if each.host == host]
    own = client(service, "ann")
    return held[0].arrays is not None and own is not None and held[0].arrays <= own.arrays


def assert_steps_go_on(service: ServiceInThreads) -> None:
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((1,), ("x",), island=f"island{n}") for n in range(2)]
    f, g = (pw.jit(lambda x: jnp.sin(x) + 1, devices=slice) for slice in slices)
    chain = pw.program(lambda x: g(f(x)))
    x = np.linspace(0, 1, 8, dtype=np.float32)
    for _ in range(20):
        y = chain(x)
    np.testing.assert_allclose(np.asarray(y), np.sin(np.sin(x) + 1) + 1, rtol=1e-6)
    for slice in slices:
        pw.release(slice)


@pytest.mark.process
def test_service_goes_on_when_a_client_stops_within_an_array(service, start):
    process = start("bob", "stop")
    wait_until(lambda: (bob := client(service, "bob")) is not None and bob.queued == 1)
    assert_steps_go_on(service)
    process.kill()
    wait_until(lambda: client(service, "bob") is None)
    assert_steps_go_on(service)


@pytest.mark.process
def test_service_keeps_a_stopped_client(service, start):
    """The client keeps its arrays and connections, and the other half of an array completes it."""
    process = start("bob", "stop")
    wait_until(lambda: (bob := client(service, "bob")) is not None and bob.queued == 1)
    time.sleep(2)
    process.send_signal(signal.SIGCONT)
    assert process.stdout.readline() == "[2.0, 4.0, 6.0, 8.0]\n"


@pytest.mark.process
def test_service_disconnects_a_client_that_floods(service, start):
    process = start("bob", "flood")
    wait_until(lambda: client(service, "bob") is None)
    process.wait(20)
    assert_steps_go_on(service)


def put(client: HostSession, location: Location) -> int:
    """Returns the number of a new array at a location."""
    number = client.take_numbers()
    client.put(np.zeros(4, np.float32), location, number)
    return number


@pytest.mark.parametrize("way", ["takes", "fetches", "donates"])
def test_service_runs_steps_while_a_client_waits_for_a_call(service, ann, program, devices, tmp_path, way):
    """Hosts have one queue for all clients: steps that need a call in flight wait before it."""
    bob = service.attach("bob")
    bound = msgspec.msgpack.decode(program.read_bytes(), type=BoundProgram)
    other = bob.load(bound, lambda **_: None)
    taken = {island: [put(bob, port.location) for port in ports] for island, ports in other.inputs.items()}
    slice = devices.add_slice((1,), ("x",), island="island0")
    double = pw.jit(lambda x: x * 2, devices=slice)
    donating = pw.program(lambda x: double(x), donate_argnums=0)
    for f in (double, donating):
        np.testing.assert_array_equal(f(double(np.ones(4, np.float32))), np.full(4, 4))
    x, go = double(np.ones(4, np.float32)), tmp_path / "go"
    read: list[np.ndarray] = []
    if way == "donates":
        call = pw.on_hosts(host_functions.wait_with, devices=slice, path=str(go))(x)
        y = donating(x)
    else:
        out = jax.ShapeDtypeStruct((4,), np.float32)
        call = pw.on_hosts(host_functions.value_when_exists, devices=slice, out=out)(path=str(go))
        y = call.result()
    if way == "takes":
        y = double(y)
    thread = threading.Thread(target=lambda: read.append(np.asarray(y)))
    thread.start()
    time.sleep(0.2)
    began = time.monotonic()
    for _ in range(3):
        bob.wait_for_step(bob.run(other, taken))
    took = time.monotonic() - began
    assert not call.done()
    go.touch()
    thread.join(20)
    (value,) = read
    np.testing.assert_array_equal(value, np.full(4, {"takes": 10, "fetches": 5, "donates": 4}[way]))
    assert took < 5
    bob.close()
    wait_until(lambda: client(service, "bob") is None)


@pytest.mark.feature("clients", "hosts")
def test_service_fails_steps_that_need_a_failed_call(service, ann, devices):
    slice = devices.add_slice((1,), ("x",), island="island0")
    out = jax.ShapeDtypeStruct((4,), np.float32)
    failed = pw.on_hosts(host_functions.fail, devices=slice, out=out)().result()
    with refused(HostError, "row 17 is empty"):
        np.asarray(pw.jit(lambda x: x * 2, devices=slice)(failed))
    assert_steps_go_on(service)


@pytest.mark.feature("clients", "hosts")
@pytest.mark.process
def test_service_traces_only_the_requesting_client(service, start, devices, tmp_path):
    """Other clients run meanwhile; the client sees all of its own steps, on the clock of its process."""
    start("bob", "steps")
    f, g = (
        pw.jit(lambda x: jnp.sin(x) + 1, devices=devices.add_slice((1,), ("x",), island=f"island{n}"))
        for n in range(2)
    )
    chain = pw.program(lambda x: g(f(x)))
    x = np.zeros(8, np.float32)
    chain(x)
    for name in ("first", "second"):
        with pw.trace(tmp_path / f"{name}.json"):
            for _ in range(3):
                y = chain(x)
        np.asarray(y)
        timelines = read_trace((tmp_path / f"{name}.json").read_bytes())
        assert [timeline.title for timeline in timelines] == [f"measured, step {n}" for n in range(3)]
        for timeline in timelines:
            assert list(timeline.hosts.values()) == [0, 1]
            assert len(timeline.launches) == 2


@pytest.mark.feature("clients", "values")
def test_service_gives_clients_free_devices(service, ann, devices):
    """The service binds the slices of all; devices that a client releases, others get."""

    def island(slice: pw.VirtualSlice) -> str:
        return process_cluster.bind([slice], "f")[slice].island

    first = devices.add_slice((1,), ("x",))
    assert island(first) == "island0"
    bob = service.attach("bob")
    slices = bob.bind(bob.cluster)
    other = pw.make_virtual_device_set().add_slice((1,), ("x",))
    assert slices.bind([other], "g")[other].island == "island1"
    pw.release(first)
    assert island(first) == "island0"
    with refused(pw.ResourceError, "program g: not enough devices: it needs 2", "there are 2"):
        large = pw.make_virtual_device_set().add_slice((2,), ("x",))
        slices.bind([large], "g")
    bob.close()
    wait_until(lambda: client(service, "bob") is None)
    assert island(devices.add_slice((1,), ("x",))) == "island1"
    with refused(HostError, "service test is closed"):
        slices.bind([pw.make_virtual_device_set().add_slice((1,), ("x",))], "g")


def test_service_frees_the_name_of_a_client_that_left(service):
    for _ in range(20):
        service.attach("again").close()


@pytest.mark.feature("clients", "error")
def test_service_refuses_a_second_client_of_a_name(service, ann):
    with refused(HostError, "rejects this process: a client called 'ann' already exists"):
        service.attach("ann")
    service.attach("another").close()
    wait_until(lambda: client(service, "another") is None)


@pytest.mark.feature("clients", "error")
def test_service_disconnects_a_client_that_sends_garbage(service, ann):
    """The client knows the secret, and sends bytes that are no message."""
    bob = service.attach("bob")
    service_connection(bob)._socket.sendall(b"\x00" * 64)
    wait_until(lambda: client(service, "bob") is None)
    wait_until(lambda: bob.pool.gangs[0].life.failure is not None)
    with refused(HostError, "has ended this client: these bytes are not a message of pathways"):
        bob.pool.gangs[0].life.check()
    bob.close()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as stranger:
        stranger.connect(service.place)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert_steps_go_on(service)


def pids(service: ServiceInThreads) -> list[int]:
    return [host.pid for island in service.service.status().islands for host in island.hosts]


@pytest.mark.parametrize("dtype", ["O", "(-1,)f4", "S5", "datetime64", "float32, int8", "longdouble", ""])
def test_service_disconnects_a_client_that_sends_a_wrong_array(service, ann, dtype):
    """The client is disconnected rather than the worker that would get the message."""
    bob, before = service.attach("bob"), pids(service)
    host, number = bob.hosts[0], bob.take_numbers()
    host.arrays.send(Put(number, (4,), dtype, DeviceLayout((0,), (1,), ("x",), ((),)), (0,)))
    wait_until(lambda: bob.pool.gangs[0].life.failure is not None)
    with refused(HostError, "has ended this client", f"has dtype {dtype!r}, which programs do not support"):
        bob.pool.gangs[0].life.check()
    bob.close()
    assert_steps_go_on(service)
    assert pids(service) == before


@pytest.mark.parametrize("channel", ["steps", "arrays", "watch"])
def test_service_disconnects_one_client_for_an_unexpected_error(service, ann, channel, monkeypatch):
    """The service and the channels of all others go on."""

    part, name = {
        "steps": (service.service._request_parser, "parse"),
        "arrays": (IncomingArrays, "handle"),
        "watch": (service.service._control_requests, "handle"),
    }[channel]
    take = getattr(part, name)
    sent = Ping(1) if channel == "watch" else ReleaseArrays(0, 0, ())

    def fail(sender: object, message: object) -> Any:
        if message != sent or getattr(sender, "name", None) == "ann":
            return take(sender, message)
        raise ZeroDivisionError("division by zero")

    with monkeypatch.context() as patch:
        patch.setattr(part, name, fail)
        bob = service.attach("bob")
        wait_until(lambda: client(service, "bob") is not None)
        bob._send_to_service(channel, sent)
        wait_until(lambda: bob.pool.gangs[0].life.failure is not None)
    with refused(HostError, "its message led to ZeroDivisionError: division by zero"):
        bob.pool.gangs[0].life.check()
    bob.close()
    assert_steps_go_on(service)


@pytest.mark.feature("clients", "error")
def test_service_refuses_a_program_that_does_not_verify(service, ann, program):
    """The service parses no modules itself: a process with limits reports the error."""
    bound = msgspec.msgpack.decode(program.read_bytes(), type=BoundProgram)
    bob = service.attach("bob")
    for module, words in (
        (b"module {", "program '<lambda>'"),
        (bound.module[: len(bound.module) // 2], "program '<lambda>'"),
        (b"module {}", "program '<lambda>'"),
    ):
        broken = msgspec.structs.replace(bound, name="<lambda>", module=module)
        with refused(HostError, words):
            bob.load(broken, lambda **_: None)
    (place,) = bound.slices.values()
    place = msgspec.structs.replace(place, devices=(99,))
    with refused(HostError, "has invalid devices"):
        bob.load(msgspec.structs.replace(bound, slices=dict.fromkeys(bound.slices, place)), lambda **_: None)
    bob.close()
    assert_steps_go_on(service)


@pytest.mark.process
def test_service_reports_an_unexpected_error_of_a_program(
    service: ServiceInThreads, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client does not wait for a reply that does not come."""

    def fail(*args: object, **named: object) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    bound = msgspec.msgpack.decode(program.read_bytes(), type=BoundProgram)
    bob = service.attach("bob")
    with monkeypatch.context() as patch:
        patch.setattr(child_process.subprocess, "Popen", fail)
        service.service._control_requests._splitter.close()
        with refused(HostError, "program 'lambda'", "no more processes"):
            bob.load(bound, lambda **_: None)
    bob.load(bound, lambda **_: None)
    bob.close()


def test_service_notifies_a_client_it_disconnects(service):
    bob = service.attach("bob")
    assert service.service.disconnect_client("bob")
    wait_until(lambda: bob.pool.gangs[0].life.failure is not None)
    with refused(HostError, "has ended this client: requested by pw-cluster end"):
        bob.pool.gangs[0].life.check()
    bob.close()
    assert not service.service.disconnect_client("bob")


@pytest.mark.feature("clients", "error")
def test_service_end_is_an_error_to_all_clients(tmp_path, monkeypatch):
    served = ServiceInThreads(Settings((Island(),)), tmp_path)
    ann, bob = served.attach("ann"), served.attach("bob")
    served.close()
    for one in (ann, bob):
        wait_until(lambda one=one: one.pool.gangs[0].life.failure is not None)
        with refused(HostError, "the service is shutting down"):
            one.pool.gangs[0].life.check()
        one.close()


def call_of(name: str, *, lane: int = 1, **named: Any) -> Call:
    """Returns a call of a function of `host_functions` without arrays."""
    arguments = plain.encode([[], {"t": []}, named], "arguments")
    folder = str(Path(host_functions.__file__).parent)
    return Call(0, 0, (), f"host_functions:{name}", (folder,), 0, lane, False, (), arguments, None, b"0")


def call_on(one: HostSession, name: str, **named: Any) -> FunctionCall:
    """Calls it on the first island."""
    gang = one.pool.gangs[0]
    return one.call(name, gang, gang.hosts, call_of(name, **named))


@pytest.mark.feature("clients", "hosts")
def test_service_client_sees_hosts_as_their_owner_does(tmp_path, monkeypatch, devices):
    """Round trips, a step over its deadline, and a kill that the service notices late are reported."""
    options = pw.HostOptions(heartbeat=4, step_deadline=2)
    service = ServiceInThreads(Settings((Island(),) * 2, options), tmp_path)
    monkeypatch.setattr(connect, "start_session", lambda settings: service.attach("ann"))
    pw.disconnect()
    pw.connect(hosts=2)
    try:
        wait_until(lambda: all(host.round_trip is not None for host in pw.status().hosts))
        assert all(0 < host.round_trip < 4 for host in pw.status().hosts)
        slices = [devices.add_slice((1,), ("x",), island=f"island{n}") for n in range(2)]
        a, b = (pw.jit(lambda x: x + 1, devices=slice) for slice in slices)
        endless = pw.program(lambda x: jax.lax.while_loop(lambda x: x > 0, lambda x: b(a(x)), x))
        with refused(pw.ProgramFailedError, "has run for 2 seconds, and step_deadline is 2"):
            endless(np.float32(1))

        slow = pw.jit(lambda x: jax.lax.fori_loop(0, 10**9, lambda n, x: jnp.sin(x), x), devices=slices[0])
        program = pw.program(lambda x: b(slow(x)))
        program.lower(np.float32(1)).compile()
        lose = WorkerListener._explain_loss

        def lose_late(self: WorkerListener, *args: Any) -> None:
            time.sleep(0.3)
            lose(self, *args)

        monkeypatch.setattr(WorkerListener, "_explain_loss", lose_late)
        result = program(np.float32(1))
        time.sleep(0.2)
        os.kill(worker_process(service.service, 0), signal.SIGKILL)
        with refused(
            pw.HostLostError, "host 0 (island0) is lost: its process has ended (killed by signal 9)"
        ):
            np.asarray(result)
        with refused(
            pw.HostLostError, "host 0 (island0) is lost: its process has ended (killed by signal 9)"
        ):
            result.block_until_ready()
    finally:
        pw.disconnect()
        service.close()


def test_service_runs_calls_of_clients_side_by_side(service, tmp_path):
    """Each client has the same lanes, and its own."""
    ann, bob = service.attach("ann"), service.attach("bob")
    first = call_on(ann, "wait_for", path=str(tmp_path / "go"))
    second = call_on(bob, "plain", value="number")
    bob.wait_for_call(second)
    assert second.answers[0].value == b"2.5"
    assert not ann.has_ended(first)
    (tmp_path / "go").touch()
    ann.wait_for_call(first)
    ann.close(), bob.close()


@pytest.mark.feature("clients", "hosts")
def test_service_reports_calls_to_their_client(service, tmp_path):
    """Calls have the client's own numbers, and other clients' calls are not reported."""
    ann, bob = service.attach("ann"), service.attach("bob")
    calls = {one: call_on(one, "wait_for", path=str(tmp_path / "go")) for one in (ann, bob)}
    for one, call in calls.items():
        # At first the function is imported.
        place = f"in wait_for at {host_functions.__file__}:"
        wait_until(lambda one=one, call=call, place=place: place in one.describe_call(call))
        assert "host 0: has been running for" in one.describe_call(call)
    request = ann.request_reports([0])
    ann.wait_for(request)
    assert [call.number for call in request.answers[0][-1].calls] == [calls[ann].number]
    (tmp_path / "go").touch()
    for one, call in calls.items():
        one.wait_for_call(call)
        one.close()


@pytest.mark.feature("clients", "hosts")
def test_service_frees_objects_kept_by_calls_of_a_client(service):
    """Copies for a checkpoint and inputs of batches are freed; the client may have died without notice."""

    def kept(one: HostSession) -> Any:
        call = call_on(one, "kept_of_all")
        one.wait_for_call(call)
        return plain.decode(call.answers[0].value)

    ann, bob = service.attach("ann"), service.attach("bob")
    for one in (ann, bob):
        one.wait_for_call(call_on(one, "keep"))
    assert kept(ann) == kept(bob) == [2, True]
    bob.close()
    wait_until(lambda: kept(ann) == [1, True])
    ann.close()


@pytest.mark.feature("clients", "hosts")
def test_service_counts_chunks_of_a_loop_as_steps(
    service: ServiceInThreads, ann: None, devices: pw.VirtualDeviceSet
) -> None:
    """The client's process reads where the loop ends, and requests the next chunk only then."""
    first, second = (
        pw.jit(fun, devices=devices.add_slice((1,), ("x",), island=f"island{n}"))
        for n, fun in enumerate((jnp.sin, jnp.cos))
    )

    def iterate(x: Any, end: int, f: Any, g: Any) -> Any:
        return jax.lax.while_loop(lambda s: s[0] < end, lambda s: (s[0] + 1, g(f(s[1]))), (0, x))

    program = pw.program(lambda x, end: iterate(x, end, first, second), chunk=4)
    x = np.ones(4, np.float32)
    for end in (0, 4, 5, 17):
        count, y = program(x, end)
        theirs = jax.jit(lambda x, end: iterate(x, end, jnp.sin, jnp.cos))(x, end)
        assert int(count) == end
        np.testing.assert_allclose(np.asarray(y), theirs[1], rtol=1e-6)
    # A step before each loop, 1, 1, 2 and 5 chunks, and a step after each.
    wait_until(lambda: client(service, "ann").steps_done == 17)
