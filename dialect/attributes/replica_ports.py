"""Relation between the ports of replicas and the ports of the program: `pw.replica` on a port."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect.attributes.blocks import whole_shape
from pathways.dialect.attributes.fields import NATURAL, entries_of
from pathways.dialect.attributes.names import MAX_DEVICES, REPLICA


@dataclasses.dataclass(frozen=True)
class ReplicaPort:
    """Place of an argument or result of one replica in the argument or result that callers know.

    Attributes:
      of: the number of the callers' argument or result.
      count: the number of replicas.
      split: the dimension that is divided equally among replicas, in their order; None if each has all of it.
    """

    of: int
    number: int
    count: int
    split: int | None = None

    @classmethod
    def read(cls, attribute: ir.Attribute) -> ReplicaPort:
        """Reads the attribute of a port."""
        entries = {entry.name: entry.attr for entry in ir.DictAttr(attribute)}
        return cls(**{name: NATURAL.read(entry) for name, entry in entries.items()})

    @property
    def attribute(self) -> ir.Attribute:
        """The port as an attribute of the IR."""
        numbers = {name: number for name, number in vars(self).items() if number is not None}
        return ir.DictAttr.get({name: NATURAL.make(number) for name, number in numbers.items()})

    def caller_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the callers' shape, from the shape that a replica has."""
        return whole_shape(shape, self.split, self.count)


def is_replica_port(attribute: ir.Attribute) -> bool:
    """Returns whether an attribute is one that `ReplicaPort.read` reads."""
    if not isinstance(attribute, ir.DictAttr):
        return False
    entries = entries_of(attribute)
    if not {"of", "number", "count"} <= entries.keys() <= {"of", "number", "count", "split"}:
        return False
    if not all(entry is not None and NATURAL.matches(entry) for entry in entries.values()):
        return False
    port = ReplicaPort.read(attribute)
    return port.number < port.count <= MAX_DEVICES


def ports_of_callers(attrs: Sequence[Mapping[str, ir.Attribute]]) -> list[list[int]]:
    """Returns the numbers of the arguments or results that are one for callers: one for each replica."""
    groups: dict[object, list[int]] = {}
    for number, attr in enumerate(attrs):
        key = ("of", ReplicaPort.read(attr[REPLICA]).of) if REPLICA in attr else number
        groups.setdefault(key, []).append(number)
    return list(groups.values())
