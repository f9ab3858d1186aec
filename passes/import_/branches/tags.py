"""Tags of operations in `@main` with their branch, between `pw-import` and `pw-outline`.

%p = stablehlo.compare EQ, %i, %zero {pw.condition = "cond"}
%a = stablehlo.tanh %x {pw.branch = "cond"}
%b = stablehlo.negate %x {pw.branch = "not cond"}
%c = stablehlo.select %p, %a, %b
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jaxlib.mlir import ir

from pathways.dialect.attributes.names import BRANCH, CONDITION
from pathways.passes.analysis.functions import body_block

_NOT = "not "


class Branch(NamedTuple):
    """One of the two branches of a condition.

    Attributes:
      on_true: whether it runs if the condition holds; else it runs if the condition does not hold.
    """

    condition: str
    on_true: bool


def branch_of(op: ir.OpView) -> Branch | None:
    """Returns the innermost branch that an operation is of; None where it is done in any case."""
    if BRANCH not in op.attributes:
        return None
    text = op.attributes[BRANCH].value
    return Branch(text.removeprefix(_NOT), not text.startswith(_NOT))


def set_branch(op: ir.OpView, branch: Branch | None) -> None:
    """Makes an operation one of a branch, or one that is done in any case."""
    if branch is not None:
        op.attributes[BRANCH] = ir.StringAttr.get(("" if branch.on_true else _NOT) + branch.condition)
    elif BRANCH in op.attributes:
        del op.attributes[BRANCH]


def conditions(main: ir.OpView) -> Mapping[str, ir.OpView]:
    """Returns the operations that compute conditions, by name, in the order of `@main`: outer ones first."""
    return {
        op.attributes[CONDITION].value: op for op in body_block(main).operations if CONDITION in op.attributes
    }
