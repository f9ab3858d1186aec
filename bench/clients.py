"""Many clients on one cluster: what the scheduler costs, and how fair it is.

python bench/clients.py [--json PATH] [--only core]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "test" / "support"))

import _costs
from simulated_sharing import DeviceTimers

ISLANDS = 4
ROUNDS = 5
SECONDS = 4.0
"""Of simulated time, in which each island does 1,300 steps."""


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


CASES: dict[str, Callable[[], Iterable[str]]] = {"core": core, "shares": shares, "gangs": gangs}


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
