"""`pw-sum-carries`: carried values that microbatches only add to become sums over replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import AllReduceOp, LaunchOp, NextOp
from pathways.dialect.attributes.shardings import make_sharding
from pathways.dialect.relations.layouts import Layouts
from pathways.dialect.verification.forms import SHARDED
from pathways.passes.analysis.computations import Body, Computations
from pathways.passes.analysis.operations import zeros_of
from pathways.passes.analysis.replicas import ReplicaNumbers, replica_count
from pathways.passes.manager.base import Pass, main_function, remark
from pathways.passes.schedule.replicas.buckets import settled
from pathways.passes.schedule.replicas.linear_carries import is_float, linear_carries


@dataclasses.dataclass(frozen=True)
class SumCarries(Pass):
    """Splits carried values that microbatches only add to, such as running averages, into a sum per replica.

    If a microbatch computes `a c + b` from a carried `c`, with a constant `a` of at most 1 and a `b` that
    does not depend on `c`, and no other value depends on `c`, no replica has to wait for the final value of
    another:

    1. Each replica starts from zeros: the `pw.carry` is `per_replica`.
    2. Its final value is multiplied by `a` to the power of the number of microbatches of all later replicas.
    3. A `pw.all_reduce` sums these values, and the first value is added, times `a` to the power of the
       number of all microbatches.

    Only floats are summed, and their sums may differ by the order of additions. Other carried state is
    unchanged, and `pw-replicate` passes it from replica to replica. A remark states the change.

    ```mlir
    // before
    %0 = pw.carry %arg0 in @batch on @s0
    %5 = pw.next %0, %2#0 in @batch on @s0
    // after
    %1 = pw.launch @"batch/zeros"() on @s0
    %2 = pw.carry %1 in @batch on @s0 {per_replica}
    %7 = pw.next %2, %4#0 in @batch on @s0
    %8 = pw.launch @weighted(%7, %0) on @s0
    %9 = pw.all_reduce %8 on @s0
    %10 = pw.launch @with_first(%arg0, %9) on @s0
    ```

    Requires: shardings decided; replicas that work on consecutive microbatches.
    Guarantees: only the next value depends on a value that is carried `per_replica`.
    """

    name: ClassVar[str] = "pw-sum-carries"
    input_forms = (SHARDED,)

    def run(self, module: ir.Module) -> None:
        count = replica_count(module)
        if count == 1:
            return
        main = main_function(module)
        layouts = Layouts(module)
        summer = _Summer(module, main, layouts, count)
        for op, slope in linear_carries(main, layouts.symbols).items():
            loop = layouts.symbols[op.loop]
            is_apart = loop.sequential or op.carry.per_replica
            # With growing factors, separate sums would lose more digits than a single sum.
            if not is_apart and loop.count % count == 0 and 0 < abs(slope) <= 1 and is_float(op.results[0]):
                with op.operation.location:
                    summer.sum_apart(op, slope, loop.count)


class _Summer:
    def __init__(self, module: ir.Module, main: ir.OpView, layouts: Layouts, count: int) -> None:
        self.main = main
        self.layouts = layouts
        self.computations = Computations(module, layouts.symbols)
        self.count = count
        self.numbers = ReplicaNumbers(main)

    def sum_apart(self, op: NextOp, slope: float, microbatches: int) -> None:
        """Gives each replica a carried value, and sums their final values."""
        carry, (end,), (first,) = op.carry, op.results, op.carry.operands
        remark(
            carry,
            f"of type {end.type} is summed up by each replica apart, and over replicas after @{op.loop}: "
            "nothing waits for the replica before",
        )
        # Collected before new readers exist: the sum over replicas reads the final value itself.
        readers = [(use.owner, use.operand_number) for use in end.uses]
        carry.per_replica = True
        with ir.InsertionPoint(carry):
            carry.operands[0] = self.launch(f"{op.loop}/zeros", [], op, lambda _: [zeros_of(end.type)])
        with ir.InsertionPoint.after(op.operation):
            term = end if slope == 1 else self.weighted(op, slope, microbatches // self.count)
            (total,) = AllReduceOp.build([term], [end.type], slice=op.slice, loop=op.outer).results
            last = self.with_first(op, first, total, slope**microbatches)
        for reader, number in readers:
            reader.operands[number] = last

    def weighted(self, op: NextOp, slope: float, microbatches: int) -> ir.Value:
        """Returns the final value of a replica times the factors of all later replicas."""
        (end,) = op.results
        # After replica r come count - 1 - r replicas, each with as many microbatches.
        weights = [slope ** (microbatches * after) for after in reversed(range(self.count))]
        element = ir.RankedTensorType(end.type).element_type
        table = ir.DenseElementsAttr.get(
            [ir.FloatAttr.get(element, weight) for weight in weights],
            type=ir.RankedTensorType.get([self.count], element),
        )

        def body(arguments: list[ir.Value]) -> list[ir.Value]:
            value, number = arguments
            weight = stablehlo.dynamic_slice(stablehlo.constant(table), [number], [1])
            weight = stablehlo.reshape(ir.RankedTensorType.get([], element), weight)
            return [stablehlo.multiply(value, stablehlo.broadcast_in_dim(value.type, weight, []))]

        return self.launch("weighted", [end, self.numbers.on(op.slice)], op, body, tuple(weights))

    def with_first(self, op: NextOp, first: ir.Value, total: ir.Value, weight: float) -> ir.Value:
        """Returns the sum over replicas plus the weighted first value."""
        element = ir.RankedTensorType(total.type).element_type

        def body(arguments: list[ir.Value]) -> list[ir.Value]:
            # All replicas must round alike, whichever launches are fused with this one.
            value, added = settled(arguments)
            if weight != 1:
                factor = ir.DenseElementsAttr.get_splat(value.type, ir.FloatAttr.get(element, weight))
                value = stablehlo.multiply(value, stablehlo.constant(factor))
            return settled([stablehlo.add(value, added)])

        return self.launch("with_first", [first, total], op, body, weight)

    def launch(
        self, base: str, operands: Sequence[ir.Value], op: NextOp, body: Body, key: object = None
    ) -> ir.Value:
        """Launches a computation around a loop; its result has the type of the carried value."""
        (carried,) = op.carry.results
        *layouts, layout = (self.attribute(value, op.slice) for value in [*operands, carried])
        types = [value.type for value in operands]
        name = self.computations.make(
            base,
            types,
            body,
            op.operation.location,
            arguments=layouts,
            results=layout,
            key=(tuple(types), carried.type, tuple(layouts), layout, key),
        )
        launch = LaunchOp.build(operands, [carried.type], callee=name, slice=op.slice, loop=op.outer)
        return launch.results[0]

    def attribute(self, value: ir.Value, place: str) -> ir.Attribute | None:
        """Returns the attribute of the sharding of a value on a slice."""
        home = self.layouts.meshes[place]
        layout = self.layouts.of(value, place)
        return make_sharding(home.symbol, layout) if home.mesh.size > 1 else None
