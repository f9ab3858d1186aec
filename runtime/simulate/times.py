"""Durations of launches in a simulation: stated, measured, or expected."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

from pathways.dialect.attributes.call_times import CallKey
from pathways.dialect.attributes.origins import Origin
from pathways.dialect.plain_data import PlainDataError, parse_json
from pathways.passes.analysis.links import Link
from pathways.passes.analysis.measured.durations import by_stage, launch_times, of_program
from pathways.passes.analysis.measured.events import EventLog
from pathways.passes.analysis.measured.trace_file import TraceError, is_trace, read_trace
from pathways.passes.analysis.quantities import FLOPS, UNITS, TimesError
from pathways.passes.analysis.times import Times, kind_of, times_of
from pathways.runtime.plan.plan import Launch, Plan


class ReplayTimes(Protocol):
    """Durations of the launches of a program, in a unit."""

    @property
    def unit(self) -> str: ...
    def in_program(self, launches: Iterable[Launch]) -> ReplayTimes: ...
    def of(self, launch: Launch) -> float: ...


@dataclasses.dataclass(frozen=True)
class TimesOfCalls:
    """Durations of placed calls that a program states; glue takes no time."""

    unit: str
    calls: Mapping[CallKey, float]

    def in_program(self, launches: Iterable[Launch]) -> Self:
        """Returns itself, since the times belong to one program."""
        return self

    def of(self, launch: Launch) -> float:
        """Returns the duration of a launch: the sum of its placed calls.

        Raises:
          TimesError: the program does not state it.
        """
        return sum(self._of_call(call, launch) / (call.pieces or 1) for call in launch.origins)

    def _of_call(self, call: Origin, launch: Launch) -> float:
        for loop in (launch.loop, None):
            key = CallKey(loop, call.stage, kind_of(call))
            if key in self.calls:
                return self.calls[key]
        raise TimesError(f"the program states no duration of launch {launch.label} in {self.unit}")


@dataclasses.dataclass(frozen=True)
class ExpectedTimes:
    """Expected durations of launches, where conditional calls run with a probability.

    A call that does not run returns zeros, which take no time. In a launch of multiple calls, each has an
    equal share of its time.

    Attributes:
      times: the durations of launches if all of their calls run.
      probability: the probability that a conditional call runs.
    """

    times: ReplayTimes
    probability: float

    @property
    def unit(self) -> str:
        """The unit of the times."""
        return self.times.unit

    def in_program(self, launches: Iterable[Launch]) -> Self:
        """Returns these times for a program with certain launches."""
        return dataclasses.replace(self, times=self.times.in_program(launches))

    def of(self, launch: Launch) -> float:
        """Returns the expected duration of a launch.

        Raises:
          TimesError: its duration is unknown.
        """
        time, calls = self.times.of(launch), launch.origins
        return time * statistics.fmean(self.probability if c.when else 1.0 for c in calls) if calls else time


def stated_times(unit: str | None, plan: Plan) -> tuple[ReplayTimes, str] | None:
    """Returns the durations that a program states itself, and their name; None if `unit` is not a unit.

    Args:
      unit: `flops` for the operations of placed calls, `units` for one unit for each call; None for the times
        that the program was scheduled with, or one unit for each call if it was scheduled without.

    Raises:
      TimesError: the program does not state the operations of its calls.
    """
    if unit not in (None, FLOPS, UNITS):
        return None
    is_default = unit is None
    unit = plan.times.made_with if is_default else unit
    if unit is None or (unit == UNITS and not is_default):
        return Times(), f"times={UNITS}"
    if unit not in plan.times.tables:
        raise TimesError(
            f"times: program '{plan.name}' does not state the operations of its launches: its placed calls "
            "have none, or it was scheduled by another release"
        )
    name = f"times={unit}" if unit == FLOPS else "times of its schedule"
    return TimesOfCalls(unit, plan.times.tables[unit]), name


def title_of(name: str, link: Link, *, planned: bool) -> str:
    """Returns the title of a replay: "planned" for times that the program states and links without delay."""
    return f"{'planned' if planned and link == Link() else 'simulated'}, {name}"


def launches_of(plan: Plan) -> list[Launch]:
    """Returns the launches of a program."""
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
    """Returns the times of a program in a file: a JSON object of durations, or the trace of a run.

    Raises:
      TimesError: the file is neither, or its durations do not fit the program.
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
    """Returns the median time of each launch, each computation and each action of a stage in measured steps.

    The time of a launch starts when its slice is free and its operands are computed, and ends with it. So it
    includes the cost of the launch and of transfers of its operands, and a replay takes as long as the step
    did. Launches whose times are estimated do not count, unless all are. Computations that this program does
    not have are left out, so that a measured run can be replayed in another schedule. There, each half of a
    backward takes half of the measured whole, and a whole takes the sum of measured halves.
    """
    by_label: dict[str, list[float]] = {}
    by_computation: dict[str, list[float]] = {}
    counted = launch_times(timelines)
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
