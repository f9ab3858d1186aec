"""Islands that are taken out of a running service: clients move off them, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import host_functions
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attached import ServiceInThreads
from inside import worker_process
from jax.sharding import PartitionSpec

import pathways as pw
from pathways.runtime.hosts.launch.options import HostOptions
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.local.devices import process_cluster
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.service.protocol.admin import DrainRequest
from pathways.runtime.service.sharing.memory import DeviceLimits
from pathways.runtime.service.sharing.rules import ClientRules, SharingRules

pytestmark = pytest.mark.hosts

BATCH = {"x": np.zeros((8, 4), np.float32), "y": (np.zeros(8, np.int32), {"z": np.zeros(8, np.int32)})}
"""Batch of the inputs of `host_functions`."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceInThreads]:
    """Starts a service with three islands."""
    pw.disconnect()
    options = HostOptions(grace=20.0)
    settings = Settings((Island(devices_per_host=2),) * 3, options)
    served = ServiceInThreads(settings, tmp_path_factory.mktemp("service"))
    yield served
    served.close()


@pytest.fixture
def ann(service: ServiceInThreads) -> Iterator[None]:
    """Attaches this process as a client; in the end all islands run."""
    with service.attached("ann", hosts=3):
        yield
    for island in service.service.status().islands:
        if island.state == "drained":
            service.service.return_island(island.name)
    wait_until(lambda: set(states(service)) == {"running"})


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def states(service: ServiceInThreads) -> list[str]:
    return [island.state for island in service.service.status().islands]


def drain(
    service: ServiceInThreads, island: str, seconds: float = 60.0, *, force: bool = False
) -> Sequence[str]:
    """Drains an island; returns who needed something there when it left."""
    *_, last = service.service.drain(DrainRequest(island, seconds, force))
    assert last.is_over
    return last.clients


class Training:
    """Steps of a client on two slices, with its state, and arrays that no step reads."""

    def __init__(self, **of_slices: str) -> None:
        devices = pw.make_virtual_device_set()
        self.slices = [devices.add_slice((2,), ("x",), **of_slices) for _ in range(2)]
        double, add = (
            pw.jit(function, devices=slice)
            for function, slice in zip(
                (lambda w, x: (w + 1, x * w), lambda w, x: (w + 2, x + w)), self.slices, strict=True
            )
        )

        def step(state, x):
            first, x = double(state[0], x)
            second, x = add(state[1], x)
            return [first, second], x

        self.step = pw.program(step, donate_argnums=0)
        self.state = self.step([jnp.zeros((64, 8)), jnp.zeros((64, 8))], jnp.ones((64, 8)))[0]
        self.idle = [
            pw.program(lambda x, f=f: f(x, x)[1])(np.full((64, 8), 3.0, np.float32)) for f in (double, add)
        ]
        self.count = 1

    def run(self) -> None:
        """Runs a step, and checks its result."""
        self.state, result = self.step(self.state, np.ones((64, 8), np.float32))
        np.testing.assert_array_equal(result, np.full((64, 8), 3.0 * self.count))
        self.count += 1

    def check(self) -> None:
        """Checks the state and the idle arrays."""
        for rate, array in zip((1, 2), self.state, strict=True):
            np.testing.assert_array_equal(array, np.full((64, 8), rate * self.count))
        for value, array in zip((9, 6), self.idle, strict=True):
            np.testing.assert_array_equal(array, np.full((64, 8), value))

    def hosts(self) -> set[int]:
        return {host for array in (*self.state, *self.idle) for host in array.hosts}


def test_clients_move_off_an_island_while_their_steps_go_on(service: ServiceInThreads, ann: None) -> None:
    """Also the arrays that no step reads move; afterwards the island returns, and gets slices."""
    training = Training()
    assert training.hosts() == {0, 1}
    kept: list[Sequence[str]] = []
    thread = threading.Thread(target=lambda: kept.append(drain(service, "island0")))
    thread.start()
    before = training.count
    while thread.is_alive():
        training.run()
    assert kept == [()]
    assert training.count > before
    assert training.hosts() == {1, 2}
    assert states(service) == ["drained", "running", "running"]
    wait_until(lambda: pw.cluster().islands[0].state == "drained")
    training.run()
    training.check()
    third = pw.make_virtual_device_set().add_slice((2,), ("x",), name="third", island="island0")
    on_third = pw.program(lambda x: pw.jit(lambda x: x + 1, devices=third)(x))
    with pytest.raises(ResourceError, match=r"2 on island0\); there are 4 \(island0: drained, island1: 2"):
        on_third(jnp.ones(4))
    service.service.return_island("island0")
    wait_until(lambda: pw.cluster().islands[0].state == "running")
    np.testing.assert_array_equal(on_third(jnp.ones(4)), np.full(4, 2.0))
    training.run()
    training.check()


def test_threads_go_on_while_an_island_is_drained(service: ServiceInThreads, ann: None) -> None:
    """Threads put arrays, call programs and read results at the same time as the move."""
    errors: list[BaseException] = []
    is_over = threading.Event()

    def work() -> None:
        try:
            training = Training()
            while not is_over.is_set():
                training.run()
            training.check()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    for island in ("island1", "island0"):
        assert drain(service, island) == ()
        service.service.return_island(island)
    is_over.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_pinned_slices_are_lost_with_a_drained_island(service: ServiceInThreads, ann: None) -> None:
    """The drain names the clients that are there; what is there is an error that says why."""
    devices = pw.make_virtual_device_set()
    pinned = devices.add_slice((2,), ("x",), name="pinned", island="island1")
    add = pw.program(lambda x: pw.jit(lambda x: x + 1, devices=pinned)(x))
    array = add(jnp.ones(4))
    (client,) = drain(service, "island1", 0.5)
    assert client == "client 'ann': slice pinned (pinned)"
    wait_until(lambda: pw.cluster().islands[1].state == "drained")
    with pytest.raises(pw.HostError, match=r"host 1 \(island1\) has left: drained"):
        np.asarray(array)
    with pytest.raises(pw.HostError, match=r"host 1 \(island1\) has left: drained"):
        add(jnp.ones(4))
    service.service.return_island("island1")
    wait_until(lambda: pw.cluster().islands[1].state == "running")
    np.testing.assert_array_equal(add(jnp.ones(4)), np.full(4, 2.0))


def test_a_drain_is_refused_where_slices_fit_nowhere_else(service: ServiceInThreads, ann: None) -> None:
    """With `force` they stay, and are lost."""
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((2,), ("x",), name=f"t{n}") for n in range(3)]
    functions = [pw.jit(lambda x: x + 1, devices=slice) for slice in slices]

    def step(x):
        for function in functions:
            x = function(x)
        return x

    step = pw.program(step)
    np.testing.assert_array_equal(step(jnp.ones(4)), np.full(4, 4.0))
    with pytest.raises(ResourceError, match="not enough devices"):
        drain(service, "island2")
    assert states(service) == ["running"] * 3
    np.testing.assert_array_equal(step(jnp.ones(4)), np.full(4, 4.0))
    (client,) = drain(service, "island2", 0.5, force=True)
    assert "fits nowhere else" in client
    wait_until(lambda: pw.cluster().islands[2].state == "drained")
    with pytest.raises(pw.HostError, match=r"host 2 \(island2\) has left: drained"):
        np.asarray(step(jnp.ones(4)))


def test_only_running_islands_are_drained(service: ServiceInThreads, ann: None) -> None:
    with pytest.raises(pw.HostError, match="'island7' is no island: the islands are island0, island1"):
        drain(service, "island7")
    with pytest.raises(pw.HostError, match="island0 is running: only a drained island returns"):
        service.service.return_island("island0")
    assert drain(service, "island0") == ()
    with pytest.raises(pw.HostError, match="island0 is drained: only a running island can be drained"):
        drain(service, "island0")


def test_clients_move_off_an_island_whose_worker_gets_a_signal(service: ServiceInThreads, ann: None) -> None:
    """The workers start again; clients that have moved stay where they are."""
    training = Training()
    os.kill(worker_process(service.service, 0), signal.SIGTERM)
    before = service.service.status().islands[0].losses
    while service.service.status().islands[0].losses == before:
        training.run()
    wait_until(lambda: states(service) == ["running"] * 3)
    training.run()
    assert training.hosts() == {1, 2}
    training.check()


@contextlib.contextmanager
def served_program(service: ServiceInThreads, folder: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a program that attaches to the service; it is killed at the end."""
    token = service.write_token(folder / "secret")
    token.chmod(0o600)
    command = [sys.executable, "-c", text, service.place, str(token)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


STOPPED = textwrap.dedent("""
    import os, signal, sys
    import numpy as np
    import pathways as pw

    place, token = sys.argv[1:]
    pw.connect(place, token=token, client="stopped")
    add = pw.jit(lambda x: x + 1, devices=pw.make_virtual_device_set().add_slice((2,), ("x",), name="front"))
    step = pw.program(lambda x: add(x))
    array = step(np.ones(4, np.float32))
    array.block_until_ready()
    print(array.hosts[0], flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        np.asarray(array)
    except pw.HostError as error:
        print(error, flush=True)
""")


@pytest.mark.process
def test_a_stopped_client_loses_what_it_has_on_a_drained_island(
    service: ServiceInThreads, ann: None, tmp_path: Path
) -> None:
    """The client delays nobody beyond the time of the drain, and learns why when it continues."""
    with served_program(service, tmp_path, STOPPED) as stopped:
        host = int(stopped.stdout.readline())
        wait_until(lambda: Path(f"/proc/{stopped.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        assert drain(service, f"island{host}", 1.0) == ("client 'stopped': slice front (moves)",)
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.stdout.readline() == f"DATA_LOSS: host {host} (island{host}) has left: drained\n"


@pytest.mark.parametrize("parts", [{"rows": 8}, {"shards": 2}], ids=["rows", "shards"])
def test_an_input_on_hosts_moves_with_the_step_that_reads_it(
    service: ServiceInThreads, ann: None, parts: dict[str, int]
) -> None:
    """Hosts of the other island go on with the batch after the last one."""
    slice = pw.make_virtual_device_set().add_slice((2,), ("x",))
    read = pw.jit(lambda x: x.sum(axis=1), devices=slice, in_shardings=(PartitionSpec("x"),))
    step = pw.program(lambda batch: read(batch["x"])).lower(BATCH).compile()
    source = pw.on_hosts(host_functions.numbered if "rows" in parts else host_functions.shard_of)
    with pw.prefetch(source, step, "batch", count=24, **parts) as batches:
        expected = [np.asarray(step(batch)) for batch in batches]
    results = []
    with pw.prefetch(source, step, "batch", count=24, **parts) as batches:
        for number, batch in enumerate(batches):
            (before,) = {binding.island for binding in process_cluster.manager().holders().values()}
            results.append(np.asarray(step(batch)))
            if number in (5, 15):
                assert drain(service, before) == ()
                service.service.return_island(before)
    np.testing.assert_array_equal(results, expected)


QUOTA = 5 << 20


def test_what_does_not_fit_elsewhere_stays_where_it_is(tmp_path: Path) -> None:
    """Steps go on with it until the island leaves."""
    pw.disconnect()
    limits = DeviceLimits(3 * QUOTA, QUOTA)
    rules = SharingRules(clients={"ann": ClientRules(memory=QUOTA)}, islands=(limits,) * 2)
    service = ServiceInThreads(Settings((Island(),) * 2), tmp_path, rules)
    try:
        with service.attached("ann", hosts=2):
            full, free = (
                pw.make_virtual_device_set().add_slice((1,), ("x",), name=name, island=island)
                for name, island in (("full", "island1"), ("free", None))
            )
            # Three of the small ones fit the quota of a device, and not the large one beside them.
            small, large = np.ones(5 << 16, np.float32), np.ones(7 << 16, np.float32)
            keep = pw.program(lambda x: pw.jit(lambda x: x * 1, devices=full)(x))
            kept = [keep(small).block_until_ready() for _ in range(3)]
            add = pw.program(lambda x: pw.jit(lambda x: x + 1, devices=free)(x), donate_argnums=0)
            array = add(large).block_until_ready()
            assert (kept[0].hosts, array.hosts) == ((1,), (0,))
            replies = service.service.drain(DrainRequest("island0", 60.0))
            while not (clients := next(replies).clients) or "exceeds the quota" not in clients[0]:
                pass
            assert clients[0].startswith(
                "client 'ann': slice free (moves): program relocation: a step of program"
            )
            array = add(array)
            np.testing.assert_array_equal(array, np.full(7 << 16, 3.0, np.float32))
            # With room on the other island, the next try succeeds.
            kept.clear()
            assert [*replies][-1].clients == ()
            np.testing.assert_array_equal(add(array), np.full(7 << 16, 4.0, np.float32))
    finally:
        service.close()


def test_replicas_move_to_an_island_of_their_own(service: ServiceInThreads, ann: None) -> None:
    """Losses and weights are bit for bit those of a run that stays where it is."""
    slice = pw.make_virtual_device_set(replicas=2).add_slice((2,), ("x",))
    layer = pw.jit(lambda w, x: jnp.tanh(x @ w), devices=slice)
    gradients = pw.accumulate(jax.value_and_grad(lambda w, x: jnp.mean(layer(w, x) ** 2)), 4)

    def update(w, x):
        loss, gradient = gradients(w, x)
        return w - 0.1 * gradient, loss

    step = pw.program(update, donate_argnums=0)
    x = np.linspace(0, 1, 16 * 8, dtype=np.float32).reshape(16, 8)

    def train(after: Callable[[int], None]) -> tuple[list[float], np.ndarray]:
        w, losses = np.eye(8, dtype=np.float32), []
        for number in range(20):
            w, loss = step(w, x)
            losses.append(float(loss))
            after(number)
        places.append(w.hosts)
        return losses, np.asarray(w)

    places: list[tuple[int, ...]] = []
    losses, weights = train(lambda number: None)
    moved_losses, moved_weights = train(lambda number: drain(service, "island0") if number == 9 else None)
    assert places == [(0, 1), (1, 2)]
    assert moved_losses == losses
    np.testing.assert_array_equal(moved_weights, weights)
