"""Many clients on one cluster: what the scheduler and the service cost, and how fair they are.

  python bench/clients.py [--json PATH] [--only busy]

Of the first rows the devices and the clients are simulated. Of the others the service and each client are
processes; devices are timers, or workers that have nothing to do, so that what is measured is control. All of
them share this machine's cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "test" / "support"))

import _costs
from _served import ServedIslands, load
from hosts import Hosts, Idle, clocked, in_turn, typical
from simulated_sharing import DeviceTimers

from pathways.runtime.resources.service_status import ServiceStatus

ISLANDS = 4
ROUNDS = 5
SECONDS = 4.0
"""Of simulated time, in which each island does 1,300 steps."""

WARM_UP = 1.0
STEPS = 500
WIDE = 64
"""Hosts of the widest steps."""

KILLED = 20
HELD = 10
"""How many arrays each client has on each of two islands."""


COSTS: dict[str, tuple[float, str]] = {}
"""What was measured that a simulated cluster has, with what it is."""


def microseconds_an_event(clients: int) -> float:
    """The CPU time of the core for an event, while all islands are busy with steps of 3 ms."""
    timers = DeviceTimers([1.0] * clients, ISLANDS, is_timed=True)
    for client in range(clients):
        timers.keep(client, (client % ISLANDS,) if clients > 1 else (0,), 0.003)
    timers.run(SECONDS)
    return timers.cpu_seconds / timers.events * 1e6


def core() -> Iterable[str]:
    """The core, against itself with one client."""
    measured = {n: [] for n in (1, 8, 64)}
    for _ in range(ROUNDS):
        for clients, times in measured.items():
            times.append(microseconds_an_event(clients))
    for clients, times in measured.items():
        what = f"scheduler, CPU of an event, {clients} clients"
        COSTS[f"per_event_{clients}"] = statistics.median(times) * 1e-6, what
    for clients, target in ((8, 1.3), (64, 2.0)):
        ratio = statistics.median(b / a for a, b in zip(measured[1], measured[clients], strict=True))
        one, many = (statistics.median(measured[n]) for n in (1, clients))
        yield (
            f"core, CPU of an event, {clients} clients: {many:.1f} us, one client {one:.1f} us, "
            f"ratio {ratio:.2f} (to reach {target})"
        )


def shares() -> Iterable[str]:
    """How far the shares of a simulated device are from those of the weights."""
    for weights in ((1, 1, 1, 1), (1, 2, 4, 8)):
        for seconds in (0.003, 0.00033):
            timers = DeviceTimers(weights)
            for client in range(len(weights)):
                timers.keep(client, (0,), seconds)
            timers.run(10)
            total = sum(timers.served.values())
            off = max(
                abs(timers.served[client] / total * sum(weights) / weight - 1)
                for client, weight in enumerate(weights)
            )
            yield (
                f"shares {':'.join(map(str, weights))}, simulated steps of {seconds * 1e3:g} ms: "
                f"{off:.1%} off (to reach {'3 %' if seconds > 1e-3 else '5 %'})"
            )


def gangs() -> Iterable[str]:
    """How busy two simulated devices are with steps of both among small ones."""
    timers = DeviceTimers((1, 1, 1), 2)
    timers.keep(0, (0,), 0.001)
    timers.keep(1, (1,), 0.001)
    timers.keep(2, (0, 1), 0.010)
    timers.run(20)
    busy = min(timers.busy) / 20
    yield f"steps of two islands among small ones, simulated: busy {busy:.3f} (to reach 0.95)"


def busy() -> Iterable[str]:
    """How busy the timers of two islands are with steps of several clients."""
    for seconds, target in ((0.003, "to reach 0.94"), (0.00033, "report")):
        for clients in (1, 2, 4, 8):
            with ServedIslands(2) as served:
                for n in range(clients):
                    served.start(f"client{n}", "keep", islands=[[0], [1]], seconds=seconds)
                done, took, cpu = steps_done(served)
            if seconds < 0.001:
                COSTS[f"served_step_{clients}"] = (
                    cpu,
                    f"service, CPU of a step of one host, {clients} clients",
                )
            yield (
                f"busy, {clients} clients, two islands, steps of {seconds * 1e3:g} ms: "
                f"{sum(done.values()) * seconds / took / 2:.3f} of devices ({target}), "
                f"{cpu * 1e6:.0f} us of CPU of the service a step"
            )


def wide() -> Iterable[str]:
    """What a step of many hosts costs the service, when it does nothing else."""
    cpu = {}
    for hosts in (2, WIDE):
        with ServedIslands(hosts) as served:
            served.start("client", "keep", islands=[list(range(hosts))], seconds=0.0)
            cpu[hosts] = steps_done(served)[-1]
    a_host = (cpu[WIDE] - cpu[2]) / (WIDE - 2)
    COSTS["served_host"] = a_host, f"service, a host and step: CPU, between steps of 2 and {WIDE} hosts"
    COSTS["served_step"] = cpu[2] - 2 * a_host, "service, once a step: the rest of the CPU of 2 hosts"
    yield (
        f"steps of {WIDE} hosts without work, one client: {a_host * 1e6:.1f} us of CPU of the service a host "
        f"beyond two (to reach 20); a step of 2 hosts {cpu[2] * 1e6:.0f} us"
    )


def steps_done(served: ServedIslands, seconds: float = 5.0) -> tuple[dict[str, int], float, float]:
    """How many steps of each client are done in some seconds, how many seconds these were, and the seconds of
    CPU of the service for each step."""
    time.sleep(WARM_UP)
    before, began, cpu = served.status(), time.perf_counter(), served.cpu_seconds()
    time.sleep(seconds)
    after, took, cpu = served.status(), time.perf_counter() - began, served.cpu_seconds() - cpu
    counts = {client.name: client.steps_done for client in before.clients}
    done = {client.name: client.steps_done - counts[client.name] for client in after.clients}
    return done, took, cpu / max(sum(done.values()), 1)


def served_shares() -> Iterable[str]:
    """How far the shares of a timer are from those of the weights, with clients that are processes."""
    for weights in ((1, 1, 1, 1), (1, 2, 4, 8)):
        for seconds, target in ((0.003, "3 %"), (0.00033, "5 %")):
            with ServedIslands(1, {f"client{n}": weight for n, weight in enumerate(weights)}) as served:
                for n in range(len(weights)):
                    served.start(f"client{n}", "keep", islands=[[0]], seconds=seconds)
                done, _, _ = steps_done(served, 10.0)
            total = sum(done.values())
            off = max(
                abs(done[f"client{n}"] / total * sum(weights) / weight - 1)
                for n, weight in enumerate(weights)
            )
            yield (
                f"shares {':'.join(map(str, weights))}, steps of {seconds * 1e3:g} ms: {off:.1%} off "
                f"(to reach {target})"
            )


def without_work() -> Iterable[str]:
    """A step without work on two workers, until they say so: through the service, and of one's own."""
    with ServedIslands(2, is_timed=False) as served, Hosts(2):
        own = Idle(2)
        client = served.attach("client")
        program = load(client, [0, 1], 0.0)

        def step() -> None:
            client.wait(client.run(program, {0: (), 1: ()}))

        through, alone = in_turn(clocked(step), clocked(own.step), STEPS)
        client.close()
    yield (
        f"a step without work, 2 hosts: {through * 1e6:.0f} us, own controller {alone * 1e6:.0f} us, "
        f"ratio {through / alone:.2f} (to reach 2)"
    )


def flood() -> Iterable[str]:
    """Small steps on an island beside steps of 200 ms of another client on the other one."""
    with ServedIslands(2) as served:
        client = served.attach("client")
        program = load(client, [0], 0.0)

        def step() -> None:
            client.wait(client.run(program, {0: ()}))

        alone = typical(clocked(step), STEPS)
        served.start("floods", "keep", islands=[[1]], seconds=0.2)
        beside = typical(clocked(step), STEPS)
        client.close()
    yield (
        f"small steps beside a flood of 200 ms: p50 {beside * 1e6:.0f} us, alone {alone * 1e6:.0f} us, "
        f"ratio {beside / alone:.2f} (to reach 2)"
    )


def kills() -> Iterable[str]:
    """Until all is freed of clients that are killed while they and others have steps under way."""
    with ServedIslands(2, is_timed=False) as served:
        for n in range(2):
            served.start(f"stays{n}", "hold", arrays=HELD)
        killed = [served.start(f"killed{n}", "hold", arrays=HELD) for n in range(KILLED)]
        held = arrays(served.status())
        began = time.perf_counter()
        for process in killed:
            process.kill()
        while len((status := served.status()).clients) > 2 or arrays(status) > 4 * HELD:
            time.sleep(0.01)
        took = time.perf_counter() - began
    yield (
        f"{KILLED} clients with steps under way are killed: the last of {held - 4 * HELD} arrays is freed "
        f"after {took:.2f} s (to reach 1)"
    )


def arrays(status: ServiceStatus) -> int:
    """How many arrays all hosts have."""
    return sum(host.arrays or 0 for island in status.islands for host in island.hosts)


CASES: dict[str, Callable[[], Iterable[str]]] = {
    "core": core,
    "shares": shares,
    "gangs": gangs,
    "busy": busy,
    "wide": wide,
    "served-shares": served_shares,
    "without-work": without_work,
    "flood": flood,
    "kills": kills,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=CASES, help="only these rows")
    parser.add_argument("--json", type=Path, help=_costs.HELP)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    lines = []
    for name, case in CASES.items():
        if options.only in (None, name):
            for line in case():
                lines.append(line)
                print(line, flush=True)
    if options.json:
        _costs.write(options.json, [{"said": line} for line in lines], COSTS, load)
    return 0


if __name__ == "__main__":
    sys.exit(main())
