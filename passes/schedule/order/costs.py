"""Costs of the actions of a loop: their durations, and the bytes that they keep alive."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxlib.mlir import ir

from pathways.dialect import Origin, loop_of_op
from pathways.dialect.attributes.call_times import CallKey, CallTimes
from pathways.dialect.operations.operation import symbol_name
from pathways.dialect.plain_data import PlainDataError, parse_json
from pathways.dialect.relations.layouts import Layouts
from pathways.dialect.relations.order import Event
from pathways.passes.analysis.links import Link
from pathways.passes.analysis.measured.durations import measured_durations, of_program
from pathways.passes.analysis.measured.trace_file import TraceError, is_trace, read_trace
from pathways.passes.analysis.operations import byte_size
from pathways.passes.analysis.quantities import FLOPS, UNITS, TimesError
from pathways.passes.analysis.times import SECTIONS, kind_of, times_of
from pathways.passes.analysis.work import WorkEstimate
from pathways.passes.schedule.order.unrolled_loops import Loop, nearest_after, nearest_before
from pathways.passes.schedule.policies.actions import Action, Needs
from pathways.passes.schedule.search.scheduling_problem import Held, Limit


@dataclasses.dataclass(frozen=True)
class _NamedLaunch:
    """A launch, for its time."""

    label: str
    computation: str
    origins: tuple[Origin, ...]


class LaunchTimes:
    """Durations of the launches of a program that represent placed calls.

    Args:
      calls: the placed calls of each launch that is not glue, by its number.
    """

    def __init__(
        self, module: ir.Module, events: Sequence[Event], calls: Mapping[int, Sequence[Origin]]
    ) -> None:
        self._events = events
        self._calls = calls
        self._program = symbol_name(module.operation) or "main"
        layouts = Layouts(module)
        work = WorkEstimate(layouts.symbols)
        self._flops: dict[int, float] = {
            n: work.of(events[n].op.callee) / layouts.mesh(events[n].slice).size for n in calls
        }

    def of(self, members: Iterable[int], times: str) -> tuple[dict[int, float], str]:
        """Returns the durations of some launches, and their unit.

        Args:
          members: their numbers, without glue.
          times: a JSON file of durations, the trace of a run, `flops` for estimates from the operations of
            computations, or `units` for one unit for each placed call. Entries of a file for computations
            and launches that there are not, or not yet, do not count.

        Raises:
          TimesError: the file is wrong; the message has the entry.
        """
        if times == FLOPS:
            return {n: self._flops[n] for n in members if n in self._calls}, FLOPS
        launches = {n: self._timed(n) for n in members}
        document = {} if times == UNITS else _read(times, self._program)
        read = times_of(_entries_for(document, launches.values()), list(launches.values()))
        read = read.in_program(launches.values())
        return {n: read.of(launch) for n, launch in launches.items() if n in self._calls}, read.unit

    def of_calls(self, requested: Collection[str]) -> CallTimes:
        """Returns the durations of placed calls by their operations, and by the times that all loops use.

        Args:
          requested: the times that each loop requests, if any.
        """
        tables = {FLOPS: self._table(self._flops)}
        (times, *more) = set(requested) or {UNITS}
        if more or not any(self._flops.values()):
            return CallTimes(tables if any(self._flops.values()) else {})
        if times in (FLOPS, UNITS):
            return CallTimes(tables, times if times == FLOPS else None)
        try:
            times_by_launch, unit = self.of(self._calls, times)
        except TimesError:
            # The file is of the loops alone.
            return CallTimes(tables)
        return CallTimes({**tables, unit: self._table(times_by_launch)}, unit)

    def _table(self, times_by_launch: Mapping[int, float]) -> dict[CallKey, float]:
        """Returns the mean time of calls of one kind."""
        times: dict[CallKey, list[float]] = {}
        for n, time in times_by_launch.items():
            calls = self._calls[n]
            for call in calls:
                key = CallKey(loop_of_op(self._events[n].op), call.stage, kind_of(call))
                times.setdefault(key, []).append(time / len(calls))
        return {key: statistics.fmean(of_key) for key, of_key in times.items()}

    def _timed(self, n: int) -> _NamedLaunch:
        op = self._events[n].op
        label = op.callee if op.microbatch is None else f"{op.callee}[{op.microbatch}]"
        return _NamedLaunch(label, op.callee, tuple(self._calls.get(n, ())))


def durations_of(loop: Loop, launches: LaunchTimes, times: str) -> tuple[dict[Action, float], str]:
    """Returns the duration of each action of a loop, and their unit; see `LaunchTimes.of`."""
    times_by_launch, unit = launches.of(loop.members, times)
    durations: dict[Action, float] = {}
    for n, actions in loop.actions.items():
        for action in actions:
            durations[action] = durations.get(action, 0.0) + times_by_launch[n] / len(actions)
    return durations, unit


def delays_of(events: Sequence[Event], loop: Loop, link: Link) -> dict[tuple[Action, Action], float]:
    """Returns the delay from an action to one that reads its results on another slice."""
    delays: dict[tuple[Action, Action], float] = {}
    through: list[dict[Action, float]] = []
    for n, event in enumerate(events):
        ways: dict[Action, float] = {}
        for other in event.waits_for:
            for action, way in through[other].items():
                ways[action] = max(way, ways.get(action, 0.0))
        if event.moves:
            takes = link.latency + _bytes_moved(event) / link.bandwidth
            ways = {action: way + takes for action, way in ways.items()}
        if n in loop.actions:
            for action in loop.actions[n]:
                for need, way in ways.items():
                    delays[need, action] = max(way, delays.get((need, action), 0.0))
            # From here on ways begin at these actions; earlier ways are in their own delays.
            ways = dict.fromkeys(loop.actions[n], 0.0)
        through.append(ways)
    return {pair: delay for pair, delay in delays.items() if delay}


def _bytes_moved(event: Event) -> float:
    """Returns the bytes that leave the slice of an event; of the blocks in an exchange one stays."""
    size = byte_size(event.op.results[0].type)
    return size if event.kind == "send" else size * (1 - 1 / len(event.op.slices))


def _read(path: str, program: str) -> Mapping[str, Any]:
    try:
        data = Path(path).read_bytes()
        if is_trace(data):
            return measured_durations(of_program(read_trace(data), program))
        document = parse_json(data)
    except OSError as error:
        raise TimesError(f"'{path}': {error.strerror}") from None
    except TraceError as error:
        raise TimesError(f"'{path}': {error}") from None
    except PlainDataError as error:
        raise TimesError(f"'{path}' is {error}") from None
    if not isinstance(document, dict):
        raise TimesError(f"'{path}': expected an object with {', '.join(SECTIONS)}")
    return document


def _entries_for(document: Mapping[str, Any], launches: Iterable[_NamedLaunch]) -> dict[str, Any]:
    """Drops entries for computations that other schedules add."""
    names = {"computations": {x.computation for x in launches}, "launches": {x.label for x in launches}}
    return {
        section: {k: v for k, v in table.items() if k in names[section]}
        if section in names and isinstance(table, dict)
        else table
        for section, table in document.items()
    }


def bytes_held(module: ir.Module, events: Sequence[Event], loop: Loop, needs: Needs) -> dict[str, list[Held]]:
    """Returns the values that the microbatches of a loop keep alive on each slice, over all its devices.

    A result of a launch is held from its action on, a received value from the action that first reads it, and
    both until the last action on the slice that reads it ends. Sums over microbatches, which
    exist once, and values that are only sent do not count, nor do received values before their first reader.
    """
    layouts = Layouts(module)
    owner = _owners(events, loop)
    makers: dict[ir.Value, tuple[int, str]] = {}
    readers: dict[tuple[ir.Value, str], set[Action]] = {}
    for n, event in enumerate(events):
        slice = event.slice if event.kind == "exchange" else event.op.slice
        makers.update((r, (n, slice)) for r in event.results)
        if event.kind == "launch" and n in owner:
            for value in event.op.operands:
                if value in makers and makers[value][1] == slice:
                    readers.setdefault((value, slice), set()).add(owner[n])
    sizes: dict[str, dict[tuple[Action, tuple[Action, ...]], int]] = {}
    for (value, slice), actions in readers.items():
        n = makers[value][0]
        maker = owner.get(n) if events[n].kind == "launch" else None
        if maker is None and events[n].kind == "launch":
            continue
        # Nothing is ordered yet: the first reader is that on the usual way of a microbatch through the slice.
        first = maker if maker is not None else min(actions, key=lambda a: _rank(a))
        last = _last(actions | {first}, needs)
        # It begins and ends with one action: nothing is held between actions.
        if last == (first,):
            continue
        mesh = layouts.mesh(slice)
        size = byte_size(value.type) * mesh.size // math.prod(layouts.of(value, slice).splits(mesh))
        table = sizes.setdefault(slice, {})
        table[first, last] = table.get((first, last), 0) + size
    return {
        slice: [Held(size, first, last) for (first, last), size in table.items() if size]
        for slice, table in sizes.items()
    }


def bytes_limits(held: Mapping[str, Sequence[Held]], most: int) -> list[Limit]:
    """Returns the limit on the bytes that each slice holds."""
    return [Limit(f"bytes of microbatches on @{slice}", most, values) for slice, values in held.items()]


def _owners(events: Sequence[Event], loop: Loop) -> dict[int, Action]:
    """Returns the action with which each launch of a loop runs; glue runs with its reader or its source."""
    owners = {n: actions[0] for n, actions in loop.actions.items()}
    after, before = nearest_after(events, loop), nearest_before(events, loop)
    for n in loop.members:
        if n in owners:
            continue
        here = events[n].slice
        following = [a for a in after[n] if loop.slices[a.stage] == here]
        leading = [a for a in before[n] if loop.slices[a.stage] == here]
        if following:
            owners[n] = min(following, key=_rank)
        elif leading:
            owners[n] = max(leading, key=_rank)
    return owners


def _rank(action: Action) -> tuple[int, int, int]:
    """Sorts the actions of a slice as a microbatch goes through them."""
    order = {"F": 0, "B": 1, "I": 1, "W": 2}[action.kind]
    return (action.microbatch, order, action.stage if order == 0 else -action.stage)


def _last(actions: set[Action], needs: Needs) -> tuple[Action, ...]:
    """Returns the actions that none of the others waits for."""
    later = {
        action for action in actions for other in actions if action != other and _waits(other, action, needs)
    }
    return tuple(sorted(actions - later))


def _waits(action: Action, other: Action, needs: Needs) -> bool:
    """Returns whether an action waits for another one of its microbatch, or of one before."""
    pending, seen = [action], {action}
    while pending:
        for need in needs.get(pending.pop(), ()):
            if need == other:
                return True
            # Nothing reads from a later microbatch, so no way leads back from an earlier one.
            if need not in seen and need.microbatch >= other.microbatch:
                seen.add(need)
                pending.append(need)
    return False
