"""Workers, and a controller, that receive SIGTERM."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import preloaded
import pytest
from check import assert_close
from inside import core_of
from jax.sharding import PartitionSpec as P
from on_hosts import PREPARE, refused

import pathways as pw
from pathways import HostError, HostLostError
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.records.events import GangDrained
from pathways.runtime.hosts.launch.child_launcher import Child
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig

pytestmark = pytest.mark.usefixtures("own_workers")


def slow(x):
    return jax.lax.fori_loop(0, 60, lambda n, v: v + jnp.sin(v) * 1e-9, jnp.repeat(x, 1 << 18))[:: 1 << 18]


def leave(host):
    process = controller().hosts[host].process
    os.kill(process.pid, signal.SIGTERM)
    while controller().hosts[host].gang.life.leaving is None:
        time.sleep(0.01)


def ended(processes):
    endings = [process.exit_status(10) for process in processes]
    while not controller().is_whole():
        time.sleep(0.05)
    return endings


@pytest.mark.feature("hosts", "hosts")
def test_sigterm_lets_a_worker_finish_accepted_steps(devices, caplog):
    """The worker accepts no new steps, its arrays can be read, and it exits when no handle holds one."""
    caplog.set_level("WARNING", "pathways")
    pw.connect(hosts=2, options=pw.HostOptions(grace=60))
    a, b = (pw.jit(f, devices=devices.add_slice((1,), ("x",))) for f in (slow, lambda x: x * 2))
    program, other = pw.program(lambda x: b(a(b(x)))), pw.program(lambda x: b(x))
    value = np.arange(3, dtype=np.float32)
    expected = np.asarray(program(value))
    before = [host.process for host in controller().hosts]
    accepted = [program(value) for _ in range(4)]
    kept = pw.program(lambda x: a(x))(value)
    leave(0)
    assert not accepted[-1].is_ready()
    with refused(HostError, "host 0 (island0) is leaving: its process received SIGTERM", "nothing more"):
        program(value)
    assert "host 0 (island0) is leaving" in str(pw.status())
    assert float(other(np.float32(4))) == 8
    for array in accepted:
        assert_close(array, expected)
    assert np.asarray(kept).shape == (3,)
    assert before[0].exit_status(0) is None
    del kept
    assert ended(before[:1]) == ["exit code 0"]
    assert_close(accepted[-1], expected)
    assert_close(program(value), expected)
    assert before[1].exit_status(0) is None
    assert controller().hosts[1].process is before[1]
    assert not any("lost" in line for line in caplog.messages)
    assert caplog.messages[1:] == ["host 0 (island0) has left: its process received SIGTERM"]


def test_sigterm_of_one_host_has_its_whole_island_leave(devices):
    """Either host may get it. Arrays that are held when the grace period is over leave with the island."""
    pw.connect(islands=[pw.Island(hosts=2), pw.Island()], options=pw.HostOptions(grace=2))
    wide, single = (devices.add_slice((n,), ("x",), island=f"island{k}") for k, n in enumerate((2, 1)))
    a = pw.jit(lambda x: x + jnp.sum(x), devices=wide, in_shardings=P("x"))
    b = pw.jit(lambda x: x * 2, devices=single)
    program = pw.program(lambda x: (a(x), b(a(x))))
    value = np.arange(4, dtype=np.float32)
    for host in (1, 0):
        before = [host.process for host in controller().hosts]
        held, far = program(value)
        began = time.monotonic()
        leave(host)
        with refused(HostError, f"host {host} (island0) is leaving"):
            program(value)
        assert_close(held, value + 6)
        assert ended(before[:2]) == ["exit code 0"] * 2
        assert time.monotonic() - began > 1.5
        with refused(HostError, f"host {host} (island0) has left: its process received SIGTERM"):
            held.block_until_ready()
        assert_close((far, program(value)[1]), (2 * value + 12,) * 2)
        assert before[2].exit_status(0) is None


def test_sigterm_ends_a_step_that_takes_longer_than_an_island_may(devices):
    pw.connect(hosts=1, options=pw.HostOptions(grace=1))
    slice = devices.add_slice((1,), ("x",))
    program = pw.program(pw.jit(lambda x: jax.lax.fori_loop(0, 20, lambda n, v: slow(v), x), devices=slice))
    value = np.arange(3, dtype=np.float32)
    compiled = program.lower(value).compile()
    before, endless = controller().hosts[0].process, compiled(value)
    leave(0)
    with refused(HostError, "host 0 (island0) has left", "was not done with step", "after 1 seconds"):
        endless.block_until_ready()
    assert ended([before]) == ["exit code 0"]


def test_sigterm_ends_a_worker_that_is_not_ready():
    """No handle holds an array of it: it exits at once."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        child = Child(WorkerConfig(silent.getsockname(), "00", 0, 0, 0, 1, 1, heartbeat=10.0, grace=20.0))
        sock, _ = silent.accept()
        os.kill(child.pid, signal.SIGTERM)
        assert child.exit_status(10) == "exit code 143"
        sock.close()


def test_sigterm_is_named_by_reads_while_the_worker_exits(devices):
    pw.connect(hosts=1, options=pw.HostOptions(grace=30))
    double = pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), ("x",)))
    held = double(np.float32(1)).block_until_ready()
    leave(0)
    host = controller().hosts[0]
    core_of(controller()).handle(GangDrained(host.gang.life.key))
    host.steps.close()
    with refused(HostLostError, "host 0 (island0) has left: its process received SIGTERM"):
        held.fetch()


@pytest.mark.quick
def test_ready_reports_the_state_of_hosts_to_platforms(devices, tmp_path, monkeypatch):
    """A worker has a file from when it is ready until it exits or receives SIGTERM, in whatever way."""

    def ready(*options):
        action = () if "--drain" in options else ("--ready",)
        command = ["-m", "pathways.tools.pw_worker", *action, "--folder", str(tmp_path / "ready"), *options]
        # Not through a pipe, which a worker that starts at the same time may keep open.
        with (tmp_path / "output").open("w+") as output:
            done = subprocess.run(
                [sys.executable, *command], stdout=output, stderr=subprocess.STDOUT, check=False
            )
            output.seek(0)
            return done.returncode, output.read()

    assert ready() == (1, "0 ready: none\n")
    monkeypatch.setenv("PW_READY_DIR", str(tmp_path / "ready"))
    pw.connect(hosts=2, options=pw.HostOptions(grace=30))
    double = pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), ("x",)))
    pids = [host.process.pid for host in controller().hosts]
    assert ready("--hosts", "2") == (0, f"2 ready: host0-{pids[0]}, host1-{pids[1]}\n")
    code, text = ready("--hosts", "3")
    assert code == 1, text
    held = double(np.float32(1))
    leave(0)
    assert ready() == (0, f"1 ready: host1-{pids[1]}\n")
    assert float(held) == 2
    first = controller().hosts[0].process
    del held
    assert ended([first]) == ["exit code 0"]
    while controller().hosts[0].process.pid == pids[0]:
        time.sleep(0.05)
    pids[0] = controller().hosts[0].process.pid
    os.kill(pids[1], signal.SIGKILL)
    assert controller().hosts[1].process.exit_status(10) is not None
    assert ready() == (0, f"1 ready: host0-{pids[0]}\n") or controller().is_whole()
    # That the process has ended is seen here before the controller sees it.
    while not controller().is_whole() or controller().hosts[1].process.pid == pids[1]:
        time.sleep(0.05)
    before = [host.process for host in controller().hosts]
    assert ready("--drain", "25") == (0, "")
    assert ended(before) == ["exit code 0"] * 2
    assert float(double(np.float32(2))) == 4
    held = double(np.float32(2))
    code, text = ready("--drain", "0.2")
    del held
    assert code == 1, text
    assert "not exited after 0 seconds: host0-" in text


@pytest.mark.parametrize("receiver", ["controller", "all"])
def test_sigterm_of_a_controller_ends_its_workers(receiver):
    """The signal arrives in the middle of a step, as when all processes of a job receive it at once."""
    script = f"""{PREPARE}
{inspect.getsource(slow)}
pw.connect(islands=[pw.Island(hosts=2), pw.Island()])
program = pw.program(pw.jit(slow, devices=devices.add_slice((2,), ("x",)), in_shardings=P("x")))
value = np.arange(2, dtype=np.float32)
np.asarray(program(value))
running = [program(value) for _ in range(4)]
print(*(host.process.pid for host in controller().hosts), flush=True)
time.sleep(60)
"""
    read, write = os.pipe()
    with os.fdopen(read) as lines, os.fdopen(write, "wb") as out, Path(os.devnull).open("rb") as none:
        process = preloaded.PreloadedProcess(
            ["-c", script], stdin=none.fileno(), stdout=out.fileno(), stderr=out.fileno()
        )
        out.close()
        # Lines before it are output to standard error.
        pids = next([int(word) for word in line.split()] for line in lines if line[0].isdecimal())
        assert len(pids) == 3
        for pid in [*(pids if receiver == "all" else []), process.pid]:
            os.kill(pid, signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
    deadline = time.monotonic() + 10
    while any(map(_lives, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
