"""Does all turns of a loop at once, where no turn waits for another one.

    for l: dw[l] = x[l] . dy[l]          ->    dw = x . dy, with the turns as a dimension of the batch
    for l: sum = sum + x[l] . dy[l]      ->    sum = sum + x . dy, contracted over the turns too

A product over all turns is larger than that of one, needs no slices to be cut and put in place, and no loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.passes.analysis.operations import byte_size, captured, captured_by_regions, copy_into, zeros_of
from pathways.passes.analysis.trip_count import Linear, linear

_ELEMENTWISE = frozenset(
    {
        "chlo.erf",
        "chlo.erfc",
        "chlo.square",
        "stablehlo.abs",
        "stablehlo.add",
        "stablehlo.and",
        "stablehlo.atan2",
        "stablehlo.cbrt",
        "stablehlo.ceil",
        "stablehlo.compare",
        "stablehlo.complex",
        "stablehlo.convert",
        "stablehlo.cosine",
        "stablehlo.divide",
        "stablehlo.exponential",
        "stablehlo.exponential_minus_one",
        "stablehlo.floor",
        "stablehlo.imag",
        "stablehlo.is_finite",
        "stablehlo.log",
        "stablehlo.log_plus_one",
        "stablehlo.logistic",
        "stablehlo.maximum",
        "stablehlo.minimum",
        "stablehlo.multiply",
        "stablehlo.negate",
        "stablehlo.not",
        "stablehlo.optimization_barrier",
        "stablehlo.or",
        "stablehlo.power",
        "stablehlo.real",
        "stablehlo.remainder",
        "stablehlo.round_nearest_afz",
        "stablehlo.round_nearest_even",
        "stablehlo.rsqrt",
        "stablehlo.select",
        "stablehlo.sign",
        "stablehlo.sine",
        "stablehlo.sqrt",
        "stablehlo.subtract",
        "stablehlo.tan",
        "stablehlo.tanh",
        "stablehlo.xor",
    }
)
"""Operations on each element by itself, which are the same with one more dimension."""

_LAYOUT = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"})

_DOT, _REDUCE = "stablehlo.dot_general", "stablehlo.reduce"
_GET, _PUT = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"


@dataclasses.dataclass(frozen=True)
class TurnsOfLoop:
    """The body of a loop with a known number of turns.

    Attributes:
      operations: what it does in each turn, in order.
      count: the number of turns, at least 1.
      counters: values that are a number in each turn, by the number of the turn, from 0.
      constants: values that are the same in all turns.
      stacked: values that are there for each turn.
      sums: for each of its results the value that a turn begins with, and the one with which it ends.
    """

    operations: Sequence[ir.OpView]
    count: int
    counters: Mapping[ir.Value, Linear]
    constants: frozenset[ir.Value]
    stacked: Sequence[ir.Value]
    sums: Sequence[tuple[ir.Value, ir.Value]]

    def place(self, index: ir.Value) -> Linear | None:
        """Where in a stack of all turns each turn reads or writes; None for anything else."""
        found = linear(index)
        counter = None if found.variable is None else self.counters.get(found.variable)
        if counter is None:
            return None
        found = found.of(None, counter.factor, counter.offset)
        return found if found in (self.forwards, self.backwards) else None

    def is_index(self, op: ir.OpView) -> bool:
        """Whether an operation works out an index from the number of the turn."""
        return len(op.results) == 1 and linear(op.results[0]).variable in self.counters

    @property
    def forwards(self) -> Linear:
        """The first turn is at the first place."""
        return Linear(None, 1, 0)

    @property
    def backwards(self) -> Linear:
        """The first turn is at the last place."""
        return Linear(None, -1, self.count - 1)

    def order(self) -> Linear:
        """The most frequent positions of what turns read from stacks and write to them."""
        size = {self.forwards: 0, self.backwards: 0}
        for op in self.operations:
            if op.operation.name in (_GET, _PUT):
                place = self.place(op.operands[2 if op.operation.name == _PUT else 1])
                part = op.operands[1] if op.operation.name == _PUT else op.results[0]
                if place is not None:
                    size[place] += byte_size(part.type)
        return max(size, key=lambda place: size[place])


def can_be_batched(turns: TurnsOfLoop) -> bool:
    """Whether all turns can be done at once, for no more memory than twice that of what they read."""
    by_turn = _values_by_turn(turns)
    if by_turn is None:
        return False
    read = sum(byte_size(v.type) for v in turns.stacked)
    made = {r for op in turns.operations if op.operation.name in _ELEMENTWISE | {_DOT} for r in op.results}
    operands = {
        _behind_layout(v) for op in turns.operations if op.operation.name == _DOT for v in op.operands
    }
    read += sum(byte_size(op.results[0].type) for op in turns.operations if op.operation.name == _GET)
    return sum(byte_size(v.type) for v in operands & made & by_turn) <= read


def _behind_layout(value: ir.Value) -> ir.Value:
    while not isinstance(value, ir.BlockArgument) and value.owner.name in _LAYOUT:
        value = value.owner.operands[0]
    return value


def _values_by_turn(turns: TurnsOfLoop) -> set[ir.Value] | None:
    """The values that differ from turn to turn and can have a dimension of turns; None when some cannot."""
    by_turn = set(turns.stacked)
    same = set(turns.constants)
    ends = {after for _, after in turns.sums}
    for op in turns.operations:
        if not ends.isdisjoint(op.results):
            continue
        values = captured(op)
        if any(v not in by_turn and v not in same for v in values):
            if turns.is_index(op):
                continue
            if not _is_read(op, turns, same):
                return None
            by_turn.update(op.results)
        elif by_turn.isdisjoint(values):
            same.update(op.results)
        elif _has_batched_form(op, by_turn):
            by_turn.update(op.results)
        else:
            return None
    return by_turn if all(_is_sum(*each, turns, by_turn) for each in turns.sums) else None


def _is_read(op: ir.OpView, turns: TurnsOfLoop, same: set[ir.Value]) -> bool:
    """Whether an operation reads what a turn has in a stack."""
    if op.operation.name != _GET or op.operands[0] not in same:
        return False
    return _is_place(op.operands[0], op.results[0], list(op.operands)[1:], turns)


def _is_place(stack: ir.Value, part: ir.Value, starts: Sequence[ir.Value], turns: TurnsOfLoop) -> bool:
    """Whether a part of an array is that of a turn, with one part for each turn."""
    whole, shape = ir.RankedTensorType(stack.type).shape, ir.RankedTensorType(part.type).shape
    if not shape or shape != [1, *whole[1:]] or whole[0] != turns.count or turns.place(starts[0]) is None:
        return False
    # What does not move may not start anywhere but at 0: it would be moved there.
    return all(linear(start).variable is None for start in starts[1:])


def _has_batched_form(op: ir.OpView, by_turn: set[ir.Value]) -> bool:
    name = op.operation.name
    if any(key.startswith("sdy.") for key in op.attributes):
        return False
    if name == _DOT:
        return all(v in by_turn for v in op.operands)
    if name == _REDUCE:
        inits = list(op.operands)[len(op.results) :]
        return not captured_by_regions(op) and by_turn.isdisjoint(inits)
    if name == "stablehlo.select":
        ranks = {ir.RankedTensorType(v.type).rank for v in op.operands}
        return len(ranks) == 1
    return name in _ELEMENTWISE | _LAYOUT


def _is_sum(before: ir.Value, after: ir.Value, turns: TurnsOfLoop, by_turn: set[ir.Value]) -> bool:
    """Whether turns fill an array part by part, or add up what they have."""
    if isinstance(after, ir.BlockArgument) or len(list(before.uses)) != 1 or len(list(after.uses)) != 1:
        return False
    op = after.owner.opview
    if op.operation.name == _PUT:
        stack, part, *starts = op.operands
        return stack == before and part in by_turn and _is_place(stack, part, starts, turns)
    return op.operation.name == "stablehlo.add" and any(
        mine == before and other in by_turn
        for mine, other in (tuple(op.operands), tuple(reversed(list(op.operands))))
    )


class Batch:
    """Writes all turns of a loop, at the insertion point.

    Args:
      turns: the loop, whose turns can be batched.
      order: the position in a stack of what belongs to a turn.
      stacks: for each value of `turns.stacked` its stack.
      constants: for each value of `turns.constants` what it is outside of the loop.
    """

    def __init__(
        self,
        turns: TurnsOfLoop,
        order: Linear,
        stacks: Sequence[ir.Value],
        constants: Mapping[ir.Value, ir.Value],
    ) -> None:
        self.turns, self.order = turns, order
        self.same = dict(constants)
        self.all = dict(zip(turns.stacked, stacks, strict=True))
        """For each value that turns have the values of all turns."""
        self.made = {r for op in turns.operations for r in op.results}

    def results(self, begins: Sequence[ir.Value]) -> list[ir.Value]:
        """What the loop ends with, where it began with some values."""
        needed: set[ir.Value] = set()
        for before, after in self.turns.sums:
            if after.owner.name == _PUT:
                needed.add(after.owner.operands[1])
                continue
            (part,) = (v for v in after.owner.operands if v != before)
            product = self.product_summed(part)
            needed.update([part] if product is None else product.operands)
        operations = []
        for op in reversed(self.turns.operations):
            if not needed.isdisjoint(op.results):
                operations.append(op)
                needed.update([op.operands[0]] if op.operation.name == _GET else captured(op))
        for op in reversed(operations):
            if self.turns.is_index(op):
                continue
            if all(v in self.same for v in captured(op)):
                copy_into([op], self.same)
            else:
                self.write(op)
        return [
            self.sum(before, after.owner.opview, begin)
            for (before, after), begin in zip(self.turns.sums, begins, strict=True)
        ]

    def sum(self, before: ir.Value, op: ir.OpView, begin: ir.Value) -> ir.Value:
        """What turns make of a value that they fill or add to."""
        with op.operation.location:
            if op.operation.name == _PUT:
                filled = stablehlo.reshape(begin.type, self.of(op.operands[1]))
                return self.placed(filled, op.operands[2])
            (part,) = (v for v in op.operands if v != before)
            total = self.total(part)
            pair = [begin, total] if op.operands[0] == before else [total, begin]
            return stablehlo.add(*pair)

    def placed(self, stack: ir.Value, index: ir.Value) -> ir.Value:
        """A stack in the order of the turns as one in that of an index, or the other way round."""
        if self.turns.place(index) == self.order:
            return stack
        return stablehlo.reverse(stack, ir.DenseI64ArrayAttr.get([0]))

    def product_summed(self, value: ir.Value) -> ir.OpView | None:
        """The product that turns add up, perhaps transposed, if nothing else reads it."""
        while not isinstance(value, ir.BlockArgument) and len(list(value.uses)) == 1:
            op = value.owner.opview
            if op.operation.name != "stablehlo.transpose":
                return op if op.operation.name == _DOT and value in self.made else None
            value = op.operands[0]
        return None

    def total(self, value: ir.Value) -> ir.Value:
        """The sum of what all turns have; of a product, the product over them."""
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
        """A value of all turns, with a dimension of turns in front."""
        return self.all[value] if value in self.all else self.spread(value)

    def spread(self, value: ir.Value) -> ir.Value:
        """A value that is the same in all turns."""
        rank = ir.RankedTensorType(value.type).rank
        dimensions = ir.DenseI64ArrayAttr.get(list(range(1, rank + 1)))
        return stablehlo.broadcast_in_dim(self.type(value), self.same[value], dimensions)

    def type(self, value: ir.Value) -> ir.Type:
        tensor = ir.RankedTensorType(value.type)
        return ir.RankedTensorType.get([self.turns.count, *tensor.shape], tensor.element_type)

    def write(self, op: ir.OpView) -> None:
        """Writes an operation for all turns."""
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
        """The same operation with one more dimension in front."""
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
        """A product of all turns: one for each of them, or one contracted over them."""
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
