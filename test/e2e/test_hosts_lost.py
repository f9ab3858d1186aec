"""Workers that are killed, stop, or do not start: each test has its own."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import signal
import socket
import threading
import time
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_equal
from jax.sharding import PartitionSpec as P
from on_hosts import back, front, over_tcp, refused

import pathways as pw
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.client import program_loader
from pathways.runtime.hosts.cluster import worker_cluster
from pathways.runtime.hosts.launch import child_launcher
from pathways.runtime.hosts.protocol.messages import Load

pytestmark = pytest.mark.usefixtures("own_workers")


@pytest.mark.feature("hosts", "error")
def test_hosts_lost_when_killed(devices):
    """Arrays of the lost host are errors that name it; the other hosts live, and its island comes back."""
    pw.connect(hosts=2)
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
    a, b = (pw.jit(lambda x: x + 1, devices=slice) for slice in slices)
    program = pw.program(lambda x: (a(x), b(a(x))))
    compiled = program.lower(np.float32(0)).compile()
    kept, lost = program(np.float32(0))
    lost.block_until_ready()
    os.kill(controller().hosts[1].process.pid, signal.SIGKILL)
    with refused(HostError, "host 1 (island1) is lost: its process has ended (killed by signal 9)"):
        np.asarray(lost)
    with refused(HostError, "host 1 (island1) is lost"):
        jax.block_until_ready(compiled(np.float32(0)))
    with refused(HostError, "host 1 (island1) is lost"):
        program(lost)
    assert_equal(program(kept), (np.float32(2), np.float32(3)))
    assert float(kept) == 1
    assert controller().is_whole()
    while [host.arrays for host in pw.status().hosts] != [1, 0]:
        time.sleep(0.05)


def test_hosts_that_replace_lost_ones_load_programs_that_are_not_lowered_again(devices, monkeypatch):
    """For each signature, also of a program with a loop of unknown length, which is two programs on hosts."""
    pw.connect(hosts=2)
    a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    once = pw.program(lambda x: b(a(x)))
    loop = pw.program(lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: b(a(x)), x))
    arguments = (np.float32(0), np.int32(0), np.zeros(3, np.float32))

    def check() -> None:
        for x in arguments:
            assert_equal(once(x), x + 2)
        assert_equal(loop(np.int32(0)), np.int32(10))

    check()
    monkeypatch.setattr(pw.Program, "lower", refuse := mock.Mock(side_effect=AssertionError))
    monkeypatch.setattr(program_loader, "split", refuse)
    for host in (1, 0):
        os.kill(controller().hosts[host].process.pid, signal.SIGKILL)
        while controller().is_whole():
            time.sleep(0.01)
        check()
    assert len(once.executables) == len(arguments)
    assert len(loop.executables) == 1


def test_hosts_lost_leave_their_port_to_new_ones(devices):
    """The range has ports for two: a new worker listens where a lost one did, and is not mistaken for it."""
    pw.connect(over_tcp(2, (20600, 20604)))
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
    a, b = (pw.jit(lambda x: x + 1, devices=slice) for slice in slices)
    program = pw.program(lambda x: b(a(x)))
    for _ in range(3):
        assert_equal(program(np.float32(0)), np.float32(2))
        os.kill(controller().hosts[0].process.pid, signal.SIGKILL)
        while controller().is_whole():
            time.sleep(0.01)
    assert_equal(program(np.float32(0)), np.float32(2))


def test_hosts_refuse_programs_on_a_shared_port(devices):
    """The worker's arrays could reach the other process: no program is loaded that exchanges arrays there."""
    pw.connect(over_tcp(2, (20605, 20609)))
    a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    address, port = controller().hosts[0].ready.data_address.split(":")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((address, int(port)))
        other.listen()
        with refused(HostError, "host 0", f"another process listens on {address}:{port} too"):
            pw.program(lambda x: b(a(x)))(1.0)
        assert_equal(pw.program(lambda x: b(x))(1.0), np.float32(2))


def test_hosts_of_two_clusters_send_under_different_numbers(monkeypatch):
    """Numbers differ also where both clusters were forked from one process, with one state of `random`."""
    bases: list[set[int]] = []

    def load(*args: Any) -> Load:
        loaded = Load(*args)
        bases[-1].add(loaded.base)
        return loaded

    def use_cluster() -> None:
        random.seed(0)
        bases.append(set())
        pw.connect(hosts=2)
        devices = pw.make_virtual_device_set()
        a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
        assert_equal(pw.program(lambda x: b(a(x)))(1.0), np.float32(3))
        pw.disconnect()

    monkeypatch.setattr(worker_cluster, "Load", load)
    use_cluster()
    use_cluster()
    (first,), (second,) = bases
    assert abs(first - second) > 1 << 30


def test_hosts_lost_again_and_again(devices):
    """The island is given up; programs on the other hosts still run."""
    pw.connect(hosts=2)
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
    a, b = (pw.jit(lambda x: x + 1, devices=slice) for slice in slices)
    for _ in range(4):
        while not controller().is_whole():
            time.sleep(0.05)
        os.kill(controller().hosts[1].process.pid, signal.SIGKILL)
        while controller().is_whole():
            time.sleep(0.05)
    with refused(HostError, "island1", "lost 3 times before it had done a step"):
        pw.program(lambda x: b(a(x)))(1.0)
    assert_equal(pw.program(lambda x: a(x))(1.0), np.float32(2))
    for slice in slices:
        pw.release(slice)
    pw.connect(hosts=2)
    assert_equal(pw.program(lambda x: b(a(x)))(1.0), np.float32(3))


def test_hosts_lost_when_stopped(devices):
    """A stopped worker does not answer, and is given up in the middle of a step."""
    pw.connect(hosts=2, options=pw.HostOptions(heartbeat=2))
    a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    program = pw.program(lambda x: a(b(a(x))))
    assert float(program(np.float32(0))) == 3
    os.kill(controller().hosts[1].process.pid, signal.SIGSTOP)
    with refused(HostError, "host 1 (island1) is lost: it has not responded for"):
        program(np.float32(0)).block_until_ready()


@pytest.mark.feature("hosts", "error")
def test_hosts_lost_when_a_step_does_not_end(devices, caplog):
    pw.connect(hosts=2, options=pw.HostOptions(stall_report=1, step_deadline=2))
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]

    @functools.partial(pw.jit, devices=slices[0])
    def first(x):
        return jax.lax.while_loop(lambda v: v[0] > 0, lambda v: 1 + jnp.sin(v) ** 2, x)

    second = pw.jit(lambda x: x + 1, devices=slices[1])
    program = pw.program(lambda x: (lambda y: (y, second(y)))(first(x)))
    np.asarray(program(np.float32([0, 0]))[1])
    other = pw.program(lambda x: second(x))
    kept = other(np.float32([1, 1]))
    np.asarray(kept)
    lost = program(np.float32([1, 1]))
    with pytest.raises(HostError, match=r"host 0 \(island0\) is lost: step") as error:
        lost[1].block_until_ready()
    assert_equal(kept, np.float32([2, 2]))
    # The numbers are the seconds that have passed, more than configured where the machine is slow.
    ended = re.search(r"made no progress in (\d+) seconds", str(error.value))
    reported = re.search(
        r"has made no progress for (\d+) seconds\n  host 0: has been issuing it for (\d+) s\n"
        "  host 1: computes, or has waited for",
        caplog.text,
    )
    assert ended is not None
    assert int(ended[1]) >= 2
    assert reported is not None
    assert int(reported[1]) >= int(reported[2]) >= 1


def stopped(devices, **options):
    """Returns a program whose only worker is stopped, and an argument larger than its socket buffers."""
    pw.connect(hosts=1, options=pw.HostOptions(**options))
    program = pw.program(pw.jit(jnp.sum, devices=devices.add_slice((1,), ("x",))))
    large = np.ones(1 << 23, np.float32)
    float(program(large))
    os.kill(controller().hosts[0].process.pid, signal.SIGSTOP)
    return program, large


def test_hosts_lost_when_stopped_in_a_large_transfer(devices):
    """The worker's buffers are full, so that the sender waits; the host is given up, and can be closed."""
    program, large = stopped(devices, heartbeat=2)
    with refused(HostError, "host 0 (island0) is lost: it has not responded for"):
        while True:
            program(large)


def test_hosts_lost_do_not_delay_closing(devices):
    program, large = stopped(devices)

    def send():
        with contextlib.suppress(HostError):
            for _ in range(9):
                program(large)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    time.sleep(1)
    began = time.monotonic()
    controller().close()
    assert time.monotonic() - began < 8
    thread.join()


@pytest.mark.feature("hosts", "error")
def test_hosts_lost_report_their_last_output(devices):
    pw.connect(hosts=1)
    program = pw.program(pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))))
    h = program(np.float32(1))
    float(h)
    controller().hosts[0].steps.send_frames(b"this is no message" * 10)
    with refused(HostError, "host 0 (island0) is lost", "| pathways worker: these bytes are not a message"):
        while True:
            program(h).block_until_ready()


@pytest.mark.feature("hosts", "error")
def test_hosts_report_a_worker_that_does_not_start(monkeypatch):
    class Broken(child_launcher.Child):
        def __init__(self, config, start):
            object.__setattr__(config, "cpu_devices", "two")
            super().__init__(config, start)

    monkeypatch.setattr(child_launcher, "Child", Broken)
    with refused(HostError, " did not start (exit code 1)", "got `str` - at `$.cpu_devices`"):
        pw.connect(hosts=2)


@pytest.mark.feature("hosts", "values")
def test_status_of_hosts(devices):
    pw.connect(hosts=2, devices_per_host=2)
    slices = [devices.add_slice((2,), ("x",)) for _ in range(2)]
    a, b = (pw.jit(lambda x: x + 1, devices=slice) for slice in slices)
    program = pw.program(lambda x: b(a(x)))
    (x,) = program.place(np.zeros(4, np.float32))
    y = program(x)
    np.asarray(y)
    while (status := pw.status()).steps:
        time.sleep(0.01)
    assert status.backend == "hosts"
    assert [(host.devices, host.arrays, host.programs) for host in status.hosts] == [
        (2, 1, ("lambda",)),
        (2, 1, ("lambda",)),
    ]
    # The argument, and the result on both devices of its slice.
    assert [host.bytes for host in status.hosts] == [32, 32]
    assert [(slice.name, slice.island, slice.devices) for slice in status.slices] == [
        (slices[0].name, "island0", (0, 1)),
        (slices[1].name, "island1", (2, 3)),
    ]
    os.kill(status.hosts[1].pid, signal.SIGKILL)
    while controller().is_whole():
        time.sleep(0.01)
    assert "killed by signal 9" in pw.status().hosts[1].error


@pytest.mark.feature("hosts", "values")
def test_hosts_report_memory_cost_and_text_of_programs(devices):
    """Programs on hosts report them as those in one process do."""

    def compiled():
        a, b = (
            pw.jit(f, devices=devices.add_slice((2,), ("x",)), in_shardings=(None, P("x")))
            for f in (front, back)
        )
        program = pw.program(lambda w, x: b(w, a(w, x)))
        return program.lower(np.zeros((256, 256), np.float32), np.zeros((64, 256), np.float32)).compile()

    pw.connect(cpu_devices=4)
    local = compiled()
    expected = local.memory_analysis(), local.cost_analysis(), local.as_text("device")
    for slice in local.slices.values():
        pw.release(slice)
    pw.connect(hosts=2, devices_per_host=2)
    remote = compiled()
    memory, cost = remote.memory_analysis(), remote.cost_analysis()
    assert cost == expected[1]
    assert cost["flops"] > 0
    for ours, theirs in zip(memory.values(), expected[0].values(), strict=True):
        assert ours.argument_size_in_bytes == theirs.argument_size_in_bytes
        assert ours.temp_size_in_bytes == theirs.temp_size_in_bytes
        assert ours.generated_code_size_in_bytes == theirs.generated_code_size_in_bytes
        assert ours.peak_memory_in_bytes >= theirs.peak_memory_in_bytes
    text = remote.as_text("device")
    assert text.count("// computation") == expected[2].count("// computation") == 2
    assert text.count("ENTRY") == 2
    os.kill(controller().hosts[1].process.pid, signal.SIGKILL)
    with refused(HostError, "host 1 (island1) is lost"):
        while True:
            remote.as_text("device")
    assert remote.memory_analysis() == memory
