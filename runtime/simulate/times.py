"""The durations of a program in a simulation: given, or measured."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

from pathways.dialect.attributes.call_times import CallKey
from pathways.dialect.attributes.origins import Origin
from pathways.dialect.plain_data import PlainDataError, parse_json
from pathways.passes.analysis.links import Link
from pathways.passes.analysis.measured.durations import by_stage, of_program, times_taken
from pathways.passes.analysis.measured.events import EventLog
from pathways.passes.analysis.measured.trace_file import TraceError, is_trace, read_trace
from pathways.passes.analysis.quantities import FLOPS, UNITS, TimesError
from pathways.passes.analysis.times import Times, kind_of, times_of
from pathways.runtime.plan.plan import Launch, Plan


class ReplayTimes(Protocol):
    """How long the launches of a program take, in a unit."""

    @property
    def unit(self) -> str: ...
    def in_program(self, launches: Iterable[Launch]) -> ReplayTimes: ...
    def of(self, launch: Launch) -> float: ...


@dataclasses.dataclass(frozen=True)
class TimesOfCalls:
    """What a program says of its placed calls; glue takes no time.

    Attributes:
      unit: the unit of the times.
      calls: the time of a call.
    """

    unit: str
    calls: Mapping[CallKey, float]

    def in_program(self, launches: Iterable[Launch]) -> Self:
        """The same: they are those of a program."""
        return self

    def of(self, launch: Launch) -> float:
        """How long a launch takes: as long as all placed calls that it stands for.

        Raises:
          TimesError: the program does not say it.
        """
        return sum(self._of_call(call, launch) / (call.pieces or 1) for call in launch.origins)

    def _of_call(self, call: Origin, launch: Launch) -> float:
        for loop in (launch.loop, None):
            key = CallKey(loop, call.stage, kind_of(call))
            if key in self.calls:
                return self.calls[key]
        raise TimesError(f"the program does not say how long launch {launch.label} takes in {self.unit}")


@dataclasses.dataclass(frozen=True)
class ExpectedTimes:
    """The times to expect of launches where calls on a condition are taken with a probability.

    A call that is not taken gives zeros, which take no time. Of a launch of several calls, some of them on a
    condition, each has an equal share of its time.

    Attributes:
      times: those of launches whose calls are all taken.
      taken: the probability.
    """

    times: ReplayTimes
    taken: float

    @property
    def unit(self) -> str:
        """The unit of the times."""
        return self.times.unit

    def in_program(self, launches: Iterable[Launch]) -> Self:
        """The same times, as they are of a program."""
        return dataclasses.replace(self, times=self.times.in_program(launches))

    def of(self, launch: Launch) -> float:
        """How long a launch is expected to take.

        Raises:
          TimesError: nothing says how long it takes.
        """
        time, calls = self.times.of(launch), launch.origins
        return time * statistics.fmean(self.taken if c.when else 1.0 for c in calls) if calls else time


def stated_times(word: str | None, plan: Plan) -> tuple[ReplayTimes, str] | None:
    """The times that a program says itself, and what they are called; None for a word that is of a file.

    Args:
      word: `flops` for the operations of placed calls, `units` for one unit for each; None for the times that
        the orders of the program were made with, a unit for each call where they were made without.
      plan: the program.

    Raises:
      TimesError: the program does not say how many operations its calls have.
    """
    unit = word if word is not None else plan.times.made_with
    if word not in (None, FLOPS, UNITS):
        return None
    if word == UNITS or unit is None:
        return Times(), f"times={UNITS}"
    if unit not in plan.times.tables:
        raise TimesError(
            f"times: program '{plan.name}' does not say how many operations its launches have: its placed "
            "calls have none, or it was scheduled by another release"
        )
    name = f"times={unit}" if unit == FLOPS else "times of its schedule"
    return TimesOfCalls(unit, plan.times.tables[unit]), name


def title_of(name: str, link: Link, *, planned: bool) -> str:
    """The title of a replay: planned where the program says the times itself, and links take none."""
    return f"{'planned' if planned and link == Link() else 'simulated'}, {name}"


def launches_of(plan: Plan) -> list[Launch]:
    """The launches of a program."""
    return [step for step in plan.steps if isinstance(step, Launch)]


def read_times(durations: Mapping[str, Any], plan: Plan) -> Times:
    """Reads durations for a program.

    Args:
      durations: the mapping that `passes.analysis.times` describes.
      plan: the program; every name must be in it.

    Raises:
      TimesError: an unknown name, a number that is negative or not finite, or units and seconds mixed.
    """
    return times_of(durations, launches_of(plan), plan.computations)


def times_in(data: bytes, plan: Plan) -> Times:
    """The times of a program in a file: a JSON object of durations, or the trace of a run.

    Raises:
      TimesError: it is neither, or its durations do not fit the program.
    """
    if is_trace(data):
        try:
            return measured_times(of_program(read_trace(data), plan.name), plan)
        except TraceError as error:
            raise TimesError(str(error)) from None
    try:
        document = parse_json(data)
    except PlainDataError as error:
        raise TimesError(str(error)) from None
    return read_times(document, plan)


def measured_times(timelines: Sequence[EventLog], plan: Plan) -> Times:
    """The median time of each launch, each computation and each action of a stage in measured steps.

    The time of a launch goes from when its slice was free and all that it reads was made until it ended. So
    it holds what its start cost, and what its operands took from another slice, and a replay takes as long as
    the step did. Launches whose times are estimated do not count, unless all are. Computations that this
    program does not have are left out, so that a measured run can be replayed in another schedule. There the
    halves of a backward take half of a measured whole each, and a whole takes what measured halves take.
    """
    by_label: dict[str, list[float]] = {}
    by_computation: dict[str, list[float]] = {}
    counted = times_taken(timelines)
    for event, time in counted:
        by_label.setdefault(event.label, []).append(time)
        by_computation.setdefault(event.label.partition("[")[0], []).append(time)
    computations = {name: statistics.median(by_computation[name]) for name in by_computation}
    return Times(
        timelines[0].unit if timelines else UNITS,
        stages=by_stage(counted),
        computations={name: time for name, time in computations.items() if name in plan.computations},
        launches={label: statistics.median(times) for label, times in by_label.items()},
    )
