"""`pw-group-branches`: operations on one condition become one `stablehlo.case` for each slice."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import loop_of_op, slices_of_op, symbol_table
from pathways.dialect.attributes.names import BRANCH, CONDITION, LOOP, MIRRORED, SLICE
from pathways.dialect.relations.graphs import depth_first
from pathways.dialect.verification.forms import LOCATED
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import (
    EXPENSIVE,
    captured,
    copy_into,
    has_side_effect,
    is_zeros,
    zeros_of,
)
from pathways.passes.import_.branches.predicated import on_condition
from pathways.passes.import_.branches.tags import Branch, branch_of, conditions, set_branch
from pathways.passes.manager.base import Pass, fail, main_function


@dataclasses.dataclass(frozen=True)
class GroupBranches(Pass):
    """Groups the operations of a branch that are on one slice into one `stablehlo.case`.

    1. The work of both branches on a slice, and the selection from their results, is one operation. It yields
       zeros for values that only one of the branches produces and others read.
    2. If a branch reads a value from another slice midway, the slice has one operation for the work before
       it and one for the work after it.
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
    input_forms = (LOCATED,)

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        conditions_by_name = conditions(main)
        for op in body_block(main).operations:
            branch = branch_of(op)
            if branch is not None and branch.condition not in conditions_by_name:
                fail(op, f"is of the branch '{branch.condition}', but no operation is its `{CONDITION}`")
        symbols, effects = symbol_table(module), dict[str, bool]()

        def is_free(op: ir.OpView) -> bool:
            """Returns whether an operation may be done in any case, and as often as one likes."""
            is_cheap = op.operation.name not in EXPENSIVE and not op.regions
            return MIRRORED in op.attributes and is_cheap and not has_side_effect(op, symbols, effects)

        if not conditions_by_name:
            return
        block = _Operations(main)
        # Inner conditions first: they are operations of the branch around by then.
        for name in reversed(list(conditions_by_name)):
            _group(block, conditions_by_name[name], name, is_free)
        block.sort_main()


class _Operations:
    """The operations of `@main`, by numbers that they keep while others come and go.

    Attributes:
      operations: all of them.
      order: their numbers, each after the numbers of its operands.
      reads: the values that each of them reads; see `captured`.
      readers: the numbers of the readers of a value.
      branches: by the name of a condition the operations of its branches, each with its branch.
    """

    def __init__(self, main: ir.OpView) -> None:
        self.operations: dict[int, ir.OpView] = {}
        self.order: list[int] = []
        self.reads: dict[int, list[ir.Value]] = {}
        self.readers: dict[ir.Value, dict[int, None]] = {}
        self.branches: dict[str, dict[int, Branch]] = {}
        self._numbers = itertools.count()
        self._makers: dict[ir.Value, int] = {}
        for op in body_block(main).operations:
            self.order.append(self.add(op))

    def add(self, op: ir.OpView) -> int:
        """Returns the number of an operation that is new; its place in the order is the caller's business."""
        n = next(self._numbers)
        self.operations[n] = op
        self.reads[n] = list(dict.fromkeys(captured(op)))
        for value in self.reads[n]:
            self.readers.setdefault(value, {})[n] = None
        self._makers.update(dict.fromkeys(op.results, n))
        branch = branch_of(op)
        if branch is not None:
            self.branches.setdefault(branch.condition, {})[n] = branch
        return n

    def erase(self, n: int) -> None:
        """Erases an operation that nothing reads from; its place in the order is the caller's business."""
        op = self.operations.pop(n)
        for value in self.reads.pop(n):
            del self.readers[value][n]
        branch = branch_of(op)
        if branch is not None:
            del self.branches[branch.condition][n]
        for result in op.results:
            del self._makers[result]
            self.readers.pop(result, None)
        op.operation.erase()

    def drop_maker(self, value: ir.Value) -> None:
        """Erases the producer of a value that nothing reads."""
        n = self._makers[value]
        self.order.remove(n)
        self.erase(n)

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Replaces all uses of a value by another one."""
        old.replace_all_uses_with(new)
        for n in self.readers.pop(old, ()):
            values = (new if value == old else value for value in self.reads[n])
            self.reads[n] = list(dict.fromkeys(values))
            self.readers.setdefault(new, {})[n] = None

    def set_branch(self, n: int, branch: Branch | None) -> None:
        """Makes an operation one of another branch than before, or one that is done in any case."""
        op = self.operations[n]
        before = branch_of(op)
        if before is not None:
            del self.branches[before.condition][n]
        if branch is not None:
            self.branches.setdefault(branch.condition, {})[n] = branch
        set_branch(op, branch)

    def maker(self, value: ir.Value) -> int | None:
        """Returns the number of the operation that makes a value; None for an argument."""
        return self._makers.get(value)

    def sort(self, numbers: Sequence[int]) -> list[int]:
        """Sorts numbers of operations: each after its operands, otherwise in their order."""
        among = set(numbers)

        def sources(n: int) -> Iterator[int]:
            makers = (self._makers.get(value) for value in self.reads[n])
            return (maker for maker in makers if maker in among)

        return list(depth_first(numbers, sources))

    def sort_main(self) -> None:
        """Puts the operations into their order in `@main`."""
        *inside, terminator = self.order
        for n in inside:
            self.operations[n].operation.move_before(self.operations[terminator].operation)


class _GroupKey(NamedTuple):
    """Key that the operations of one group share; a number for an operation that is of no group."""

    slices: Sequence[str]
    is_mirrored: bool
    loop: str | None
    number: int | None = None


class _Place(NamedTuple):
    """The group of an operation: its key, and how often a value changes its group on the way to it."""

    key: _GroupKey
    level: int


class _Members(NamedTuple):
    """Operations that depend on a condition, by number.

    Attributes:
      branches: the operations of branches, each with its branch.
      selects: the operations that select from results of the branches.
      free: the operations of a branch that each reader may repeat.
    """

    branches: Mapping[int, Branch]
    selects: frozenset[int]
    free: frozenset[int]

    def has(self, n: int) -> bool:
        """Returns whether an operation is one of a group."""
        return n in self.selects or (n in self.branches and n not in self.free)


def _group(block: _Operations, condition: ir.OpView, name: str, is_free: Callable[[ir.OpView], bool]) -> None:
    """Groups the operations on one condition."""
    members = _read(block, condition, name, is_free)
    positions = [k for k, n in enumerate(block.order) if n in members.branches or n in members.selects]
    first, end = (positions[0], positions[-1] + 1) if positions else (0, 0)
    touched = block.order[first:end]
    groups: dict[_Place, list[int]] = {}
    for n, place in _places(block, members, touched).items():
        groups.setdefault(place, []).append(n)
    written: dict[int, list[int]] = {}
    for place, group in groups.items():
        # Selections alone stay as they are: there is no work to skip.
        if any(n in members.branches for n in group):
            written.update({n: [] for n in group})
            written[group[-1]] = _GroupWriter(block, members, condition, group).write(place.key)
    if written:
        # A group is written where its last member was: readers of earlier members may be in front of it.
        now = [new for n in touched for new in written.get(n, [n])]
        block.order[first:end] = block.sort(now)
    around = branch_of(condition)
    for n in members.free:
        block.set_branch(n, around)
    del condition.attributes[CONDITION]
    _drop_conversion(block, condition)


def _read(
    block: _Operations, condition: ir.OpView, name: str, is_free: Callable[[ir.OpView], bool]
) -> _Members:
    flag = condition.results[0]
    branches = dict(block.branches.get(name, {}))
    selects = frozenset(
        n
        for n in block.readers.get(flag, ())
        if (op := block.operations[n]).operation.name == "stablehlo.select"
        and op.operands[0] == flag
        and not is_free(op)
    )
    return _Members(branches, selects, frozenset(n for n in branches if is_free(block.operations[n])))


def _places(block: _Operations, members: _Members, touched: Sequence[int]) -> dict[int, _Place]:
    """Returns the group of each operation that is of one: as late as it can be.

    Args:
      members: the operations to group.
      touched: the operations between the first and the last of these, in order.
    """
    place_of_value: dict[ir.Value, _Place] = {}
    places: dict[int, _Place] = {}
    for n in touched:
        op = block.operations[n]
        before = [place_of_value[value] for value in block.reads[n] if value in place_of_value]
        if not before and not members.has(n):
            continue
        # An operation without a group has a separate key, so that a path through it raises the level: else
        # a group would have to wait for its own results.
        key = _key(op) if members.has(n) else _GroupKey((), False, None, n)
        place = _Place(key, max((p.level + (p.key != key) for p in before), default=0))
        place_of_value.update(dict.fromkeys(op.results, place))
        places[n] = place
    for n in reversed(places):
        if not members.has(n):
            continue
        key, _ = places[n]
        reading = [
            places.get(reader)
            for result in block.operations[n].results
            for reader in block.readers.get(result, ())
        ]
        # Later, to the first group that reads it, if only groups of its key do: one operation instead of two.
        levels = [place.level for place in reading if place is not None and place.key == key]
        if reading and len(levels) == len(reading):
            places[n] = _Place(key, min(levels))
    return {n: place for n, place in places.items() if members.has(n)}


def _key(op: ir.OpView) -> _GroupKey:
    return _GroupKey(slices_of_op(op) or (), MIRRORED in op.attributes, loop_of_op(op))


class _GroupWriter:
    """Writer of one group as one operation.

    Args:
      members: the operations that depend on the condition.
      condition: the operation that computes it.
      group: the operations of the group, in order.
    """

    def __init__(
        self, block: _Operations, members: _Members, condition: ir.OpView, group: Sequence[int]
    ) -> None:
        self.block = block
        self.members = members
        self.condition = condition
        self.group = group
        inside = set(group)
        self.outputs: list[tuple[int, ir.Value]] = [
            (n, result)
            for n in group
            for result in block.operations[n].results
            if n in members.selects or not inside.issuperset(block.readers.get(result, ()))
        ]
        """The results of the new operation, each with the number of its current producer."""

    def write(self, key: _GroupKey) -> list[int]:
        """Replaces the group by the operation; returns its numbers."""
        last = self.block.operations[self.group[-1]]
        location = last.operation.location
        flag = self.condition.results[0]
        with ir.InsertionPoint(last), location:
            case = on_condition(flag, [value.type for _, value in self.outputs])
        for on_true, region in zip((False, True), case.regions, strict=True):
            with ir.InsertionPoint(region.blocks[0]), location:
                stablehlo.ReturnOp(list(self.branch(on_true)))
        added = [case.operands[0].owner.opview, case]
        for op in added:
            for name in (SLICE, MIRRORED, LOOP, BRANCH):
                # The new operation belongs to the branch around, as the condition does.
                source = last if name != BRANCH else self.condition
                if name in source.attributes:
                    op.attributes[name] = source.attributes[name]
        numbers = [self.block.add(op) for op in added]
        for (_, old), new in zip(self.outputs, case.results, strict=True):
            self.block.replace(old, new)
        for n in reversed(self.group):
            self.block.erase(n)
        return numbers

    def branch(self, on_true: bool) -> Iterator[ir.Value]:
        """Writes one branch at the insertion point; yields its results."""
        mapping: dict[ir.Value, ir.Value] = {}

        def copy(n: int) -> None:
            op = self.block.operations[n]
            for value in self.block.reads[n]:
                need(value)
            copy_into([op], mapping, without=(SLICE, MIRRORED, LOOP, BRANCH, CONDITION))

        def need(value: ir.Value) -> None:
            maker = self.block.maker(value)
            if maker is not None and maker in self.members.free and value not in mapping:
                copy(maker)

        for n in self.group:
            if n not in self.members.selects:
                if self.members.branches[n].on_true == on_true:
                    copy(n)
                continue
            chosen = self.block.operations[n].operands[1 if on_true else 2]
            need(chosen)
            mapping[self.block.operations[n].results[0]] = mapping.get(chosen, chosen)
        for n, value in self.outputs:
            # A value of the other branch: nothing that counts depends on it here, so zeros will do.
            is_other = n not in self.members.selects and self.members.branches[n].on_true != on_true
            yield zeros_of(value.type) if is_other else mapping[value]


def _drop_conversion(block: _Operations, condition: ir.OpView) -> None:
    """Reads a predicate directly instead of comparing the number that it was converted to with 0."""
    if condition.operation.name != "stablehlo.compare":
        return
    # JAX converts a predicate to the number that `stablehlo.case` takes, and `open_branches` compares that
    # with 0.
    number, zero = condition.operands
    bit, converts = number, block.maker(number)
    if converts is not None and block.operations[converts].operation.name == "stablehlo.convert":
        bit = block.operations[converts].operands[0]
    direction = stablehlo.ComparisonDirectionAttr(condition.attributes["comparison_direction"]).value
    flag = condition.results[0]
    if direction == "NE" and is_zeros(zero) and bit.type == flag.type:
        block.replace(flag, bit)
        block.drop_maker(flag)
        if bit != number and not block.readers.get(number):
            block.drop_maker(number)
