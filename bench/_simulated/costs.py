"""Costs of control: measured by benches, kept in a file, and changed for what-if questions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import msgspec

from pathways.passes.analysis.quantities import SECONDS, QuantityReader, TimesError

_FACTOR = re.compile(r"(\d+\.?\d*|\.\d+)\s*[xX]")


class CostsError(ValueError):
    """File of costs, or a change to them, is invalid; the message names the place."""


@dataclasses.dataclass(frozen=True)
class ControlCosts:
    """Costs of control, in seconds of one core unless stated otherwise.

    Attributes:
      per_step: of the controller or service, once for each step.
      per_host: of the controller or service, for each host that it sends a step: the message and the reply.
      per_island: the same for each island, besides its hosts.
      per_worker: of a host, its share of a step.
      per_client: of a client of a service, a step from its call to its end.
      per_handed_on: of a host that forwards a step, for each host that it sends it to, as `per_host`.
      net: the latency of a message; no core is busy with that.
    """

    per_step: float
    per_host: float
    per_island: float = 0.0
    per_worker: float = 0.0
    per_client: float = 0.0
    per_handed_on: float = 0.0
    net: float = 0.0

    def changed(self, what_if: str) -> ControlCosts:
        """Returns the same with changes, such as `per_host=7.5us,net=2x`.

        Raises:
          CostsError: a change cannot be read, or the cost does not exist.
        """
        return dataclasses.replace(self, **_changes(what_if, dataclasses.asdict(self)))


def _changes(what_if: str, costs: Mapping[str, float]) -> dict[str, float]:
    changes: dict[str, float] = {}
    for change in filter(None, map(str.strip, what_if.split(","))):
        name, equals, value = (part.strip() for part in change.partition("="))
        if not equals or not value:
            raise CostsError(
                f"'{change}': expected a cost and a time or a factor, such as net=20us or net=2x"
            )
        if name not in costs:
            raise CostsError(f"'{change}': there is no cost '{name}'; costs are {', '.join(costs)}")
        if name in changes:
            raise CostsError(f"'{change}': {name} is changed twice")
        if factor := _FACTOR.fullmatch(value):
            changes[name] = costs[name] * float(factor[1])
            continue
        try:
            changes[name] = QuantityReader(SECONDS).time(value, name)
        except TimesError as error:
            raise CostsError(f"'{change}': {error}") from None
        if changes[name] and value[-1] != "s":
            raise CostsError(f"'{change}': expected a time with its unit, such as {value}us")
    return changes


class MeasuredCost(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Cost as a bench has measured it.

    Attributes:
      seconds: the cost.
      what: its description, and the method.
    """

    seconds: float
    what: str


class MeasuredGroup(msgspec.Struct, frozen=True):
    """Group of rows of a bench, which one run has measured.

    Attributes:
      command: the run.
      date: its day.
      machine: the kind of its machine.
      load: the number of other processes that wanted its cores when it began.
      costs: its measurements, by names.
    """

    command: str
    date: str
    machine: str
    load: float
    costs: dict[str, MeasuredCost]


@dataclasses.dataclass(frozen=True)
class CostsFile:
    """File of costs.

    Attributes:
      benches: the groups of each bench, by their names.
    """

    benches: Mapping[str, Mapping[str, MeasuredGroup]]

    def seconds(self, bench: str, name: str) -> float:
        """Returns a cost.

        Raises:
          CostsError: the file does not have it.
        """
        groups = self.benches.get(bench)
        if groups is None:
            raise CostsError(f"the file of costs has nothing of bench '{bench}': run bench/{bench}.py --json")
        for group in groups.values():
            if name in group.costs:
                return group.costs[name].seconds
        raise CostsError(f"the file of costs has no '{name}' of bench '{bench}': run it again with --json")


class _CostsText(msgspec.Struct):
    benches: dict[str, dict[str, msgspec.Raw]]


def read_costs(text: bytes, where: str) -> CostsFile:
    """Reads a file of costs; `where` is its name.

    Raises:
      CostsError: the text is no such file; says where.
    """
    try:
        document = msgspec.json.decode(text, type=_CostsText)
    except msgspec.MsgspecError as error:
        raise CostsError(f"{where}: {error}") from None
    return CostsFile(
        {
            bench: {name: _group(raw, f"{where}: benches.{bench}.{name}") for name, raw in groups.items()}
            for bench, groups in document.benches.items()
        }
    )


def _group(raw: msgspec.Raw, where: str) -> MeasuredGroup:
    try:
        group = msgspec.json.decode(raw, type=MeasuredGroup)
    except msgspec.MsgspecError as error:
        raise CostsError(f"{where}: {error}") from None
    for name, cost in group.costs.items():
        if not 0 <= cost.seconds < 1:
            raise CostsError(f"{where}.costs.{name}: {cost.seconds} is no cost in seconds")
    return group
