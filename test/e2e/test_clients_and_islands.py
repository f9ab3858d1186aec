"""Status of a service: which client has which devices, from which process, and the state of each island."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attached import ServiceInThreads
from inside import service_connection, worker_process

import pathways as pw
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.cluster.starter import Starter
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.hosts.protocol.frames import encode
from pathways.runtime.hosts.protocol.messages import Message
from pathways.runtime.resources.status import ClientStatus, IslandStatus, SliceStatus
from pathways.runtime.service.protocol.service_messages import MoveReport

pytestmark = pytest.mark.hosts


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceInThreads]:
    """Starts a service with two islands."""
    pw.disconnect()
    served = ServiceInThreads(Settings((Island(devices_per_host=2),) * 2), tmp_path_factory.mktemp("service"))
    yield served
    served.close()


@pytest.fixture
def ann(service: ServiceInThreads) -> Iterator[None]:
    """Attaches this process as a client."""
    with service.attached("ann", hosts=2):
        yield


def clients(service: ServiceInThreads) -> dict[str, ClientStatus]:
    return {client.name: client for client in service.service.status().clients}


def islands(service: ServiceInThreads) -> tuple[IslandStatus, ...]:
    return service.service.status().islands


def bind(session: HostSession, island: str) -> pw.VirtualSlice:
    """Returns a slice of both devices of an island."""
    slice = pw.make_virtual_device_set().add_slice(2, "x", island=island)
    session.bind(session.cluster).bind([slice], "f")
    return slice


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_status_has_the_process_and_the_slices_of_each_client(service: ServiceInThreads) -> None:
    began = time.time()
    ann, bob = service.attach("ann"), service.attach("bob")
    slices = {"ann": bind(ann, "island0"), "bob": bind(bob, "island1")}
    wait_until(lambda: {client.process for client in clients(service).values()} == {os.getpid()})
    for number, (name, client) in enumerate(clients(service).items()):
        island, positions = f"island{number}", (2 * number, 2 * number + 1)
        assert (client.machine, client.address) == (socket.gethostname(), "this machine")
        assert client.islands == (island,)
        assert client.slices == (SliceStatus(slices[name].name, island, positions, "f"),)
        assert began <= client.since <= time.time()
    status = service.service.status()
    assert [island.devices for island in status.islands] == [2, 2]
    # XLA reports no limit for CPU devices.
    assert [island.free_memory for island in status.islands] == [None, None]
    for host in (host for island in status.islands for host in island.hosts):
        assert (host.machine, host.address) == (socket.gethostname(), "127.0.0.1")
        assert status.since - 60 < host.since <= status.since <= began <= status.time
    assert max(map(len, str(status).splitlines())) <= 120
    ann.close()
    bob.close()
    wait_until(lambda: not clients(service))


def test_a_loss_shows_and_counts(
    service: ServiceInThreads, ann: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients and readers of the status see the same state; the other island runs all the time."""
    start, may_restart = Starter.start, threading.Event()

    def start_later(*arguments: Any) -> list[list[WorkerHandle]]:
        may_restart.wait(60)
        return start(*arguments)

    monkeypatch.setattr(Starter, "start", start_later)
    before = islands(service)[1].hosts[0]
    wait_until(lambda: all(island.round_trip is not None for island in pw.cluster().islands))
    assert [[host.index for host in island.hosts] for island in pw.cluster().islands] == [[0], [1]]
    os.kill(worker_process(service.service, 1), signal.SIGKILL)
    wait_until(lambda: islands(service)[1].state != "running")
    first, second = islands(service)
    assert (first.state, first.losses, first.problem) == ("running", 0, None)
    assert (second.state, second.losses) == ("restarting", 1)
    assert second.problem is not None
    assert second.problem.startswith("host 1 (island1) is lost: its process has ended (killed by signal 9)")
    wait_until(lambda: [island.state for island in pw.cluster().islands] == ["running", "restarting"])
    may_restart.set()
    wait_until(lambda: islands(service)[1].state == "running")
    second = islands(service)[1]
    assert (second.losses, second.problem) == (1, None)
    assert second.hosts[0].pid != before.pid
    assert second.hosts[0].since > before.since
    wait_until(lambda: [island.state for island in pw.cluster().islands] == ["running"] * 2)


def test_a_report_about_no_island_disconnects_its_client_alone(
    service: ServiceInThreads, ann: None, caplog: pytest.LogCaptureFixture
) -> None:
    bob = service.attach("bob")
    wait_until(lambda: clients(service).keys() == {"ann", "bob"})
    with caplog.at_level(logging.INFO, "pathways"):
        service_connection(bob).send_frames(encode(MoveReport(7, 0)))
        wait_until(lambda: clients(service).keys() == {"ann"})
    (text,) = [record.getMessage() for record in caplog.records if "bob" in record.getMessage()]
    assert text == "client 'bob' disconnected: island 7 does not exist"
    bob.close()


class _WrongOrigin(Message, frozen=True, tag="ClientOrigin"):
    """Message of a client that has another library."""

    user: str = "u" * 65
    machine: str = "box"
    process: int = 1


def test_a_malformed_origin_disconnects_its_client_alone(
    service: ServiceInThreads, ann: None, caplog: pytest.LogCaptureFixture
) -> None:
    bob = service.attach("bob")
    wait_until(lambda: clients(service).keys() == {"ann", "bob"})
    with caplog.at_level(logging.INFO, "pathways"):
        service_connection(bob).send_frames(encode(_WrongOrigin()))
        wait_until(lambda: clients(service).keys() == {"ann"})
    assert [record.getMessage() for record in caplog.records if "bob" in record.getMessage()] == [
        "client 'bob' disconnected: a message cannot be read: user and machine of a client must have at most "
        "64 printable characters"
    ]
    assert clients(service)["ann"].process == os.getpid()
    bob.close()
