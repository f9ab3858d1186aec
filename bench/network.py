"""Costs of a network between hosts, against lower bounds of any program: delays, round trips, bare TCP.

  python bench/network.py [--json PATH] [--rounds N] [--only TEXT]

Machines are network namespaces of this one (`test/lab`), so it needs root; rows without them run anywhere.
A row gives the median of our side, the floor, their ratio, and the largest ratio, or the largest figure, that
is meant to be.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import _costs
import _lab  # noqa: F401 - sets the path of the imports after it
import requirements
from _bare_hosts import bare
from _idle import load_idle
from _parts import print_header
from _timers import TimerHosts
from hosts import Hosts, Idle, clocked, in_turn
from lab import Lab
from sessions import Session
from workers_without_jax import ThreadLauncher

from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.client.local_session import LocalSession
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.cluster.starter import Starter
from pathways.runtime.hosts.cluster.worker_cluster import WorkerCluster
from pathways.runtime.hosts.launch.settings import Island, Settings

DELAY = 20e-3
STEPS = 2000
BYTES = 32 << 20
CUT_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Row:
    """Row of the table.

    Attributes:
      case: its subject.
      versus: the floor.
      ours: our figure.
      floor: that of the floor; None without one.
      target: the largest ratio of both; without a floor the largest figure. None if it is only reported.
      unit: the unit of the figures.
      cost: the cost of a simulated cluster that our figure is; empty for none.
    """

    case: str
    versus: str
    ours: float
    floor: float | None
    target: float | None
    unit: str = "ms"
    cost: str = ""

    @property
    def ratio(self) -> float | None:
        """The ratio of ours to the floor."""
        return None if not self.floor else self.ours / self.floor

    def __str__(self) -> str:
        measured = self.ours if self.ratio is None else self.ratio
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        floor = "" if self.floor is None else f"{self.floor:.4g}"
        target = "report" if self.target is None else f"{self.target:g}"
        over = "  over" if self.target is not None and measured > self.target else ""
        figures = f"{target:>7}{ratio:>7}{self.ours:>10.4g}{floor:>9} {self.unit}{over}"
        return f"{self.case:<46}{self.versus:<26}{figures}"


@contextlib.contextmanager
def machines(count: int, *, delay: float = 0.0, **settings: Any) -> Iterator[Session]:
    """Yields a controller and hosts on machines of their own, which are ready.

    The delay is there from the start: TCP with BBR believes the shortest round trip of the last ten seconds,
    and is slow where that was shorter.
    """
    with Lab(machines=1 + count) as lab:
        lab.delay(delay)
        with Session(lab, **settings) as session:
            yield session


def median(measure: Callable[[], float], rounds: int, warm_up: int = 1) -> float:
    """Returns the median of some measurements after the first ones."""
    return statistics.median([measure() for _ in range(rounds + warm_up)][warm_up:])


def step_seconds(session: Session) -> float:
    """Returns the time that a training step adds to those before it."""
    long, short = (session.run("train", steps=steps)["seconds"] for steps in (6, 1))
    return (long - short) / 5


def hops(rounds: int) -> Iterator[Row]:
    """Measures values from host to host, and pipelines of such."""
    with machines(2, delay=DELAY) as session:
        hop = median(lambda: session.run("links")["latency"], max(1, rounds // 4), 0)
        yield Row("hop, 20 ms", "delay", hop * 1e3, DELAY * 1e3, 1.15)
    for schedule, count, target in (("1f1b", 16, 1.10), ("search", 6, 1.25)):
        with machines(4, delay=DELAY, schedule=schedule) as session:
            step = median(lambda session=session: step_seconds(session), rounds)
            name = f"step of {schedule}, S=4 M=8, 20 ms"
            yield Row(name, f"{count} hops", step * 1e3, count * DELAY * 1e3, target)


def rounds_trips(rounds: int) -> Iterator[Row]:
    """Measures work that waits for replies."""
    with machines(2) as session:

        def touch() -> float:
            return session.run("touch", steps=STEPS)["seconds"] / STEPS

        near = median(touch, rounds)
        session.lab.delay(DELAY)
        far = median(touch, rounds)
        yield Row("step with no work, 20 ms to the controller", "no delay", far * 1e3, near * 1e3, 1.5)
        fetched = median(lambda: session.run("fetch")["took"], rounds)
        yield Row("device_get of 8 results, 20 ms", "round trip", fetched * 1e3, 2 * DELAY * 1e3, 1.25)


SERVE = """
import socket
server = socket.create_server(("0.0.0.0", 5000))
print("ready", flush=True)
while True:
    sock, _ = server.accept()
    while sock.recv(1 << 20):
        pass
    sock.close()
"""
SEND = """
import socket, sys, time
began = time.perf_counter()
sock = socket.create_connection((sys.argv[1], 5000))
sock.sendall(bytes(int(sys.argv[2])))
sock.shutdown(socket.SHUT_WR)
sock.recv(1)
print(time.perf_counter() - began)
"""


def bare_tcp(lab: Lab, size: int) -> float:
    """Returns the seconds in which bytes go from machine 1 to machine 2 over a connection of their own."""
    serve = lab.popen(2, [sys.executable, "-Ic", SERVE], stdout=subprocess.PIPE, text=True)
    assert serve.stdout is not None
    serve.stdout.readline()
    took = float(lab.run(1, [sys.executable, "-Ic", SEND, lab.address(2), str(size)]).stdout)
    lab.kill(serve)
    return took


def moves(rounds: int) -> Iterator[Row]:
    """Measures transfers of many bytes from host to host."""
    first, third, floors = [], [], []
    for _ in range(max(3, rounds // 2)):
        with machines(2, delay=DELAY) as session:
            took = [session.run("move", size=BYTES)["took"] for _ in range(3)]
            first.append(took[0])
            third.append(took[2])
            floors.append(bare_tcp(session.lab, BYTES))
    floor = statistics.median(floors) * 1e3
    for name, figures, target in (("first", first, 1.5), ("third", third, 1.0)):
        yield Row(
            f"32 MB between hosts, 20 ms, {name}", "bare TCP", statistics.median(figures) * 1e3, floor, target
        )


def cuts(rounds: int) -> Iterator[Row]:
    """Measures the time from the end of a cut until values are right; once, since it takes minutes."""
    del rounds
    with machines(2, heartbeat=5) as session:
        session.check()
        session.lab.isolate(2)
        healing = threading.Timer(CUT_SECONDS, session.lab.heal)
        healing.start()
        began = time.monotonic()
        while True:
            session.send("train", steps=3)
            answer = session.receive(CUT_SECONDS + 120)
            if "error" not in answer or time.monotonic() - began > CUT_SECONDS + 60:
                break
            time.sleep(0.1)
        healing.join()
        is_right = answer.get("sum") == session.expected[2]
        right = time.monotonic() - began - CUT_SECONDS if is_right else math.inf
        yield Row("right after a cut of 60 s heals", "", right, None, 10, "s")


def started(count: int, seconds: float) -> float:
    """Returns the seconds in which hosts without JAX start whose liveness check takes some time."""
    launcher = ThreadLauncher(seconds)
    began = time.perf_counter()
    gangs = Starter(Settings((Island(),) * count), launcher).start(range(count), threading.Event())
    took = time.perf_counter() - began
    for host in (host for gang in gangs for host in gang):
        host.close()
    for worker in launcher.workers:
        worker.kill()
    return took


def starts(rounds: int) -> Iterator[Row]:
    """Measures the start of many hosts, with a round trip for each check."""
    slow, fast = (median(lambda s=seconds: started(32, s), rounds) for seconds in (0.04, 0.0))
    yield Row("start of 32 hosts, liveness 40 ms", "", slow, None, 2, "s")
    yield Row("the same, liveness free", "", fast, None, None, "s")


def busy(work: Callable[[], object]) -> tuple[float, float]:
    """Returns the seconds of this process's CPU, and all seconds, of some work."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def run_steps(controller: HostSession, program: HostedProgram, count: int) -> None:
    """Runs steps of a program without arguments, as far ahead as possible."""
    arguments: dict[int, tuple[int, ...]] = dict.fromkeys(program.outputs, ())
    for _ in range(count):
        last = controller.run(program, arguments)
    controller.wait_for_step(last)


def controllers(rounds: int) -> Iterator[Row]:
    """Measures the controller's own time, for many hosts: of one island, and each an island of its own."""
    for count in (64, 512):
        steps = rounds * 10240 // count
        shapes = ((1, count), (count, 1))
        runs = [[controller_seconds(*shape, steps) for shape in shapes] for _ in range(2)]
        # Other load on the cores only makes a step dearer.
        each, alone = map(min, zip(*runs, strict=True))
        name, cost = f"controller CPU a host and step, island of {count}", f"per_host_{count}"
        yield Row(name, "", each * 1e6, None, 14.2, "us", cost)
        yield Row(f"the same, {count} islands of one", "", alone * 1e6, None, 14.2, "us")
        cost = f"per_island_{count}"
        more = max(alone - each, 0.0)
        yield Row(f"of these an island, {count} of them", "", more * 1e6, None, None, "us", cost)


def controller_seconds(islands: int, hosts: int, steps: int) -> float:
    """Returns the seconds of the controller's CPU for a host and step, for some islands of some hosts
    each."""
    settings = Settings((Island(hosts=hosts),) * islands)
    controller = LocalSession(WorkerCluster(Starter(settings, TimerHosts(islands * hosts)), settings))
    program = load_idle(controller, islands, "0", hosts)
    run_steps(controller, program, 10)
    # Heartbeats run all the time; hosts of one process reply to steps slowly.
    resting = busy(functools.partial(time.sleep, 2))
    working = busy(functools.partial(run_steps, controller, program, steps))
    controller.close()
    return (working[0] - resting[0] / resting[1] * working[1]) / steps / islands / hosts


def idle(rounds: int) -> Iterator[Row]:
    """Measures a step without work, until all hosts have reported that they issued it."""
    with bare(1) as process:
        round_trip = statistics.median(clocked(process.fan_out)() for _ in range(rounds * 200))
    yield Row("60 bytes one way, half of there and back", "", round_trip / 2 * 1e6, None, None, "us", "net")
    for count in (2, 4):
        with Hosts(count), bare(count) as processes:
            ours, floor = in_turn(clocked(Idle(count).step), clocked(processes.fan_out), rounds * 20)
        yield Row(
            f"step with no work, {count} hosts", "fan-out over sockets", ours * 1e6, floor * 1e6, 2.0, "us"
        )


CLAIM = """
import socket, struct, sys, time
host, _, port = sys.argv[1].rpartition(":")
socks = [socket.create_connection((host, int(port))) for _ in range(2)]
for sock in socks:
    sock.sendall(bytes.fromhex(sys.argv[2]))
time.sleep(1)
"""


def strangers(rounds: int) -> Iterator[Row]:
    """Measures the memory of a worker when a stranger claims to send a gigabyte."""
    del rounds
    with machines(2) as session:
        at = session.run("addresses")

        def resident() -> int:
            status = session.lab.run(0, ["grep", "VmHWM", f"/proc/{at['pids'][0]}/status"]).stdout
            return int(status.split()[1]) << 10

        session.check()
        before = resident()
        # The header of a frame with a message of 1 GiB.
        header = "505706003fffffff00000000"
        session.lab.run(2, [sys.executable, "-Ic", CLAIM, at["probe"][0], header])
        yield Row("12 bytes from a stranger", "", (resident() - before) / 1e6, None, 1, "MB")


GROUPS: dict[str, Callable[[int], Iterator[Row]]] = {
    "hops": hops,
    "round trips": rounds_trips,
    "moves": moves,
    "start": starts,
    "controller": controllers,
    "idle": idle,
    "strangers": strangers,
    "cut": cuts,
}
NEED_LAB = {"hops", "round trips", "moves", "strangers", "cut"}


def main() -> None:
    """Prints the table, and writes it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=_costs.costs_file, help=_costs.HELP)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each figure")
    parser.add_argument(
        "--only", default="", help=f"only groups with this text in their names: {', '.join(GROUPS)}"
    )
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print_header()
    print(f"{'case':<46}{'floor':<26}{'target':>7}{'ratio':>7}{'ours':>10}{'floor':>9}")
    groups = {}
    for name, group in GROUPS.items():
        if options.only not in name:
            continue
        if name in NEED_LAB and (missing := requirements.MISSING["namespaces"]()):
            print(f"{name}: left out: {missing}")
            continue
        rows = []
        for row in group(options.rounds):
            rows.append(row)
            print(row, flush=True)
        cases = [{**dataclasses.asdict(row), "ratio": row.ratio} for row in rows]
        costs = [_costs.Cost(row.cost, row.ours * 1e-6, row.case) for row in rows if row.cost]
        groups[name] = _costs.Group(cases, costs)
    if options.json:
        _costs.write(options.json, groups, load)


if __name__ == "__main__":
    main()
