"""Batching of loops: all iterations at once, where none waits for another one.

    for l: dw[l] = x[l] . dy[l]          ->    dw = x . dy, with the iterations as a batch dimension
    for l: sum = sum + x[l] . dy[l]      ->    sum = sum + x . dy, contracted over the iterations too

A product over all iterations is larger than that of one, and needs neither slices nor a loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.passes.analysis.operations import byte_size, captured, captured_by_regions, copy_into, zeros_of
from pathways.passes.analysis.sharding_rules import RULE, RuleReader
from pathways.passes.analysis.trip_count import Linear, linear

_LAYOUT = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"})

_DOT, _REDUCE = "stablehlo.dot_general", "stablehlo.reduce"
_GET, _PUT = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"


@dataclasses.dataclass(frozen=True)
class LoopBody:
    """Body of a loop with a known trip count.

    Attributes:
      operations: the operations of an iteration, in order.
      count: the number of iterations, at least 1.
      counters: values that are a number in each iteration, by the index of the iteration, from 0.
      constants: values that are the same in all iterations.
      stacked: values that have one value for each iteration.
      sums: for each of its results the value at the start of an iteration, and the one at its end.
    """

    operations: Sequence[ir.OpView]
    count: int
    counters: Mapping[ir.Value, Linear]
    constants: frozenset[ir.Value]
    stacked: Sequence[ir.Value]
    sums: Sequence[tuple[ir.Value, ir.Value]]

    def place(self, index: ir.Value) -> Linear | None:
        """Returns the place of each iteration in a stack of all of them; None for any other index."""
        row = linear(index)
        counter = None if row.variable is None else self.counters.get(row.variable)
        if counter is None:
            return None
        row = row.of(None, counter.factor, counter.offset)
        return row if row in (self.forwards, self.backwards) else None

    def is_index(self, op: ir.OpView) -> bool:
        """Returns whether an operation computes an index from the number of the iteration."""
        return len(op.results) == 1 and linear(op.results[0]).variable in self.counters

    @property
    def forwards(self) -> Linear:
        """Order of a stack with the first iteration at the first place."""
        return Linear(None, 1, 0)

    @property
    def backwards(self) -> Linear:
        """Order of a stack with the first iteration at the last place."""
        return Linear(None, -1, self.count - 1)

    def order(self) -> Linear:
        """Returns the most frequent order of the stacks that iterations read and write."""
        size = {self.forwards: 0, self.backwards: 0}
        for op in self.operations:
            if op.operation.name in (_GET, _PUT):
                place = self.place(op.operands[2 if op.operation.name == _PUT else 1])
                row = op.operands[1] if op.operation.name == _PUT else op.results[0]
                if place is not None:
                    size[place] += byte_size(row.type)
        return max(size, key=lambda place: size[place])


def can_be_batched(body: LoopBody, rules: RuleReader) -> bool:
    """Returns whether all iterations fit in one, for at most twice the memory of their operands."""
    elementwise = {r for op in body.operations if _is_elementwise(op, rules) for r in op.results}
    varying = _varying_values(body, elementwise)
    if varying is None:
        return False
    read = sum(byte_size(v.type) for v in body.stacked)
    products = [op for op in body.operations if op.operation.name == _DOT]
    computed = elementwise.union(*(op.results for op in products))
    # XLA fuses elementwise work into its readers, but stores operands of products for all iterations at once.
    operands = {_behind_layout(v) for op in products for v in op.operands}
    read += sum(byte_size(op.results[0].type) for op in body.operations if op.operation.name == _GET)
    return sum(byte_size(v.type) for v in operands & computed & varying) <= read


def _behind_layout(value: ir.Value) -> ir.Value:
    while not isinstance(value, ir.BlockArgument) and value.owner.name in _LAYOUT:
        value = value.owner.operands[0]
    return value


def _varying_values(body: LoopBody, elementwise: Collection[ir.Value]) -> set[ir.Value] | None:
    """Returns the values that differ by iteration and can have a dimension for it; None when some cannot."""
    varying = set(body.stacked)
    same = set(body.constants)
    ends = {after for _, after in body.sums}
    for op in body.operations:
        if not ends.isdisjoint(op.results):
            continue
        values = captured(op)
        if any(v not in varying and v not in same for v in values):
            # It reads a counter: all that is left of that in a batch is the order of stacks.
            if body.is_index(op):
                continue
            if not _is_read(op, body, same):
                return None
            varying.update(op.results)
        elif varying.isdisjoint(values):
            same.update(op.results)
        elif not _is_sharded(op) and (op.results[0] in elementwise or _has_batched_form(op, varying)):
            varying.update(op.results)
        else:
            return None
    return varying if all(_is_sum(*each, body, varying) for each in body.sums) else None


def _is_read(op: ir.OpView, body: LoopBody, same: set[ir.Value]) -> bool:
    """Returns whether an operation reads the value of an iteration from a stack."""
    if op.operation.name != _GET or op.operands[0] not in same:
        return False
    return _is_place(op.operands[0], op.results[0], list(op.operands)[1:], body)


def _is_place(stack: ir.Value, row: ir.Value, starts: Sequence[ir.Value], body: LoopBody) -> bool:
    """Returns whether a slice of an array is that of an iteration, with one slice for each."""
    stacked, shape = ir.RankedTensorType(stack.type).shape, ir.RankedTensorType(row.type).shape
    if not shape or shape != [1, *stacked[1:]] or stacked[0] != body.count or body.place(starts[0]) is None:
        return False
    # The row has all of these dimensions, so that StableHLO clamps other constants to 0.
    return all(linear(start).variable is None for start in starts[1:])


def _is_elementwise(op: ir.OpView, rules: RuleReader) -> bool:
    """Returns whether an operation is elementwise, and the same with one more dimension."""
    if op.operation.name == "stablehlo.optimization_barrier":
        return True
    rule = rules.of(op)
    # A slice of all elements is elementwise, too, but its attributes are of each dimension.
    return (
        rule is not None
        and rule.is_elementwise
        and all(dims == rule.results[0] for dims in rule.operands)
        and not op.operation.name.startswith("sdy.")
        and not any(isinstance(op.attributes[name], ir.DenseI64ArrayAttr) for name in op.attributes)
    )


def _is_sharded(op: ir.OpView) -> bool:
    """Returns whether an operation has a sharding."""
    return any(name.startswith("sdy.") and name != RULE for name in op.attributes)


def _has_batched_form(op: ir.OpView, varying: set[ir.Value]) -> bool:
    """Returns whether an operation that is not elementwise can have one more dimension in front."""
    name = op.operation.name
    if name == _DOT:
        return all(v in varying for v in op.operands)
    if name == _REDUCE:
        inits = list(op.operands)[len(op.results) :]
        return not captured_by_regions(op) and varying.isdisjoint(inits)
    return name in _LAYOUT


def _is_sum(before: ir.Value, after: ir.Value, body: LoopBody, varying: set[ir.Value]) -> bool:
    """Returns whether iterations fill an array row by row, or add up a carried value."""
    # In a batch there are no sums of some iterations, so nothing else may read them.
    if isinstance(after, ir.BlockArgument) or len(list(before.uses)) != 1 or len(list(after.uses)) != 1:
        return False
    op = after.owner.opview
    if op.operation.name == _PUT:
        stack, row, *starts = op.operands
        return stack == before and row in varying and _is_place(stack, row, starts, body)
    return op.operation.name == "stablehlo.add" and any(
        mine == before and other in varying
        for mine, other in (tuple(op.operands), tuple(reversed(list(op.operands))))
    )


class Batch:
    """Writer of all iterations of a loop, at the insertion point.

    Args:
      body: the loop, which can be batched.
      order: the place of iterations in stacks.
      stacks: for each value of `body.stacked` its stack.
      constants: for each value of `body.constants` its value outside of the loop.
    """

    def __init__(
        self,
        body: LoopBody,
        order: Linear,
        stacks: Sequence[ir.Value],
        constants: Mapping[ir.Value, ir.Value],
    ) -> None:
        self.body, self.order = body, order
        self.same = dict(constants)
        self.all = dict(zip(body.stacked, stacks, strict=True))
        """For each value of an iteration the values of all iterations."""
        self.computed = {r for op in body.operations for r in op.results}

    def results(self, begins: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns the final values of a loop for its initial values."""
        needed: set[ir.Value] = set()
        for before, after in self.body.sums:
            if after.owner.name == _PUT:
                needed.add(after.owner.operands[1])
                continue
            (row,) = (v for v in after.owner.operands if v != before)
            product = self.product_summed(row)
            # A summed product is contracted over the iterations at the end: its rows are never computed.
            needed.update([row] if product is None else product.operands)
        operations = []
        for op in reversed(self.body.operations):
            if not needed.isdisjoint(op.results):
                operations.append(op)
                # All of a stack is read, so that nothing is left of indices.
                needed.update([op.operands[0]] if op.operation.name == _GET else captured(op))
        for op in reversed(operations):
            if self.body.is_index(op):
                continue
            if all(v in self.same for v in captured(op)):
                copy_into([op], self.same)
            else:
                self.write(op)
        return [
            self.sum(before, after.owner.opview, begin)
            for (before, after), begin in zip(self.body.sums, begins, strict=True)
        ]

    def sum(self, before: ir.Value, op: ir.OpView, begin: ir.Value) -> ir.Value:
        """Returns a value after all iterations have filled it or added to it."""
        with op.operation.location:
            if op.operation.name == _PUT:
                # Every row is written exactly once, so nothing of the initial value is left.
                filled = stablehlo.reshape(begin.type, self.of(op.operands[1]))
                return self.placed(filled, op.operands[2])
            (row,) = (v for v in op.operands if v != before)
            total = self.total(row)
            pair = [begin, total] if op.operands[0] == before else [total, begin]
            return stablehlo.add(*pair)

    def placed(self, stack: ir.Value, index: ir.Value) -> ir.Value:
        """Converts a stack between the order of the iterations and that of an index."""
        if self.body.place(index) == self.order:
            return stack
        return stablehlo.reverse(stack, ir.DenseI64ArrayAttr.get([0]))

    def product_summed(self, value: ir.Value) -> ir.OpView | None:
        """Returns the product that iterations add up, perhaps transposed, if nothing else reads it."""
        while not isinstance(value, ir.BlockArgument) and len(list(value.uses)) == 1:
            op = value.owner.opview
            if op.operation.name != "stablehlo.transpose":
                return op if op.operation.name == _DOT and value in self.computed else None
            value = op.operands[0]
        return None

    def total(self, value: ir.Value) -> ir.Value:
        """Returns the sum over all iterations; for products, one product contracted over them."""
        if self.product_summed(value) is not None:
            op = value.owner.opview
            if op.operation.name == _DOT:
                return self.product(op, contracted=True)
            return stablehlo.transpose(self.total(op.operands[0]), op.attributes["permutation"])
        tensor = ir.RankedTensorType(value.type)
        scalar = ir.RankedTensorType.get([], tensor.element_type)
        reduced = ir.Operation.create(
            _REDUCE,
            results=[value.type],
            operands=[self.of(value), zeros_of(scalar)],
            attributes={"dimensions": ir.DenseI64ArrayAttr.get([0])},
            regions=1,
        )
        block = reduced.regions[0].blocks.append(scalar, scalar)
        with ir.InsertionPoint(block):
            stablehlo.ReturnOp([stablehlo.add(*block.arguments)])
        return reduced.results[0]

    def of(self, value: ir.Value) -> ir.Value:
        """Returns a value of all iterations, which are its first dimension."""
        return self.all[value] if value in self.all else self.spread(value)

    def spread(self, value: ir.Value) -> ir.Value:
        """Repeats a value that is the same in all iterations."""
        rank = ir.RankedTensorType(value.type).rank
        dimensions = ir.DenseI64ArrayAttr.get(list(range(1, rank + 1)))
        return stablehlo.broadcast_in_dim(self.type(value), self.same[value], dimensions)

    def type(self, value: ir.Value) -> ir.Type:
        tensor = ir.RankedTensorType(value.type)
        return ir.RankedTensorType.get([self.body.count, *tensor.shape], tensor.element_type)

    def write(self, op: ir.OpView) -> None:
        """Writes an operation for all iterations."""
        name = op.operation.name
        with op.operation.location:
            if name == _GET:
                stack = self.placed(self.same[op.operands[0]], op.operands[1])
                results = [stablehlo.reshape(self.type(op.results[0]), stack)]
            elif name == _DOT:
                results = [self.product(op, contracted=False)]
            else:
                results = self.copy(op)
        self.all.update(zip(op.results, results, strict=True))

    def copy(self, op: ir.OpView) -> list[ir.Value]:
        """Returns the same operation with one more dimension in front."""
        attributes = {name: op.attributes[name] for name in op.attributes}
        inits = list(op.operands)[len(op.results) :] if op.operation.name == _REDUCE else []
        operands = [self.of(v) for v in list(op.operands)[: len(op.operands) - len(inits)]]
        match op.operation.name:
            case "stablehlo.transpose":
                moved = [0, *(n + 1 for n in op.attributes["permutation"])]
                attributes["permutation"] = ir.DenseI64ArrayAttr.get(moved)
            case "stablehlo.broadcast_in_dim":
                moved = [0, *(n + 1 for n in op.attributes["broadcast_dimensions"])]
                attributes["broadcast_dimensions"] = ir.DenseI64ArrayAttr.get(moved)
            case "stablehlo.reduce":
                moved = [n + 1 for n in op.attributes["dimensions"]]
                attributes["dimensions"] = ir.DenseI64ArrayAttr.get(moved)
        operands += [self.same[v] for v in inits]
        new = ir.Operation.create(
            op.operation.name,
            results=[self.type(r) for r in op.results],
            operands=operands,
            attributes=attributes,
            regions=len(op.regions),
        )
        for old, region in zip(op.regions, new.regions, strict=True):
            block = region.blocks.append(*(a.type for a in old.blocks[0].arguments))
            with ir.InsertionPoint(block):
                copy_into(
                    old.blocks[0].operations, dict(zip(old.blocks[0].arguments, block.arguments, strict=True))
                )
        return list(new.results)

    def product(self, op: ir.OpView, contracted: bool) -> ir.Value:
        """Returns a product for each iteration, or one that is contracted over them."""
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        batch = [] if contracted else [0]
        sum_over = [0] if contracted else []
        attributes = {name: op.attributes[name] for name in op.attributes}
        attributes["dot_dimension_numbers"] = stablehlo.DotDimensionNumbers.get(
            lhs_batching_dimensions=[*batch, *(n + 1 for n in numbers.lhs_batching_dimensions)],
            rhs_batching_dimensions=[*batch, *(n + 1 for n in numbers.rhs_batching_dimensions)],
            lhs_contracting_dimensions=[*sum_over, *(n + 1 for n in numbers.lhs_contracting_dimensions)],
            rhs_contracting_dimensions=[*sum_over, *(n + 1 for n in numbers.rhs_contracting_dimensions)],
        )
        result = op.results[0]
        return ir.Operation.create(
            _DOT,
            results=[result.type if contracted else self.type(result)],
            operands=[self.of(v) for v in op.operands],
            attributes=attributes,
        ).results[0]
