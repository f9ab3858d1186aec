"""A cluster that many people share: what quotas cost the scheduler, and what priorities give.

  python bench/elastic.py [--json PATH] [--only admission]

Devices and clients are simulated; CPU time is that of the real scheduler.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import override

sys.path.insert(0, str(Path(__file__).parents[1] / "test" / "support"))

from _parts import Row, parser_of, run_parts
from simulated_sharing import DeviceTimers

from pathways.runtime.service.sharing.accounts import StepUse
from pathways.runtime.service.sharing.memory import DeviceLimits, SharedMemory, StepBytes
from pathways.runtime.service.sharing.places import WORK_SECONDS
from pathways.runtime.service.sharing.scheduler_events import OrderedRequest, QueuedStep, WorkSubmitted

ISLANDS = 4
CLIENTS = 8
DEVICES = range(4)
ROUNDS = 5
SECONDS = 4.0
MIB = 1 << 20
LIMITS = DeviceLimits(16384 * MIB, 4096 * MIB)


class StateTimers(DeviceTimers):
    """Clients whose steps return a state on four devices, and free the one before."""

    def __init__(self, memory: SharedMemory | None, *, has_accounts: bool) -> None:
        self._last: dict[int, int] = {}
        super().__init__([1.0] * CLIENTS, ISLANDS, memory=memory, is_timed=True)
        state = tuple((device, 64 * MIB) for device in DEVICES)
        self._needs = {} if memory is None else StepBytes(state, state, (state,))
        self._has_accounts = has_accounts
        self._uses: dict[int, dict[int, StepUse]] = {}

    @override
    def _submit_next(self, client: int) -> None:
        (island,), seconds = self._makers[client]
        number = next(self._numbers)
        arguments = {island: (self._last[client],) if client in self._last else ()}
        needs = {island: self._needs} if self._needs else {}
        if client not in self._uses:
            account = self.core.accounts.open(str(client), "step", island, 0.0)
            self._uses[client] = {island: StepUse(account, (256 * MIB,))} if self._has_accounts else {}
        step = QueuedStep(
            client, number, client, arguments, {island: (number,)}, memory=needs, uses=self._uses[client]
        )
        self.submit(step, seconds)
        if client in self._last:
            free = OrderedRequest(client, island, (self._last[client],), what=free_of)
            self.handle(WorkSubmitted(free))
        self._last[client] = number


def free_of() -> None:
    """Marks the frees of these clients."""


def microseconds_an_event(memory: SharedMemory | None, *, has_accounts: bool) -> float:
    """Returns the CPU time of the scheduler for an event."""
    timers = StateTimers(memory, has_accounts=has_accounts)
    for client in range(CLIENTS):
        timers.keep_busy(client, (client % ISLANDS,), 0.003)
    timers.run(SECONDS)
    return timers.cpu_seconds / timers.events * 1e6


def admission() -> Iterator[Row]:
    """Compares events of clients with quotas, with accounts, and with both, with the same without."""
    sides: dict[str, list[float]] = {"none": [], "quotas": [], "accounts": [], "quotas and accounts": []}
    for _ in range(ROUNDS):
        for name, times in sides.items():
            quotas = SharedMemory([LIMITS] * ISLANDS, {}, 1024 * MIB, CLIENTS)
            memory = quotas if "quotas" in name else None
            times.append(microseconds_an_event(memory, has_accounts="accounts" in name))
    without = sides.pop("none")
    for name, times in sides.items():
        yield {
            "case": f"CPU of an event, {CLIENTS} clients on {ISLANDS} islands, {name}",
            "us": statistics.median(times),
            "without us": statistics.median(without),
            "ratio": statistics.median(a / b for a, b in zip(times, without, strict=True)),
            "to reach": "<= 1.5" if name == "quotas" else "-",
        }


class LatencyTimers(DeviceTimers):
    """Clients whose last one runs a step each 50 ms, and measures how long it waits."""

    def __init__(self, priorities: tuple[int, ...]) -> None:
        super().__init__([1.0] * len(priorities), priorities=priorities)
        self.waits: list[float] = []

    def measure(self, client: int, seconds: float, count: int) -> None:
        """Submits small steps, each after the one before is done."""
        for _ in range(count):
            step = QueuedStep(client, next(self._numbers), client, {0: ()}, {0: ()})
            began = self.now
            self.submit(step, seconds)
            while step._left:
                self.run(0.0005)
            self.waits.append(self.now - began - seconds)
            self.run(0.05)

    @override
    def _submit_next(self, client: int) -> None:
        if client in self._makers:
            super()._submit_next(client)


def priorities() -> Iterator[Row]:
    """Measures small steps of a client with a high priority beside three floods of steps of 3 ms."""
    for name, levels in (("priority 1", (0, 0, 0, 1)), ("the same priority", (0, 0, 0, 0))):
        timers = LatencyTimers(levels)
        for client in range(3):
            timers.keep_busy(client, (0,), 0.003, steps=32)
        timers.run(1.0)
        timers.measure(3, 0.0005, 400)
        slowest = statistics.quantiles(timers.waits, n=100)[98]
        yield {
            "case": f"wait of small steps beside three floods, p99, {name}",
            "ms": slowest * 1e3,
            "window ms": WORK_SECONDS * 1e3,
            "ratio": slowest / WORK_SECONDS,
            "to reach": "<= 1.5",
        }


def main() -> None:
    run_parts(parser_of(__doc__).parse_args(), {"admission": admission, "priorities": priorities})


if __name__ == "__main__":
    main()
