"""Loops of JAX over several slices: a `stablehlo.while` with a known trip count becomes a `pw.loop`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import CarryOp, IndexOp, LoopOp, NextOp, PwOp, ReduceOp, SplitOp, UntilOp, set_loop
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import captured, has_side_effect, integer, replace
from pathways.passes.analysis.trip_count import Linear, TripCount, linear
from pathways.passes.import_.branches.tags import branch_of, conditions


class OpenedLoop:
    """Loop of `@main`, a `stablehlo.while` whose body is moved in front of it, calls inlined.

    First `move` replaces the arguments of the body: counters by the `pw.index`, values that stay the same by
    their initial values, and all others by a `pw.carry`. Then `close` finds the arrays
    that the body works through row by row (`xs` of `jax.lax.scan`), which it splits, and the arrays that it
    fills row by row (`ys`), which it concatenates; all other carried values are passed on.

    Args:
      op: the operation.
      loop: the loop that takes its place.
    """

    def __init__(self, op: ir.OpView, trips: TripCount, loop: LoopOp) -> None:
        self.op = op
        self.trips = trips
        self.loop = loop
        self.location = op.operation.location
        self.carries: dict[int, CarryOp] = {}
        self.body = op.regions[1].blocks[0]
        ip = ir.InsertionPoint(op)
        with self.location:
            i32 = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        self.index = IndexOp.build([], [i32], loop=loop.sym_name, loc=self.location, ip=ip)
        """Index of the iteration; the operation is in front of the body."""

    def move(self) -> list[ir.OpView]:
        """Moves the body; returns the operations that are in `@main` now."""
        *operations, terminator = self.body.operations
        for n, (argument, init) in enumerate(zip(self.body.arguments, self.op.operands, strict=True)):
            if terminator.operands[n] == argument:
                now = init
            elif n in self.trips.counters:
                now = self.counted(self.trips.counters[n], init.type)
            else:
                ip = ir.InsertionPoint(self.op)
                self.carries[n] = CarryOp.build(
                    [init], [init.type], loop=self.loop.sym_name, loc=self.location, ip=ip
                )
                now = self.carries[n].results[0]
            argument.replace_all_uses_with(now)
        for op in operations:
            op.operation.move_before(self.op.operation)
        return [*self.carries.values(), *operations]

    def counted(self, counter: Linear, type_: ir.Type) -> ir.Value:
        """Returns a counter in the current iteration."""
        with ir.InsertionPoint(self.op), self.location:
            value = self.index.results[0]
            if value.type != type_:
                value = stablehlo.convert(type_, value)
            if counter.factor != 1:
                value = stablehlo.multiply(value, integer(counter.factor, type_))
            return value if counter.offset == 0 else stablehlo.add(value, integer(counter.offset, type_))

    def close(self, body: Sequence[ir.OpView], symbols: Mapping[str, ir.OpView]) -> None:
        """Closes the loop around the body that `move` returned, and erases the operation."""
        memo: dict[str, bool] = {}
        for op in body:
            if not isinstance(op, PwOp) and has_side_effect(op, symbols, memo):
                # Its effect occurs in every iteration, also where it reads nothing of the loop.
                set_loop(op, self.loop.sym_name)
        inside = {result for op in body for result in op.results}
        for op in body:
            if op.operation.name == "stablehlo.dynamic_slice" and op.operands[0] not in inside:
                self.split(op)
        following = list(list(self.body.operations)[-1].operands)
        last = list(self.op.operands)
        for n, counter in self.trips.counters.items():
            if n not in self.carries and last[n] != following[n]:
                with ir.InsertionPoint(self.op), self.location:
                    last[n] = integer(counter.offset + counter.factor * self.trips.count, last[n].type)
        for n, carry in self.carries.items():
            last[n] = self.collected(carry, following[n]) or self.handed_on(carry, following[n])
        replace(self.op, last)
        if not any(True for _ in self.index.results[0].uses):
            self.index.operation.erase()

    def blocks(self, start: Sequence[ir.Value], value: ir.Value, block: Sequence[int]) -> Linear | None:
        """Returns the start of blocks of whole rows, by the iteration, if they cover a value; else None."""
        shape = list(ir.RankedTensorType(value.type).shape)
        if not shape or shape[0] != block[0] * self.trips.count or shape[1:] != list(block[1:]):
            return None
        first, *offsets = (linear(number) for number in start)
        if not all(number.is_constant(0) for number in offsets):
            return None
        if first.variable is None or first.variable != self.index.results[0]:
            return None
        # Block `i` begins at row `i * rows`, or counts from the end. Neither is out of range, where a
        # `dynamic_slice` would shift its start.
        forward, backward = (block[0], 0), (-block[0], block[0] * (self.trips.count - 1))
        return first if (first.factor, first.offset) in (forward, backward) else None

    def is_reversed(self, start: Linear, rows: int) -> bool:
        """Returns whether blocks, of a single row each, are taken from the last to the first."""
        return start.factor < 0 and rows == 1

    def split(self, op: ir.OpView) -> None:
        """Replaces a slice at the rows of an iteration by a `pw.split`."""
        value, *start = op.operands
        shape = list(ir.RankedTensorType(op.results[0].type).shape)
        first = self.blocks(start, value, shape)
        # Blocks of several rows would have to be reversed as blocks, not row by row.
        if first is None or (first.factor < 0 and not self.is_reversed(first, shape[0])):
            return
        if first.factor < 0:
            with ir.InsertionPoint(self.index), self.location:
                value = stablehlo.reverse(value, [0])
        split = SplitOp.build(
            [value],
            [op.results[0].type],
            loop=self.loop.sym_name,
            loc=op.operation.location,
            ip=ir.InsertionPoint(op),
        )
        replace(op, split.results)

    def collected(self, carry: CarryOp, following: ir.Value) -> ir.Value | None:
        """Returns the concatenation of the rows that iterations write to an array; None if they do more."""
        value = carry.results[0]
        if isinstance(following, ir.BlockArgument):
            return None
        op = following.owner
        if op.name != "stablehlo.dynamic_update_slice" or op.operands[0] != value:
            return None
        # Any other reader would see an array that is not complete yet.
        if sum(1 for _ in value.uses) > 1 or sum(1 for _ in following.uses) > 1:
            return None
        rows, start = op.operands[1], list(op.operands)[2:]
        shape = list(ir.RankedTensorType(rows.type).shape)
        first = self.blocks(start, value, shape)
        if first is None or (first.factor < 0 and not self.is_reversed(first, shape[0])):
            return None
        concatenation = ReduceOp.build(
            [rows],
            [value.type],
            kind="concat",
            loop=self.loop.sym_name,
            outer=self.loop.parent,
            loc=self.location,
            ip=ir.InsertionPoint(self.op),
        ).results[0]
        # The return of the body, which goes with the loop, is a use that would keep the write from being
        # erased.
        list(self.body.operations)[-1].operands[self._position(carry)] = concatenation
        op.erase()
        carry.operation.erase()
        if first.factor > 0:
            return concatenation
        with ir.InsertionPoint(self.op), self.location:
            return stablehlo.reverse(concatenation, [0])

    def _position(self, carry: CarryOp) -> int:
        return next(n for n, other in self.carries.items() if other is carry)

    def handed_on(self, carry: CarryOp, following: ir.Value) -> ir.Value:
        """Returns the final value of a carried value."""
        return NextOp.build(
            [carry.results[0], following],
            [following.type],
            loop=self.loop.sym_name,
            outer=self.loop.parent,
            loc=self.location,
            ip=ir.InsertionPoint(self.op),
        ).results[0]


def drop_dead_carries(main: ir.OpView, symbols: Mapping[str, ir.OpView]) -> None:
    """Erases carried values that only lead to themselves, and all that only they read."""
    operations = list(body_block(main).operations)
    producer = {result: n for n, op in enumerate(operations) for result in op.results}
    handed_on = {producer[op.operands[0]]: n for n, op in enumerate(operations) if isinstance(op, NextOp)}
    memo: dict[str, bool] = {}
    flags = {name: op.results[0] for name, op in conditions(main).items()}
    pending = [len(operations) - 1]
    pending += [
        n for n, op in enumerate(operations) if isinstance(op, UntilOp) or has_side_effect(op, symbols, memo)
    ]
    live: set[int] = set()
    while pending:
        n = pending.pop()
        if n in live:
            continue
        live.add(n)
        pending += [producer[value] for value in captured(operations[n]) if value in producer]
        if (branch := branch_of(operations[n])) is not None:
            pending.append(producer[flags[branch.condition]])
        if n in handed_on:
            pending.append(handed_on[n])
    # Only carries and their readers: all other dead code is left to `pw-dce`.
    dead: list[int] = []
    values: set[ir.Value] = set()
    for n, op in enumerate(operations):
        branch = branch_of(op)
        # An operation reads the condition of its branch, too.
        read = captured(op) if branch is None else [*captured(op), flags[branch.condition]]
        if n not in live and (n in handed_on or not values.isdisjoint(read)):
            dead.append(n)
            values.update(op.results)
    for n in reversed(dead):
        operations[n].operation.erase()
