"""Training with `pw.resilient` by clients of a service, whose workers are killed."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from attached import ServiceInThreads
from check import assert_equal
from models import layer
from resilient_training import (
    KillsInCalls,
    batches,
    digest,
    is_protected_again,
    kill,
    stages,
    train,
    train_through_kills,
    trainer,
    undisturbed,
)
from test_fewer_replicas import Trainer
from test_fewer_replicas import batches as fewer_batches
from test_fewer_replicas_on_hosts import RecordedStep, hosts_of

import pathways as pw
from pathways.compiler.data.on_hosts import values_of
from pathways.runtime.clusters import connect
from pathways.runtime.clusters.connect import controller
from pathways.runtime.hosts.client.calls import call_of, lanes
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.launch.settings import Settings
from pathways.runtime.hosts.protocol import plain
from pathways.runtime.hosts.worker.probes import Probes
from pathways.runtime.resilience.snapshots import worker_snapshots as snapshots
from pathways.runtime.resilience.snapshots.run_names import run_name
from pathways.runtime.service.protocol.admin import DrainReply, DrainRequest

CLIENT = Path(__file__).parents[1] / "support" / "resilient_client.py"

pytestmark = pytest.mark.hosts

Serve = Callable[..., ServiceInThreads]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns the folder of the snapshots of all clients."""
    return tmp_path / "snapshots"


@pytest.fixture
def serve(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a service, and attaches this process as a client; in the end no snapshots are left."""
    pw.disconnect()
    started: list[ServiceInThreads] = []

    def begin(*islands: pw.Island, **options: Any) -> ServiceInThreads:
        options = {"snapshot_folder": str(folder), **options}
        service = ServiceInThreads(Settings(islands, pw.HostOptions(**options)), tmp_path)
        started.append(service)
        monkeypatch.setattr(connect, "start_session", lambda settings: service.attach("ann"))
        pw.connect(hosts=len(islands))
        return service

    yield begin
    pw.disconnect()
    for service in started:
        service.close()
    assert [*folder.glob("*")] == []


def wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def lose_machine(host: int, folder: Path) -> None:
    """Kills a worker, and removes its memory, as when its machine is lost."""
    gang = controller().hosts[host].gang
    kill(host)
    wait_until(gang.is_lost)
    for own in folder.glob(f"*/host{host}"):
        shutil.rmtree(own)


def runs_of(service: ServiceInThreads, folder: Path, name: str) -> set[Path]:
    """Returns the folders of the runs of a client."""
    (number,) = [number for number, one in service.service._admission.clients.items() if one.name == name]
    return {*folder.glob(f"client-*-{number}-*")}


@pytest.mark.quick
def test_resilient_client_survives_kills_of_any_worker(serve, caplog):
    serve(*[pw.Island()] * 3)
    train_through_kills(caplog)


@pytest.mark.parametrize("lost", [(2,), (0, 3)])
def test_resilient_client_goes_on_with_fewer_replicas(serve, lost):
    """Islands that the service restarts are not waited for: two or three of four replicas go on meanwhile."""
    serve(*[pw.Island(devices_per_host=2)] * 4)
    step = RecordedStep(functools.partial(Trainer, zero1=True))
    with step.resilient(fewer_batches(1000, 12), every=3, min_replicas=2) as run:
        step.run = run
        for n, _ in run.steps(1000):
            if n == 4:
                kill(*lost)
            if len(step.switches) > 1 and step.counts[-2:] == [4, 4]:
                break
        assert hosts_of(run.state) == {0, 1, 2, 3}
    assert step.switches[0] == step.switches[-1] == 4
    assert min(step.counts) < 4
    step.check()


@pytest.mark.parametrize(
    ("function", "when", "victim"),
    [
        ("write", (1, 6), lambda hosts, named: hosts[0]),
        ("receive", (1, 4), lambda hosts, named: hosts[0]),
        ("receive", (1, 4), lambda hosts, named: named["host"]),
        ("read", (0, 3), lambda hosts, named: hosts[0]),
        ("fetch", (0, 1), lambda hosts, named: named["host"]),
        ("open_run", (3, 4), lambda hosts, named: hosts[0]),
    ],
    ids=["snapshot", "copy by the buddy", "copy by the source", "restore", "restore of the buddy", "return"],
)
def test_resilient_client_survives_kills_in_snapshots_and_restores(
    serve, folder, monkeypatch, function, when, victim
):
    serve(*[pw.Island()] * 3, snapshot_rate=10_000)
    step, state = stages()
    source = batches()
    expected = undisturbed(step, state, source)
    kills = KillsInCalls(monkeypatch, function, when, victim)
    with pw.resilient(step, state, source, every=3) as run:
        losses = {}
        if function in ("read", "fetch", "open_run"):
            losses = {7: lambda: (is_protected_again(run), lose_machine(1, folder))}
        metrics = train(run, losses)
        final = jax.device_get(run.state)
    assert kills.left == 0
    assert_equal((metrics, final), expected)


def test_resilient_client_survives_kills_in_islands_of_two_hosts(serve, folder):
    serve(*[pw.Island(hosts=2)] * 2)
    step, state = stages(devices_of_stage=2)
    source = batches()
    expected = undisturbed(step, state, source)
    with pw.resilient(step, state, source, every=3) as run:
        losses = {
            5: lambda: kill(3),
            10: lambda: (is_protected_again(run), lose_machine(0, folder), lose_machine(1, folder)),
        }
        metrics = train(run, losses)
        assert_equal((metrics, jax.device_get(run.state)), expected)


@pytest.fixture
def start_client(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts another client of a service, which trains."""
    started: list[subprocess.Popen[str]] = []

    def begin(service: ServiceInThreads, name: str, count: int) -> subprocess.Popen[str]:
        token = service.write_token(tmp_path / "token")
        command = [sys.executable, CLIENT, service.place, token, name, str(count)]
        environment = os.environ | {"PYTHONPATH": str(CLIENT.parent)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        assert process.stdout is not None
        # After its first step.
        assert process.stdout.readline() == "0\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.feature("clients", "hosts")
def test_resilient_clients_train_at_the_same_time(serve, start_client):
    """Both go on when workers are killed, and neither gets bits of the other."""
    service = serve(*[pw.Island(devices_per_host=2)] * 3)
    step, state = stages()
    source = batches(40)
    expected = undisturbed(step, state, source)
    bob = start_client(service, "bob", 40)
    with pw.resilient(step, state, source, every=3) as run:
        losses = {
            n: lambda host=host: (is_protected_again(run), kill(host))
            for n, host in [(5, 1), (12, 0), (19, 2)]
        }
        metrics = train(run, losses, 40)
        assert_equal((metrics, jax.device_get(run.state)), expected)
    assert bob.stdout.read().split()[-1] == digest(*expected)
    assert bob.wait() == 0


@pytest.mark.feature("clients", "hosts")
def test_resilient_runs_of_a_killed_client_are_removed(serve, folder, start_client):
    """Also on a host whose worker is killed with it; the run of another client stays."""
    service = serve(*[pw.Island(devices_per_host=2)] * 2)
    step, state = stages()
    source = batches()
    expected = undisturbed(step, state, source)
    bob = start_client(service, "bob", 100_000)
    wait_until(lambda: len(runs_of(service, folder, "bob")) == 1)
    (run_of_bob,) = runs_of(service, folder, "bob")
    with pw.resilient(step, state, source, every=3) as run:

        def lose() -> None:
            is_protected_again(run)
            bob.kill()
            kill(1)
            wait_until(lambda: not run_of_bob.exists())
            assert len(runs_of(service, folder, "ann")) == 1

        metrics = train(run, {7: lose})
        assert_equal((metrics, jax.device_get(run.state)), expected)


def test_resilient_runs_are_removed_when_a_client_disconnects(serve, folder):
    serve(pw.Island())
    step, state = stages((0,))
    run = pw.resilient(step, state, batches(), every=2)
    run.__enter__()
    assert len([*folder.iterdir()]) == 1
    pw.disconnect()
    wait_until(lambda: [*folder.iterdir()] == [])


def test_resilient_runs_of_a_lost_worker_are_removed_when_its_island_is_back(serve, folder):
    """The client has disconnected meanwhile; what is left of other clients stays."""
    service = serve(pw.Island())
    bob = service.attach("bob")
    for client, digit in ((controller(), "1"), (bob, "2")):
        called(client, "open_run", 0, run=run_name(digit * 32))
    (run_of_bob,) = runs_of(service, folder, "bob")
    # Nobody else removes it: the machine of the worker has no other one.
    # Before the kill: other workers may take their place at once.
    workers = bob.pool.gangs[0]
    kill(0)
    wait_until(workers.is_lost)
    bob.close()
    wait_until(lambda: not run_of_bob.exists())
    assert {*folder.iterdir()} == runs_of(service, folder, "ann")


def test_resilient_client_does_not_kill_workers(serve):
    serve(*[pw.Island()] * 2)
    step, state = stages()
    with pw.resilient(step, state, batches(), every=2) as run:
        with pytest.raises(RuntimeError, match="other clients of the service use, too") as refused:
            run.lose("island1", memory=True)
        assert str(refused.value).endswith("pw.status() has their process ids")
        assert len(train(run, {})) == 16


def called(client: HostSession, function: str, at: int, /, **named: Any) -> Any:
    """Returns the value of a function of the snapshots on a host."""
    arguments = plain.encode([[], {"t": []}, named], "arguments")
    message = call_of(f"{snapshots.__name__}:{function}", 0, next(lanes), [], arguments, None)
    worker = client.hosts[at]
    (value,) = values_of(client, client.call(function, worker.gang, [worker], message))
    return value


@pytest.mark.feature("clients", "error")
def test_resilient_run_is_out_of_reach_for_other_clients(serve, folder, monkeypatch):
    """A client knows the name of the run of another, and tries all functions with it."""
    service = serve(*[pw.Island()] * 2)
    step, state = stages()
    source = batches()
    expected = undisturbed(step, state, source)
    eve = service.attach("eve")
    with pw.resilient(step, state, source, every=3) as run:
        name = run._store._calls.run

        def attack() -> None:
            is_protected_again(run)
            key = [
                run._recovery.core.table.committed.key.step,
                run._recovery.core.table.committed.key.attempt,
            ]
            address = eve.hosts[0].ready.probe_address
            (blocks,) = {tuple(names) for _, _, names in opened(key)}
            source = {"key": key, "host": 0, "address": address, "blocks": [*blocks]}
            for given in (name, run_name(name[-32:])):
                with pytest.raises(pw.HostError, match="is closed"):
                    called(eve, "receive", 1, run=given, copy=9, **source)
                assert called(eve, "open_run", 0, run=given)["versions"] == []
                assert called(eve, "open_run", 1, run=given)["versions"] == []
                assert called(eve, "fetch", 1, run=given, **source)["why"].endswith(f"of version {key[0]}")
                with pytest.raises(pw.HostError, match="has no block"):
                    called(eve, "receive", 1, run=given, copy=9, **source)
                called(eve, "keep", 0, run=given, keys=[], newest=[1000, 1000])
                called(eve, "close_run", 0, run=given)
                called(eve, "close_run", 1, run=given)
            with pytest.raises(pw.HostError, match="expected the name of a run"):
                called(eve, "close_run", 0, run=next(folder.iterdir()).name)
            kill(0, 1)

        def opened(key: list[int]) -> list[Any]:
            found = called(controller(), "open_run", 0, run=name)["versions"]
            return [version for version in found if version[:2] == key]

        metrics = train(run, {7: attack})
        assert_equal((metrics, jax.device_get(run.state)), expected)
    eve.close()


@pytest.fixture
def stranger() -> Iterator[Probes]:
    """Answers as a worker does, without the secret of the cluster."""
    server = socket.create_server(("127.0.0.1", 0))
    probes = Probes(server, b"?" * 32, 1, 0, lambda *_: None, lambda *_: None, 5.0)
    yield probes
    probes.close()


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("open_run", {"run": "../../etc"}, "open_run: run = .*: expected the name of a run"),
    ("open_run", {"folder": "/etc", "rate": 1.0}, "open_run: folder: unknown key"),
    ("keep", {"keys": [[0, -1]], "newest": None}, r"keep: keys\[0\] = .*: expected a step and an attempt"),
    ("receive", {"copy": "../1"}, "receive: copy = .*: expected a whole number of at least 0"),
    ("receive", {"host": -1}, "receive: host = -1: expected a whole number of at least 0"),
    ("receive", {"address": "example.org:80"}, "expected an IP address and a port"),
    ("receive", {"address": "STRANGER"}, "host 1 does not send them"),
    ("receive", {"blocks": ["../x"]}, r"has no block \.\./x of version"),
    ("read", {"leaves": [[[[[0, 1]], "w"]]]}, "read: blocks of 1 arrays for 0"),
    ("close_run", {"run": None}, "close_run: run = null: expected the name of a run"),
]
"""Functions of the snapshots, wrong arguments, and the errors."""


@pytest.mark.feature("clients", "error")
def test_resilient_service_refuses_arguments_of_clients(serve, folder, stranger):
    """Each is one error of the call, and the worker goes on; it reads from no process outside the cluster."""
    serve(*[pw.Island()] * 2)
    client = controller()
    pids = [host.process.pid for host in client.hosts]
    run = run_name("7" * 32)
    for host in (0, 1):
        called(client, "open_run", host, run=run)
    source = {"copy": 1, "host": 1, "address": client.hosts[1].ready.probe_address, "blocks": ["w"]}
    for function, named, why in REFUSED:
        given: dict[str, Any] = {"run": run}
        if function in ("receive", "read"):
            given["key"] = [1, 1]
        if function == "receive":
            given |= source
        if named.get("address") == "STRANGER":
            named = {"address": stranger.address}
        with pytest.raises(pw.HostError, match=why) as refused:
            called(client, function, 0, **given | named)
        assert "Traceback" not in str(refused.value)
    assert [host.process.pid for host in client.hosts] == pids
    assert called(client, "open_run", 0, run=run)["versions"] == []
    assert len([*folder.iterdir()]) == 1


class CountedTraining:
    """Step of a pipeline of two stages that counts its calls: more than steps were run again."""

    def __init__(self, *islands: str | None) -> None:
        devices = pw.make_virtual_device_set()
        slices = [devices.add_slice((1,), ("x",), island=island) for island in islands]
        self.step, self.state = trainer([pw.jit(layer, devices=one) for one in slices])
        self.source = batches(200)
        self.expected = undisturbed(self.step, self.state, self.source)
        self.calls = 0

    def __call__(self, state: Any, batch: Any) -> tuple[Any, Any]:
        self.calls += 1
        return self.step(state, batch)

    def check(self, act: Callable[[], Any], every: int) -> Any:
        """Trains, and checks that no step was run again; returns the state at the end.

        Args:
          act: is called after each step.
        """
        acts = dict.fromkeys(range(len(self.source)), act)
        with pw.resilient(self, self.state, self.source, every=every, feeds=(self.step, "batch")) as run:
            metrics = train(run, acts, len(self.source))
            assert_equal((metrics, jax.device_get(run.state)), self.expected)
            assert run.status().losses == 0
            assert self.calls == len(self.source)
            return run.state


@pytest.mark.parametrize("every", [1, 100])
def test_resilient_client_moves_off_islands_that_are_drained(serve, every):
    """First the one of the first stage, then that of the second, which has its copies."""
    service = serve(*[pw.Island()] * 3)
    training = CountedTraining(None, None)
    drains = [Drain(service, f"island{n}") for n in range(2)]

    def act() -> None:
        # Steps have to go on: the run takes a version at the end of one.
        current = next((drain for drain in drains if not drain.has_ended()), None)
        if current is not None:
            current.go_on()
            time.sleep(0.1)

    state = training.check(act, every)
    assert all(drain.has_ended() for drain in drains)
    assert hosts_of(state) == {0, 2}


def test_resilient_client_waits_for_drained_islands_of_its_slices(serve):
    """The run has a version of its state elsewhere, and goes on when the island returns."""
    service = serve(*[pw.Island()] * 3)
    training = CountedTraining("island0", "island1")
    drain = Drain(service, "island0")
    training.check(drain.go_on, 1000)
    wait_until(drain.has_ended)
    assert [island.state for island in service.service.status().islands] == ["running"] * 3


class Drain:
    """Drain of an island in the background, after which the island returns."""

    def __init__(self, service: ServiceInThreads, island: str) -> None:
        self._service = service.service
        self._island = island
        self._last: list[DrainReply] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        *_, last = self._service.drain(DrainRequest(self._island, 120.0))
        # The run waits for it, if it has slices there.
        time.sleep(0.5)
        self._service.return_island(self._island)
        self._last.append(last)

    def go_on(self) -> None:
        """Begins the drain, unless it has begun."""
        if self._thread.ident is None:
            self._thread.start()

    def has_ended(self) -> bool:
        """Returns whether the island has returned; checks that nothing was lost."""
        assert self._last in ([], [DrainReply(True, ())])
        return bool(self._last)
