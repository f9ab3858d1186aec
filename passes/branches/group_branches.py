"""`pw-group-branches`: what is done on a condition becomes one `stablehlo.case` for each slice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import loop_of_op, slices_of_op, symbol_table
from pathways.dialect.attributes.names import BRANCH, CONDITION, LOOP, MIRRORED, SLICE
from pathways.dialect.relations.graphs import depth_first
from pathways.dialect.verification.forms import LOCATED
from pathways.passes.branches.predicated import on_condition
from pathways.passes.branches.tags import Branch, branch_of, conditions, set_branch
from pathways.passes.manager.base import Pass, fail, main_function
from pathways.passes.util.functions import body_block
from pathways.passes.util.operations import (
    EXPENSIVE,
    captured,
    has_side_effect,
    is_zeros,
    replace_operands,
    zeros_of,
)


@dataclasses.dataclass(frozen=True)
class GroupBranches(Pass):
    """Groups the operations of a branch that are on one slice into one `stablehlo.case`.

    1. The work of both branches on a slice, and the selection from their results, is one operation. It yields
       zeros for values that only one of the branches produces and others read.
    2. If a branch reads a value from another slice midway, the slice has one operation for what
       comes before and one for what comes after.
    3. Small work that all slices can do is done unconditionally if others read it, or in each branch.

    ```mlir
    // before
    %1 = stablehlo.multiply %arg0, %cst {pw.branch = "cond", pw.slice = @s0}
    %5 = stablehlo.select %0, %1, %arg0 {pw.slice = @s0}
    // after
    %2 = "stablehlo.case"(%1) ({
      stablehlo.return %arg0
    }, {
      %7 = stablehlo.multiply %arg0, %cst_0
      stablehlo.return %7
    }) {pw.slice = @s0}
    ```

    Requires: placement from `pw-infer-placement`.
    Guarantees: no operation belongs to a branch any more; the work of a branch that is not taken is skipped.
    """

    name: ClassVar[str] = "pw-group-branches"
    takes = (LOCATED,)

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        known = conditions(main)
        for op in body_block(main).operations:
            branch = branch_of(op)
            if branch is not None and branch.condition not in known:
                fail(op, f"is of the branch '{branch.condition}', but no operation is its `{CONDITION}`")
        symbols, effects = symbol_table(module), dict[str, bool]()

        def is_free(op: ir.OpView) -> bool:
            """Whether an operation may be done in any case, and as often as one likes."""
            is_cheap = op.operation.name not in EXPENSIVE and not op.regions
            return MIRRORED in op.attributes and is_cheap and not has_side_effect(op, symbols, effects)

        # Inner conditions first: they are operations of the branch around by then.
        for name in reversed(list(known)):
            _group(main, known[name], name, is_free)


class _GroupKey(NamedTuple):
    """What operations of one group have in common; a number for an operation that is of no group."""

    slices: Sequence[str]
    is_mirrored: bool
    loop: str | None
    number: int | None = None


class _Place(NamedTuple):
    """The group of an operation: its key, and how often a value changes its group on the way to it."""

    key: _GroupKey
    level: int


class _Members(NamedTuple):
    """What a condition is asked for, by position in `@main`.

    Attributes:
      operations: all operations of `@main`.
      branches: those of a branch, and of which.
      selects: those that select from results of the branches.
      free: those of a branch that each reader may do for itself.
    """

    operations: Sequence[ir.OpView]
    branches: Mapping[int, Branch]
    selects: frozenset[int]
    free: frozenset[int]

    def has(self, n: int) -> bool:
        """Whether an operation is one of a group."""
        return n in self.selects or (n in self.branches and n not in self.free)


def _group(main: ir.OpView, condition: ir.OpView, name: str, is_free: Callable[[ir.OpView], bool]) -> None:
    """Groups what is done on one condition."""
    members = _read(main, condition, name, is_free)
    reads = [captured(op) for op in members.operations]
    groups: dict[_Place, list[int]] = {}
    for n, place in _places(members, reads).items():
        groups.setdefault(place, []).append(n)
    readers: dict[ir.Value, list[int]] = {}
    for n, values in enumerate(reads):
        for value in values:
            readers.setdefault(value, []).append(n)
    changed = False
    for place, group in groups.items():
        if any(n in members.branches for n in group):
            _GroupWriter(members, condition, group, readers).write(place.key)
            changed = True
    around = branch_of(condition)
    for n in members.free:
        set_branch(members.operations[n], around)
    del condition.attributes[CONDITION]
    _drop_conversion(condition)
    if changed:
        _sort(body_block(main))


def _read(main: ir.OpView, condition: ir.OpView, name: str, is_free: Callable[[ir.OpView], bool]) -> _Members:
    operations = list(body_block(main).operations)
    flag = condition.results[0]
    branches = {
        n: branch
        for n, op in enumerate(operations)
        if (branch := branch_of(op)) is not None and branch.condition == name
    }
    selects = frozenset(
        n
        for n, op in enumerate(operations)
        if op.operation.name == "stablehlo.select" and op.operands[0] == flag and not is_free(op)
    )
    return _Members(operations, branches, selects, frozenset(n for n in branches if is_free(operations[n])))


def _places(members: _Members, reads: Sequence[Sequence[ir.Value]]) -> dict[int, _Place]:
    """The group of each operation that is of one: as late as it can be."""
    known: dict[ir.Value, _Place] = {}
    places: dict[int, _Place] = {}
    for n, op in enumerate(members.operations):
        before = [known[value] for value in reads[n] if value in known]
        if not before and not members.has(n):
            continue
        key = _key(op) if members.has(n) else _GroupKey((), False, None, n)
        place = _Place(key, max((p.level + (p.key != key) for p in before), default=0))
        known.update(dict.fromkeys(op.results, place))
        places[n] = place
    readers: dict[ir.Value, list[_Place]] = {}
    for n in reversed(places):
        key, _ = places[n]
        reading = [place for result in members.operations[n].results for place in readers.get(result, ())]
        if reading and members.has(n) and all(place.key == key for place in reading):
            places[n] = _Place(key, min(place.level for place in reading))
        for value in reads[n]:
            readers.setdefault(value, []).append(places[n])
    return {n: place for n, place in places.items() if members.has(n)}


def _key(op: ir.OpView) -> _GroupKey:
    return _GroupKey(slices_of_op(op) or (), MIRRORED in op.attributes, loop_of_op(op))


class _GroupWriter:
    """Writes one group as one operation.

    Args:
      members: what the condition is asked for.
      condition: what works it out.
      group: the operations of the group, by position.
      readers: the positions of what reads each value.
    """

    def __init__(
        self,
        members: _Members,
        condition: ir.OpView,
        group: Sequence[int],
        readers: Mapping[ir.Value, Sequence[int]],
    ) -> None:
        self.members = members
        self.condition = condition
        self.group = group
        inside = set(group)
        self.outputs: list[tuple[int, ir.Value]] = [
            (n, result)
            for n in group
            for result in members.operations[n].results
            if n in members.selects or not inside.issuperset(readers.get(result, ()))
        ]
        """What the operation gives, each with the position of what makes it now."""
        self.free = {result: n for n in members.free for result in members.operations[n].results}

    def write(self, key: _GroupKey) -> None:
        """Writes the operation in front of the last one of the group, and erases these."""
        last = self.members.operations[self.group[-1]]
        location = last.operation.location
        flag = self.condition.results[0]
        with ir.InsertionPoint(last), location:
            case = on_condition(flag, [value.type for _, value in self.outputs])
        for taken, region in zip((False, True), case.regions, strict=True):
            with ir.InsertionPoint(region.blocks[0]), location:
                stablehlo.ReturnOp(list(self.branch(taken)))
        for op in (case, case.operands[0].owner.opview):
            for name in (SLICE, MIRRORED, LOOP, BRANCH):
                source = last if name != BRANCH else self.condition
                if name in source.attributes:
                    op.attributes[name] = source.attributes[name]
        for (_, old), new in zip(self.outputs, case.results, strict=True):
            old.replace_all_uses_with(new)
        for n in reversed(self.group):
            self.members.operations[n].operation.erase()

    def branch(self, taken: bool) -> Iterator[ir.Value]:
        """Writes one branch at the insertion point; gives what it hands out."""
        mapping: dict[ir.Value, ir.Value] = {}

        def copy(n: int) -> None:
            op = self.members.operations[n]
            for value in captured(op):
                need(value)
            copied = op.operation.clone().opview
            for name in (SLICE, MIRRORED, LOOP, BRANCH, CONDITION):
                if name in copied.attributes:
                    del copied.attributes[name]
            replace_operands(copied, mapping)
            mapping.update(zip(op.results, copied.results, strict=True))

        def need(value: ir.Value) -> None:
            if value in self.free and value not in mapping:
                copy(self.free[value])

        for n in self.group:
            if n not in self.members.selects:
                if self.members.branches[n].taken == taken:
                    copy(n)
                continue
            chosen = self.members.operations[n].operands[1 if taken else 2]
            need(chosen)
            mapping[self.members.operations[n].results[0]] = mapping.get(chosen, chosen)
        for n, value in self.outputs:
            is_other = n not in self.members.selects and self.members.branches[n].taken != taken
            yield zeros_of(value.type) if is_other else mapping[value]


def _drop_conversion(condition: ir.OpView) -> None:
    """Reads a bit in the place of whether the number that it was made is not 0."""
    if condition.operation.name != "stablehlo.compare":
        return
    bit, zero = condition.operands
    number = bit.owner
    is_converted = not isinstance(number, ir.Block) and number.name == "stablehlo.convert"
    if is_converted:
        bit = number.operands[0]
    direction = stablehlo.ComparisonDirectionAttr(condition.attributes["comparison_direction"]).value
    if direction == "NE" and is_zeros(zero) and bit.type == condition.results[0].type:
        condition.results[0].replace_all_uses_with(bit)
        condition.operation.erase()
        if is_converted and not any(True for _ in number.results[0].uses):
            number.erase()


def _sort(block: ir.Block) -> None:
    """Puts operations after those that they read from, in their order otherwise."""
    *operations, terminator = block.operations
    makers = {result: n for n, op in enumerate(operations) for result in op.results}
    reads = [[makers[value] for value in captured(op) if value in makers] for op in operations]
    for n in depth_first(range(len(operations)), lambda n: reads[n]):
        operations[n].operation.move_before(terminator.operation)
