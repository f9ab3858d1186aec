"""Many clients on one cluster: the costs of the scheduler and the service, and the fairness of shares.

  python bench/clients.py [--json PATH] [--only busy]

In the first rows the devices and the clients are simulated. In the others the service and each client are
processes; devices are timers, or workers without work, so that only control is measured. All of them share
this machine's cores.
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
import _relay
from _costs import Cost
from _served import ServedIslands, ServedSteps, load
from _simulated.service import shares
from hosts import Hosts, Idle, clocked, in_turn, typical
from simulated_sharing import DeviceTimers

from pathways.runtime.resources.status import ServiceStatus

ISLANDS = 4
ROUNDS = 5
SECONDS = 4.0
"""Simulated seconds, in which each island runs 1,300 steps."""

STEPS = 500
WIDE = 64
"""Hosts of the widest steps."""
WIDE_ROUNDS = 2

GANGS = [
    (0.001, 0.001, 0.010, 8),
    (0.003, 0.2, 0.003, 2),
    (0.003, 0.2, 0.003, 8),
    (0.003, 0.2, 0.2, 8),
    (0.003, 0.05, 0.010, 2),
]
"""Seconds of a step of the first island, of the second and of both, and the number of steps of each
client."""

KILLED = 20
HELD = 10
"""Number of arrays of each client on each of two islands."""


def microseconds_an_event(clients: int) -> float:
    """Returns the CPU time of the core for an event, while all islands are busy with steps of 3 ms."""
    timers = DeviceTimers([1.0] * clients, ISLANDS, is_timed=True)
    for client in range(clients):
        timers.keep_busy(client, (client % ISLANDS,) if clients > 1 else (0,), 0.003)
    timers.run(SECONDS)
    return timers.cpu_seconds / timers.events * 1e6


def core() -> Iterable[str]:
    """Compares the core with itself with one client."""
    measured = {n: [] for n in (1, 8, 64)}
    for _ in range(ROUNDS):
        for clients, times in measured.items():
            times.append(microseconds_an_event(clients))
    for clients, target in ((8, 1.3), (64, 2.0)):
        ratio = statistics.median(b / a for a, b in zip(measured[1], measured[clients], strict=True))
        one, many = (statistics.median(measured[n]) for n in (1, clients))
        yield (
            f"core, CPU of an event, {clients} clients: {many:.1f} us, one client {one:.1f} us, "
            f"ratio {ratio:.2f} (to reach {target})"
        )


def simulated_shares() -> Iterable[str]:
    """Measures the deviation of a simulated device's shares from the weights."""
    for weights in ((1, 1, 1, 1), (1, 2, 4, 8)):
        for seconds in (0.003, 0.00033):
            timers = DeviceTimers(weights)
            for client in range(len(weights)):
                # The limit of steps in flight: the client with the largest weight needs most of them.
                timers.keep_busy(client, (0,), seconds, steps=16)
            timers.run(10)
            off = shares([timers.served[client] for client in range(len(weights))], weights)
            yield (
                f"shares {':'.join(map(str, weights))}, simulated steps of {seconds * 1e3:g} ms: "
                f"{off:.1%} off (to reach {'3 %' if seconds > 1e-3 else '5 %'})"
            )


def gangs() -> Iterable[str]:
    """Compares the use of two simulated devices by steps of both with those of one."""
    for first, second, both, steps in GANGS:
        timers = DeviceTimers((1, 1, 1), 2)
        timers.keep_busy(0, (0,), first, steps)
        timers.keep_busy(1, (1,), second, steps)
        timers.keep_busy(2, (0, 1), both, steps)
        timers.run(20)
        busy = min(timers.busy) / 20
        yield (
            f"steps of two islands of {both * 1e3:g} ms among those of one of {first * 1e3:g} and "
            f"{second * 1e3:g} ms, {steps} of each client, simulated: busy {busy:.3f} (to reach 0.95)"
        )


def busy() -> Iterable[str]:
    """Measures the use of the timers of two islands by steps of more and more clients."""
    for seconds, target in ((0.003, "to reach 0.94"), (0.00033, "report")):
        floor = statistics.median(_relay.seconds_of_a_step(2, seconds) for _ in range(3))
        for clients in (1, 2, 4, 8):
            with ServedIslands(2) as served:
                for n in range(clients):
                    served.start(f"client{n}", "keep", islands=[[0], [1]], seconds=seconds)
                had = served.measure()
            yield (
                f"busy, {clients} clients, two islands, steps of {seconds * 1e3:g} ms: "
                f"{had.steps * seconds / had.seconds / 2:.3f} of devices ({target}), "
                f"{had.each * 1e6:.0f} us of CPU of the service a step, {had.each / floor:.1f} times a bare "
                f"relay ({floor * 1e6:.0f} us)"
            )


def wide() -> Iterable[str | Cost]:
    """Measures the cost of a step of many hosts for a service without other work.

    They are hosts of one island, and then islands of one host.
    """
    shapes = ((1, 2), (1, WIDE), (WIDE, 1))
    runs = [[steps_of(*shape) for shape in shapes] for _ in range(WIDE_ROUNDS)]
    # Other load on the cores only makes a step dearer.
    pair, gang, islands = (min(same, key=lambda had: had.each) for same in zip(*runs, strict=True))
    a_host = (gang.each - pair.each) / (WIDE - 2)
    an_island = max((islands.each - gang.each) / (WIDE - 1), 0.0)
    alone = (islands.each - pair.each) / (WIDE - 2)
    a_client = pair.clients / pair.steps
    yield Cost(
        "served_host", a_host, f"service, a host and step: CPU, between one island of 2 and of {WIDE} hosts"
    )
    yield Cost(
        "served_island",
        an_island,
        f"service, an island and step: CPU, between one island of {WIDE} hosts and {WIDE} of one",
    )
    yield Cost(
        "served_step",
        max(pair.each - 2 * a_host - an_island, 0.0),
        "service, once a step: the rest of the CPU of one island of 2 hosts",
    )
    yield Cost("per_client", a_client, "client of a service, a step: CPU, one island of 2 hosts")
    yield (
        f"steps of {WIDE} hosts without work, one client: {a_host * 1e6:.1f} us of CPU of the service a host "
        f"beyond two of one island, {alone * 1e6:.1f} us where each is an island (to reach 20); "
        f"a step of 2 hosts {pair.each * 1e6:.0f} us, its client {a_client * 1e6:.0f} us"
    )


def steps_of(islands: int, hosts: int) -> ServedSteps:
    """Measures steps without work of a client on all of some islands with some hosts each."""
    with ServedIslands(islands, hosts=hosts) as served:
        served.start("client", "keep", islands=[list(range(islands))], seconds=0.0)
        return served.measure()


def served_shares() -> Iterable[str]:
    """Measures the deviation of a timer's shares from the weights, with clients that are processes."""
    for weights in ((1, 1, 1, 1), (1, 2, 4, 8)):
        for seconds, target in ((0.003, "3 %"), (0.00033, "5 %")):
            names = [f"client{n}" for n in range(len(weights))]
            with ServedIslands(1, dict(zip(names, weights, strict=True))) as served:
                for name in names:
                    served.start(name, "keep", islands=[[0]], seconds=seconds)
                had = served.measure(10.0)
            off = shares([had.done[name] for name in names], weights)
            yield (
                f"shares {':'.join(map(str, weights))}, steps of {seconds * 1e3:g} ms: {off:.1%} off "
                f"(to reach {target})"
            )


def without_work() -> Iterable[str]:
    """Measures a step without work on two workers, through the service and with a controller of its own."""
    with ServedIslands(2, is_timed=False) as served, Hosts(2):
        own = Idle(2)
        client = served.attach("client")
        program = load(client, [0, 1], 0.0)

        def step() -> None:
            client.wait_for_step(client.run(program, {0: (), 1: ()}))

        through, alone = in_turn(clocked(step), clocked(own.step), STEPS)
        client.close()
    yield (
        f"a step without work, 2 hosts: {through * 1e6:.0f} us, own controller {alone * 1e6:.0f} us, "
        f"ratio {through / alone:.2f} (to reach 1.6)"
    )


def flood() -> Iterable[str]:
    """Measures small steps on an island beside steps of 200 ms of another client on the other one."""
    with ServedIslands(2) as served:
        client = served.attach("client")
        program = load(client, [0], 0.0)

        def step() -> None:
            client.wait_for_step(client.run(program, {0: ()}))

        alone = typical(clocked(step), STEPS)
        served.start("floods", "keep", islands=[[1]], seconds=0.2)
        beside = typical(clocked(step), STEPS)
        client.close()
    yield (
        f"small steps beside a flood of 200 ms: p50 {beside * 1e6:.0f} us, alone {alone * 1e6:.0f} us, "
        f"ratio {beside / alone:.2f} (to reach 2)"
    )


def kills() -> Iterable[str]:
    """Measures the time until all arrays of killed clients are freed, while they and others have steps in
    flight."""
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
    """Returns the number of arrays on all hosts."""
    return sum(host.arrays or 0 for island in status.islands for host in island.hosts)


CASES: dict[str, Callable[[], Iterable[str | Cost]]] = {
    "core": core,
    "shares": simulated_shares,
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
    parser.add_argument("--json", type=_costs.costs_file, help=_costs.HELP)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    groups = {}
    for name, case in CASES.items():
        if options.only not in (None, name):
            continue
        lines, costs = [], []
        for line in case():
            if isinstance(line, Cost):
                costs.append(line)
                continue
            lines.append({"said": line})
            print(line, flush=True)
        groups[name] = _costs.Group(lines, costs)
    if options.json:
        _costs.write(options.json, groups, load)
    return 0


if __name__ == "__main__":
    sys.exit(main())
