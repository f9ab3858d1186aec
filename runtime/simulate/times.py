"""How long things take in a simulation: durations of launches, and links between slices.

Durations are given as a mapping, which is also the form of a JSON file:

    {
      "phases": {"fwd": "1.2ms", "bwd": "2.4ms", "bwd.input": "1ms", "glue": 0},
      "stages": {"3": {"fwd": "2ms"}},
      "computations": {"front": "1ms"},
      "launches": {"front[3]": "5ms"}
    }

All of it is optional, and the most specific entry counts: a launch by its label, its computation, its
phase at its stage, its phase. A number counts time units, a string has a suffix and counts seconds; the
two do not mix. Nothing given, a placed call takes one unit and glue none; half of a split backward takes
half of a backward, and a launch that several placed calls were fused into what they take together.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pathways.runtime.plan.plan import Launch, Plan
from pathways.runtime.timelines.events import SECONDS, UNITS, EventLog

PHASES = ("fwd", "bwd", "bwd.input", "bwd.weight", "recompute", "glue")
SECTIONS = ("phases", "stages", "computations", "launches")

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_RATES = {
    f"{prefix}{unit}": factor / bits
    for unit, bits in (("B/s", 1), ("bit/s", 8))
    for prefix, factor in {
        "": 1.0,
        "K": 1e3,
        "k": 1e3,
        "M": 1e6,
        "G": 1e9,
        "T": 1e12,
        "Ki": 2.0**10,
        "Mi": 2.0**20,
        "Gi": 2.0**30,
        "Ti": 2.0**40,
    }.items()
}
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\s\d]\S*)?\s*")


class TimesError(ValueError):
    """Durations that cannot be used; the message names the entry."""


@dataclasses.dataclass(frozen=True)
class Link:
    """A link between two slices.

    Attributes:
      latency: the time from sending the last byte to its arrival.
      bandwidth: bytes in one unit of time.
    """

    latency: float = 0.0
    bandwidth: float = math.inf


@dataclasses.dataclass(frozen=True)
class Times:
    """How long each launch takes; `read_times` makes it, for a program.

    Attributes:
      unit: the unit of the times.
      phases: by phase.
      stages: by stage and phase.
      computations: by name of the computation.
      launches: by label of the launch.
    """

    unit: str = UNITS
    phases: Mapping[str, float] = dataclasses.field(default_factory=dict)
    stages: Mapping[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    computations: Mapping[str, float] = dataclasses.field(default_factory=dict)
    launches: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def given(self) -> bool:
        """Whether any time was given."""
        return bool(self.phases or self.stages or self.computations or self.launches)

    def of(self, launch: Launch) -> float:
        """How long a launch takes.

        Raises:
          TimesError: when the times are in seconds and none of them is for this launch.
        """
        if launch.label in self.launches:
            return self.launches[launch.label]
        if launch.computation in self.computations:
            return self.computations[launch.computation]
        return sum(
            self._of_phase(launch, phase, launch.part) for phase in launch.fused or (launch.phase or "fwd",)
        )

    def _of_phase(self, launch: Launch, phase: str, part: str | None) -> float:
        for table in (self.stages.get(-1 if launch.stage is None else launch.stage, {}), self.phases):
            if part is not None and f"{phase}.{part}" in table:
                return table[f"{phase}.{part}"]
            if phase in table:
                return table[phase] / (1 if part is None else 2)
        if phase == "glue":
            return 0.0
        if self.unit == SECONDS:
            at = "" if launch.stage is None else f" at stage {launch.stage}"
            raise TimesError(f"no time for launch {launch.label} ({phase}{at})")
        return 1.0 if part is None else 0.5


def read_times(given: Mapping[str, Any], plan: Plan) -> Times:
    """Reads durations for a program.

    Args:
      given: the mapping that this module's documentation describes.
      plan: the program; every name must be in it.

    Raises:
      TimesError: an unknown name, a number that is negative or not finite, or units and seconds mixed.
    """
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    known: dict[str, tuple[str, Iterable[str]]] = {
        "phases": ("phase", PHASES),
        "computations": ("computation", plan.computations),
        "launches": ("launch", [launch.label for launch in launches]),
    }
    _check_names(given, SECTIONS, "there is no section")
    reader = _QuantityReader()
    tables = {
        section: reader.table(given.get(section, {}), section, *names) for section, names in known.items()
    }
    present = dict.fromkeys(str(launch.stage) for launch in launches if launch.stage is not None)
    stages = given.get("stages", {})
    _check_names(stages, present, "stages: there is no stage")
    by_stage = {
        int(stage): reader.table(table, f"stages, {stage}", "phase", PHASES)
        for stage, table in stages.items()
    }
    return Times(reader.unit, stages=by_stage, **tables)


def measured_times(timelines: Sequence[EventLog], plan: Plan) -> Times:
    """The median duration of each launch and each computation in measured steps of a program.

    Computations that this program does not have are left out, so that a measured run can be replayed in
    another schedule.
    """
    by_label: dict[str, list[float]] = {}
    by_computation: dict[str, list[float]] = {}
    for event in (event for timeline in timelines for event in timeline.launches):
        by_label.setdefault(event.label, []).append(event.duration)
        by_computation.setdefault(event.label.partition("[")[0], []).append(event.duration)
    computations = {name: statistics.median(by_computation[name]) for name in by_computation}
    return Times(
        timelines[0].unit if timelines else UNITS,
        computations={name: time for name, time in computations.items() if name in plan.computations},
        launches={label: statistics.median(durations) for label, durations in by_label.items()},
    )


def read_link(latency: str | float | None, bandwidth: str | float | None, unit: str) -> Link:
    """Reads a link.

    Args:
      latency: a time, `5us` or a number of units; None for no latency.
      bandwidth: bytes in a time, `10GB/s`, `200Gbit/s` or a number of bytes in a unit; None for no limit.
      unit: the unit of the durations that it goes with.

    Raises:
      TimesError: when it cannot be read, or is in another unit.
    """
    reader = _QuantityReader(unit)
    read = reader.number(latency, "latency", _SECONDS) if latency is not None else 0.0
    rate = reader.number(bandwidth, "bandwidth", _RATES) if bandwidth is not None else math.inf
    if rate == 0:
        raise TimesError("bandwidth: must be more than 0")
    return Link(read, rate)


class _QuantityReader:
    """Reads quantities, all in one unit: that of the first one that is not zero."""

    def __init__(self, unit: str | None = None) -> None:
        self._unit = unit
        self._first = "the durations are"

    @property
    def unit(self) -> str:
        return self._unit or UNITS

    def table(self, given: Any, where: str, kind: str, names: Iterable[str]) -> dict[str, float]:
        _check_names(given, names, f"{where}: there is no {kind}")
        return {name: self.number(value, f"{where}, {name}", _SECONDS) for name, value in given.items()}

    def number(self, given: Any, where: str, suffixes: Mapping[str, float]) -> float:
        number, suffix = _split(given, where, suffixes)
        if not math.isfinite(number) or number < 0:
            raise TimesError(f"{where}: must be a number from 0 up, got {given}")
        unit = SECONDS if suffix else UNITS
        if number:
            if self._unit is None:
                self._unit, self._first = unit, f"'{where}' is"
            if unit != self._unit:
                kinds = {SECONDS: "in seconds", UNITS: "in time units"}
                raise TimesError(f"{where}: is {kinds[unit]}, but {self._first} {kinds[self._unit]}")
        return number * suffixes.get(suffix, 1.0)


def _split(given: Any, where: str, suffixes: Mapping[str, float]) -> tuple[float, str]:
    """The number and the suffix of a quantity."""
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return (math.inf if abs(given) > sys.float_info.max else float(given)), ""
    found = _QUANTITY.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        example = "5us" if "ms" in suffixes else "10GB/s"
        raise TimesError(f'{where}: expected a number or a string such as "{example}", got {given!r}')
    if found[2] and found[2] not in suffixes:
        raise TimesError(f"{where}: unknown suffix '{found[2]}'; known are {', '.join(suffixes)}")
    return float(found[1]), found[2] or ""


def _check_names(given: Any, names: Iterable[str], complaint: str) -> None:
    if not isinstance(given, Mapping):
        where, colon, _ = complaint.partition(": ")
        raise TimesError(f"{where if colon else 'times'}: expected an object, got {type(given).__name__}")
    known = list(dict.fromkeys(names))
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise TimesError(f"{complaint} '{name}'{hint}")
