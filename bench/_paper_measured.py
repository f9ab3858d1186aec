"""What `bench/paper.py` measures: hosts whose devices are timers, and clients of a service of such hosts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

from _paper_inputs import milliseconds
from _served import ServedIslands, ServedSteps
from _simulated.figures import HIDDEN
from _simulated.service import shares
from _timers import Measured, TimedCluster

COUNTS = (2, 4, 8)
CLIENTS = (1, 2, 4, 8)
SHORT, LONG = 0.33e-3, 3e-3
LATE = "left out: time"


@dataclasses.dataclass(frozen=True)
class Cores:
    """What of this machine's cores processes had while something was measured.

    Attributes:
      name: who controls.
      each: seconds of its CPU for a step.
      control: which part of a core it had.
      everything: how many cores all processes had that were measured.
      idle: how many cores nobody had.
    """

    name: str
    each: float
    control: float
    everything: float
    idle: float


def count_of(clients: int) -> str:
    """Returns how many clients, in words."""
    return f"{clients} client{'s' * (clients > 1)}"


class Measuring:
    """Measures one thing after the other, and says so, until it is late.

    Args:
      until: when nothing more is begun, as `time.monotonic` counts.
    """

    def __init__(self, until: float) -> None:
        self._until = until

    def take[T](self, case: str, measure: Callable[[], T]) -> T | None:
        """Returns what is measured; None when it is late."""
        began = time.monotonic()
        if began > self._until:
            print(f"{case}: {LATE}", flush=True)
            return None
        found = measure()
        print(f"measured: {case}, in {time.monotonic() - began:.0f} s", flush=True)
        return found


@dataclasses.dataclass(frozen=True)
class ClientCase:
    """Clients of a service that ask for as many steps as they may, of hosts that are islands with a timer.

    Attributes:
      weights: their shares.
      seconds: how long the devices have a step of theirs.
      hosts: how many there are; each step is on all.
    """

    weights: tuple[int, ...]
    seconds: float
    hosts: int = 1

    def __str__(self) -> str:
        weights = "" if self.is_alike() else f" of {':'.join(map(str, self.weights))}"
        steps = milliseconds(self.seconds) if self.seconds else "steps without work"
        return f"{count_of(len(self.weights))}{weights}, {steps}, {self.hosts} host{'s' * (self.hosts > 1)}"

    def is_alike(self) -> bool:
        """Returns whether all have the same share."""
        return len({*self.weights}) == 1


@dataclasses.dataclass(frozen=True)
class MeasuredClients:
    """What clients had.

    Attributes:
      case: the clients.
      had: their steps.
    """

    case: ClientCase
    had: ServedSteps

    @property
    def rate(self) -> float:
        """Steps in a second."""
        return self.had.steps / self.had.seconds

    @property
    def busy(self) -> float:
        """For which part of the time the devices had one."""
        return min(self.rate * self.case.seconds, 1.0)

    @property
    def unfair(self) -> float:
        """How far shares were off."""
        done = [self.had.done[name_of(n)] for n in range(len(self.case.weights))]
        return shares(done, self.case.weights)

    @property
    def cores(self) -> Cores:
        """What of cores processes had."""
        had = self.had
        everything = (had.service + had.hosts + had.clients) / had.seconds
        return Cores("the service", had.each, had.service / had.seconds, everything, had.idle / had.seconds)


def name_of(number: int) -> str:
    """Returns the name of a client."""
    return f"client{number}"


def cases_of_clients() -> list[list[ClientCase]]:
    """Clients that are measured; each list with one service, to which more and more come."""

    def more(seconds: float, hosts: int = 1) -> list[ClientCase]:
        return [ClientCase((1,) * count, seconds, hosts) for count in CLIENTS]

    return [
        more(SHORT),
        [ClientCase((1, 2, 4, 8), SHORT)],
        *(more(SHORT, hosts) for hosts in COUNTS),
        more(0.0),
        *([ClientCase((1,), 0.0, hosts)] for hosts in COUNTS),
        *(more(LONG, hosts) for hosts in COUNTS),
        more(LONG),
        [ClientCase((1, 2, 4, 8), LONG)],
    ]


def measured_clients(cases: Sequence[ClientCase]) -> Iterator[MeasuredClients]:
    """Measures clients of one service, in each case those of the one before, and more."""
    weights = {name_of(n): weight for n, weight in enumerate(cases[-1].weights)}
    count = 0
    with ServedIslands(cases[0].hosts, weights) as served:
        for case in cases:
            for n in range(count, len(case.weights)):
                islands = [list(range(case.hosts))]
                served.start(name_of(n), "keep", islands=islands, seconds=case.seconds)
            count = len(case.weights)
            yield MeasuredClients(case, served.measure(2.0))


@dataclasses.dataclass(frozen=True)
class MeasuredHosts:
    """What so many hosts whose devices are timers have done.

    Attributes:
      count: how many.
      steps: those that were measured, by how long devices have one.
      hidden: the smallest computation that hides all else; one of these.
    """

    count: int
    steps: dict[float, Measured]
    hidden: float

    def cores(self, seconds: float) -> Cores:
        """Returns what of cores processes had while steps took so long."""
        had = self.steps[seconds]
        everything = had.rate * (had.control + had.workers)
        return Cores("the controller", had.control, had.rate * had.control, everything, had.idle)


def measured_hosts(count: int) -> MeasuredHosts:
    """Measures so many hosts."""
    with TimedCluster(count) as cluster:

        def best(seconds: float, steps: int, times: int) -> Measured:
            # Whatever else wants the cores only makes it slower.
            return max((cluster.measure(seconds, steps) for _ in range(times)), key=lambda found: found.rate)

        steps = {0.0: best(0.0, 2000, 5)}
        # 10 % apart; what is shorter than one that is not enough is not, either.
        grid = [10e-6 * 1.1**n for n in range(67)]
        low, high = 0, len(grid) - 1
        while low < high:
            middle = (low + high) // 2
            seconds = grid[middle]
            steps[seconds] = best(seconds, max(100, round(0.2 / seconds)), 3)
            if steps[seconds].rate * seconds >= HIDDEN:
                high = middle
            else:
                low = middle + 1
        for seconds in {1e-3, LONG, grid[low]} - {*steps}:
            steps[seconds] = best(seconds, max(100, round(0.2 / seconds)), 3)
        return MeasuredHosts(count, steps, grid[low])
