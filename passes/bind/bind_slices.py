"""`pw-bind-slices`: sets the host of each slice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import SliceOp, ops_named
from pathways.dialect.verification.forms import BOUND, SCHEDULED
from pathways.passes.manager.base import Pass, fail, main_function, option


@dataclasses.dataclass(frozen=True)
class BindSlices(Pass):
    """Assigns each slice to a host.

    `hosts` lists the host of every slice. Without it, slices go round-robin to `count` hosts, in the order
    of their declaration; slices that may share devices go to one host together. On different hosts they share
    none, so that `hosts` may name one for each.

    ```mlir
    // before
    pw.slice @s0 mesh @mesh
    pw.slice @s1 mesh @mesh
    // after
    pw.slice @s0 mesh @mesh host 1
    pw.slice @s1 mesh @mesh host 0
    ```

    Requires: a scheduled program.
    Guarantees: each `pw.slice` has a `host`.
    """

    name: ClassVar[str] = "pw-bind-slices"
    input_forms = (SCHEDULED, BOUND)
    output_form = BOUND
    hosts: str = option("", "the host of each slice, as in 's0:0,s1:1' with quotes; replaces `count`")
    count: int = option(1, "how many hosts the slices are distributed over")

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")
        if self.hosts and self.count != 1:
            raise ValueError("hosts and count exclude each other")
        _read(self.hosts)

    def run(self, module: ir.Module) -> None:
        slices: Sequence[SliceOp] = ops_named(module, ["pw.slice"])
        hosts = _read(self.hosts) if self.hosts else _dealt(slices, self.count)
        names = {op.sym_name for op in slices}
        for name in hosts:
            if name not in names:
                fail(main_function(module), f"has no slice @{name}, which `hosts` names")
        for op in slices:
            if op.sym_name not in hosts:
                fail(op, "is not among `hosts`")
            op.host = hosts[op.sym_name]


def _read(text: str) -> dict[str, int]:
    hosts: dict[str, int] = {}
    for entry in text.split(",") if text else ():
        name, _, number = entry.strip().rpartition(":")
        if not name or not number.isdecimal() or len(number) > 9:
            raise ValueError(f"hosts must be slices and numbers as in s0:0,s1:1, got '{entry}'")
        if name in hosts:
            raise ValueError(f"hosts names {name} twice")
        hosts[name] = int(number)
    return hosts


def _dealt(slices: Sequence[SliceOp], count: int) -> Mapping[str, int]:
    """Slices dealt out to so many hosts in turn."""
    hosts: dict[str, int] = {}
    dealt = 0
    shared: int | None = None
    for op in slices:
        if op.overlap and shared is not None:
            hosts[op.sym_name] = shared
            continue
        hosts[op.sym_name] = dealt % count
        if op.overlap:
            shared = hosts[op.sym_name]
        dealt += 1
    return hosts
