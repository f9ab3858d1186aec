"""Computations of placed calls that are done on a condition: they are launched always, and may do nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from pathways.dialect import loop_of_op, set_loop
from pathways.passes.analysis.functions import body_block, inlined
from pathways.passes.analysis.operations import is_zeros, replace, zeros_of
from pathways.passes.import_.branches.tags import Branch, branch_of, conditions


class Predicates:
    """Predicates of branches, including outer branches, as values of `@main`.

    Args:
      conditions: the operation that computes each condition.
    """

    def __init__(self, conditions: Mapping[str, ir.OpView]) -> None:
        self._conditions = conditions
        self._predicates: dict[Branch, ir.Value] = {}

    def of(self, branch: Branch) -> ir.Value:
        """Returns a value that is true where a branch is taken, built right after its condition."""
        if branch not in self._predicates:
            self._predicates[branch] = self._make(branch)
        return self._predicates[branch]

    def _make(self, branch: Branch) -> ir.Value:
        condition = self._conditions[branch.condition]
        around = branch_of(condition)
        outer = None if around is None else self.of(around)
        value: ir.Value = condition.results[0]
        built: list[ir.Value] = []
        following = ir.InsertionPoint.after(condition)
        with following, condition.operation.location:
            if not branch.on_true:
                value = stablehlo.not_(value)
                built.append(value)
            if outer is not None:
                # The inner condition is always computed, and may hold where the outer branch is not taken.
                value = stablehlo.and_(outer, value)
                built.append(value)
            for op in built:
                set_loop(op.owner.opview, loop_of_op(condition))
        return value


def drop_selections(main: ir.OpView) -> Mapping[ir.Value, int]:
    """Replaces selections between the result of a placed call of a branch and another value by the result.

    Where the branch is not taken, such a call returns the other value already: zeros, or one of its operands.
    This saves a launch and a copy.

    Returns:
      The numbers of the operands that results of calls are equal to where their branch is not taken; all
      other results are zeros there.
    """
    conditions_by_name = conditions(main)
    by_flag = {condition.results[0]: name for name, condition in conditions_by_name.items()}
    untaken = _UntakenResults(conditions_by_name)
    for op in list(body_block(main).operations):
        if op.operation.name != "stablehlo.select" or op.operands[0] not in by_flag:
            continue
        _, on_true, on_false = op.operands
        for holds, value, other in ((True, on_true, on_false), (False, on_false, on_true)):
            if untaken.choose(value, other, Branch(by_flag[op.operands[0]], holds)):
                replace(op, [value])
                break
    return untaken.handed_on


class _UntakenResults:
    """Results of placed calls where their branch is not taken.

    Args:
      known: the operation that computes each condition.
    """

    def __init__(self, conditions_by_name: Mapping[str, ir.OpView]) -> None:
        self._conditions = conditions_by_name
        self._zeros: set[ir.Value] = set()
        self.handed_on: dict[ir.Value, int] = {}
        """The numbers of the operands that are results there; see `drop_selections`."""

    def choose(self, value: ir.Value, other: ir.Value, around: Branch) -> bool:
        """Lets a call give another value where a branch around it is not taken; returns whether it can."""
        # A result has one value where its branch is not taken: the choice of an earlier selection stays.
        if is_zeros(other) and value not in self.handed_on:
            if around not in _branches_of_call(value, self._conditions):
                return False
            self._zeros.add(value)
            return True
        # Written only when complete: half of a path would change the operands of other readers.
        path = self._path(value, other, around, set())
        if path is None:
            return False
        self.handed_on.update(path)
        return True

    def _path(
        self, value: ir.Value, other: ir.Value, around: Branch, seen: set[ir.Value]
    ) -> dict[ir.Value, int] | None:
        """Returns the operands that calls of a branch hand on for one to give another value, or None."""
        if value in seen or value in self._zeros or around not in _branches_of_call(value, self._conditions):
            return None
        seen.add(value)
        operands = list(value.owner.operands)
        chosen = self.handed_on.get(value)
        # The operand may itself come from a call of the branch, which has to hand on the value in turn.
        for number in range(len(operands)) if chosen is None else (chosen,):
            if operands[number].type != value.type:
                continue
            rest = {} if operands[number] == other else self._path(operands[number], other, around, seen)
            if rest is not None:
                return {value: number, **rest}
        return None


def _branches_of_call(value: ir.Value, conditions_by_name: Mapping[str, ir.OpView]) -> Iterator[Branch]:
    """Yields the branches, from the inside to the outside, of the placed call that makes a value."""
    maker = value.owner
    if isinstance(maker, ir.Block) or maker.name != "func.call":
        return
    branch = branch_of(maker.opview)
    while branch is not None:
        yield branch
        branch = branch_of(conditions_by_name[branch.condition])


def make_predicated(function: ir.OpView, name: str, handed_on: Sequence[int | None]) -> None:
    """Creates a computation that calls a function if its first argument is true.

    Args:
      handed_on: for each result the argument of the function to return otherwise; None for zeros.
    """
    types, results = list(function.type.inputs), list(function.type.results)
    location = function.operation.location
    with ir.InsertionPoint(function), location:
        flag = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
        computation = func.FuncOp(name, ir.FunctionType.get([flag, *types], results), visibility="private")
        block = computation.add_entry_block()
    with ir.InsertionPoint(block), location:
        flag_argument, *arguments = block.arguments
        case = on_condition(flag_argument, results)
        func.ReturnOp(case.results)
    otherwise, body = (region.blocks[0] for region in case.regions)
    with ir.InsertionPoint(otherwise), location:
        stablehlo.ReturnOp(
            [
                zeros_of(type_) if number is None else arguments[number]
                for type_, number in zip(results, handed_on, strict=True)
            ]
        )
    with ir.InsertionPoint(body), location:
        stablehlo.ReturnOp(inlined(function, arguments))


def on_condition(condition: ir.Value, results: Collection[ir.Type]) -> ir.OpView:
    """Builds an operation with an empty branch for False, then one for True, at the insertion point."""
    number = stablehlo.convert(ir.RankedTensorType.get([], ir.IntegerType.get_signless(32)), condition)
    case = stablehlo.CaseOp(list(results), number, 2)
    for region in case.regions:
        region.blocks.append()
    return case
