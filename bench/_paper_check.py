"""Comparison of the simulator of clusters with measurements, where these are possible."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Iterator, Sequence

from _paper_inputs import Inputs, microseconds, milliseconds
from _paper_measured import LATE, LONG, ClientCase, Cores, MeasuredClients, MeasuredHosts
from _paper_page import Entry, Table
from _simulated.costs import ControlCosts
from _simulated.figures import Usage, smallest_hidden, used_alone, used_together
from _simulated.fleet import FleetShape
from _simulated.service import ClientModel

from pathways.runtime.hosts.launch.options import MAX_AHEAD
from pathways.runtime.service.sharing.places import MAX_UNFINISHED

CLOSE = 0.15
"""The fraction by which the simulator may be off."""


def check(
    inputs: Inputs,
    measured: dict[int, MeasuredHosts | None],
    clients: dict[ClientCase, MeasuredClients | None],
) -> Table:
    """Returns a table of simulated and measured figures.

    Hosts with a controller of their own have the costs of steps without work in this run, compared with
    those of the file; clients of a service have the costs of the file.
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
    """Returns the costs of steps without work in this run; each host is an island."""
    counts, idle = [hosts.count for hosts in found], [hosts.steps[0.0] for hosts in found]
    each, once = statistics.linear_regression(counts, [steps.control for steps in idle])
    worker = statistics.linear_regression(counts, [steps.workers for steps in idle]).slope
    return ControlCosts(
        max(once, 0.0), max(each, 0.0), per_worker=max(worker, 0.0), net=plain.controller(1).net
    )


def fit_entries(costs: ControlCosts, plain: Inputs) -> Iterator[Entry]:
    """Yields rows of the costs of this run beside those of the file."""
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
    """Yields rows of hosts with a controller of their own."""
    # All hosts are one process here.
    shape = FleetShape([1] * hosts.count, is_joined=False, cores=1)
    for seconds in (0.0, 1e-3, LONG):
        usage = used_alone(shape, costs, seconds)
        steps = f"steps of {milliseconds(seconds)}" if seconds else "steps without work"
        rate = hosts.steps[seconds].rate
        reason = why(hosts.cores(seconds), is_slower=rate < usage.rate, simulated=usage)
        yield compared(f"{hosts.count} hosts, {steps}", rate, usage.rate, "/s", reason)
    smallest = smallest_hidden(shape, costs)
    usage = used_alone(shape, costs, hosts.hidden)
    reason = why(hosts.cores(hosts.hidden), is_slower=hosts.hidden > smallest, simulated=usage)
    case = f"{hosts.count} hosts, smallest computation hidden"
    yield compared(case, hosts.hidden * 1e3, smallest * 1e3, " ms", reason)


def served_entries(found: MeasuredClients, costs: ControlCosts) -> Iterator[Entry]:
    """Yields rows of clients of a service."""
    case, usage = found.case, simulated(found.case, costs)
    reason = why(found.cores, is_slower=found.rate < usage.rate, simulated=usage)
    if not case.seconds:
        yield compared(str(case), found.rate, usage.rate, "/s", reason)
        return
    yield compared(f"{case}: busy", found.busy, usage.busy, "", reason)
    if len(case.weights) > 1:
        # The lowest fraction of its share that a client had.
        yield compared(f"{case}: served of the share", 1 - found.unfair, 1 - usage.unfair, "", reason)


def simulated(case: ClientCase, costs: ControlCosts) -> Usage:
    """Returns the usage of simulated hosts by clients, in one process as when measured."""
    shape = FleetShape([1] * case.hosts, is_joined=False, cores=1)
    islands = tuple(range(case.hosts))
    models = [ClientModel(islands, case.seconds, weight, MAX_UNFINISHED) for weight in case.weights]
    return used_together(shape, costs, models, 1.0, MAX_AHEAD)


def why(had: Cores, *, is_slower: bool, simulated: Usage) -> str:
    """Returns why a measurement is slower or faster than the simulation, as far as that is measured."""
    wanted = simulated.control / simulated.rate if simulated.rate else 0.0
    facts = (
        f"{had.name} took {microseconds(had.each)} of CPU a step, simulated {microseconds(wanted)}, "
        f"and had {had.control:.0%} of a core, simulated {simulated.control:.0%}; of "
        f"{os.cpu_count()} cores all these processes had {had.everything:.1f}, nobody {had.idle:.1f}"
    )
    if not is_slower:
        how = "for less CPU" if had.each < wanted else "but not for less CPU"
        return f"measured is faster, {how} a step; {facts}"
    if had.idle < 0.1 * (os.cpu_count() or 1):
        return f"processes waited for cores, of which each has its own in simulated time; {facts}"
    if had.control > 0.9:
        return f"{had.name} had all of a core, and a step took more of it; {facts}"
    return f"cores were idle: threads wait to be woken; {facts}"


def compared(case: str, measured: float, simulated: float, unit: str, reason: str) -> Entry:
    """Returns a row of a figure both measured and simulated; `reason` is added if they differ much."""
    off = simulated / measured - 1 if measured else float(simulated > 0)
    over = abs(off) > CLOSE
    return Entry(
        case,
        measured=f"{figure(measured)}{unit}",
        simulated=f"{figure(simulated)}{unit}",
        target=f"within {CLOSE:.0%}: {off:+.1%}",
        note=reason if over else "",
        is_over=over,
    )


def figure(value: float) -> str:
    """Returns a figure as text, with four digits or more."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
