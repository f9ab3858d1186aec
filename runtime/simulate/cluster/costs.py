"""What control costs: measured by benches, kept in a file, and changed to see what would be."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import msgspec

from pathways.passes.util.quantities import SECONDS, QuantityReader, TimesError

_FACTOR = re.compile(r"\s*(\d+\.?\d*|\.\d+)x\s*")


class CostsError(ValueError):
    """A file of costs, or a change to them, that cannot be used; the message names the place."""


@dataclasses.dataclass(frozen=True)
class ControlCosts:
    """What control costs, in seconds of one core where it does not say otherwise.

    Attributes:
      per_step: for who controls, once for each step.
      per_host: for who controls, for each host that it tells a step: the message and the answer.
      per_worker: for a host, its part of a step.
      per_client: for a client of a service, a step from its call to its end.
      per_handed_on: for a host that hands a step on, for each host that it does so to, as `per_host`.
      net: how long a message is on its way; no core is busy with that.
    """

    per_step: float
    per_host: float
    per_worker: float = 0.0
    per_client: float = 0.0
    per_handed_on: float = 0.0
    net: float = 0.0

    def changed(self, what_if: str) -> ControlCosts:
        """The same with changes, such as `per_host=7.5us,net=2x`.

        Raises:
          CostsError: a change cannot be read, or there is no such cost.
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
    """A cost as a bench has measured it.

    Attributes:
      seconds: the cost.
      what: what it is, and how it was measured.
    """

    seconds: float
    what: str


class BenchCosts(msgspec.Struct, frozen=True):
    """What one run of a bench says.

    Attributes:
      command: the run.
      date: its day.
      machine: what kind of machine it ran on.
      load: how many other processes wanted its cores when it began.
      costs: what it measured, by names.
    """

    command: str
    date: str
    machine: str
    load: float
    costs: dict[str, MeasuredCost]


class CostsFile(msgspec.Struct, frozen=True):
    """A file of costs.

    Attributes:
      benches: what each bench says, by its name.
    """

    benches: dict[str, BenchCosts]

    def seconds(self, bench: str, name: str) -> float:
        """A cost.

        Raises:
          CostsError: the file does not have it.
        """
        found = self.benches.get(bench)
        if found is None:
            raise CostsError(f"the file of costs has nothing of bench '{bench}': run bench/{bench}.py --json")
        if name not in found.costs:
            raise CostsError(
                f"the file of costs has no '{name}' of bench '{bench}': run it again with --json"
            )
        return found.costs[name].seconds


def read_costs(text: bytes, where: str) -> CostsFile:
    """Reads a file of costs; `where` is its name.

    Raises:
      CostsError: it is none; says where.
    """
    try:
        file = msgspec.json.decode(text, type=CostsFile)
    except msgspec.MsgspecError as error:
        raise CostsError(f"{where}: {error}") from None
    for bench, said in file.benches.items():
        for name, cost in said.costs.items():
            if not 0 <= cost.seconds < 1:
                raise CostsError(
                    f"{where}: benches.{bench}.costs.{name}: {cost.seconds} is no cost in seconds"
                )
    return file
