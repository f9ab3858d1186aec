"""How the arguments and results of replicas belong together: what `pw.replica` on a port says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect.fields import NATURAL, UNIT, entries_of
from pathways.dialect.names import MOST_DEVICES, REPLICA


@dataclasses.dataclass(frozen=True)
class ReplicaPort:
    """What an argument or result of one replica is of the argument or result that callers know.

    Attributes:
      of: the number of that argument or result.
      number: the number of the replica.
      count: how many replicas there are.
      split: whether replicas have equal blocks of its leading dimension, in their order, and not all of it.
    """

    of: int
    number: int
    count: int
    split: bool = False

    @classmethod
    def read(cls, attribute: ir.Attribute) -> ReplicaPort:
        """Reads the attribute that `attribute` makes."""
        entries = {entry.name: entry.attr for entry in ir.DictAttr(attribute)}
        of, number, count = (NATURAL.read(entries[name]) for name in ("of", "number", "count"))
        return cls(of, number, count, "split" in entries)

    @property
    def attribute(self) -> ir.Attribute:
        """The attribute."""
        numbers = {name: NATURAL.make(getattr(self, name)) for name in ("of", "number", "count")}
        return ir.DictAttr.get(numbers | ({"split": ir.UnitAttr.get()} if self.split else {}))


def is_replica_port(attribute: ir.Attribute) -> bool:
    """Whether an attribute is one that `ReplicaPort.read` reads."""
    if not isinstance(attribute, ir.DictAttr):
        return False
    entries = entries_of(attribute)
    if not {"of", "number", "count"} <= entries.keys() <= {"of", "number", "count", "split"}:
        return False
    kinds = {name: UNIT if name == "split" else NATURAL for name in entries}
    if not all(entry is not None and kinds[name].matches(entry) for name, entry in entries.items()):
        return False
    port = ReplicaPort.read(attribute)
    return port.number < port.count <= MOST_DEVICES


def ports_of_callers(attrs: Sequence[Mapping[str, ir.Attribute]]) -> list[list[int]]:
    """The numbers of the arguments or results that are one for callers: those of all replicas."""
    groups: dict[object, list[int]] = {}
    for number, attr in enumerate(attrs):
        key = ("of", ReplicaPort.read(attr[REPLICA]).of) if REPLICA in attr else number
        groups.setdefault(key, []).append(number)
    return list(groups.values())
