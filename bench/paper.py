"""The tables of the paper: its figures, ours measured on 2 to 8 hosts, and ours simulated for many.

  python bench/paper.py [--costs FILE] [--what-if CHANGES] [--page FILE] [--no-measure]

What is simulated are hosts, devices and networks (`runtime/simulate/cluster`) under the cores that control
real ones, with costs that `bench/clients.py`, `bench/hosts.py` and `bench/network.py` have measured: `--json
FILE` of each writes them to a file. Programs are replayed as by `pw-sim`. What is measured are controllers of
hosts whose devices are timers. `--what-if per_host=7.5us,net=2x` simulates with other costs.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import _costs
import _programs
import dispatch
from _paper_page import Entry, Plot, Series, Table, page_of, text_of
from _ratios import measure as measure_ratio
from _served import ServedIslands
from _timers import Measured, TimedCluster
from clients import steps_done

from pathways.runtime.control.clients.scheduler import MOST_UNFINISHED
from pathways.runtime.local.devices import connect
from pathways.runtime.simulate.cluster.costs import ControlCosts, CostsError, CostsFile, read_costs
from pathways.runtime.simulate.cluster.figures import (
    HIDDEN,
    Usage,
    smallest_hidden,
    used_alone,
    used_together,
)
from pathways.runtime.simulate.cluster.fleet import FleetShape
from pathways.runtime.simulate.cluster.service import ClientModel, shares

COUNTS = (2, 4, 8)
CLIENTS = (1, 2, 4, 8)
CLOSE = 0.15
"""By which part the simulator may be off where it can be measured."""
LINKED = 0.03
"""By which part programs may be off the paper."""
HEADS = 32
SHORT, LONG = 0.33e-3, 3e-3
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
        )
        return costs.changed(self.what_if)

    def _controller(self, messages: int) -> ControlCosts:
        seconds = self.file.seconds
        many = 64 if messages <= 64 else 512
        return ControlCosts(
            per_step=seconds("hosts", "per_step"),
            per_host=seconds("network", f"per_host_{many}"),
            per_worker=seconds("hosts", "per_worker"),
            # The same call as with a controller of one's own.
            per_client=seconds("hosts", "per_step"),
            # A head has few connections.
            per_handed_on=seconds("network", "per_host_64"),
            net=seconds("network", "net"),
        )


def milliseconds(seconds: float) -> str:
    """A time as text."""
    return f"{seconds * 1e3:.3g} ms"


def hidden(inputs: Inputs, measured: Sequence[MeasuredHosts]) -> Table:
    """The paper's Figure 6."""

    def simulated(hosts: int, ahead: int = 8, heads: int | None = None) -> float:
        shape = FleetShape([hosts], heads)
        return smallest_hidden(shape, inputs.controller(len(shape.groups()[0])), ahead)

    def with_costs(costs: ControlCosts) -> float:
        shape = FleetShape([512])
        return smallest_hidden(shape, dataclasses.replace(costs, net=inputs.controller(512).net))

    entries = [
        Entry(
            f"{each.count} hosts",
            measured=milliseconds(each.hidden),
            note="devices are timers; the best of 3",
        )
        for each in measured
    ]
    for hosts, paper, target in ((16, "2.3 ms", 0.5e-3), (512, "35 ms", 10e-3)):
        found = simulated(hosts)
        costs = inputs.controller(hosts)
        entries.append(
            Entry(
                f"{hosts} hosts, 8 steps ahead",
                paper,
                simulated=milliseconds(found),
                target=f"<= {milliseconds(target)}",
                note=f"{said(costs)}",
                is_over=found > target,
            )
        )
        with_heads = simulated(hosts, heads=HEADS)
        entries.append(
            Entry(
                f"{hosts} hosts, one of {HEADS} hands steps on",
                simulated=milliseconds(with_heads),
                target=f"<= {milliseconds(0.5e-3)}",
                note=f"{inputs.controller(16).per_handed_on * 1e6:.1f} us for each host that a head tells",
                is_over=with_heads > 0.5e-3,
            )
        )
    entries += [
        Entry("512 hosts, one step at a time", simulated=milliseconds(simulated(512, ahead=1))),
        Entry(
            "512 hosts, the service",
            simulated=milliseconds(with_costs(inputs.service(512))),
            note=said(inputs.service(512)),
        ),
        Entry("512 hosts, a naive service", simulated=milliseconds(with_costs(NAIVE)), note=said(NAIVE)),
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
            Series("measured", [(each.count, each.hidden * 1e3) for each in measured], is_line=False),
        ],
        is_log=True,
    )
    if not measured:
        plot = dataclasses.replace(plot, series=plot.series[:-1])
    return Table(f"The smallest computation that hides control ({HIDDEN:.0%} of the time)", entries, plot)


def said(costs: ControlCosts) -> str:
    """Costs as text."""
    return f"{costs.per_step * 1e6:.1f} us a step and {costs.per_host * 1e6:.1f} us a host of one core"


def clients(inputs: Inputs, measured: Sequence[MeasuredClients]) -> Table:
    """The paper's Figures 8 to 11: many clients on one cluster."""
    entries = [
        Entry(
            f"{each.case}, 1 host",
            measured=f"busy {each.busy:.3f}, shares {each.unfair:.2%} off",
            note="the device is a timer, clients are processes",
        )
        for each in measured
        if each.seconds
    ]
    small = FleetShape([16])
    points = []
    for count in (1, 2, 4, 8, 16):
        usage = used_together(small, inputs.service(16), [ClientModel((0,), SHORT)] * count, 2.0)
        points.append((count, usage.busy * 100))
        entries.append(
            used(
                f"{count} client{'s' * (count > 1)}, 0.33 ms, 16 hosts",
                usage,
                0.99,
                "about 100 %",
                inputs.service(16),
            )
        )
    for weights in ((1, 1, 1, 1), (1, 2, 4, 8)):
        models = [ClientModel((0,), SHORT, weight) for weight in weights]
        usage = used_together(small, inputs.service(16), models, 10.0)
        shares = ":".join(map(str, weights))
        entries.append(
            Entry(
                f"shares {shares}, 0.33 ms, 16 hosts",
                "enforced",
                simulated=f"{usage.unfair:.2%} off",
                target="<= 1 %",
                is_over=usage.unfair > 0.01,
            )
        )
    for heads in (HEADS, None):
        large = FleetShape([128] * 4, heads)
        costs = inputs.service(sum(map(len, large.groups())))
        usage = used_together(large, costs, [ClientModel((0, 1, 2, 3), LONG)] * 16, 2.0)
        how = f"one of {HEADS} hands on" if heads else "all told by the service"
        case = f"16 clients, 3 ms on 512 hosts in 4 islands, {how}"
        entries.append(used(case, usage, 0.95 if heads else None, "", costs))
    naive = dataclasses.replace(inputs.service(16), per_step=NAIVE.per_step, per_host=NAIVE.per_host)
    usage = used_together(small, naive, [ClientModel((0,), SHORT)] * 16, 2.0)
    entries.append(used("16 clients, 0.33 ms, 16 hosts, a naive service", usage, None, "", naive))
    series = [Series("simulated, 0.33 ms, 16 hosts", points)]
    alike = [(len(each.weights), each.busy * 100) for each in measured if each.is_alike(SHORT)]
    if alike:
        series.append(Series("measured, 0.33 ms, 1 host", alike, is_line=False))
    plot = Plot("clients", "% of the time", series)
    return Table("Many clients on one cluster: how busy its devices are", entries, plot)


def count_of(clients: Sequence[object]) -> str:
    """How many clients, in words."""
    return f"{len(clients)} client{'s' * (len(clients) > 1)}"


def used(case: str, usage: Usage, target: float | None, paper: str, costs: ControlCosts) -> Entry:
    """A row of how busy devices are."""
    return Entry(
        case,
        paper,
        simulated=f"{usage.busy:.3f}",
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


@dataclasses.dataclass(frozen=True)
class MeasuredClients:
    """What clients of a service had of an island with one timer.

    Attributes:
      weights: their shares.
      seconds: how long the device has a step of theirs.
      busy: for which part of the time it had one.
      rate: steps in a second.
      control: seconds of CPU of the service for each step.
      unfair: how far shares were off.
    """

    weights: Sequence[int]
    seconds: float
    busy: float
    rate: float
    control: float
    unfair: float

    @property
    def case(self) -> str:
        """What was measured, in words."""
        of = "" if len({*self.weights}) == 1 else f" of {':'.join(map(str, self.weights))}"
        return f"{count_of(self.weights)}{of}, {milliseconds(self.seconds)}"

    def is_alike(self, seconds: float) -> bool:
        """Whether all have the same share, and steps as long as this."""
        return self.seconds == seconds and len({*self.weights}) == 1


def measured_clients(weights: Sequence[int], seconds: float) -> MeasuredClients:
    """Measures clients that ask for as many steps as they may."""
    names = [f"client{n}" for n in range(len(weights))]
    with ServedIslands(1, dict(zip(names, weights, strict=True))) as served:
        for name in names:
            served.start(name, "keep", islands=[[0]], seconds=seconds)
        done, took, control = steps_done(served, 2.0)
    rate = sum(done.values()) / took
    busy = min(rate * seconds, 1.0)
    unfair = shares([done[name] for name in names], weights)
    return MeasuredClients(weights, seconds, busy, rate, control, unfair)


@dataclasses.dataclass(frozen=True)
class MeasuredHosts:
    """What so many hosts whose devices are timers have done.

    Attributes:
      count: how many.
      idle: steps that take no time.
      rates: steps in a second, by how long devices have one.
      hidden: the smallest computation that hides all else.
    """

    count: int
    idle: Measured
    rates: dict[float, float]
    hidden: float


def measured_hosts(count: int) -> MeasuredHosts:
    """Measures so many hosts."""
    with TimedCluster(count) as cluster:

        def rate(seconds: float) -> float:
            # The best: whatever else wants the cores only makes it slower.
            return max(cluster.measure(seconds, max(100, round(0.2 / seconds))).rate for _ in range(3))

        idle = max((cluster.measure(0.0, 2000) for _ in range(5)), key=lambda found: found.rate)
        rates = {seconds: rate(seconds) for seconds in (1e-3, LONG)}
        # 10 % apart; what is shorter than one that is not enough is not, either.
        grid = [10e-6 * 1.1**n for n in range(67)]
        low, high = 0, len(grid) - 1
        while low < high:
            middle = (low + high) // 2
            if rate(grid[middle]) * grid[middle] >= HIDDEN:
                high = middle
            else:
                low = middle + 1
        return MeasuredHosts(count, idle, rates, grid[low])


def check(
    inputs: Inputs, measured: Sequence[MeasuredHosts], measured_clients: Sequence[MeasuredClients]
) -> Table:
    """The simulator beside what it simulates: with what steps without work cost in this run."""
    counts = [each.count for each in measured]
    each, once = statistics.linear_regression(counts, [found.idle.control for found in measured])
    worker = statistics.linear_regression(counts, [found.idle.workers for found in measured]).slope
    costs = ControlCosts(
        max(once, 0.0), max(each, 0.0), per_worker=max(worker, 0.0), net=inputs.file.seconds("network", "net")
    )
    entries = []
    for found in measured:
        # All hosts are one process here.
        shape = FleetShape([1] * found.count, is_joined=False, cores=1)
        idle = used_alone(shape, costs, 0.0).rate
        entry = compared(f"{found.count} hosts, steps without work", found.idle.rate, idle, "/s")
        had = found.idle.rate * found.idle.control
        note = f"the controller had {had:.0%} of a core, in simulated time all that it wants"
        entries.append(dataclasses.replace(entry, note=note))
        for seconds, rate in found.rates.items():
            simulated = used_alone(shape, costs, seconds).rate
            case = f"{found.count} hosts, steps of {milliseconds(seconds)}"
            entries.append(compared(case, rate, simulated, "/s"))
        case = f"{found.count} hosts, smallest computation hidden"
        entries.append(compared(case, found.hidden * 1e3, smallest_hidden(shape, costs) * 1e3, " ms"))
    costs = inputs.service(1)
    for found in measured_clients:
        if not found.seconds:
            costs = dataclasses.replace(inputs.service(1), per_step=found.control, per_host=0.0)
        models = [ClientModel((0,), found.seconds, weight, MOST_UNFINISHED) for weight in found.weights]
        usage = used_together(FleetShape([1]), costs, models, 2.0)
        if not found.seconds:
            control = f"{found.control * 1e6:.0f} us"
            case = f"{count_of(found.weights)}, steps without work, {control} of the service"
            entries.append(compared(case, found.rate, usage.rate, "/s"))
            continue
        entries.append(compared(f"{found.case}: busy", found.busy, usage.busy, ""))
        if len(found.weights) > 1:
            # The least that a client had of what its share is.
            least = 1 - found.unfair, 1 - usage.unfair
            entries.append(compared(f"{found.case}: served of the share", *least, ""))
    title = (
        f"The simulator beside what is measured, with costs of this run: {said(costs)}, "
        f"{costs.per_worker * 1e6:.1f} us a host of the core that all hosts share; the best of several"
    )
    return Table(title, entries)


def compared(case: str, measured: float, simulated: float, unit: str) -> Entry:
    """A row of something both measured and simulated."""
    off = simulated / measured - 1
    over = abs(off) > CLOSE
    return Entry(
        case,
        measured=f"{measured:.4g}{unit}",
        simulated=f"{simulated:.4g}{unit}",
        target=f"within {CLOSE:.0%}: {off:+.1%}",
        note="in simulated time each process has its cores when it wants them" if over else "",
        is_over=over,
    )


def main() -> int:
    """Prints the tables, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--costs", type=Path, default=_costs.CHECKED_IN, help="a file of costs")
    parser.add_argument("--what-if", default="", metavar="CHANGES", help="such as per_host=7.5us,net=2x")
    parser.add_argument("--page", type=Path, default=Path("build/paper.html"), help="where the page goes")
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
    notes = list(noted(inputs, load if options.measure else None))
    print("\n".join([*notes, ""]))
    tables: list[Table] = []

    def show(table: Table) -> None:
        tables.append(table)
        print(text_of(table), flush=True)

    measured: list[MeasuredHosts] = []
    clients_measured: list[MeasuredClients] = []
    if options.measure:
        measured += [measured_hosts(count) for count in COUNTS]
        weights = [*((1,) * count for count in CLIENTS), (1, 2, 4, 8)]
        clients_measured += [measured_clients(each, s) for s in (LONG, SHORT) for each in weights]
        clients_measured += [measured_clients((1,) * count, 0.0) for count in CLIENTS]
    connect(cpu_devices=_programs.DEVICES)
    if options.measure:
        show(chains(rounds=30))
    show(hidden(inputs, measured))
    show(one_program(inputs))
    show(clients(inputs, clients_measured))
    for table in programs():
        show(table)
    if measured:
        show(check(inputs, measured, clients_measured))
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text(page_of("Pathways: the paper, measured and simulated", notes, tables))
    print(f"{options.page}, after {time.monotonic() - began:.0f} s")
    return 0


def noted(inputs: Inputs, load: float | None) -> Iterator[str]:
    """What is said of all figures."""
    for name, bench in inputs.file.benches.items():
        busy = f", {bench.load:g} processes wanted its cores" if bench.load > 1 else ""
        yield f"Costs of bench/{name}.py: {bench.date}, {bench.machine}{busy}."
    if inputs.what_if:
        yield f"Simulated with other costs: {inputs.what_if}."
    if load is not None:
        busy = "; a busy machine: what is measured varies" if load > 1 else ""
        yield f"Measured on {_costs.machine()}, load {load:.1f}{busy}."


if __name__ == "__main__":
    sys.exit(main())
