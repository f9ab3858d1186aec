"""Measurements of `bench/paper.py`: hosts whose devices are timers, and clients of a service of such
hosts."""

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
    """Use of this machine's cores during a measurement.

    Attributes:
      name: the process that controls.
      each: seconds of its CPU for a step.
      control: the fraction of a core that it used.
      everything: the number of cores that all measured processes used.
      idle: the number of idle cores.
    """

    name: str
    each: float
    control: float
    everything: float
    idle: float


def count_of(clients: int) -> str:
    """Returns a number of clients in words."""
    return f"{clients} client{'s' * (clients > 1)}"


class Measuring:
    """Sequence of measurements with a deadline, which are reported as they finish.

    Args:
      until: the time after which no measurement begins, as of `time.monotonic`.
    """

    def __init__(self, until: float) -> None:
        self._until = until

    def take[T](self, case: str, measure: Callable[[], T]) -> T | None:
        """Returns a measurement; None after the deadline."""
        began = time.monotonic()
        if began > self._until:
            print(f"{case}: {LATE}", flush=True)
            return None
        found = measure()
        print(f"measured: {case}, in {time.monotonic() - began:.0f} s", flush=True)
        return found


@dataclasses.dataclass(frozen=True)
class ClientCase:
    """Clients of a service that keep its limit of steps in flight, on hosts that are islands with a timer.

    Attributes:
      weights: their shares.
      seconds: the time of their steps on devices.
      hosts: the number of hosts; each step is on all.
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
    """Measurement of clients.

    Attributes:
      case: the clients.
      had: their steps.
    """

    case: ClientCase
    had: ServedSteps

    @property
    def rate(self) -> float:
        """The steps per second."""
        return self.had.steps / self.had.seconds

    @property
    def busy(self) -> float:
        """The fraction of the time in which the devices had a step."""
        return min(self.rate * self.case.seconds, 1.0)

    @property
    def unfair(self) -> float:
        """The deviation of the shares."""
        done = [self.had.done[name_of(n)] for n in range(len(self.case.weights))]
        return shares(done, self.case.weights)

    @property
    def cores(self) -> Cores:
        """The use of cores by processes."""
        had = self.had
        everything = (had.service + had.hosts + had.clients) / had.seconds
        return Cores("the service", had.each, had.service / had.seconds, everything, had.idle / had.seconds)


def name_of(number: int) -> str:
    """Returns the name of a client."""
    return f"client{number}"


def cases_of_clients() -> list[list[ClientCase]]:
    """Returns the clients to measure; each list with one service, to which more and more connect."""

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
    """Yields measurements of clients of one service, in each case those of the one before, and more."""
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
    """Measurement of hosts whose devices are timers.

    Attributes:
      count: their number.
      steps: the measured steps, by their time on devices.
      hidden: the smallest computation that hides all control; one of these.
    """

    count: int
    steps: dict[float, Measured]
    hidden: float

    def cores(self, seconds: float) -> Cores:
        """Returns the use of cores by processes during steps of some length."""
        had = self.steps[seconds]
        everything = had.rate * (had.control + had.workers)
        return Cores("the controller", had.control, had.rate * had.control, everything, had.idle)


def measured_hosts(count: int) -> MeasuredHosts:
    """Measures so many hosts."""
    with TimedCluster(count) as cluster:

        def best(seconds: float, steps: int, times: int) -> Measured:
            # Other load on the cores only makes it slower.
            return max((cluster.measure(seconds, steps) for _ in range(times)), key=lambda found: found.rate)

        steps = {0.0: best(0.0, 2000, 5)}
        # 10 % apart; computations shorter than one that hides too little hide too little, too.
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
