"""`pw-accumulate`: sums over microbatches become accumulators that the launches of the loop carry along."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from pathways.dialect import LaunchOp, ReduceOp, Trait, argument_attrs, op_has, result_attrs, symbol_table
from pathways.dialect.attributes.names import SHARDING
from pathways.dialect.verification.forms import ORDERED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block, erase_unused_functions, inlined
from pathways.passes.analysis.operations import replace, zeros_of
from pathways.passes.manager.base import Pass, fail, main_function, option
from pathways.passes.schedule.fuse.compile_cost import LARGE, CompileCost
from pathways.passes.schedule.order.positions import renumber


@dataclasses.dataclass(frozen=True)
class Accumulate(Pass):
    """Folds sums over microbatches into the launches that produce their terms.

    In the order in which the launches run, each but the first takes the sum so far as one more operand and
    returns it with its own term added. The term itself is returned as well only where something else reads
    it. So a sum costs no launch, and one buffer, which `pw-plan-memory` passes from launch to launch.

    Where the computation is large, the first takes zeros and is like the others: XLA compiles one version of
    it. The zeros of a slice are one launch, which comes before all others of the loop.

    ```mlir
    // before
    %0 = pw.launch @f(%arg0) on @s0 [bwd 0 #2] in @batch #2 order 0
    %1 = pw.launch @f(%arg0) on @s0 [bwd 0 #1] in @batch #1 order 1
    %2 = pw.launch @f(%arg0) on @s0 [bwd 0 #0] in @batch #0 order 2
    %3 = pw.reduce sum %2, %1, %0 in @batch on @s0
    // after
    %0 = pw.launch @f(%arg0) on @s0 [bwd 0 #2] in @batch #2 order 0
    %1 = pw.launch @f_add(%arg0, %0) on @s0 [bwd 0 #1] in @batch #1 order 1
    %2 = pw.launch @f_add(%arg0, %1) on @s0 [bwd 0 #0] in @batch #0 order 2
    ```

    Requires: launches with `order`; sums from `pw-unroll-microbatches`.
    Guarantees: no `pw.reduce` is left.
    """

    name: ClassVar[str] = "pw-accumulate"
    input_forms = (ORDERED,)
    large: int = option(LARGE, "number of operations from which a computation's sums start from zeros")

    def run(self, module: ir.Module) -> None:
        block = body_block(main_function(module))
        groups = _sharing_launches([op for op in block.operations if isinstance(op, ReduceOp)])
        if not groups:
            return
        folder = _Folder(module)
        launches = [op for op in block.operations if isinstance(op, LaunchOp)]
        large = CompileCost(folder.symbols, self.large).large_among(launches)
        zeros = folder.make_zeros(
            block, [op for group in groups for op in group if _producer(op.operands[0]).callee in large]
        )
        for group in groups:
            folder.fold(group, zeros)
        erase_unused_functions(module)
        renumber(module, block.operations)


def _sharing_launches(reductions: Sequence[ReduceOp]) -> list[list[ReduceOp]]:
    """Groups sums whose terms are results of the same launches: these are rebuilt only once."""
    groups: dict[tuple[ir.Value, ...], list[ReduceOp]] = {}
    for op in reductions:
        producers = [v.owner.opview for v in op.operands if not isinstance(v, ir.BlockArgument)]
        if (
            op.kind != "sum"
            or not 1 < len(producers) == len(op.operands)
            or not all(op_has(p, Trait.EXECUTES) for p in producers)
        ):
            fail(op, "is not a sum of launches, as pw-unroll-microbatches makes them")
        if len({ir.OpResult(value).result_number for value in op.operands}) > 1:
            fail(op, "sums different results of its launches")
        if len(set(op.operands)) < len(op.operands):
            fail(op, "sums one result of a launch twice")
        groups.setdefault(tuple(p.results[0] for p in producers), []).append(op)
    return list(groups.values())


Variant = tuple[str, tuple[int, ...], frozenset[int]]
"""A computation, the numbers of its summed results, and the numbers of summed results that are still read."""


class _Folder:
    def __init__(self, module: ir.Module) -> None:
        self.symbols = symbols = symbol_table(module)
        self.computations = Computations(module, self.symbols)
        self.result_attrs_of = functools.cache(lambda computation: result_attrs(symbols[computation]))
        """Attributes of the results of a computation."""

    def make_zeros(self, block: ir.Block, reductions: Sequence[ReduceOp]) -> dict[ir.Value, ir.Value]:
        """Launches zeros for sums to start from; returns them by the results of the reductions."""
        by_loop: dict[tuple[str, str | None], list[ReduceOp]] = {}
        for op in reductions:
            by_loop.setdefault((op.slice, op.loop), []).append(op)
        first: dict[tuple[str, str | None], LaunchOp] = {}
        for op in block.operations:
            if isinstance(op, LaunchOp):
                first.setdefault((op.slice, op.loop), op)
        zeros: dict[ir.Value, ir.Value] = {}
        for key, ops in by_loop.items():
            launch = self.launch_zeros(ops, first.get(key) or _producer(ops[0].operands[0]))
            zeros.update(zip((op.results[0] for op in ops), launch.results, strict=True))
        return zeros

    def launch_zeros(self, reductions: Sequence[ReduceOp], before: LaunchOp) -> LaunchOp:
        """Launches zeros of the types and shardings of some sums, in front of another launch of the slice."""
        types = [op.results[0].type for op in reductions]
        layouts = [self.layout(op.operands[0]) for op in reductions]

        def body(_: list[ir.Value]) -> list[ir.Value]:
            return [zeros_of(type_) for type_ in types]

        name = self.computations.make(
            f"{reductions[0].loop}/zeros",
            [],
            body,
            reductions[0].operation.location,
            results=layouts,
            key=(tuple(types), tuple(layouts)),
        )
        return LaunchOp.build(
            [],
            types,
            callee=name,
            slice=before.slice,
            # Of two with one number, `renumber` lets the first in the block come first.
            order=before.order,
            loc=reductions[0].operation.location,
            ip=ir.InsertionPoint(before),
        )

    def layout(self, value: ir.Value) -> ir.Attribute | None:
        """Returns the sharding that a computation states for one of its results."""
        return self.result_attrs_of(_producer(value).callee)[ir.OpResult(value).result_number].get(SHARDING)

    def fold(self, reductions: Sequence[ReduceOp], zeros: Mapping[ir.Value, ir.Value]) -> None:
        """Replaces sums over the results of the same launches."""
        numbers = tuple(ir.OpResult(op.operands[0]).result_number for op in reductions)
        launches = [v.owner.opview for v in reductions[0].operands]
        # In the order in which they run: a launch cannot add to a sum of later ones.
        launches.sort(key=lambda op: op.order)
        if reductions[0].results[0] in zeros:
            sums = [zeros[op.results[0]] for op in reductions]
        else:
            first = launches.pop(0)
            sums = [first.results[n] for n in numbers]
        replaced = {op.results[0] for op in reductions}
        for launch in launches:
            sums = self.add_to(launch, numbers, sums, replaced)
        for op, total in zip(reductions, sums, strict=True):
            replace(op, [total])

    def add_to(
        self, launch: LaunchOp, numbers: tuple[int, ...], sums: Sequence[ir.Value], replaced: set[ir.Value]
    ) -> list[ir.Value]:
        """Makes a launch add its terms to the sums so far; returns the new sums."""
        # The sums themselves, which are about to be replaced, are no readers.
        read = frozenset(
            n
            for n in numbers
            for use in launch.results[n].uses
            if not use.owner.results or use.owner.results[0] not in replaced
        )
        places = _places(len(launch.results), numbers, read)
        name = self.variant((launch.callee, numbers, read), places)
        longer = launch.rebuilt([*launch.operands, *sums], self.symbols[name].type.results, callee=name)
        for old, new in zip(launch.results, longer.results, strict=False):
            old.replace_all_uses_with(new)
        launch.operation.erase()
        return [longer.results[place] for place in places]

    def variant(self, key: Variant, places: Sequence[int]) -> str:
        """Returns the computation with the sums so far as last arguments, which adds its terms to them."""
        callee, numbers, _ = key
        original = self.symbols[callee]
        inputs, results = list(original.type.inputs), list(original.type.results)
        argument_layouts = [attrs.get(SHARDING) for attrs in argument_attrs(original)]
        layouts_of_results = [attrs.get(SHARDING) for attrs in result_attrs(original)]
        layouts = [layouts_of_results[n] for n in numbers]

        def body(arguments: list[ir.Value]) -> list[ir.Value]:
            returned = inlined(original, arguments[: len(inputs)])
            # Places after the results, for sums whose terms are still read.
            returned += [None] * (max(places) + 1 - len(returned))
            terms = [returned[n] for n in numbers]
            sums = zip(places, terms, arguments[len(inputs) :], layouts, strict=True)
            for place, term, so_far, layout in sums:
                total = stablehlo.add(so_far, term)
                returned[place] = total if layout is None else sdy.ShardingConstraintOp(total, layout).result
            return returned

        layouts_of_results += [None] * (max(places) + 1 - len(results))
        for place, layout in zip(places, layouts, strict=True):
            layouts_of_results[place] = layout
        return self.computations.make(
            f"{callee}_add",
            [*inputs, *(results[n] for n in numbers)],
            body,
            original.operation.location,
            arguments=[*argument_layouts, *layouts],
            results=layouts_of_results,
            key=key,
        )


def _producer(value: ir.Value) -> LaunchOp:
    return value.owner.opview


def _places(count: int, numbers: Sequence[int], read: frozenset[int]) -> list[int]:
    """Returns the result that each new sum becomes: that of its term, unless the term is still read."""
    places: list[int] = []
    for number in numbers:
        # Several sums may have the same terms: the first one takes their place.
        is_free = number not in read and number not in places
        places.append(number if is_free else count + sum(place >= count for place in places))
    return places
