"""Islands that join a running service: `pw-cluster add`, clients that are attached, and starts that fail."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from attached import ServiceInThreads
from inside import worker_process
from test_joining import JOIN
from test_proxy_cluster import up

import pathways as pw
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.launch.child_launcher import Spawner
from pathways.runtime.hosts.launch.launcher_records import Join, Ssh
from pathways.runtime.hosts.launch.options import HostOptions
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.resources.status import IslandStatus
from pathways.runtime.service.client.service_listener import ServiceListener
from pathways.runtime.service.protocol.admin import AddRequest
from pathways.runtime.service.sharing.memory import DeviceLimits
from pathways.runtime.service.sharing.rules import ClientRules, SharingRules

pytestmark = pytest.mark.hosts

MIB = 1 << 20
X = np.arange(8, dtype=np.float32)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceInThreads]:
    """Starts a service with an island of one host."""
    pw.disconnect()
    served = ServiceInThreads(Settings((Island(devices_per_host=2),)), tmp_path)
    yield served
    served.close()


def add(service: ServiceInThreads, hosts: int | tuple[str, ...] = 1, **settings: Any) -> str:
    return service.service.add_island(AddRequest(hosts, **settings), threading.Event())


def islands(service: ServiceInThreads) -> tuple[IslandStatus, ...]:
    return service.service.status().islands


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def doubling(count: int, island: str) -> Callable[..., Any]:
    """Returns a function over devices of an island."""
    slice = pw.make_virtual_device_set().add_slice((count,), ("x",), island=island)
    return pw.jit(lambda x: jnp.cumsum(x) * 2, devices=slice)


@contextlib.contextmanager
def running(program: Callable[[Any], Any], expected: Any) -> Iterator[None]:
    """Runs a program in a thread during the block, and checks its results."""
    stop, counts = threading.Event(), []

    def run() -> None:
        while not stop.is_set():
            np.testing.assert_array_equal(program(X), expected)
            counts.append(1)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
        seen = len(counts)
        wait_until(lambda: len(counts) > seen or not thread.is_alive())
        assert thread.is_alive()
    finally:
        stop.set()
        thread.join()


@pytest.mark.feature("clients", "hosts")
def test_an_attached_client_uses_an_island_that_joins(service: ServiceInThreads) -> None:
    """Steps in flight are not disturbed, though the island is the first one of several hosts."""
    with service.attached("ann", hosts=1):
        first = doubling(2, "island0")
        program = pw.program(lambda x: first(x))
        twice = np.cumsum(X) * 2
        held, before = program(X), pw.cluster().devices
        with running(program, twice):
            assert add(service, 2, devices_per_host=2) == "island1"
            wait_until(lambda: len(pw.cluster().islands) == 2)
            cluster = pw.cluster()
            assert cluster.devices[:2] == before
            assert [device.position for device in cluster.islands[1].devices] == [2, 3, 4, 5]
            assert [island.state for island in cluster.islands] == ["running"] * 2
            second = doubling(4, "island1")
            both = pw.program(lambda x: second(first(x)))
            np.testing.assert_array_equal(both(X), np.cumsum(twice) * 2)
            np.testing.assert_array_equal(held, twice)
        assert [host.island for host in pw.status().hosts] == ["island0", "island1", "island1"]
        assert [island.devices for island in islands(service)] == [2, 4]
        (client,) = service.service.status().clients
        assert client.islands == ("island0", "island1")
        assert add(service) == "island2"
    # A client that attaches later has all of them.
    with service.attached("bo", hosts=1):
        assert [len(island.devices) for island in pw.cluster().islands] == [2, 4, 1]


def test_slices_are_bound_to_an_island_before_its_notice_has_arrived(
    service: ServiceInThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices come on another connection than the notice."""
    read = ServiceListener._add_island

    def read_later(*arguments: Any) -> None:
        time.sleep(0.5)
        read(*arguments)

    monkeypatch.setattr(ServiceListener, "_add_island", read_later)
    with service.attached("ann", hosts=1):
        for number in range(1, 3):
            add(service, devices_per_host=2)
            step = pw.program(doubling(2, f"island{number}"))
            np.testing.assert_array_equal(step(X), np.cumsum(X) * 2)


def test_an_island_that_has_joined_is_lost_and_returns(service: ServiceInThreads) -> None:
    with service.attached("ann", hosts=1):
        add(service)
        wait_until(lambda: len(pw.cluster().islands) == 2)
        step = pw.program(doubling(1, "island1"))
        held = step(X).block_until_ready()
        os.kill(worker_process(service.service, 1), signal.SIGKILL)
        wait_until(lambda: pw.cluster().islands[1].state != "running")
        with pytest.raises(HostError, match=r"host 1 \(island1\) is lost: its process has ended"):
            np.asarray(held)
        np.testing.assert_array_equal(step(X), np.cumsum(X) * 2)
        assert [island.losses for island in islands(service)] == [0, 1]
        records = service.service.accounts()
        assert records is not None
        assert {record.island for record in records if record.use.steps} == {"island1"}


def test_a_failed_start_changes_nothing(service: ServiceInThreads) -> None:
    with service.attached("ann", hosts=1):
        with pytest.raises(HostError, match=r"^host 1 did not start"):
            add(service, cores=4096)
        assert len(islands(service)) == len(pw.cluster().islands) == 1
        with pytest.raises(ValueError, match=r"hosts=\('box',\): expected a number of hosts"):
            add(service, ("box",))
        stopped = threading.Event()
        stopped.set()
        with pytest.raises(HostError, match=r"^the start of island1 was cancelled$"):
            service.service.add_island(AddRequest(1), stopped)
        assert add(service) == "island1"


def test_one_island_is_added_at_a_time(service: ServiceInThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the service ends the start."""
    launch, has_started = Spawner.launch, threading.Event()

    def launch_later(self: Spawner, configs: Any, seconds: float, stop: threading.Event) -> Any:
        has_started.set()
        stop.wait(60)
        return launch(self, configs, seconds, stop)

    monkeypatch.setattr(Spawner, "launch", launch_later)
    errors: list[str] = []

    def add_first() -> None:
        with pytest.raises(HostError) as caught:
            add(service)
        errors.append(str(caught.value))

    thread = threading.Thread(target=add_first)
    thread.start()
    assert has_started.wait(30)
    with pytest.raises(HostError, match="another island is being added, and only one is at a time"):
        add(service)
    service.service.close()
    thread.join(30)
    assert errors == ["the start of island1 was cancelled"]


def test_quotas_hold_on_an_island_that_joins(tmp_path: Path) -> None:
    pw.disconnect()
    rules = SharingRules(
        clients={"ann": ClientRules(memory=4 * MIB)}, islands=(DeviceLimits(16 * MIB, 4 * MIB),)
    )
    service = ServiceInThreads(Settings((Island(),)), tmp_path, rules)
    try:
        with service.attached("ann", hosts=1):
            message = "the quotas of clients are 4 MiB together, more than the 4 MiB of a device of island1"
            with pytest.raises(ValueError, match=message):
                add(service, memory=4 * MIB)
            with pytest.raises(ValueError, match="pool: expected less than device_memory"):
                add(service, pool=16 * MIB)
            assert add(service) == "island1"
            wait_until(lambda: len(pw.cluster().islands) == 2)
            step = pw.program(doubling(1, "island1"))
            x = np.zeros(MIB // 4, np.float32)
            held = [step(x) for _ in range(3)]
            with pytest.raises(pw.ResourceError, match="of client 'ann' on a device of island1"):
                held.append(step(x).block_until_ready())
            # Hosts are notified of arguments that are free in batches.
            wait_until(lambda: islands(service)[1].free_memory in (12 * MIB, 13 * MIB))
    finally:
        service.close()


def test_named_machines_are_an_island(tmp_path: Path) -> None:
    pw.disconnect()
    ssh = Ssh(bind="127.0.0.1", start="env PW_MACHINE={host} {command}")
    service = ServiceInThreads(Settings((Island(["a"]),), launcher=ssh), tmp_path)
    try:
        for hosts, message in (
            (2, "hosts=2: expected names of machines, as the other islands have"),
            (("b", "a"), "hosts: 'a' is named more than once; expected one host on each machine"),
        ):
            with pytest.raises(ValueError, match=message):
                add(service, hosts)
        assert add(service, ("b", "c")) == "island1"
        assert [len(island.hosts) for island in islands(service)] == [1, 2]
    finally:
        service.close()


@pytest.mark.process
def test_machines_join_as_an_island(tmp_path: Path) -> None:
    """An agent may come before the island is added."""
    pw.disconnect()
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)
    join = Join(secret_file=str(secret), bind="127.0.0.1", ports=(20600, 20699))
    command = [*JOIN, "--join", "127.0.0.1:20600", "--secret-file", str(secret)]
    settings = Settings((Island(),), HostOptions(heartbeat=5), join)
    agents = [subprocess.Popen([*command, "--host=0"], stderr=subprocess.DEVNULL)]
    service = ServiceInThreads(settings, tmp_path)
    try:
        agents += [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
        assert add(service, 2) == "island1"
        assert [len(island.hosts) for island in islands(service)] == [1, 2]
    finally:
        service.close()
        for agent in agents:
            agent.kill()
            agent.wait()


FILE = """
    [[islands]]
    devices_per_host = 2
"""

PROXIED = """
import jax, jax.numpy as jnp
import pathways as pw

step = jax.jit(lambda x: x * 2)
x = step(jnp.arange(4.0))
print("ready", flush=True)
input()
print(jax.device_count(), [len(island.devices) for island in pw.cluster().islands], step(x), flush=True)
"""


@pytest.mark.process
def test_pw_cluster_adds_an_island_beside_a_proxied_program(tmp_path: Path) -> None:
    with up(tmp_path, FILE) as tool, tool.ready("ann", PROXIED) as process:
        token = tmp_path / "bo.token"
        assert tool("token", "lab", "bo", "-o", token).returncode == 0
        denied = tool("add", "lab", "--hosts", "1", "--token", token)
        assert (denied.returncode, denied.stdout) == (1, "")
        assert denied.stderr.splitlines()[-1] == (
            "pw-cluster: error: the request needs the token of the cluster, and this one is of client 'bo'"
        )
        failed = tool("add", "lab", "--hosts", "1", "--cores", "4096")
        assert (failed.returncode, failed.stdout) == (1, "")
        assert "pw-cluster: error: host 1 did not start" in failed.stderr
        done = tool("add", "lab", "--hosts", "2", "--devices-per-host", "2")
        assert (done.returncode, done.stdout) == (0, "island1\n")
        assert done.stderr == "pw-cluster: lab: adding an island of 2 hosts ...\n"
        out, err = process.communicate("\n", timeout=60)
        assert out == "2 [2] [ 0.  4.  8. 12.]\n", err[-2000:]
        # A program that starts later has the devices of both.
        count = "import jax; print(jax.device_count())"
        later = tool("run", "lab", "--client", "cy", "--", sys.executable, "-c", count)
        assert later.stdout == "6\n", later.stderr[-2000:]
