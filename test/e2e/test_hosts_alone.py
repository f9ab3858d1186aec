"""Controllers that are stopped, interrupted, forked or killed: each is a process of its own."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from on_hosts import alone, refused, run_alone

import pathways as pw
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.records.errors import HostError

pytestmark = pytest.mark.process


@alone
def test_controller_goes_on_after_a_stop():
    """Like after Ctrl-Z, no heartbeat has arrived for long, which is not the fault of the workers."""
    pw.connect(hosts=2, options=pw.HostOptions(heartbeat=2))
    devices = pw.make_virtual_device_set()
    a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    program = pw.program(lambda x: a(b(a(x))))
    assert float(program(np.float32(0))) == 3
    time.sleep(1)  # Until all earlier messages have arrived.
    resume = f"sleep 3; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", resume]):
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1)
    assert float(program(np.float32(0))) == 3
    os.kill(controller().hosts[1].process.pid, signal.SIGSTOP)
    with refused(HostError, "host 1 (island1) is lost: it has not responded for"):
        program(np.float32(0)).block_until_ready()


def killed():
    pw.connect(hosts=2)
    print(*(host.process.pid for host in controller().hosts), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def test_controller_ends_its_workers():
    pids = [int(pid) for pid in run_alone(killed).stdout.split()]
    assert len(pids) == 2

    def left():
        return [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]

    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and left():
        time.sleep(0.1)
    assert left() == []


@alone
def test_controller_keeps_workers_after_ctrl_c():
    """Neither half a message is sent nor a step that only one host knows."""
    pw.connect(hosts=2)
    devices = pw.make_virtual_device_set()
    a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    program = pw.program(lambda x: b(a(x)))
    large = np.ones(1 << 21, np.float32)
    program(large).block_until_ready()
    done = threading.Event()

    def interrupt():
        while not done.wait(0.01):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    interrupted, deadline = 0, time.monotonic() + 2
    thread.start()
    while time.monotonic() < deadline:
        try:
            while True:
                program(large).block_until_ready()
        except KeyboardInterrupt:
            interrupted += 1
    while thread.is_alive():
        try:
            done.set()
            thread.join()
        except KeyboardInterrupt:
            pass
    assert interrupted > 10
    assert controller().is_whole()
    assert np.asarray(program(large))[0] == 3


@pytest.mark.quick
@alone
def test_controller_leaves_no_workers_to_a_forked_process():
    pw.connect(hosts=1)
    devices = pw.make_virtual_device_set()
    program = pw.program(pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))))
    h = program(np.float32(1))
    child = os.fork()
    if not child:
        with refused(HostError, "host 0 (island0) belongs to the process that this one was forked from"):
            program(h)
        with refused(HostError, "belongs to the process that this one was forked from"):
            np.asarray(h)
        atexit._run_exitfuncs()
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert float(program(h)) == 3
