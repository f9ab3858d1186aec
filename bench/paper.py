"""The tables of the paper: its figures, ours measured on 2 to 8 hosts, and ours simulated for many.

  python bench/paper.py [--costs FILE] [--what-if CHANGES] [--page FILE] [--no-measure]

What is simulated are hosts, devices and networks (`runtime/simulate/cluster`) under the cores that control
real ones, with costs that `bench/clients.py`, `bench/hosts.py` and `bench/network.py` have measured: `--json
FILE` of each writes them to a file. Programs are replayed as by `pw-sim`. What is measured are controllers of
hosts whose devices are timers. `--what-if per_host=7.5us,net=2x` simulates with other costs; the last table,
which sets the simulator beside what is measured, has none of these changes.

All that is simulated comes first. What would begin later than 8 minutes after the start is not measured any
more: its rows say so.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import _costs
import _programs
import dispatch
from _paper_page import Entry, Plot, Series, Table, page_of, text_of
from _ratios import measure as measure_ratio
from _served import ServedIslands, ServedSteps
from _timers import Measured, TimedCluster

from pathways.runtime.control.clients.scheduler import MOST_UNFINISHED
from pathways.runtime.hosts.launch.options import MOST_AHEAD
from pathways.runtime.local.devices import connect
from pathways.runtime.simulate.cluster.costs import ControlCosts, CostsError, CostsFile, read_costs
from pathways.runtime.simulate.cluster.figures import (
    HIDDEN,
    Usage,
    smallest_hidden,
    smallest_served,
    used_alone,
    used_together,
)
from pathways.runtime.simulate.cluster.fleet import FleetShape
from pathways.runtime.simulate.cluster.service import ClientModel, shares

TITLE = "Pathways: the paper, measured and simulated"
COUNTS = (2, 4, 8)
CLIENTS = (1, 2, 4, 8)
CLOSE = 0.15
"""By which part the simulator may be off where it can be measured."""
LINKED = 0.03
"""By which part programs may be off the paper."""
HEADS = 32
SHORT, LONG = 0.33e-3, 3e-3
MEASURING = 480.0
"""After how many seconds nothing is measured any more."""
LATE = "left out: time"
NONE_DONE = "no step was done"
NAIVE = ControlCosts(15e-6, 55e-6)
"""A first service, which was thrown away: 125 us of CPU for a step of two hosts, 55 for each more."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What is simulated with.

    Attributes:
      file: the costs.
      what_if: what is changed of them.
    """

    file: CostsFile
    what_if: str

    def controller(self, messages: int) -> ControlCosts:
        """What a controller costs that tells so many hosts by itself, all or the heads of groups."""
        return self._controller(messages).changed(self.what_if)

    def service(self, messages: int) -> ControlCosts:
        """What a service costs, as measured, scheduler and all."""
        seconds = self.file.seconds
        costs = dataclasses.replace(
            self._controller(messages),
            per_step=seconds("clients", "served_step"),
            per_host=seconds("clients", "served_host"),
            per_island=seconds("clients", "served_island"),
        )
        return costs.changed(self.what_if)

    def _controller(self, messages: int) -> ControlCosts:
        seconds = self.file.seconds
        many = 64 if messages <= 64 else 512
        return ControlCosts(
            per_step=seconds("hosts", "per_step"),
            per_host=seconds("network", f"per_host_{many}"),
            per_island=seconds("network", f"per_island_{many}"),
            per_worker=seconds("hosts", "per_worker"),
            per_client=seconds("clients", "per_client"),
            # A head has few connections.
            per_handed_on=seconds("network", "per_host_64"),
            net=seconds("network", "net"),
        )


def milliseconds(seconds: float) -> str:
    """A time as text."""
    return f"{seconds * 1e3:.3g} ms"


def microseconds(seconds: float) -> str:
    """A short time as text."""
    return f"{seconds * 1e6:.2f} us"


def costs_of(inputs: Inputs) -> Table:
    """All costs that are simulated with."""
    plain = dataclasses.replace(inputs, what_if="")
    few, many, served = (
        (get(plain), get(inputs))
        for get in (lambda i: i.controller(64), lambda i: i.controller(512), lambda i: i.service(512))
    )
    rows = (
        ("per_step, a controller", "per_step", few, "its CPU, once a step"),
        ("per_host, a controller of up to 64 hosts", "per_host", few, "its CPU: the message and the answer"),
        ("per_host, a controller of more", "per_host", many, "the same"),
        ("per_island, a controller of up to 64 hosts", "per_island", few, "its CPU, besides that for hosts"),
        ("per_island, a controller of more", "per_island", many, "the same"),
        ("per_step, the service", "per_step", served, "its CPU, once a step"),
        ("per_host, the service", "per_host", served, "its CPU: the message and the answer"),
        ("per_island, the service", "per_island", served, "its CPU, besides that for hosts"),
        ("per_worker", "per_worker", few, "CPU of a host for its part of a step"),
        ("per_client", "per_client", few, "CPU of a client of the service, a step"),
        ("per_handed_on", "per_handed_on", few, "per_host of 64 hosts: a head has few connections"),
        ("net", "net", few, "one way, on loopback: no network is that fast"),
    )
    entries = []
    for case, name, (measured, changed), note in rows:
        before, after = getattr(measured, name), getattr(changed, name)
        simulated = microseconds(after) if after != before else ""
        entries.append(Entry(case, measured=microseconds(before), simulated=simulated, note=note))
    return Table("What control costs, which all that follows is simulated with", entries)


def hidden(inputs: Inputs) -> Table:
    """The paper's Figure 6."""

    @functools.cache
    def simulated(hosts: int, ahead: int = 8, heads: int | None = None) -> float:
        shape = FleetShape([hosts], heads)
        return smallest_hidden(shape, inputs.controller(len(shape.groups()[0])), ahead)

    entries = []
    for hosts, paper, target in ((16, "2.3 ms", 0.5e-3), (512, "35 ms", 10e-3)):
        found = simulated(hosts)
        entries.append(
            Entry(
                f"{hosts} hosts, 8 steps ahead",
                paper,
                simulated=milliseconds(found),
                target=f"<= {milliseconds(target)}",
                note=said(inputs.controller(hosts)),
                is_over=found > target,
            )
        )
        with_heads = simulated(hosts, heads=HEADS)
        entries.append(
            Entry(
                f"{hosts} hosts, one of {HEADS} hands steps on",
                simulated=milliseconds(with_heads),
                target=f"<= {milliseconds(0.5e-3)}",
                note=f"{microseconds(inputs.controller(16).per_handed_on)} for each host that a head tells",
                is_over=with_heads > 0.5e-3,
            )
        )
    # What else it costs is as that of the service.
    naive = dataclasses.replace(
        inputs.service(512), per_step=NAIVE.per_step, per_host=NAIVE.per_host, per_island=0.0
    )
    entries += [
        Entry("512 hosts, one step at a time", simulated=milliseconds(simulated(512, ahead=1))),
        *(
            Entry(
                f"512 hosts, a client of {name}, 8 steps ahead",
                simulated=milliseconds(smallest_served(FleetShape([512]), costs)),
                note=said(costs),
            )
            for name, costs in (("the service", inputs.service(512)), ("a naive service", naive))
        ),
    ]
    counts = (2, 4, 8, 16, 32, 64, 128, 256, 512)
    plot = Plot(
        "hosts",
        "ms",
        [
            Series("paper", [(16, 2.3), (512, 35)]),
            Series("simulated, 8 ahead", [(n, simulated(n) * 1e3) for n in counts]),
            Series("simulated, heads", [(n, simulated(n, heads=HEADS) * 1e3) for n in counts]),
            Series("simulated, 1 at a time", [(n, simulated(n, ahead=1) * 1e3) for n in counts]),
        ],
        is_log=True,
    )
    title = f"The smallest computation that hides control ({HIDDEN:.0%} of the time), hosts of one island"
    return Table(title, entries, plot)


def said(costs: ControlCosts) -> str:
    """Costs of who controls, as text."""
    return (
        f"{microseconds(costs.per_step)} a step, {microseconds(costs.per_host)} a host and "
        f"{microseconds(costs.per_island)} an island of one core"
    )


def clients(inputs: Inputs, seconds: float = 2.0) -> Table:
    """The paper's Figures 8 to 11: many clients on one cluster, for so many simulated seconds."""
    entries = []
    small = FleetShape([16])
    points = []
    service = inputs.service(16)
    for count in (1, 2, 4, 8, 16):
        usage = used_together(small, service, [ClientModel((0,), SHORT)] * count, seconds)
        points.append((count, usage.busy * 100))
        case = f"{count_of(count)}, 0.33 ms, 16 hosts"
        entries.append(used(case, usage, 0.99, "about 100 %", service))
    for weights in ((1, 1, 1, 1), (1, 2, 4, 8)):
        models = [ClientModel((0,), SHORT, weight) for weight in weights]
        usage = used_together(small, service, models, 5 * seconds)
        entries.append(
            Entry(
                f"shares {':'.join(map(str, weights))}, 0.33 ms, 16 hosts",
                "enforced",
                simulated=f"{usage.unfair:.2%} off" if usage.rate else NONE_DONE,
                target="<= 1 %",
                is_over=usage.unfair > 0.01 or not usage.rate,
            )
        )
    for heads in (HEADS, None):
        large = FleetShape([128] * 4, heads)
        costs = inputs.service(sum(map(len, large.groups())))
        usage = used_together(large, costs, [ClientModel((0, 1, 2, 3), LONG)] * 16, seconds)
        how = f"one of {HEADS} hands on" if heads else "all told by the service"
        case = f"16 clients, 3 ms on 512 hosts in 4 islands, {how}"
        entries.append(used(case, usage, 0.95 if heads else None, "", costs))
    naive = dataclasses.replace(service, per_step=NAIVE.per_step, per_host=NAIVE.per_host, per_island=0.0)
    usage = used_together(small, naive, [ClientModel((0,), SHORT)] * 16, seconds)
    entries.append(used("16 clients, 0.33 ms, 16 hosts, a naive service", usage, None, "", naive))
    began = time.process_time()
    used_together(small, service, [ClientModel((0,), SHORT)] * 16, 5 * seconds)
    took = time.process_time() - began
    entries.append(
        Entry(
            f"{5 * seconds:g} simulated seconds of 16 clients, 0.33 ms, 16 hosts",
            measured=f"{took:.1f} s of CPU",
            target="<= 30 s",
            is_over=took > 30,
        )
    )
    plot = Plot("clients", "% of the time", [Series("simulated, 0.33 ms, 16 hosts", points)])
    return Table("Many clients on one cluster, 4 steps ahead: how busy its devices are", entries, plot)


def count_of(clients: int) -> str:
    """How many clients, in words."""
    return f"{clients} client{'s' * (clients > 1)}"


def used(case: str, usage: Usage, target: float | None, paper: str, costs: ControlCosts) -> Entry:
    """A row of how busy devices are."""
    return Entry(
        case,
        paper,
        simulated=f"{usage.busy:.3f}" if usage.rate else NONE_DONE,
        target="" if target is None else f">= {target}",
        note=f"the service's core is busy for {usage.control:.0%}; {said(costs)}",
        is_over=target is not None and usage.busy < target,
    )


BATCH = 2**16
"""Tokens of a step of T5; assumed."""
T5 = (("Base", 618e3, 32), ("Large", 90.4e3, 32), ("3B", 282.8e3, 512), ("11B", 84.8e3, 512))
"""Tokens in a second (paper), and cores, of which a host has 8."""


def one_program(inputs: Inputs) -> Table:
    """The paper's Table 1: T5, as fast as with a controller in each host."""
    entries = []
    for name, rate, cores in T5:
        hosts, step = cores // 8, BATCH / rate
        usage = used_alone(FleetShape([hosts]), inputs.controller(hosts), step)
        entries.append(
            Entry(
                f"T5 {name}, {cores} cores, against a controller in each host",
                "1.000",
                simulated=f"{usage.busy:.3f}",
                note=f"steps of {milliseconds(step)}: {BATCH} tokens (assumed) at {rate / 1e3:g} k/s (paper)",
            )
        )
    return Table("One program on all hosts: throughput", entries)


def chains(rounds: int) -> Table:
    """The paper's Figure 5, in one process."""
    wanted = {
        f"jax.jit called {dispatch.LENGTH} times": "chained: ahead of JAX op by op up to 256 cores",
        "one jax.jit": "fused: as JAX",
    }
    entries = []
    for case in dispatch.cases():
        if case.versus in wanted and case.name.startswith(str(dispatch.LENGTH)):
            found = measure_ratio(case, rounds)
            ours, theirs = found.ready
            entries.append(
                Entry(
                    case.name,
                    wanted[case.versus],
                    measured=f"{theirs / ours:.2f} of the rate of {case.versus}",
                    note="in one process, until results are ready; more rows in bench/dispatch.py",
                )
            )
    return Table("Dispatch: a chain of 128 tiny computations", entries)


def programs() -> Iterator[Table]:
    """The paper's Table 2 and Figure 12, and PaLM."""
    for title, rows in (
        ("Pipelines of a 3B model", _programs.pipelines()),
        ("Two islands, and two pods", _programs.islands()),
    ):
        entries, ours, theirs = [], [], []
        for row in rows:
            large = row.unit == "tokens/s"
            figures = [
                "" if value is None else f"{value / 1e3:.1f} k tokens/s" if large else f"{value:.3f}"
                for value in (row.paper, row.simulated)
            ]
            over = row.off is not None and abs(row.off) > LINKED
            target = "" if row.off is None else f"within {LINKED:.0%}: {row.off:+.1%}"
            entries.append(Entry(row.case, *figures[:1], "", figures[1], target, row.inputs, over))
            if large and "128" in row.case and row.simulated:
                stages = int(row.case.partition("S=")[2].split()[0])
                ours.append((stages, row.simulated / 1e3))
                theirs.append((stages, row.paper / 1e3))
        plot = None
        if ours:
            first = (4, _programs.PIPELINE_4 / 1e3)
            both = [Series("paper", [first, *theirs]), Series("simulated", [first, *ours])]
            plot = Plot("stages on 128 cores", "k tokens/s", both)
        yield Table(title, entries, plot)


# What can be measured.


class Measuring:
    """Measures one thing after the other, and says so, until it is late.

    Args:
      until: when nothing more is begun, as `time.monotonic` counts.
    """

    def __init__(self, until: float) -> None:
        self._until = until

    def take[T](self, case: str, measure: Callable[[], T]) -> T | None:
        """What is measured; None when it is late."""
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
        """Whether all have the same share."""
        return len({*self.weights}) == 1

    def simulated(self, costs: ControlCosts) -> Usage:
        """The same simulated, as it is measured: all hosts are one process."""
        shape = FleetShape([1] * self.hosts, is_joined=False, cores=1)
        islands = tuple(range(self.hosts))
        models = [ClientModel(islands, self.seconds, weight, MOST_UNFINISHED) for weight in self.weights]
        return used_together(shape, costs, models, 1.0, MOST_AHEAD)


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
    """The name of a client."""
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
        """What of cores processes had while steps took so long."""
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


def measured_entries(found: dict[int, MeasuredHosts | None]) -> list[Entry]:
    """Rows of what was measured of hosts."""
    return [
        Entry(
            f"{count} hosts, each an island",
            measured=LATE if hosts is None else milliseconds(hosts.hidden),
            note="devices are timers; the best of 3",
        )
        for count, hosts in found.items()
    ]


def client_entries(found: dict[ClientCase, MeasuredClients | None]) -> list[Entry]:
    """Rows of what was measured of clients."""
    entries = [
        Entry(
            str(case),
            measured=f"busy {had.busy:.3f}, shares {had.unfair:.2%} off",
            note="the device is a timer, clients are processes",
        )
        for case, had in found.items()
        if had is not None and case.seconds
    ]
    late = sum(had is None for had in found.values())
    return [*entries, Entry(f"{late} more, see the last table", measured=LATE)] if late else entries


def with_measured(table: Table, entries: Sequence[Entry], series: Series) -> Table:
    """A table of what is simulated, with rows and points of what is measured."""
    plot = table.plot
    assert plot is not None
    if series.points:
        plot = dataclasses.replace(plot, series=[*plot.series, series])
    return Table(table.title, [*entries, *table.entries], plot)


# The simulator beside what it simulates.


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

    def why(self, *, is_slower: bool, simulated: Usage) -> str:
        """Why what is measured is slower or faster than what is simulated, as far as that is measured."""
        wanted = simulated.control / simulated.rate if simulated.rate else 0.0
        facts = (
            f"{self.name} took {microseconds(self.each)} of CPU a step, simulated {microseconds(wanted)}, "
            f"and had {self.control:.0%} of a core, simulated {simulated.control:.0%}; of "
            f"{os.cpu_count()} cores all these processes had {self.everything:.1f}, nobody {self.idle:.1f}"
        )
        if not is_slower:
            how = "for less CPU" if self.each < wanted else "but not for less CPU"
            return f"measured is faster, {how} a step; {facts}"
        if self.idle < 0.1 * (os.cpu_count() or 1):
            return f"processes waited for cores, of which each has its own in simulated time; {facts}"
        if self.control > 0.9:
            return f"{self.name} had all of a core, and a step took more of it; {facts}"
        return f"cores were idle: threads wait to be woken; {facts}"


def check(
    inputs: Inputs,
    measured: dict[int, MeasuredHosts | None],
    clients: dict[ClientCase, MeasuredClients | None],
) -> Table:
    """The simulator beside what it simulates.

    Hosts with a controller of their own have what steps without work cost in this run, which is set beside
    what the file says; clients of a service have the costs of the file.
    """
    entries: list[Entry] = []
    plain = dataclasses.replace(inputs, what_if="")
    found = {count: hosts for count, hosts in measured.items() if hosts is not None}
    if len(found) > 1:
        costs = fitted([*found.values()], plain)
        entries += fit_entries(costs, plain)
        for hosts in found.values():
            entries += host_entries(hosts, costs)
    entries += [Entry(f"{count} hosts", measured=LATE) for count, hosts in measured.items() if hosts is None]
    service = plain.service(1)
    for case, had in clients.items():
        entries += [Entry(str(case), measured=LATE)] if had is None else served_entries(had, service)
    return Table("The simulator beside what is measured on this machine, without changes of costs", entries)


def fitted(found: Sequence[MeasuredHosts], plain: Inputs) -> ControlCosts:
    """What steps without work cost in this run; each host is an island."""
    counts, idle = [hosts.count for hosts in found], [hosts.steps[0.0] for hosts in found]
    each, once = statistics.linear_regression(counts, [steps.control for steps in idle])
    worker = statistics.linear_regression(counts, [steps.workers for steps in idle]).slope
    return ControlCosts(
        max(once, 0.0), max(each, 0.0), per_worker=max(worker, 0.0), net=plain.controller(1).net
    )


def fit_entries(costs: ControlCosts, plain: Inputs) -> Iterator[Entry]:
    """Rows of the costs of this run beside those of the file."""
    file = plain.controller(64)
    for name, ours, theirs, of in (
        (
            "per_host and per_island",
            costs.per_host,
            file.per_host + file.per_island,
            "64 islands of one host",
        ),
        ("per_step", costs.per_step, file.per_step, "1 to 8 workers"),
    ):
        yield compared(
            f"{name} of a controller, this run and the file",
            ours * 1e6,
            theirs * 1e6,
            " us",
            f"this run: fitted to steps without work; the file: {of}",
        )


def host_entries(hosts: MeasuredHosts, costs: ControlCosts) -> Iterator[Entry]:
    """Rows of hosts with a controller of their own."""
    # All hosts are one process here.
    shape = FleetShape([1] * hosts.count, is_joined=False, cores=1)
    for seconds in (0.0, 1e-3, LONG):
        usage = used_alone(shape, costs, seconds)
        steps = f"steps of {milliseconds(seconds)}" if seconds else "steps without work"
        rate = hosts.steps[seconds].rate
        why = hosts.cores(seconds).why(is_slower=rate < usage.rate, simulated=usage)
        yield compared(f"{hosts.count} hosts, {steps}", rate, usage.rate, "/s", why)
    smallest = smallest_hidden(shape, costs)
    usage = used_alone(shape, costs, hosts.hidden)
    why = hosts.cores(hosts.hidden).why(is_slower=hosts.hidden > smallest, simulated=usage)
    case = f"{hosts.count} hosts, smallest computation hidden"
    yield compared(case, hosts.hidden * 1e3, smallest * 1e3, " ms", why)


def served_entries(found: MeasuredClients, costs: ControlCosts) -> Iterator[Entry]:
    """Rows of clients of a service."""
    case, usage = found.case, found.case.simulated(costs)
    why = found.cores.why(is_slower=found.rate < usage.rate, simulated=usage)
    if not case.seconds:
        yield compared(str(case), found.rate, usage.rate, "/s", why)
        return
    yield compared(f"{case}: busy", found.busy, usage.busy, "", why)
    if len(case.weights) > 1:
        # The least that a client had of what its share is.
        yield compared(f"{case}: served of the share", 1 - found.unfair, 1 - usage.unfair, "", why)


def compared(case: str, measured: float, simulated: float, unit: str, why: str) -> Entry:
    """A row of something both measured and simulated; `why` is said where they are far from each other."""
    off = simulated / measured - 1 if measured else float(simulated > 0)
    over = abs(off) > CLOSE
    return Entry(
        case,
        measured=f"{measured:.4g}{unit}",
        simulated=f"{simulated:.4g}{unit}",
        target=f"within {CLOSE:.0%}: {off:+.1%}",
        note=why if over else "",
        is_over=over,
    )


class Report:
    """The tables, as text when they are there, and as a page that is written with each.

    Args:
      path: where the page goes.
      notes: what is said of all.
    """

    def __init__(self, path: Path, notes: Sequence[str]) -> None:
        self._path = path
        self._notes = notes
        self._tables: dict[str, Table] = {}
        print("\n".join([*notes, ""]), flush=True)

    def show(self, table: Table) -> None:
        """A table, which takes the place of one of the same title on the page."""
        print(text_of(table), flush=True)
        self.put(table)

    def put(self, table: Table) -> None:
        """The same for the page alone."""
        self._tables[table.title] = table
        _costs.replace(self._path, page_of(TITLE, self._notes, [*self._tables.values()]))


def measure_all(inputs: Inputs, report: Report, measuring: Measuring, simulated: Sequence[Table]) -> None:
    """Measures what can be, and shows it in the tables of what is simulated: hosts, and clients."""
    hosts = {count: measuring.take(f"{count} hosts", lambda n=count: measured_hosts(n)) for count in COUNTS}
    table = measuring.take("chains", lambda: chains(rounds=30))
    clients: dict[ClientCase, MeasuredClients | None] = {}
    for cases in cases_of_clients():
        found = measured_clients(cases)
        for case in cases:
            clients[case] = measuring.take(str(case), lambda found=found: next(found))
        found.close()
    points = [(each.count, each.hidden * 1e3) for each in hosts.values() if each is not None]
    series = Series("measured", points, is_line=False)
    with_hosts = measured_entries(hosts), series
    points = [
        (len(case.weights), had.busy * 100)
        for case, had in clients.items()
        if had is not None and case.seconds == SHORT and case.hosts == 1 and case.is_alike()
    ]
    with_clients = client_entries(clients), Series("measured, 0.33 ms, 1 host", points, is_line=False)
    print()
    if table is not None:
        report.show(table)
    for table, (entries, series) in zip(simulated, (with_hosts, with_clients), strict=True):
        print(text_of(Table(table.title, entries)), flush=True)
        report.put(with_measured(table, entries, series))
    report.show(check(inputs, hosts, clients))


def main() -> int:
    """Prints the tables, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--costs", type=Path, default=_costs.CHECKED_IN, help="a file of costs")
    parser.add_argument("--what-if", default="", metavar="CHANGES", help="such as per_host=7.5us,net=2x")
    parser.add_argument(
        "--page", type=_costs.writable, default="build/paper.html", help="where the page goes"
    )
    parser.add_argument(
        "--no-measure", dest="measure", action="store_false", help="only what the paper says and is simulated"
    )
    options = parser.parse_args()
    began, load = time.monotonic(), os.getloadavg()[0]
    try:
        inputs = Inputs(read_costs(options.costs.read_bytes(), str(options.costs)), options.what_if)
        inputs.service(512)
    except OSError as error:
        parser.error(f"--costs: cannot read {options.costs}: {error.strerror}")
    except CostsError as error:
        parser.error(str(error))
    report = Report(options.page, [*noted(inputs, load if options.measure else None)])
    connect(cpu_devices=_programs.DEVICES)
    report.show(costs_of(inputs))
    simulated = hidden(inputs), clients(inputs)
    for table in (*simulated, one_program(inputs), *programs()):
        report.show(table)
    if options.measure:
        measure_all(inputs, report, Measuring(began + MEASURING), simulated)
    print(f"{options.page}, after {time.monotonic() - began:.0f} s")
    return 0


def noted(inputs: Inputs, load: float | None) -> Iterator[str]:
    """What is said of all figures."""
    sources: dict[tuple[str, str, str, float], list[str]] = {}
    for bench, groups in inputs.file.benches.items():
        for group in groups.values():
            if group.costs:
                source = group.command, group.date, group.machine, group.load
                sources.setdefault(source, []).append(f"{bench}: {', '.join(group.costs)}")
    for (command, date, machine, wanted), costs in sources.items():
        busy = f", {wanted:g} processes wanted its cores" if wanted > 1 else ""
        yield f"Costs of {'; '.join(costs)}: {command}, {date}, {machine}{busy}."
    if inputs.what_if:
        yield f"Simulated with other costs: {inputs.what_if}."
    if load is not None:
        busy = "; a busy machine: what is measured varies" if load > 1 else ""
        yield f"Measured on {_costs.machine()}, load {load:.1f}{busy}."


if __name__ == "__main__":
    sys.exit(main())
