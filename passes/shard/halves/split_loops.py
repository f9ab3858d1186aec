"""Splitting of `stablehlo.while` loops in two: a loop for urgent values, then one for the rest.

    for l: ct, dw[l] = backward(ct, x[l])    ->    for l: ct, kept[l] = input half(ct, x[l])
                                                   for l: dw[l] = weight half(kept[l], x[l])

The first loop carries its values and stacks operands of the second one. The second one carries only the
values that it fills or adds to; where possible it is not a loop: all iterations run at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.passes.analysis.operations import byte_size, captured, captured_by_regions, copy_into, zeros_of
from pathways.passes.analysis.sharding_rules import RuleReader, attach_rules, drop_rules
from pathways.passes.analysis.trip_count import Linear, trip_count_of
from pathways.passes.shard.halves.halves import HalvesRequest, halve
from pathways.passes.shard.halves.loop_batching import Batch, LoopBody, can_be_batched

_WHILE = "stablehlo.while"
_BRANCHES = ("stablehlo.case", "stablehlo.if")

HasEffect = Callable[[ir.OpView], bool]


def needed_values(operations: Sequence[ir.OpView], roots: Iterable[ir.Value]) -> set[ir.Value]:
    """Returns the values that some values of straight-line code are made of, themselves included.

    In a loop only the operations behind its values count.
    """
    needed = set(roots)
    for op in reversed(operations):
        hit = [n for n, r in enumerate(op.results) if r in needed]
        if not hit:
            continue
        if op.operation.name == _WHILE:
            carried = _carried_for(op, hit)
            needed.update(op.operands[n] for n in carried)
            needed.update(captured_by_regions(op))
        else:
            needed.update(captured(op))
    return needed


def _carried_for(loop: ir.OpView, awaited: Iterable[int]) -> set[int]:
    """Returns the positions of the carried values of a loop that some of its results are made of."""
    cond, body = (region.blocks[0] for region in loop.regions)
    *operations, terminator = body.operations
    *tests, test = cond.operations
    carried = {*awaited, *_arguments_in(cond, needed_values(tests, test.operands))}
    # What an iteration reads of the one before may be made of further carried values.
    while True:
        needed = needed_values(operations, [terminator.operands[n] for n in carried])
        more = _arguments_in(body, needed)
        if more <= carried:
            return carried
        carried |= more


def _arguments_in(block: ir.Block, values: Collection[ir.Value]) -> set[int]:
    return {n for n, argument in enumerate(block.arguments) if argument in values}


class LoopSplitter:
    """Splitter of the loops of straight-line code.

    Args:
      has_effect: whether an operation does more than compute.
      repeats: whether cheap operations may be done in both halves.
    """

    def __init__(self, function: ir.OpView, has_effect: HasEffect, repeats: bool) -> None:
        self.function = function
        self.has_effect = has_effect
        self.repeats = repeats
        self.unsplit: dict[str, None] = {}
        """Code that stays in the first half as a whole although it computes more, in words."""

    def split(self, block: ir.Block, urgent: Iterable[ir.Value], costs: Mapping[ir.Value, int]) -> None:
        """Cuts the loops of a block that make some of the values that others wait for, and more.

        Args:
          block: the code.
          urgent: the values that others wait for.
          costs: the bytes of values from outside that only the second half would keep alive.
        """
        operations = list(block.operations)[:-1]
        needed = needed_values(operations, urgent)
        for op in operations:
            awaited = [n for n, r in enumerate(op.results) if r in needed]
            if not 0 < len(awaited) < len(op.results) or self.has_effect(op):
                continue
            if op.operation.name == _WHILE:
                self.split_loop(op, awaited, costs)
            elif op.operation.name in _BRANCHES:
                self.unsplit["a data-dependent branch"] = None

    def split_loop(self, loop: ir.OpView, awaited: Iterable[int], costs: Mapping[ir.Value, int]) -> None:
        """Replaces a loop by two, if there is something for the second one."""
        body = loop.regions[1].blocks[0]
        returned = list(list(body.operations)[-1].operands)
        constant = {n for n, argument in enumerate(body.arguments) if returned[n] == argument}
        trips = trip_count_of(loop)
        counters = set() if trips is None else set(trips.counters)
        urgent = _carried_for(loop, awaited) - constant - counters
        late = [n for n in range(len(returned)) if n not in urgent | constant | counters]
        if not late or not any(any(True for _ in loop.results[n].uses) for n in late):
            return
        counted = {} if trips is None else trips.counters
        iteration = next((n for n, c in counted.items() if (c.factor, c.offset) == (1, 0)), None)
        if trips is None or iteration is None:
            self.unsplit["a loop with an unknown trip count"] = None
            return
        # A constant is kept once for all iterations, anything else once for each.
        per_iteration = {
            argument: -(-_cost(loop.operands[n], costs) // trips.count)
            if n in constant
            else byte_size(argument.type)
            for n, argument in enumerate(body.arguments)
            if n not in counters
        }
        first_returns = [returned[n] for n in sorted(urgent)]
        # Inner loops first: a whole one could only be in one half.
        self.split(body, first_returns, per_iteration)
        roles = _Roles(urgent, trips.counters, constant, late, iteration, trips.count)
        _Pair(self, loop, roles).build(per_iteration)


def _cost(value: ir.Value, costs: Mapping[ir.Value, int]) -> int:
    """Returns the bytes of a value that only the second half would keep alive."""
    return costs.get(value, 0) if isinstance(value, ir.BlockArgument) else byte_size(value.type)


@dataclasses.dataclass(frozen=True)
class _Roles:
    """Roles of the values that a loop carries, by position.

    Attributes:
      urgent: the first loop carries them from iteration to iteration.
      counters: they count iterations, each by a linear function of the iteration.
      constant: they stay the same.
      late: the second loop fills them, or adds to them.
      iteration: one of the counters, the number of the iteration.
      count: the number of iterations.
    """

    urgent: Collection[int]
    counters: Mapping[int, Linear]
    constant: Collection[int]
    late: Sequence[int]
    iteration: int
    count: int


class _Pair:
    """A loop, and the two that take its place."""

    def __init__(self, splitter: LoopSplitter, loop: ir.OpView, roles: _Roles) -> None:
        self.splitter, self.loop, self.roles = splitter, loop, roles
        self.cond, self.body = (region.blocks[0] for region in loop.regions)
        *self.operations, terminator = self.body.operations
        self.returned = list(terminator.operands)

    def build(self, per_iteration: Mapping[ir.Value, int]) -> None:
        """Writes both in front of the old loop, and gives its readers their results."""
        arguments = list(self.body.arguments)
        # Counters are in both: each of the two loops counts its own iterations.
        late_returns = [self.returned[n] for n in (*sorted(self.roles.counters), *self.roles.late)]
        in_first = sorted({*self.roles.urgent, *self.roles.counters})
        halves = halve(
            HalvesRequest(
                self.operations,
                [self.returned[n] for n in in_first],
                late_returns,
                per_iteration,
                self.splitter.has_effect,
                only_second=[arguments[n] for n in self.roles.late],
                ends_second=True,
                repeats=self.splitter.repeats,
            )
        )
        read = {v for op in halves.second for v in captured(op)}
        read.update(late_returns)
        carried = [arguments[n] for n in sorted(self.roles.urgent)]
        stacked = [*(v for v in carried if v in read), *halves.passed]
        body = self.second_body(halves.second, stacked)
        # The order in which the second loop reads most: in a batch other stacks have to be reversed.
        order = body.order()
        with self.loop.operation.location, ir.InsertionPoint(self.loop):
            stacks = [zeros_of(_stack_type(v, self.roles.count)) for v in stacked]

            def fill(mapping: dict[ir.Value, ir.Value], extra: list[ir.Value]) -> list[ir.Value]:
                copy_into(halves.first, mapping)
                place = _place(mapping[arguments[self.roles.iteration]], order)
                return [_put(mapping[v], s, place) for v, s in zip(stacked, extra, strict=True)]

            first = self.emit(in_first, halves.first, stacks, fill)
            for n, result in zip(in_first, first, strict=False):
                self.loop.results[n].replace_all_uses_with(result)
            filled = first[len(in_first) :]

            def use(mapping: dict[ir.Value, ir.Value], extra: list[ir.Value]) -> list[ir.Value]:
                place = _place(mapping[arguments[self.roles.iteration]], order)
                mapping.update((v, _get(s, place, v)) for v, s in zip(stacked, extra, strict=True))
                copy_into(halves.second, mapping)
                return extra

            positions = [*sorted(self.roles.counters), *self.roles.late]
            attach_rules([self.splitter.function])
            is_batched = can_be_batched(body, RuleReader())
            drop_rules(self.splitter.function)
            if is_batched:
                outside = {arguments[n]: self.loop.operands[n] for n in self.roles.constant}
                batch = Batch(body, order, filled, outside)
                positions = list(self.roles.late)
                second = batch.results([self.loop.operands[n] for n in positions])
            else:
                second = self.emit(positions, halves.second, filled, use)
            for n, result in zip(positions, second, strict=False):
                if n in self.roles.late:
                    self.loop.results[n].replace_all_uses_with(result)
        for n in self.roles.constant:
            self.loop.results[n].replace_all_uses_with(self.loop.operands[n])
        self.loop.operation.erase()

    def second_body(self, operations: Sequence[ir.OpView], stacked: Sequence[ir.Value]) -> LoopBody:
        """Returns the body of the second loop."""
        arguments, roles = list(self.body.arguments), self.roles
        return LoopBody(
            operations,
            roles.count,
            {arguments[n]: counter for n, counter in roles.counters.items()},
            frozenset(arguments[n] for n in roles.constant),
            stacked,
            [(arguments[n], self.returned[n]) for n in roles.late],
        )

    def emit(
        self,
        carried: Sequence[int],
        operations: Sequence[ir.OpView],
        extra: Sequence[ir.Value],
        fill: Callable[[dict[ir.Value, ir.Value], list[ir.Value]], list[ir.Value]],
    ) -> list[ir.Value]:
        """Writes a loop.

        Args:
          carried: the positions of the values of the old loop that it carries on.
          extra: more values that it carries.
          fill: writes an iteration; from the values of the old loop and the extra values it returns
            the extra values of the next iteration.

        Returns:
          Its results for the positions, then the extra values.
        """
        loop = self.loop
        read = {v for op in operations for v in captured(op)} | {self.returned[n] for n in carried}
        tests = list(self.cond.operations)
        read.update(self.body.arguments[n] for n in _arguments_in(self.cond, _reads(tests)))
        positions = [*carried, *(n for n in sorted(self.roles.constant) if self.body.arguments[n] in read)]
        inits = [*(loop.operands[n] for n in positions), *extra]
        types = [v.type for v in inits]
        new = ir.Operation.create(_WHILE, results=types, operands=inits, regions=2)
        for region, old in zip(new.regions, (self.cond, self.body), strict=True):
            block = region.blocks.append(*types)
            values = list(block.arguments)
            mapping = {old.arguments[n]: v for n, v in zip(positions, values, strict=False)}
            with ir.InsertionPoint(block):
                if old == self.cond:
                    copy_into(tests[:-1], mapping)
                    stablehlo.ReturnOp([mapping[v] for v in tests[-1].operands])
                    continue
                added = fill(mapping, values[len(positions) :])
                following = [mapping.get(self.returned[n], self.returned[n]) for n in positions]
                stablehlo.ReturnOp([*following, *added])
        results = list(new.results)
        return [*results[: len(carried)], *results[len(positions) :]]


def _reads(operations: Iterable[ir.OpView]) -> set[ir.Value]:
    return {v for op in operations for v in captured(op)}


def _stack_type(value: ir.Value, count: int) -> ir.Type:
    tensor = ir.RankedTensorType(value.type)
    return ir.RankedTensorType.get([count, *tensor.shape], tensor.element_type)


def _place(iteration: ir.Value, order: Linear) -> ir.Value:
    """Returns the place of an iteration in a stack of some order."""
    if order.factor > 0:
        return iteration
    last = ir.DenseElementsAttr.get_splat(
        iteration.type, ir.IntegerAttr.get(iteration.type.element_type, order.offset)
    )
    return stablehlo.subtract(stablehlo.constant(last), iteration)


def _starts(iteration: ir.Value, rank: int) -> list[ir.Value]:
    zero = zeros_of(iteration.type)
    return [iteration, *[zero] * rank]


def _put(value: ir.Value, stack: ir.Value, iteration: ir.Value) -> ir.Value:
    """Writes a value to the place of an iteration in a stack."""
    row = stablehlo.reshape(_stack_type(value, 1), value)
    return stablehlo.dynamic_update_slice(
        stack, row, _starts(iteration, ir.RankedTensorType(value.type).rank)
    )


def _get(stack: ir.Value, iteration: ir.Value, like: ir.Value) -> ir.Value:
    """Reads the value of an iteration from a stack."""
    shape = ir.RankedTensorType(like.type).shape
    row = stablehlo.dynamic_slice(stack, _starts(iteration, len(shape)), [1, *shape])
    return stablehlo.reshape(like.type, row)
