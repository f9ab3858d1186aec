"""Spare workers, which have imported JAX and replace lost ones: each test has its own cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attached import ServiceInThreads
from check import assert_equal

import pathways as pw
from pathways.runtime.clusters.connect import controller
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.resources.status import SpareStatus

pytestmark = pytest.mark.hosts


def wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.02)


def spare_pids(parent: int | None = None) -> list[int]:
    """Returns the processes that are spares of a process, or were: their command line names it.

    Other workers of this process are not among them: those are forked (`preloaded`).
    """
    found = []
    wanted = f"pathways.runtime.clusters.worker_process\0{parent or os.getpid()}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, state = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if wanted in command and state.rpartition(")")[2].split()[0] != "Z":
            found.append(int(folder.name))
    return found


def lose(host: int) -> None:
    """Kills a worker, and waits until its island is back."""
    hosts = controller()
    os.kill(hosts.hosts[host].process.pid, signal.SIGKILL)
    wait_until(lambda: not hosts.is_whole())
    wait_until(hosts.is_whole)


def test_spares_take_the_place_of_lost_workers(own_workers, devices):
    """An island of two hosts gets both; they have the devices, cores and grace period of those before."""
    islands = [pw.Island(), pw.Island(hosts=2, devices_per_host=2, spares=1)]
    pw.connect(islands=islands, options=pw.HostOptions(spares=1))
    wide = devices.add_slice((4,), ("x",), island="island1")
    program = pw.program(pw.jit(lambda x: x * 2, devices=wide))
    wait_until(lambda: pw.status().spares.ready == 2)
    assert "spare workers: 2 of 2 ready" in str(pw.status())
    spares = spare_pids()
    lose(2)
    assert sorted(host.pid for host in pw.status().hosts if host.island == "island1") == sorted(spares)
    assert_equal(program(np.float32(3)), np.float32(6))
    # Spares that were used end as other workers do.
    wait_until(lambda: pw.status().spares.ready == 2)
    os.kill(pw.status().hosts[1].pid, signal.SIGTERM)
    wait_until(lambda: pw.status().hosts[1].pid not in spares)
    wait_until(controller().is_whole)
    pw.disconnect()
    wait_until(lambda: not spare_pids())


def test_spares_are_not_used_in_another_environment(own_workers, monkeypatch, caplog):
    pw.connect(hosts=1, options=pw.HostOptions(spares=1))
    wait_until(lambda: pw.status().spares.ready == 1)
    (spare,) = spare_pids()
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "3")
    lose(0)
    assert pw.status().hosts[0].pid != spare
    wait_until(lambda: spare not in spare_pids())
    assert "not used: JAX_NUM_CPU_DEVICES changed in the environment since it started" in caplog.text
    wait_until(lambda: pw.status().spares.ready == 1)


def test_spares_that_are_killed_are_replaced(own_workers, caplog):
    pw.connect(hosts=1, options=pw.HostOptions(spares=1))
    wait_until(lambda: pw.status().spares.ready == 1)
    (spare,) = spare_pids()
    os.kill(spare, signal.SIGKILL)
    expected = "a spare worker exited (killed by signal 9); another one starts after 1 s"
    wait_until(lambda: expected in caplog.text)
    wait_until(lambda: pw.status().spares.ready == 1)
    assert spare not in spare_pids()


def test_spares_have_no_connections(own_workers):
    """Spares do not listen, either; their settings, including the secret, come when they are used."""
    pw.connect(hosts=1, options=pw.HostOptions(spares=1))
    wait_until(lambda: pw.status().spares.ready == 1)
    (spare,) = spare_pids()
    links = [str(link.readlink()) for link in Path(f"/proc/{spare}/fd").iterdir()]
    assert not [link for link in links if link.startswith("socket:")]


CONTROLLER = """
import json, os, sys, time
import pathways as pw

pw.connect(hosts=1, options=pw.HostOptions(spares=2))
while pw.status().spares.ready < 2:
    time.sleep(0.02)
# Inherits, and so keeps open, the pipes to the spares.
child = os.fork()
if child == 0:
    time.sleep(600)
print(json.dumps([child, *(host.pid for host in pw.status().hosts)]), flush=True)
time.sleep(600)
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_spares_end_with_a_controller_that_is_killed():
    """Spares exit like its worker, also where a fork keeps their standard input open, or they are stopped."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(CONTROLLER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child, worker = json.loads(process.stdout.readline())
        try:
            alive = spare_pids(process.pid)
            assert len(alive) == 3
            assert worker in alive
            for pid in alive[1:]:
                os.kill(pid, signal.SIGSTOP)
            process.kill()
            wait_until(lambda: not spare_pids(process.pid))
        finally:
            process.kill()
            os.kill(child, signal.SIGKILL)


def test_spares_of_a_service(tmp_path):
    service = ServiceInThreads(Settings((Island(spares=1), Island())), tmp_path)
    try:
        client = service.attach()
        wait_until(lambda: client.spares() == SpareStatus(ready=1, count=1))
        (spare,) = spare_pids()
        (first,), _ = (island.hosts for island in service.service.status().islands)
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: service.service.status().islands[0].hosts[0].pid == spare)
        client.close()
    finally:
        service.close()
    wait_until(lambda: not spare_pids())
