"""Clients with quotas whose islands are killed at random: values stay exact, and nobody's memory is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attached import ServiceInThreads

from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.service.sharing.memory import DeviceLimits
from pathways.runtime.service.sharing.rules import ClientRules, SharingRules

pytestmark = pytest.mark.process

MIB = 1 << 20
KILLS = 4
LIMITS = DeviceLimits(12 * MIB, 4 * MIB)

PROGRAM = textwrap.dedent("""
    import os, sys, time
    import numpy as np
    import pathways as pw

    place, token, client, stop = sys.argv[1:]
    pw.connect(place, token=token, client=client)
    devices = pw.make_virtual_device_set()
    first, second = (
        pw.jit(f, devices=devices.add_slice((1,), ("x",), island=f"island{n}"))
        for n, f in enumerate((lambda x: (x * 5 + 7) % 1009, lambda x: (x * 3 + 1) % 1009))
    )
    step = pw.program(lambda x: second(first(x)))
    value = np.arange(1 << 18, dtype=np.float32) % 1009
    kept, steps = [], 0
    print("ready", flush=True)
    while steps < 20 or not os.path.exists(stop):
        try:
            # At most three of the four arrays of its quota; the results of two steps are kept.
            kept = kept[-1:]
            kept.append(step(value))
            result = np.asarray(kept[-1])
        except pw.ResourceError:
            raise
        except pw.HostError:
            kept.clear()
            time.sleep(0.05)
            continue
        expected = (((value * 5 + 7) % 1009) * 3 + 1) % 1009
        np.testing.assert_array_equal(result, expected)
        value, steps = result, steps + 1
    # All of the quota is there: three results, and an argument.
    kept.clear()
    one = pw.program(lambda x: first(x))
    kept = [one(value) for _ in range(3)]
    print(steps, [bool(np.asarray(x)[0] == (value[0] * 5 + 7) % 1009) for x in kept], flush=True)
""")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceInThreads]:
    """Starts a service with two islands, whose clients may hold four arrays of the program above."""
    rules = SharingRules(
        clients={name: ClientRules(memory=4 * MIB) for name in ("ann", "bob")}, islands=(LIMITS,) * 2
    )
    served = ServiceInThreads(Settings((Island(),) * 2), tmp_path, rules)
    yield served
    served.close()


def test_values_and_quotas_are_exact_while_islands_are_killed(
    service: ServiceInThreads, tmp_path: Path
) -> None:
    token, stop = service.write_token(tmp_path / "secret"), tmp_path / "stop"
    token.chmod(0o600)
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, service.place, token, name, stop],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("ann", "bob")
    ]
    try:
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n", client.communicate()[1][-3000:]
        quotas = [client.memory.quota for client in service.service._scheduler.clients.values()]
        assert len(quotas) == 2
        chance = random.Random(0)
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.5, 3.0))
            island = chance.choice(service.service.status().islands)
            os.kill(island.hosts[0].pid, signal.SIGKILL)
        stop.touch()
        for client in clients:
            out, err = client.communicate(timeout=120)
            assert client.returncode == 0, err[-3000:]
            steps, whole = out.split(maxsplit=1)
            assert int(steps) >= 20
            assert whole == "[True, True, True]\n"
    finally:
        for client in clients:
            client.kill()
            client.communicate()
    deadline = time.monotonic() + 30
    while service.service.status().clients:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    records = service.service.accounts()
    assert records is not None
    assert [record for record in records if record.held_bytes] == []
    losses = sum(island.losses for island in service.service.status().islands)
    assert 1 <= losses <= KILLS
    assert [held for quota in quotas for held in quota.held if any(held.values())] == []
