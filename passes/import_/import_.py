"""`pw-import`: from the StableHLO that JAX lowers a program to, to launches in `@main`."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import argument_attrs, set_argument_attrs
from pathways.dialect.attributes.names import ALIASING, DONATED, DONOR
from pathways.dialect.verification.forms import IMPORTED, TRACED
from pathways.dialect.verification.wellformed import type_problem
from pathways.passes.analysis.functions import body_block, drop_empty_constraints, erase_unused_functions
from pathways.passes.import_.barriers import drop_barriers, split_barriers
from pathways.passes.import_.closures import hoist_constants
from pathways.passes.import_.exchanges import make_exchanges, place_exchanges
from pathways.passes.import_.inline_calls import Inliner
from pathways.passes.import_.make_launches import make_launches
from pathways.passes.import_.mark_loops import LoopMarker
from pathways.passes.import_.merge_equal import merge_equal
from pathways.passes.import_.regions import open_regions, place_regions
from pathways.passes.import_.stage_numbers import number_stages
from pathways.passes.import_.traced import TracedProgram
from pathways.passes.manager.base import Pass, fail, main_function, option


@dataclasses.dataclass(frozen=True)
class Import(Pass):
    """Turns placed calls into launches and inlines everything else that `@main` calls.

    1. Unplaced calls in `@main` (jax.numpy helpers, the user's own jits that contain
       placed calls) are inlined, and so is a composite (`jax.lax.composite`) with placed calls of several
       slices; each copy of a `pw.accumulate` is a loop of its own. Sharding constraints on
       a mesh without axes, which JAX puts on typed PRNG keys, have no effect and are dropped.
       Equal operations that only read constants and scalar arguments are merged.
    2. A call with the metadata `pw.slice` becomes a `pw.launch` named by stage and phase; the function
       it calls gets the name of the user's function.
    3. The calls with which `pw.accumulate` marks where a microbatch begins and ends become `pw.split` and
       `pw.reduce`; launches between them name their loop. A reduction of something that is the same for
       every microbatch is ordinary code.
    4. An operation whose body holds placed calls of one slice is placed there as a whole. Loops, branches and
       composites may have calls of several slices; a reduction, for example, may not. A loop that
       touches several, or contains a `pw.accumulate`, becomes a sequential `pw.loop` if its trip count
       is known. Carried values become `pw.carry` and
       `pw.next`, the arrays that `jax.lax.scan` consumes and produces row by row `pw.split` and
       `pw.reduce`, and iteration counters arithmetic on `pw.index`.
    5. Branches that hold placed calls of several slices, or neither placed calls nor callbacks, are moved to
       `@main`, each operation marked `pw.branch`, and `stablehlo.select` chooses between their results.
       A placed call is always launched. If its branch is not taken its computation returns zeros,
       or an operand where the other branch hands that on, such as a cache: then nothing has to select.
    6. An `optimization_barrier` over many values is split into one per value, so that none ties slices
       together; forward launches that read through one are marked `recompute`.
    7. A call that exchanges blocks becomes a `pw.all_to_all`, on the slices of its blocks;
       its derivatives are on the same slices.
    8. Arrays that the program closes over, above a size, become hidden arguments of `@main`.

    ```mlir
    // before
    %0 = call @xla_metadata_call(%arg0) {mhlo.frontend_attributes = {pw.call = "0", pw.kind = ...
    %1 = call @xla_metadata_call_0(%arg0, %0) {mhlo.frontend_attributes = {pw.call = "0", pw.kind = ...
    // after
    %0 = pw.launch @square(%arg0) on @s0 [fwd 0]
    %1 = pw.launch @square_bwd(%arg0, %0) on @s0 [bwd 0]
    ```

    Requires: a public `@main`; a `pw.slice` or `pw.loop` op for every slice and loop that the metadata names.
    Guarantees: form `imported`; every placed call is a launch, no other call is in `@main`.
    """

    name: ClassVar[str] = "pw-import"
    input_forms = (TRACED,)
    output_form = IMPORTED
    chunk: int = option(8, "iterations per chunk of a loop over several slices whose end depends on values")
    max_constant_bytes: int = option(1024, "constants larger than this become hidden arguments")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        traced = TracedProgram(module, main)
        _check_signature(main)
        for function in traced.symbols.values():
            drop_empty_constraints(function, traced.symbols)
        inliner = Inliner(traced)
        inliner.inline_calls(main)
        # After inlining, which brings the loops and branches of called functions to `@main`.
        open_regions(traced, inliner, self.chunk)
        merge_equal(body_block(main))
        # After `merge_equal`, which does not look at slices.
        place_regions(traced)
        # Before loops are known: values that all microbatches share stay shared after a barrier.
        split_barriers(main)
        LoopMarker(traced).mark_loops()
        # Before launches, whose results these are not.
        exchanges = make_exchanges(traced)
        calls = make_launches(traced)
        place_exchanges(main, exchanges)
        drop_barriers(main, calls)
        # After barriers have shown which calls are repeated: these have the stage of the first one.
        number_stages(main, calls, traced.loops_over_microbatches())
        # The last to use `calls`: launches that get a hidden argument are built anew.
        hoist_constants(module, [call.launch for call in calls], self.max_constant_bytes)
        for name in [n for n in module.operation.attributes if n.startswith("mhlo.")]:
            del module.operation.attributes[name]
        erase_unused_functions(module)
        _check_types(main)


def _check_signature(main: ir.OpView) -> None:
    attrs = argument_attrs(main)
    for number, (argument, attributes) in enumerate(zip(main.arguments, attrs, strict=True)):
        if str(argument.type) == "!stablehlo.token":
            fail(
                next((use.owner for use in argument.uses), main),
                "has ordered side effects (ordered=True), which cannot be kept in order over several slices",
            )
        if not isinstance(argument.type, ir.RankedTensorType):
            fail(main, f"argument #{number} is a {argument.type}, which is no array")
        for marker in (ALIASING, DONOR):
            if attributes.pop(marker, None) is not None:
                attributes[DONATED] = ir.UnitAttr.get()
    set_argument_attrs(main, attrs)


def _check_types(main: ir.OpView) -> None:
    """Checks that all values between launches are arrays, which alone have a place on a slice."""
    fine: set[ir.Type] = set()
    for op in body_block(main).operations:
        for result in op.results:
            if result.type in fine:
                continue
            problem = type_problem(result.type)
            if problem is not None:
                fail(op, f"makes a {result.type}, {problem}: only arrays can be passed between placed calls")
            fine.add(result.type)
