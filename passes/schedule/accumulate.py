"""`pw-accumulate`: sums over microbatches become accumulators that the launches of the loop carry along."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from pathways.dialect import (
    LaunchOp,
    ReduceOp,
    argument_attrs,
    result_attrs,
    set_argument_attrs,
    set_result_attrs,
    symbol_table,
)
from pathways.dialect.shardings import SHARDING
from pathways.passes.base import Pass, fail, main_function
from pathways.passes.util.ir_utils import (
    body_block,
    erase_unused_functions,
    finish_function,
    function_of_block,
    inlined,
    unique_name,
)


@dataclasses.dataclass(frozen=True)
class Accumulate(Pass):
    """Folds sums over microbatches into the launches that make their terms.

    In the order in which the launches run, each but the first takes the sum so far as one more operand and
    returns it with its own term added. The term itself is returned as well only where something else reads
    it. So a sum costs no launch, and one buffer, which `pw-plan-memory` hands from launch to launch.

    Requires: launches with `order`; sums from `pw-unroll-microbatches`.
    Guarantees: no `pw.reduce` is left.
    """

    name: ClassVar[str] = "pw-accumulate"

    def run(self, module: ir.Module) -> None:
        folder = _Folder(module)
        reductions = [op for op in body_block(main_function(module)).operations if isinstance(op, ReduceOp)]
        for group in _sharing_launches(reductions):
            folder.fold(group)
        erase_unused_functions(module)


def _sharing_launches(reductions: Sequence[ReduceOp]) -> list[list[ReduceOp]]:
    """Groups sums whose terms are results of the same launches: these are made anew only once."""
    groups: dict[tuple[ir.Value, ...], list[ReduceOp]] = {}
    for op in reductions:
        producers = [v.owner.opview for v in op.operands]
        if op.kind != "sum" or len(producers) < 2 or not all(isinstance(p, LaunchOp) for p in producers):
            fail(op, "is no sum of launches; run pw-unroll-microbatches first")
        groups.setdefault(tuple(p.results[0] for p in producers), []).append(op)
    return list(groups.values())


Variant = tuple[str, tuple[int, ...], frozenset[int]]
"""A computation, the numbers of its results that are summed, and of those among them that are still read."""


class _Folder:
    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.symbols = symbol_table(module)
        self.variants: dict[Variant, str] = {}

    def fold(self, reductions: Sequence[ReduceOp]) -> None:
        """Replaces sums over the results of the same launches."""
        numbers = tuple(ir.OpResult(op.operands[0]).result_number for op in reductions)
        launches = [v.owner.opview for v in reductions[0].operands]
        for launch in launches:
            if launch.order is None:
                fail(launch, "has no `order`; run pw-schedule first")
        first, *others = sorted(launches, key=lambda op: op.order)
        sums = [first.results[n] for n in numbers]
        replaced = {op.results[0] for op in reductions}
        for launch in others:
            sums = self.add_to(launch, numbers, sums, replaced)
        for op, total in zip(reductions, sums, strict=True):
            op.results[0].replace_all_uses_with(total)
            op.operation.erase()

    def add_to(
        self, launch: LaunchOp, numbers: tuple[int, ...], sums: Sequence[ir.Value], replaced: set[ir.Value]
    ) -> list[ir.Value]:
        """Makes a launch add its terms to the sums so far; returns the new sums."""
        read = frozenset(
            n
            for n in numbers
            for use in launch.results[n].uses
            if not use.owner.results or use.owner.results[0] not in replaced
        )
        places = _places(len(launch.results), numbers, read)
        name = self.variant((launch.callee, numbers, read), places)
        longer = LaunchOp.build(
            [*launch.operands, *sums],
            self.symbols[name].type.results,
            **{f: getattr(launch, f) for f in LaunchOp.fields() if f != "callee"},
            callee=name,
            loc=launch.operation.location,
            ip=ir.InsertionPoint(launch),
        )
        for old, new in zip(launch.results, longer.results, strict=False):
            old.replace_all_uses_with(new)
        launch.operation.erase()
        return [longer.results[place] for place in places]

    def variant(self, key: Variant, places: Sequence[int]) -> str:
        """The computation that takes the sums so far behind its arguments and returns them with its terms."""
        if key not in self.variants:
            self.variants[key] = self.make(key, places)
        return self.variants[key]

    def make(self, key: Variant, places: Sequence[int]) -> str:
        callee, numbers, _ = key
        original = self.symbols[callee]
        inputs, results = list(original.type.inputs), list(original.type.results)
        layouts = [result_attrs(original)[n].get(SHARDING) for n in numbers]
        name = unique_name(f"{callee}_add", self.symbols)
        location = original.operation.location
        types = [*inputs, *(results[n] for n in numbers)]
        function, block = function_of_block(self.module, name, types, location)
        arguments = list(block.arguments)
        with ir.InsertionPoint(block), location:
            returned = inlined(original, arguments[: len(inputs)])
            returned += [None] * (max(places) + 1 - len(returned))
            terms = [returned[n] for n in numbers]
            for place, term, so_far, layout in zip(
                places, terms, arguments[len(inputs) :], layouts, strict=True
            ):
                total = stablehlo.add(so_far, term)
                returned[place] = total if layout is None else sdy.ShardingConstraintOp(total, layout).result
        finish_function(function, returned)
        written = [{} if layout is None else {SHARDING: layout} for layout in layouts]
        set_argument_attrs(function, [*argument_attrs(original), *written])
        attrs = result_attrs(original) + [{}] * (len(returned) - len(results))
        for place, entry in zip(places, written, strict=True):
            attrs[place] = entry
        set_result_attrs(function, attrs)
        self.symbols[name] = function
        return name


def _places(count: int, numbers: Sequence[int], read: frozenset[int]) -> list[int]:
    """The position of each new sum among the results: that of its term, unless the term is still read."""
    places: list[int] = []
    for number in numbers:
        is_free = number not in read and number not in places
        places.append(number if is_free else count + sum(place >= count for place in places))
    return places
