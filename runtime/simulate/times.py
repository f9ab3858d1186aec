"""How long launches take in a simulation.

Durations are given as a mapping, which is also the form of a JSON file:

    {
      "kinds": {"fwd": "1.2ms", "bwd": "2.4ms", "bwd.input": "1ms", "glue": 0},
      "stages": {"3": {"fwd": "2ms"}},
      "computations": {"front": "1ms"},
      "launches": {"front[3]": "5ms"}
    }

All of it is optional, and the most specific entry counts: a launch by its label, its computation, the
kinds of its placed calls at their stages, these kinds. A number counts time units, a string has a suffix
and counts seconds; the two do not mix. Where nothing is stated, a placed call takes one unit and glue none;
half of a split backward takes half of a backward, the only half of one all of it, and a launch that several
placed calls were fused into what they take together.
"""

from __future__ import annotations

import dataclasses
import difflib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pathways.dialect.origins import Origin
from pathways.runtime.plan.plan import Launch, Plan
from pathways.runtime.simulate.quantities import QuantityReader, TimesError
from pathways.runtime.timelines.events import SECONDS, UNITS, EventLog, TimelineEvent

KINDS = ("fwd", "bwd", "bwd.input", "bwd.weight", "recompute", "glue")
SECTIONS = ("kinds", "stages", "computations", "launches")


@dataclasses.dataclass(frozen=True)
class Times:
    """How long each launch takes; `read_times` makes it, for a program.

    Attributes:
      unit: the unit of the times.
      kinds: by kind of a placed call, its half if it is split, or `glue`.
      stages: by stage and kind.
      computations: by name of the computation.
      launches: by label of the launch.
      whole: stages with only one half of a backward, such as a first stage: it takes what a backward takes.
    """

    unit: str = UNITS
    kinds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    stages: Mapping[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    computations: Mapping[str, float] = dataclasses.field(default_factory=dict)
    launches: Mapping[str, float] = dataclasses.field(default_factory=dict)
    whole: frozenset[int | None] = frozenset()

    def in_plan(self, plan: Plan) -> Times:
        """The same times, with the halves that a program has."""
        launches = [step for step in plan.steps if isinstance(step, Launch)]
        halves = {(o.stage, o.part) for launch in launches for o in launch.origins if o.part is not None}
        stages = [stage for stage, _ in halves]
        return dataclasses.replace(self, whole=frozenset(s for s in stages if stages.count(s) == 1))

    @property
    def has_entries(self) -> bool:
        """Whether any time is stated."""
        return bool(self.kinds or self.stages or self.computations or self.launches)

    def of(self, launch: Launch) -> float:
        """How long a launch takes.

        Raises:
          TimesError: when the times are in seconds and none of them is for this launch.
        """
        if launch.label in self.launches:
            return self.launches[launch.label]
        if launch.computation in self.computations:
            return self.computations[launch.computation]
        if not launch.origins:
            return self.kinds.get("glue", 0.0)
        return sum(self._of_call(origin, launch.label) for origin in launch.origins)

    def _of_call(self, call: Origin, label: str) -> float:
        if call.stage in self.whole:
            call = dataclasses.replace(call, part=None)
        at_stage = {} if call.stage is None else self.stages.get(call.stage, {})
        for table in (at_stage, self.kinds):
            if call.part is not None and f"{call.kind}.{call.part}" in table:
                return table[f"{call.kind}.{call.part}"]
            if call.kind in table:
                return table[call.kind] / (1 if call.part is None else 2)
        if self.unit == SECONDS:
            at = "" if call.stage is None else f" at stage {call.stage}"
            raise TimesError(f"no time for launch {label} ({call.kind}{at})")
        return 1.0 if call.part is None else 0.5


def read_times(durations: Mapping[str, Any], plan: Plan) -> Times:
    """Reads durations for a program.

    Args:
      durations: the mapping that this module's documentation describes.
      plan: the program; every name must be in it.

    Raises:
      TimesError: an unknown name, a number that is negative or not finite, or units and seconds mixed.
    """
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    known: dict[str, tuple[str, Iterable[str]]] = {
        "kinds": ("kind", KINDS),
        "computations": ("computation", plan.computations),
        "launches": ("launch", [launch.label for launch in launches]),
    }
    _check_names(durations, SECTIONS, "there is no section")
    reader = QuantityReader()
    tables = {
        section: _read_table(reader, durations.get(section, {}), section, *names)
        for section, names in known.items()
    }
    calls = [origin for launch in launches for origin in launch.origins]
    present = dict.fromkeys(str(call.stage) for call in calls if call.stage is not None)
    stages = durations.get("stages", {})
    _check_names(stages, present, "stages: there is no stage")
    by_stage = {
        int(stage): _read_table(reader, table, f"stages, {stage}", "kind", KINDS)
        for stage, table in stages.items()
    }
    return Times(reader.unit, tables["kinds"], by_stage, tables["computations"], tables["launches"])


def measured_times(timelines: Sequence[EventLog], plan: Plan) -> Times:
    """The median time of each launch and each computation in measured steps of a program.

    The time of a launch goes from when its slice was free and all that it reads was made until it ended. So
    it holds what its start cost, and what its operands took from another slice, and a replay takes as long as
    the step did. Launches whose times are estimated do not count, unless all are. Computations that this
    program does not have are left out, so that a measured run can be replayed in another schedule.
    """
    by_label: dict[str, list[float]] = {}
    by_computation: dict[str, list[float]] = {}
    taken = [pair for timeline in timelines for pair in _times_taken(timeline)]
    for event, time in [pair for pair in taken if not pair[0].estimated] or taken:
        by_label.setdefault(event.label, []).append(time)
        by_computation.setdefault(event.label.partition("[")[0], []).append(time)
    computations = {name: statistics.median(by_computation[name]) for name in by_computation}
    return Times(
        timelines[0].unit if timelines else UNITS,
        computations={name: time for name, time in computations.items() if name in plan.computations},
        launches={label: statistics.median(times) for label, times in by_label.items()},
    )


def _times_taken(timeline: EventLog) -> Iterator[tuple[TimelineEvent, float]]:
    """Each launch of a step, and how long it took since it could have begun."""
    made: list[float] = []
    free: dict[str, float] = {}
    for event in timeline.events:
        ready = [made[n] for n in event.reads]
        if event.kind == "transfer":
            made.append(max(ready, default=event.start))
            continue
        if event.slice in free:
            ready.append(free[event.slice])
        # Clocks of several threads may say that it began before that.
        yield event, event.end - min(event.start, max(ready, default=event.start))
        made.append(event.end)
        free[event.slice] = event.end


def _read_table(
    reader: QuantityReader, table: Any, where: str, kind: str, names: Iterable[str]
) -> dict[str, float]:
    _check_names(table, names, f"{where}: there is no {kind}")
    return {name: reader.time(value, f"{where}, {name}") for name, value in table.items()}


def _check_names(mapping: Any, names: Iterable[str], complaint: str) -> None:
    if not isinstance(mapping, Mapping):
        where, colon, _ = complaint.partition(": ")
        raise TimesError(f"{where if colon else 'times'}: expected an object, got {type(mapping).__name__}")
    known = list(dict.fromkeys(names))
    for name in mapping:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise TimesError(f"{complaint} '{name}'{hint}")
