"""Durations of launches, for policies and for simulations.

Durations are given as a mapping, which is also the form of a JSON file:

    {
      "kinds": {"fwd": "1.2ms", "bwd": "2.4ms", "bwd.input": "1ms", "glue": 0},
      "stages": {"3": {"fwd": "2ms"}},
      "computations": {"front": "1ms"},
      "launches": {"front[3]": "5ms"}
    }

All of it is optional, and the most specific entry counts: a launch by its label, its computation, the
kinds of its placed calls at their stages, these kinds. A number counts time units, a string has a suffix
and counts seconds; the two do not mix. Defaults: a placed call takes one unit and glue none; half of a split
backward takes half of a backward, or all of it if it is the only half; a gradient with its own stage (`grad`)
takes as long as a backward, a fused launch as long as its placed calls together, and each piece of a cut call
an equal share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

from pathways.dialect.attributes.origins import Origin
from pathways.dialect.plain_data import shown
from pathways.dialect.spelling import did_you_mean
from pathways.passes.analysis.quantities import SECONDS, UNITS, QuantityReader, TimesError

KINDS = ("fwd", "bwd", "bwd.input", "bwd.weight", "grad", "recompute", "glue")
SECTIONS = ("kinds", "stages", "computations", "launches")


class Timed(Protocol):
    """A launch, as far as its time depends on it.

    Attributes:
      label: its name, with its microbatch.
      computation: its computation.
      origins: the placed calls that it represents; none for glue.
    """

    @property
    def label(self) -> str: ...
    @property
    def computation(self) -> str: ...
    @property
    def origins(self) -> tuple[Origin, ...]: ...


@dataclasses.dataclass(frozen=True)
class Times:
    """Durations of the launches of a program, created by `times_of`.

    Attributes:
      kinds: by kind of a placed call, its half if it is split, or `glue`.
      stages: by stage and kind.
      computations: by name of the computation.
      launches: by label of the launch.
      unsplit: stages with only one half of a backward, such as a first stage: it takes the time of both.
    """

    unit: str = UNITS
    kinds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    stages: Mapping[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    computations: Mapping[str, float] = dataclasses.field(default_factory=dict)
    launches: Mapping[str, float] = dataclasses.field(default_factory=dict)
    unsplit: frozenset[int | None] = frozenset()

    def in_program(self, launches: Iterable[Timed]) -> Self:
        """Returns the same times, with the halves that occur in the launches of a program."""
        halves = {(o.stage, o.part) for launch in launches for o in launch.origins if o.part is not None}
        stages = [stage for stage, _ in halves]
        return dataclasses.replace(self, unsplit=frozenset(s for s in stages if stages.count(s) == 1))

    def of(self, launch: Timed) -> float:
        """Returns the duration of a launch.

        Raises:
          TimesError: when the times are in seconds and none of them is for this launch.
        """
        if launch.label in self.launches:
            return self.launches[launch.label]
        if launch.computation in self.computations:
            return self.computations[launch.computation]
        if not launch.origins:
            return self.kinds.get("glue", 0.0)
        return sum(self._of_call(call, launch.label) / (call.pieces or 1) for call in launch.origins)

    def _of_call(self, call: Origin, label: str) -> float:
        if call.stage in self.unsplit:
            call = dataclasses.replace(call, part=None)
        at_stage = {} if call.stage is None else self.stages.get(call.stage, {})
        for table in (at_stage, self.kinds):
            if kind_of(call) in table:
                return table[kind_of(call)]
            if call.kind in table:
                return table[call.kind] / (1 if call.part is None else 2)
            if call.kind == "grad" and "bwd" in table:
                return table["bwd"]
        if self.unit == SECONDS:
            at = "" if call.stage is None else f" at stage {call.stage}"
            raise TimesError(f"no time for launch {label} ({call.kind}{at})")
        return 1.0 if call.part is None else 0.5


def kind_of(call: Origin) -> str:
    """Returns the entry of a table of kinds that is of a placed call alone."""
    return call.kind if call.part is None else f"{call.kind}.{call.part}"


def times_of(
    durations: Mapping[str, Any], launches: Sequence[Timed], computations: Iterable[str] | None = None
) -> Times:
    """Reads durations for a program.

    Args:
      durations: the mapping that this module's documentation describes.
      launches: the launches of the program.
      computations: its computations; by default the computations of the launches.

    Raises:
      TimesError: a name that is not in the program, a number that is negative or not finite, or units and
        seconds mixed.
    """
    named = [launch.computation for launch in launches] if computations is None else computations
    names_by_section: dict[str, tuple[str, Iterable[str]]] = {
        "kinds": ("kind", KINDS),
        "computations": ("computation", named),
        "launches": ("launch", [launch.label for launch in launches]),
    }
    _check_names(durations, SECTIONS, "there is no section")
    reader = QuantityReader()
    tables = {
        section: _read_table(reader, durations.get(section, {}), section, *names)
        for section, names in names_by_section.items()
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


def _read_table(
    reader: QuantityReader, table: Any, entry: str, kind: str, names: Iterable[str]
) -> dict[str, float]:
    _check_names(table, names, f"{entry}: there is no {kind}")
    return {name: reader.time(value, f"{entry}, {name}") for name, value in table.items()}


def _check_names(mapping: Any, names: Iterable[str], complaint: str) -> None:
    if not isinstance(mapping, Mapping):
        entry, colon, _ = complaint.partition(": ")
        raise TimesError(f"{entry if colon else 'times'}: expected an object, got {shown(mapping)}")
    choices = list(dict.fromkeys(names))
    for name in mapping:
        if name not in choices:
            raise TimesError(f"{complaint} '{name}'{did_you_mean(str(name), choices)}")
