"""The durations of a program in a simulation: given, or measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pathways.passes.measured.durations import by_stage, of_program, times_taken
from pathways.passes.measured.events import EventLog
from pathways.passes.measured.trace_file import TraceError, is_trace, read_trace
from pathways.passes.schedule.times import Times, times_of
from pathways.passes.util.quantities import UNITS, TimesError
from pathways.runtime.plan.plan import Launch, Plan


def launches_of(plan: Plan) -> list[Launch]:
    """The launches of a program."""
    return [step for step in plan.steps if isinstance(step, Launch)]


def read_times(durations: Mapping[str, Any], plan: Plan) -> Times:
    """Reads durations for a program.

    Args:
      durations: the mapping that `passes.schedule.times` describes.
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
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TimesError(f"no JSON: {error}") from None
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
