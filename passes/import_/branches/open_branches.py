"""Opening of branches: regions of `stablehlo.case` and `stablehlo.if` move to `@main`, to be placed there."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect.attributes.names import CONDITION
from pathways.passes.analysis.functions import unique_name
from pathways.passes.analysis.operations import integer, replace
from pathways.passes.import_.branches.tags import Branch, branch_of, set_branch

BRANCHING = frozenset({"stablehlo.case", "stablehlo.if"})


def open_branches(op: ir.OpView, used_names: set[str]) -> list[ir.OpView]:
    """Moves the contents of an operation's branches in front of it, and selects from their results.

    Each condition chooses one of two branches: of more than two, the first one or the rest of them. An
    operation names its branch; selections and inner conditions belong to the branch around.

    Args:
      used_names: the names of conditions so far; new ones are added.

    Returns:
      The operations that are in `@main` now.
    """
    mover = _BranchMover(op, used_names)
    regions = list(op.regions)
    # The branch of False comes first for a number, and that of True for `stablehlo.if`.
    regions = regions if op.operation.name == "stablehlo.case" else regions[::-1]
    results = mover.open(regions, 0, branch_of(op))
    replace(op, results)
    return mover.moved


class _BranchMover:
    """Mover of the branches of one operation to `@main`."""

    def __init__(self, op: ir.OpView, used_names: set[str]) -> None:
        self.op = op
        self.used_names = used_names
        self.moved: list[ir.OpView] = []

    def open(self, regions: Sequence[ir.Region], number: int, around: Branch | None) -> list[ir.Value]:
        """Opens the regions from a number on, all of the branch around; returns the selected values."""
        if len(regions) == number + 1:
            return self.move(regions[number].blocks[0], around)
        name = unique_name("cond", self.used_names)
        self.used_names.add(name)
        later = self.is_later(name, number, around)
        here = self.move(regions[number].blocks[0], Branch(name, False))
        rest = self.open(regions, number + 1, Branch(name, True))
        return [self.select(later, *pair, around) for pair in zip(rest, here, strict=True)]

    def move(self, block: ir.Block, branch: Branch | None) -> list[ir.Value]:
        """Moves a block in front of the operation; returns its results."""
        *operations, terminator = block.operations
        for op in operations:
            op.operation.move_before(self.op.operation)
            set_branch(op, branch)
        self.moved += operations
        return list(terminator.operands)

    def is_later(self, name: str, number: int, around: Branch | None) -> ir.Value:
        """Builds the condition, with an operation of its own, that a later branch than this one is taken."""
        chooses = self.op.operands[0]
        with ir.InsertionPoint(self.op), self.op.operation.location:
            constant = integer(number, chooses.type)
            # Not "greater than": StableHLO takes the last branch for a number that is out of range, also
            # below 0.
            direction = stablehlo.ComparisonDirectionAttr.get("NE")
            compared = stablehlo.CompareOp(chooses, constant, direction)
        compared.attributes[CONDITION] = ir.StringAttr.get(name)
        for op in (constant.owner.opview, compared):
            set_branch(op, around)
        return compared.result

    def select(
        self, condition: ir.Value, on_true: ir.Value, on_false: ir.Value, around: Branch | None
    ) -> ir.Value:
        if on_true == on_false:
            return on_true
        with ir.InsertionPoint(self.op), self.op.operation.location:
            selected = stablehlo.SelectOp(condition, on_true, on_false)
        set_branch(selected, around)
        return selected.result
