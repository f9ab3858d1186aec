"""The lab itself: its links follow their settings, and nothing is left of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Lab, wait_until

pytestmark = [pytest.mark.process, pytest.mark.needs("namespaces")]

ECHO = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("0.0.0.0", 5000))
print("ready", flush=True)
while True:
    data, sender = sock.recvfrom(2000)
    sock.sendto(data, sender)
"""
SENDER = """
import socket, sys, time
address, count, size, gap = sys.argv[1], *map(int, sys.argv[2:])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setblocking(False)
came, begin, last = 0, time.monotonic(), 0.0
for n in range(count):
    sock.sendto(bytes(size), (address, 5000))
    time.sleep(gap / 1e6)
end = time.monotonic() + 0.5
while time.monotonic() < end and came < count:
    try:
        sock.recv(2000)
        came, last = came + 1, time.monotonic() - begin
    except BlockingIOError:
        time.sleep(0.0005)
print(came, last)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Starts three machines; the first echoes."""
    with Lab(machines=3) as lab:
        echo = lab.popen(0, [sys.executable, "-Ic", ECHO], stdout=subprocess.PIPE, text=True)
        assert echo.stdout is not None
        assert echo.stdout.readline() == "ready\n"
        yield lab


@pytest.fixture(autouse=True)
def plain(lab: Lab) -> Iterator[None]:
    """Removes delay, loss, rate and cut of all links after each test."""
    yield
    lab.set((), delay=0.0, loss=0.0, rate=None, is_cut=False)


def echoes(lab: Lab, machine: int, count: int = 1, size: int = 100, gap: int = 0) -> tuple[int, float]:
    """Returns how many messages come back from the first machine, and the seconds until the last one."""
    came, seconds = lab.run(
        machine, [sys.executable, "-Ic", SENDER, lab.address(0), str(count), str(size), str(gap)]
    ).stdout.split()
    return int(came), float(seconds)


def test_lab_machines_reach_each_other(lab: Lab) -> None:
    assert [echoes(lab, machine)[0] for machine in (1, 2)] == [1, 1]


def test_lab_delays_frames(lab: Lab) -> None:
    lab.delay(0.05)
    came, seconds = echoes(lab, 1)
    assert came == 1
    assert seconds >= 0.1


def test_lab_loses_some_frames(lab: Lab) -> None:
    lab.loss(0.5, (0, 1))
    came, _ = echoes(lab, 1, count=400, gap=100)
    # A quarter comes back, to within six standard deviations.
    assert 48 < came < 152
    assert echoes(lab, 2)[0] == 1


def test_lab_limits_the_rate_of_a_link(lab: Lab) -> None:
    lab.rate(1e6)
    came, seconds = echoes(lab, 1, count=20, size=1000)
    assert came == 20
    assert seconds >= 20 * 8000 / 1e6


def test_lab_cuts_and_heals_a_pair(lab: Lab) -> None:
    lab.cut((0, 1))
    assert [echoes(lab, machine)[0] for machine in (1, 2)] == [0, 1]
    lab.heal()
    assert echoes(lab, 1)[0] == 1


def test_lab_cuts_one_direction(lab: Lab) -> None:
    lab.drop(0, 1)
    assert echoes(lab, 1)[0] == 0
    lab.heal()
    lab.drop(1, 0)
    assert echoes(lab, 1)[0] == 0


def test_lab_machines_apart_reach_each_other(lab: Lab) -> None:
    lab.isolate(0, 1)
    assert [echoes(lab, machine)[0] for machine in (1, 2)] == [1, 0]


def test_lab_machines_have_own_names_and_folders(lab: Lab) -> None:
    assert lab.run(1, ["sh", "-c", "hostname; touch /tmp/mine"]).stdout == "machine1\n"
    found = lab.run(2, ["sh", "-c", "test -e /tmp/mine || getent hosts machine0"]).stdout.split()
    assert found[0] == lab.address(0)


def test_lab_leaves_nothing_when_killed() -> None:
    script = f"""
import subprocess, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from lab import Lab
with Lab(machines=2) as lab:
    lab.popen(1, ["sleep", "1234"])
    print(lab._init, flush=True)
    time.sleep(100)
"""
    maker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    init = int(maker.stdout.readline())
    time.sleep(0.1)
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    maker.stdout.close()
    # All processes of its namespace end with the first one.
    wait_until(lambda: not Path(f"/proc/{init}").exists(), 10)
