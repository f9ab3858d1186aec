"""Tests that `make lab` runs besides those of `make test`: all networks, cuts and mistakes, for minutes."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab import Lab
from sessions import Session, compiled_code
from workers_without_jax import ThreadLauncher

from pathways.runtime.hosts.cluster.starter import Starter
from pathways.runtime.hosts.launch.settings import Island, Settings

pytestmark = [pytest.mark.process, pytest.mark.needs("namespaces")]

HEARTBEAT = 4.0
FOUND_SECONDS = 3.0
"""Seconds after a heartbeat until values that depend on a host that was cut off are errors."""

STEPS = 300
"""Steps of resilient training: three seconds and more."""

BACK_SECONDS = 10.0
"""Seconds after healing until values are right again."""

NETWORKS = {
    "none": {},
    "1 ms": {"delay": 1e-3},
    "20 ms": {"delay": 20e-3},
    "1 % lost": {"delay": 1e-3, "loss": 0.01},
    "10 Mbit/s": {"delay": 1e-3, "rate": 10e6},
}


@pytest.mark.parametrize("hosts", [2, 4])
def test_lab_training_equals_one_process(hosts):
    with Lab(machines=1 + hosts, shared=compiled_code()) as lab, Session(lab) as session:
        for network in NETWORKS.values():
            lab.set((), **{"delay": 0.0, "loss": 0.0, "rate": None, **network})
            for steps in (1, 2, 3):
                session.check(steps)


@dataclasses.dataclass(frozen=True)
class Cut:
    """Fault that keeps hosts from reaching each other.

    Attributes:
      begin: begins the fault.
      end: ends it.
      islands: the machines of each island.
    """

    begin: Callable[[Lab, Session], object]
    end: Callable[[Lab, Session], object] = lambda lab, _: lab.heal()
    islands: tuple[tuple[int, ...], ...] = ((1,), (2,), (3,))


def send(name: str) -> Callable[[Lab, Session], object]:
    """Returns a function that sends a signal to the second worker."""

    def kill(lab: Lab, session: Session) -> None:
        lab.run(0, ["kill", f"-{name}", str(session.pids[1])])

    return kill


CUTS = {
    "a host from the controller": Cut(lambda lab, _: lab.cut((0, 2))),
    "what a host says to the controller": Cut(lambda lab, _: lab.drop(2, 0)),
    "what the controller says to a host": Cut(lambda lab, _: lab.drop(0, 2)),
    "two hosts from each other": Cut(lambda lab, _: lab.cut((1, 2))),
    "what one host says to another": Cut(lambda lab, _: lab.drop(1, 2)),
    "a host from all": Cut(lambda lab, _: lab.isolate(2)),
    "two hosts from all others": Cut(lambda lab, _: lab.isolate(1, 2)),
    "an island of several from all": Cut(lambda lab, _: lab.isolate(1, 2), islands=((1, 2), (3,))),
    "an island of several in itself": Cut(lambda lab, _: lab.cut((1, 2)), islands=((1, 2), (3,))),
    "a stopped process": Cut(send("STOP"), send("CONT")),
}


@pytest.mark.parametrize("seconds", [5, 60])
@pytest.mark.parametrize("name", CUTS)
def test_lab_values_are_right_or_errors_after_a_cut(name, seconds):
    cut = CUTS[name]
    islands = [list(island) for island in cut.islands]
    with (
        Lab(machines=4, shared=compiled_code()) as lab,
        Session(lab, islands, stages=len(islands), heartbeat=HEARTBEAT) as session,
    ):
        session.check()
        session.pids = session.run("addresses")["pids"]
        ended = threading.Event()

        def end() -> None:
            cut.end(lab, session)
            ended.set()

        cut.begin(lab, session)
        timer = threading.Timer(seconds, end)
        timer.start()
        began = time.monotonic()
        first_error = None
        while True:
            session.send("train", steps=3)
            answer = session.receive(seconds + 60)
            since = time.monotonic() - began
            if "error" not in answer:
                assert answer["sum"] == session.expected[2]
                # A loss of a short cut may be noticed after its end.
                if ended.is_set() and since > HEARTBEAT + FOUND_SECONDS:
                    break
            elif first_error is None:
                first_error = since
            assert since < seconds + BACK_SECONDS, answer
            time.sleep(0.05)
        timer.join()
        assert since < seconds + BACK_SECONDS
        # The first call after a worker is cut off may wait for a heartbeat until the loss is noticed.
        if first_error is not None and seconds > HEARTBEAT + FOUND_SECONDS:
            assert first_error < HEARTBEAT + FOUND_SECONDS
        session.check()


@pytest.mark.parametrize("seconds", [2, 20])
@pytest.mark.parametrize("name", CUTS)
def test_lab_resilient_training_continues_after_a_cut(name, seconds):
    """Steps run again by themselves, and the weights are those of the same steps without a cut."""
    cut = CUTS[name]
    islands = [list(island) for island in cut.islands]
    with (
        Lab(machines=4, shared=compiled_code()) as lab,
        Session(lab, islands, stages=len(islands), heartbeat=HEARTBEAT) as session,
    ):
        undisturbed = session.run("resilient", steps=STEPS)
        assert undisturbed.get("losses") == 0, undisturbed
        session.pids = session.run("addresses")["pids"]
        session.send("resilient", steps=STEPS)
        time.sleep(1.0)
        cut.begin(lab, session)
        time.sleep(seconds)
        cut.end(lab, session)
        continued = session.receive(120)
        assert continued.get("sum") == undisturbed["sum"], (continued, session.errors)
        # Hosts of an island may do without each other until the last step.
        if seconds > HEARTBEAT + FOUND_SECONDS and continued["seconds"] > 1 + HEARTBEAT + FOUND_SECONDS:
            assert continued["losses"] > 0, continued


def test_lab_refuses_mutated_handshakes():
    with Lab(machines=4, shared=compiled_code()) as lab, Session(lab, [[1], [2]]) as session:
        session.check()
        at = session.run("addresses")
        script = str(Path(__file__).with_name("mutated_handshakes.py"))
        done = lab.run(3, [sys.executable, script, at["probe"][0], "20000"], timeout=400)
        assert done.stdout.splitlines()[-1] == "20000 handshakes, 0 welcomed", done
        session.check()
        assert session.run("addresses")["pids"] == at["pids"]


def test_lab_starts_many_hosts_over_slow_networks():
    launcher = ThreadLauncher(seconds=0.04)
    began = time.monotonic()
    gangs = Starter(Settings((Island(),) * 64), launcher).start(range(64), threading.Event())
    assert time.monotonic() - began < 10
    for worker in launcher.workers:
        worker.kill()
    for gang in gangs:
        for host in gang:
            host.close()


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("no-such-command {host} {command}", "no-such-command"),
        ("/run/pathways-lab/enter not-{host} {command}", "not-10.77.0.2"),
        ("sh -c 'exit 3' {host} {command}", "exit code 3"),
    ],
)
def test_lab_reports_a_wrong_command_at_once(start, words):
    with Lab(machines=2, shared=compiled_code()) as lab:
        began = time.monotonic()
        session = Session(lab, start=start)
        with pytest.raises(AssertionError, match=words) as error, session:
            pass
        assert "host 0" in str(error.value)
        assert session.seconds < 5, time.monotonic() - began


def test_lab_loses_a_worker_with_its_command():
    with Lab(machines=3, shared=compiled_code()) as lab, Session(lab) as session:
        session.check()
        pid = session.run("addresses")["pids"][0]
        lab.run(0, ["kill", "-KILL", str(pid)])
        until = time.monotonic() + BACK_SECONDS
        while "error" in session.run("train", steps=3):
            assert time.monotonic() < until
        session.check()
        assert session.run("addresses")["pids"][0] != pid
