"""Islands that join, are drained, return and are killed at random, under clients whose values stay exact."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attached import ServiceInThreads

from pathways.dialect.errors import PathwaysError
from pathways.runtime.hosts.launch.options import HostOptions
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.service.protocol.admin import AddRequest, DrainRequest

pytestmark = pytest.mark.process

ISLANDS = 4
SECONDS = float(os.environ.get("PW_SOAK_SECONDS", "25"))

PROGRAM = textwrap.dedent("""
    import os, sys, time
    import jax
    import numpy as np
    import pathways as pw

    place, token, client, stop, may_fail = sys.argv[1:]
    pw.connect(place, token=token, client=client)
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((2,), ("x",)) for _ in range(2)]
    first, second = (
        pw.jit(f, devices=slice)
        for f, slice in zip((lambda x: (x * 5 + 7) % 1009, lambda x: (x * 3 + 1) % 1009), slices)
    )
    step = pw.program(lambda x, y: (second(first(x)), first(y)), donate_argnums=(0, 1))
    copy = pw.program(lambda x: second(x))

    def after(x, y):
        return ((x * 5 + 7) % 1009 * 3 + 1) % 1009, (y * 5 + 7) % 1009

    start = np.arange(1 << 16, dtype=np.float32) % 1009
    expected, state, kept = (start, start), None, []
    steps = errors = 0
    print("ready", flush=True)
    while steps < 20 or not os.path.exists(stop):
        try:
            state = step(*(state or expected))
            expected = after(*expected)
            steps += 1
            if steps % 5 == 0:
                # Nothing reads these for some time.
                kept = [*kept[-3:], (copy(expected[0]), (expected[0] * 3 + 1) % 1009)]
                for array, value in ((state[0], expected[0]), (state[1], expected[1]), kept[0]):
                    np.testing.assert_array_equal(array, value)
        except pw.HostError:
            if may_fail != "yes":
                raise
            errors += 1
            state, kept = None, []
            time.sleep(0.05)
    for array, value in zip(state or (), expected):
        np.testing.assert_array_equal(array, value)
    print(steps, errors, flush=True)
""")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceInThreads]:
    """Starts a service with four islands, and slices that need two."""
    settings = Settings((Island(devices_per_host=2),) * ISLANDS, HostOptions(grace=10.0, heartbeat=5.0))
    served = ServiceInThreads(settings, tmp_path)
    yield served
    served.close()


class Operator:
    """Person who drains islands, has them return, and watches others kill them."""

    def __init__(self, service: ServiceInThreads, seed: int) -> None:
        self.service = service.service
        self.chance = random.Random(seed)
        self.drained = 0
        self.lost: list[tuple[str, ...]] = []

    def island(self, state: str) -> str | None:
        """Returns the name of an island in a state; None if there is none."""
        names = [island.name for island in self.service.status().islands if island.state == state]
        return self.chance.choice(names) if names else None

    def drain(self, seconds: float) -> None:
        """Drains an island unless another one is out, and counts it."""
        name = self.island("running")
        if name is None or self.island("drained") is not None:
            return
        try:
            *_, last = self.service.drain(DrainRequest(name, seconds))
        except PathwaysError:
            # It was lost meanwhile, or others are, so that slices fit nowhere else.
            return
        self.drained += 1
        if last.clients:
            self.lost.append(last.clients)

    def undrain(self) -> None:
        """Has an island return."""
        if (name := self.island("drained")) is not None:
            self.service.return_island(name)

    def add(self) -> None:
        """Adds an island, once."""
        if len(self.service.status().islands) == ISLANDS:
            self.service.add_island(AddRequest(1, devices_per_host=2), threading.Event())

    def hurt(self, number: signal.Signals) -> None:
        """Sends a worker a signal."""
        if (name := self.island("running")) is not None:
            host = next(i for i in self.service.status().islands if i.name == name).hosts[0]
            os.kill(host.pid, number)


def start(service: ServiceInThreads, folder: Path, *, may_fail: bool) -> list[subprocess.Popen[str]]:
    token = service.write_token(folder / "secret")
    token.chmod(0o600)
    flags = [str(folder / "stop"), "yes" if may_fail else "no"]
    return [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, service.place, token, name, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("ann", "bob", "cy")
    ]


@pytest.mark.parametrize("may_fail", [False, True], ids=["drains and joins", "kills, signals and stops, too"])
def test_values_are_exact_while_islands_are_drained(
    service: ServiceInThreads, tmp_path: Path, may_fail: bool
) -> None:
    """Without losses no client sees any error."""
    clients = start(service, tmp_path, may_fail=may_fail)
    operator = Operator(service, int(os.environ.get("PW_SEED", "1")))
    try:
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n", client.communicate()[1][-3000:]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and all(client.poll() is None for client in clients):
            # Long enough for a machine that has other work.
            acts = [lambda: operator.drain(120.0), operator.undrain, operator.add]
            if may_fail:
                acts += [
                    lambda: operator.hurt(signal.SIGKILL),
                    lambda: operator.hurt(signal.SIGTERM),
                    lambda: stopped_for(operator.chance.choice(clients), operator.chance.uniform(0.1, 4.0)),
                    lambda: operator.drain(operator.chance.choice([0.0, 1.0])),
                ]
            operator.chance.choice(acts)()
            time.sleep(operator.chance.uniform(0.0, 1.0))
        operator.undrain()
        (tmp_path / "stop").touch()
        for client in clients:
            out, err = client.communicate(timeout=120)
            assert client.returncode == 0, err[-3000:]
            steps, errors = map(int, out.split())
            assert steps >= 20
            assert may_fail or not errors
    finally:
        for client in clients:
            client.kill()
            client.communicate()
    assert operator.drained >= 2
    assert may_fail or operator.lost == []
    deadline = time.monotonic() + 60
    while True:
        status = service.service.status()
        arrays = [host.arrays for island in status.islands for host in island.hosts]
        if {island.state for island in status.islands} == {"running"} and set(arrays) == {0}:
            break
        assert time.monotonic() < deadline, status
        time.sleep(0.1)
    records = service.service.accounts()
    assert records is not None
    assert [record for record in records if record.held_bytes] == []


def stopped_for(client: subprocess.Popen[str], seconds: float) -> None:
    """Stops a client for some seconds, in the background."""
    os.kill(client.pid, signal.SIGSTOP)
    timer = threading.Timer(seconds, lambda: client.poll() is None and os.kill(client.pid, signal.SIGCONT))
    timer.start()
