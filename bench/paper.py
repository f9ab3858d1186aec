"""The tables of the paper: its figures, ours measured on 2 to 8 hosts, and ours simulated for many.

  python bench/paper.py [--costs FILE] [--what-if CHANGES] [--page FILE] [--no-measure]

Simulated are hosts, devices and networks (`bench/_simulated`) under the cores that control real ones, with
costs that `bench/clients.py`, `bench/hosts.py` and `bench/network.py` have measured: `--json FILE` of each
writes them to a file. Programs are replayed as by `pw-sim`. Measured are controllers of hosts whose devices
are timers. `--what-if per_host=7.5us,net=2x` simulates with other costs; the last table, which compares the
simulator with measurements, has none of these changes.

All simulations come first. Measurements that would begin later than 8 minutes after the start are left out:
their rows say so.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import _costs
import _programs
import dispatch
from _paper_check import check
from _paper_inputs import Inputs, costs_text, microseconds, milliseconds
from _paper_measured import (
    COUNTS,
    LATE,
    LONG,
    SHORT,
    ClientCase,
    MeasuredClients,
    MeasuredHosts,
    Measuring,
    cases_of_clients,
    count_of,
    measured_clients,
    measured_hosts,
)
from _paper_page import Entry, Plot, Series, Table, page_of, text_of
from _ratios import measure as measure_ratio
from _simulated.costs import ControlCosts, CostsError, read_costs
from _simulated.figures import HIDDEN, Usage, smallest_hidden, smallest_served, used_alone, used_together
from _simulated.fleet import FleetShape
from _simulated.service import ClientModel

from pathways.runtime.local.devices import connect

TITLE = "Pathways: the paper, measured and simulated"
LINKED = 0.03
"""The fraction by which programs may differ from the paper."""
HEADS = 32
MEASURING = 450.0
"""Seconds after which no measurement begins."""
NONE_DONE = "no step was done"
NAIVE = ControlCosts(15e-6, 55e-6)
"""Costs of a first service, which was thrown away: 125 us of CPU for a step of two hosts, 55 for each
more."""


def costs_of(inputs: Inputs) -> Table:
    """Returns all costs of the simulations."""
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
    """Returns the paper's Figure 6."""

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
                note=costs_text(inputs.controller(hosts)),
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
    # Its other costs are those of the service.
    naive = dataclasses.replace(
        inputs.service(512), per_step=NAIVE.per_step, per_host=NAIVE.per_host, per_island=0.0
    )
    entries += [
        Entry("512 hosts, one step at a time", simulated=milliseconds(simulated(512, ahead=1))),
        *(
            Entry(
                f"512 hosts, a client of {name}, 8 steps ahead",
                simulated=milliseconds(smallest_served(FleetShape([512]), costs)),
                note=costs_text(costs),
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


def clients(inputs: Inputs, seconds: float = 2.0) -> Table:
    """Returns the paper's Figures 8 to 11: many clients on one cluster, for so many simulated seconds."""
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
        how = f"one of {HEADS} hands on" if heads else "all sent by the service"
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


def used(case: str, usage: Usage, target: float | None, paper: str, costs: ControlCosts) -> Entry:
    """Returns a row of the use of devices."""
    return Entry(
        case,
        paper,
        simulated=f"{usage.busy:.3f}" if usage.rate else NONE_DONE,
        target="" if target is None else f">= {target}",
        note=f"the service's core is busy for {usage.control:.0%}; {costs_text(costs)}",
        is_over=target is not None and usage.busy < target,
    )


BATCH = 2**16
"""Tokens of a step of T5; assumed."""
T5 = (("Base", 618e3, 32), ("Large", 90.4e3, 32), ("3B", 282.8e3, 512), ("11B", 84.8e3, 512))
"""Tokens per second (paper), and cores, 8 of them on a host."""


def one_program(inputs: Inputs) -> Table:
    """Returns the paper's Table 1: T5, as fast as with a controller in each host."""
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
    """Returns the paper's Figure 5, in one process."""
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
    """Yields the paper's Table 2 and Figure 12, and PaLM."""
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


def measured_entries(found: dict[int, MeasuredHosts | None]) -> list[Entry]:
    """Returns rows of the measurements of hosts."""
    return [
        Entry(
            f"{count} hosts, each an island",
            measured=LATE if hosts is None else milliseconds(hosts.hidden),
            note="devices are timers; the best of 3",
        )
        for count, hosts in found.items()
    ]


def client_entries(found: dict[ClientCase, MeasuredClients | None]) -> list[Entry]:
    """Returns rows of the measurements of clients."""
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
    """Returns a simulated table with rows and points of measurements."""
    plot = table.plot
    assert plot is not None
    if series.points:
        plot = dataclasses.replace(plot, series=[*plot.series, series])
    return Table(table.title, [*entries, *table.entries], plot)


class Report:
    """The tables, as text when they are ready, and as a page that is written with each.

    Args:
      path: the path of the page.
      notes: notes on all tables.
    """

    def __init__(self, path: Path, notes: Sequence[str]) -> None:
        self._path = path
        self._notes = notes
        self._tables: dict[str, Table] = {}
        print("\n".join([*notes, ""]), flush=True)

    def show(self, table: Table) -> None:
        """Prints a table, and replaces the one of the same title on the page."""
        print(text_of(table), flush=True)
        self.put(table)

    def put(self, table: Table) -> None:
        """Replaces a table on the page alone."""
        self._tables[table.title] = table
        _costs.replace(self._path, page_of(TITLE, self._notes, [*self._tables.values()]))


def measure_all(inputs: Inputs, report: Report, measuring: Measuring, simulated: Sequence[Table]) -> None:
    """Measures hosts and clients, and shows them in the tables of the simulations."""
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
    """Yields notes on all figures."""
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
        busy = "; a busy machine: measurements vary" if load > 1 else ""
        yield f"Measured on {_costs.machine()}, load {load:.1f}{busy}."


if __name__ == "__main__":
    sys.exit(main())
