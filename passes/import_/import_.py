"""`pw-import`: from the StableHLO that JAX lowers a program to, to launches in `@main`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import ClassVar, NoReturn

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from pathways.dialect import (
    CarryOp,
    LaunchOp,
    LoopOp,
    NextOp,
    Origin,
    PwOp,
    ReduceOp,
    SplitOp,
    argument_attrs,
    loop_of_op,
    make_slices,
    nested_ops,
    op_has,
    set_argument_attrs,
    set_loop,
    symbol_table,
)
from pathways.dialect.attributes.names import (
    ALIASING,
    DONATED,
    DONOR,
    FRONTEND_ATTRIBUTES,
    MOST_MICROBATCHES,
    SLICE,
)
from pathways.dialect.operations.metadata import CallMetadata, Mark, MetadataError
from pathways.dialect.operations.operation import attribute_of
from pathways.dialect.operations.traits import Trait
from pathways.dialect.verification.forms import IMPORTED, TRACED
from pathways.dialect.verification.wellformed import type_problem
from pathways.passes.import_.closures import hoist_constants
from pathways.passes.import_.open_loops import OpenedLoop, drop_dead_carries
from pathways.passes.import_.stage_numbers import PlacedCall, number_stages
from pathways.passes.manager.base import Pass, fail, main_function, option
from pathways.passes.util.functions import (
    body_block,
    erase_unused_functions,
    inline_call,
    referenced_functions,
    rename_references,
    unique_name,
)
from pathways.passes.util.operations import captured
from pathways.passes.util.turns import turns_of


@dataclasses.dataclass(frozen=True)
class Import(Pass):
    """Turns placed calls into launches and inlines everything else that `@main` calls.

    1. Calls without placement that stand in `@main` (jax.numpy helpers, jits of the user that contain
       placed calls) are inlined; each copy of a `pw.accumulate` is a loop of its own. Sharding constraints on
       a mesh without axes, which JAX puts on typed PRNG keys, say nothing and are dropped.
    2. A call with the metadata `pw.slice` becomes a `pw.launch` named by stage and phase; the function
       it calls gets the name of the user's function.
    3. The calls with which `pw.accumulate` marks where a microbatch begins and ends become `pw.split` and
       `pw.reduce`; launches between them name their loop. A reduction of something that is the same for
       every microbatch is ordinary code.
    4. A loop or branch whose body holds placed calls of one slice is placed there as a whole. A loop that
       touches several, or holds a `pw.accumulate`, becomes a sequential `pw.loop` if the number of its turns
       is known; a branch that does is an error. What the turns hand on to each other becomes `pw.carry` and
       `pw.next`, the arrays that `jax.lax.scan` works through and fills row by row `pw.split` and
       `pw.reduce`, and what counts the turns arithmetic on `pw.index`.
    5. An `optimization_barrier` over many values is split into one per value, so that none ties slices
       together; forward launches that read through one are marked `recompute`.
    6. Arrays that the program closes over, above a size, become hidden arguments of `@main`.

    Requires: a public `@main`; `pw.slice` and `pw.loop` ops for all that the metadata names.
    Guarantees: form `imported`; every placed call is a launch, no other call stands in `@main`.
    """

    name: ClassVar[str] = "pw-import"
    takes = (TRACED,)
    leaves = IMPORTED
    max_constant_bytes: int = option(1024, "constants larger than this become hidden arguments")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        importer = _Importer(module, main)
        importer.check_signature()
        importer.drop_empty_constraints()
        importer.inline_calls(main)
        importer.open_loops()
        importer.place_regions()
        # Before loops are known: what is the same for every microbatch is so behind a barrier, too.
        importer.split_barriers()
        importer.mark_loops()
        importer.make_launches()
        importer.drop_barriers()
        number_stages(main, importer.calls, importer.accumulating())
        hoist_constants(module, [call.launch for call in importer.calls], self.max_constant_bytes)
        for name in [n for n in module.operation.attributes if n.startswith("mhlo.")]:
            del module.operation.attributes[name]
        erase_unused_functions(module)
        importer.check_types()


_ORDINARY = CallMetadata()


class _Importer:
    def __init__(self, module: ir.Module, main: ir.OpView) -> None:
        self.module = module
        self.main = main
        self.symbols = symbol_table(module)
        self.flattened: set[str] = set()
        # The function in which the marks of each loop stand.
        self.loop_holders: dict[str, str] = {}
        self.calls: list[PlacedCall] = []
        self.metadata: dict[ir.Attribute, CallMetadata] = {}

    def metadata_of(self, op: ir.OpView) -> CallMetadata:
        """The metadata that JAX attached to a call, read once of each attribute that says it.

        Raises:
          PassFailure: it is none that the front end writes.
        """
        if FRONTEND_ATTRIBUTES not in op.attributes:
            return _ORDINARY
        said = attribute_of(op, FRONTEND_ATTRIBUTES)
        if said is not None and said in self.metadata:
            return self.metadata[said]
        try:
            metadata = CallMetadata.read(op)
        except MetadataError as error:
            fail(op, str(error))
        if said is not None:
            self.metadata[said] = metadata
        return metadata

    def check_signature(self) -> None:
        attrs = argument_attrs(self.main)
        for number, (argument, attributes) in enumerate(zip(self.main.arguments, attrs, strict=True)):
            if not isinstance(argument.type, ir.RankedTensorType):
                fail(
                    self.main,
                    f"argument #{number} is a {argument.type}: ordered side effects "
                    "(ordered=True) cannot be kept in order over several slices",
                )
            for marker in (ALIASING, DONOR):
                if attributes.pop(marker, None) is not None:
                    attributes[DONATED] = ir.UnitAttr.get()
        set_argument_attrs(self.main, attrs)

    def check_types(self) -> None:
        """Checks that all values between launches are arrays, which alone have a place on a slice."""
        fine: set[ir.Type] = set()
        for op in body_block(self.main).operations:
            for result in op.results:
                if result.type in fine:
                    continue
                problem = type_problem(result.type)
                if problem is not None:
                    fail(op, f"makes a {result.type}, {problem}: only arrays can stand between placed calls")
                fine.add(result.type)

    def drop_empty_constraints(self) -> None:
        for function in self.symbols.values():
            for op in list(nested_ops(function)):
                if op.operation.name != "sdy.sharding_constraint":
                    continue
                mesh = sdy.TensorShardingAttr(op.attributes["sharding"]).mesh_or_ref
                if isinstance(mesh, ir.FlatSymbolRefAttr):
                    mesh = self.symbols[mesh.value].attributes["mesh"]
                if not sdy.MeshAttr(mesh).axes:
                    op.results[0].replace_all_uses_with(op.operands[0])
                    op.operation.erase()

    def inline_calls(self, function: ir.OpView) -> None:
        """Inlines the unplaced calls of a function, callees first, so that each body is copied once."""
        self.move_loops(function, function)
        self.inline_block(body_block(function), function)

    def inline_block(self, block: ir.Block, function: ir.OpView) -> None:
        """Inlines the unplaced calls of a block that stands in a function."""
        for op in list(block.operations):
            if op.operation.name != "func.call" or not self.metadata_of(op).is_ordinary:
                continue
            callee = self.symbols[op.attributes["callee"].value]
            name = callee.attributes["sym_name"].value
            if name not in self.flattened:
                self.flattened.add(name)
                self.inline_calls(callee)
            self.move_loops(callee, function)
            inline_call(op, callee)

    def move_loops(self, function: ir.OpView, target: ir.OpView) -> None:
        """Makes the loops of a function those of the one that it is copied to.

        Those that are somewhere else already become other loops: each copy works through a batch of its own.
        JAX makes several functions of one as well, such as one for each choice of results that are needed.
        """
        source, holder = (f.attributes["sym_name"].value for f in (function, target))
        moved: dict[str, str] = {}
        for op in nested_ops(function):
            if op.operation.name != "func.call":
                continue
            metadata = self.metadata_of(op)
            if metadata.loop is None:
                continue
            if metadata.loop not in moved:
                is_here = self.loop_holders.get(metadata.loop, source) == source
                moved[metadata.loop] = metadata.loop if is_here else self.copy_loop(op, metadata)
                self.loop_holders[moved[metadata.loop]] = holder
            dataclasses.replace(metadata, loop=moved[metadata.loop]).write(op)

    def copy_loop(self, call: ir.OpView, metadata: CallMetadata) -> str:
        loop = self.loop_symbol(call, metadata)
        name = unique_name(metadata.name or loop.sym_name, self.symbols)
        copy = loop.operation.clone(ir.InsertionPoint(self.main)).opview
        copy.sym_name = name
        self.symbols[name] = copy
        return name

    def open_loops(self) -> None:
        """Makes loops of what JAX repeats over several slices, outer ones first."""
        opened = False
        pending = _loops_among(body_block(self.main).operations)[::-1]
        while pending:
            op = pending.pop()
            if self.spans_slices(op):
                pending += reversed(self.open_loop(op))
                opened = True
        if opened:
            drop_dead_carries(self.main, self.symbols)

    def spans_slices(self, op: ir.OpView) -> bool:
        """Whether a loop cannot be one computation."""
        if len(self.placements_inside(op, set())) > 1:
            return True
        return any(self.metadata_of(inner).loop is not None for inner in self.calls_inside(op, set()))

    def open_loop(self, op: ir.OpView) -> list[ir.OpView]:
        """Makes a loop of one operation; returns the loops of JAX that its body brings to `@main`."""
        turns = turns_of(op)
        if turns is None:
            fail(
                self.reason_inside(op),
                "is in a loop over several slices whose number of turns is not known while tracing: use "
                "jax.lax.scan, or jax.lax.fori_loop with bounds that are Python numbers",
            )
        if turns.count == 0:
            for old, init in zip(op.results, op.operands, strict=True):
                old.replace_all_uses_with(init)
            op.operation.erase()
            return []
        if turns.count > MOST_MICROBATCHES:
            fail(
                self.reason_inside(op),
                f"is in a loop over several slices that takes {turns.count} turns; such a loop is unrolled "
                f"and takes at most {MOST_MICROBATCHES}",
            )
        name = unique_name("loop", self.symbols)
        loop = LoopOp.build(
            sym_name=name,
            count=turns.count,
            sequential=True,
            parent=loop_of_op(op),
            loc=op.operation.location,
            ip=ir.InsertionPoint(self.main),
        )
        self.symbols[name] = loop
        opened = OpenedLoop(op, turns, loop)
        self.inline_block(opened.body, self.main)
        body = opened.move()
        for inner in body:
            self.enter_loop(inner, loop)
        inner_loops = _loops_among(body)
        opened.close(body, self.symbols)
        return inner_loops

    def enter_loop(self, op: ir.OpView, loop: LoopOp) -> None:
        """Notes that an operation stands in a loop, for the loops that it may be, or be of, itself."""
        if op.operation.name == "stablehlo.while" and self.spans_slices(op):
            set_loop(op, loop.sym_name)
        metadata = self.metadata_of(op)
        if metadata.loop is not None:
            self.loop_symbol(op, metadata).parent = loop.sym_name

    def reason_inside(self, op: ir.OpView) -> ir.OpView:
        """A call that keeps a loop from being one computation."""
        placed = list(self.placements_inside(op, set()).values())
        if len(placed) > 1:
            return placed[1]
        return next(
            inner for inner in self.calls_inside(op, set()) if self.metadata_of(inner).loop is not None
        )

    def place_regions(self) -> None:
        for op in body_block(self.main).operations:
            if op.operation.name == "func.call" or isinstance(op, PwOp):
                continue
            self.refuse_loops_inside(op)
            placed = self.placements_inside(op, set())
            if len(placed) > 1:
                first, second = list(placed.items())[:2]
                fail(
                    second[1],
                    f"is placed on @{second[0]} inside a branch that also holds a call placed on "
                    f"@{first[0]}: what is done on a condition must stay on one slice; use jnp.where on the "
                    "results of both branches",
                )
            for name in placed:
                op.attributes[SLICE] = make_slices((self.slice_symbol(op, name),))

    def placements_inside(self, op: ir.OpView, seen: set[str]) -> dict[str, ir.OpView]:
        """The slices of placed calls inside an operation and the functions it calls, with one call each."""
        placed: dict[str, ir.OpView] = {}
        for inner in self.calls_inside(op, seen):
            name = self.metadata_of(inner).slice
            if name is not None:
                placed.setdefault(name, inner)
        return placed

    def refuse_loops_inside(self, op: ir.OpView) -> None:
        for inner in self.calls_inside(op, set()):
            if self.metadata_of(inner).loop is not None:
                fail(
                    inner,
                    "is part of a pw.accumulate inside a branch (jax.lax.cond, switch); call pw.accumulate "
                    "from the program itself",
                )

    def calls_inside(self, op: ir.OpView, seen: set[str]) -> Iterator[ir.OpView]:
        """All calls inside an operation and the functions that it names."""
        for inner in (op, *nested_ops(op)):
            if inner.operation.name == "func.call":
                yield inner
            for function in referenced_functions(inner, self.symbols):
                callee = function.attributes["sym_name"].value
                if callee not in seen:
                    seen.add(callee)
                    yield from self.calls_inside(function, seen)

    def mark_loops(self) -> None:
        """Turns calls that mark a microbatch into splits and reductions, and notes what is of which loop."""
        reduced: dict[ir.Value, set[str]] = {}
        loops: dict[ir.Value, str] = {}
        """The loop of each value that is of one, as far as operations have been looked at."""
        for op in list(body_block(self.main).operations):
            metadata, reads = self.metadata_of(op), captured(op)
            before: set[str] = set().union(*(reduced[v] for v in reads if v in reduced))
            if metadata.mark is not None:
                op = self.make_mark(op, metadata.mark, self.loop_symbol(op, metadata))
            loop = self.loop_read(op, [loops[value] for value in reads if value in loops])
            if op_has(op, Trait.OPENS_LOOP):
                self.check_begun(op, loop)
                loop = op.loop
            if loop is not None and op.operation.name == "func.return":
                self.fail_outside(op, loop)
            if loop in before:
                fail(
                    op,
                    f"reads a result of pw.accumulate of '{loop}' and a value of one of its microbatches: "
                    "let the function return what is used outside of it",
                )
            if op_has(op, Trait.CLOSES_LOOP):
                self.check_inside(op, op.loop, loop)
                before |= {op.loop}
                if isinstance(op, ReduceOp) and loop != op.loop:
                    constant = self.reduce_constant(op, loop)
                    reduced[constant] = before
                    if loop is not None:
                        loops[constant] = loop
                    continue
            elif loop is not None and not isinstance(op, PwOp):
                set_loop(op, loop)
            if loop is not None:
                own = loop_of_op(op)
                loops.update((result, own) for result in op.results if own is not None)
            if before:
                reduced.update(dict.fromkeys(op.results, before))

    def around(self, loop: str | None) -> list[str]:
        """A loop, and those that it is inside of, innermost first."""
        loops = []
        while loop is not None:
            loops.append(loop)
            loop = self.symbols[loop].parent
        return loops

    def loop_read(self, op: ir.OpView, read: Iterable[str]) -> str | None:
        """The innermost loop that an operation is in, by the loops of what it reads and what it says."""
        loops = dict.fromkeys(read)
        if not isinstance(op, PwOp) and (own := loop_of_op(op)) is not None:
            loops[own] = None
        innermost = max(loops, key=lambda loop: len(self.around(loop)), default=None)
        for loop in loops:
            self.check_inside(op, innermost, loop)
        return innermost

    def check_begun(self, op: ir.OpView, loop: str | None) -> None:
        """Checks that what begins a turn begins it from a value of a loop around, or of none."""
        around = self.around(op.loop)[1:]
        if loop is not None and loop not in around:
            self.refuse_nested(op, op.loop, loop)
            self.fail_outside(op, loop)

    def check_inside(self, op: ir.OpView, inner: str | None, loop: str | None) -> None:
        """Checks that what is in `inner` may read a value of a loop."""
        around = self.around(inner)
        if loop is None or loop in around:
            return
        if inner is not None:
            self.refuse_nested(op, inner, loop)
        # The value of the loop that began first has leaked into the other one.
        begun = (o.loop for o in body_block(self.main).operations if op_has(o, Trait.OPENS_LOOP))
        self.fail_outside(op, next((name for name in begun if name == loop or name in around), loop))

    def refuse_nested(self, op: ir.OpView, inner: str, loop: str) -> None:
        """Refuses loops over slices in loops over microbatches."""
        if self.symbols[inner].sequential and not self.symbols[loop].sequential:
            fail(
                op,
                "is in a loop (jax.lax.scan, fori_loop) over several slices inside the function "
                f"'{loop}' that was given to pw.accumulate: write that loop in Python, or put pw.accumulate "
                "inside of it",
            )

    def fail_outside(self, op: ir.OpView, loop: str) -> NoReturn:
        fail(
            op,
            f"uses a value of a microbatch outside of the function '{loop}' that was given to pw.accumulate: "
            "let the function return it",
        )

    def loop_symbol(self, op: ir.OpView, metadata: CallMetadata) -> LoopOp:
        target = self.symbols.get(metadata.loop or "")
        if not isinstance(target, LoopOp):
            fail(op, f"is of the loop '{metadata.loop}', but the module has no pw.loop of that name")
        return target

    def make_mark(self, call: ir.OpView, mark: Mark, loop: LoopOp) -> PwOp:
        """Replaces a call that begins or ends a microbatch by the operation that does."""
        if len(call.operands) != (2 if mark == "next" else 1) or len(call.results) != 1:
            number = "two operands" if mark == "next" else "one operand"
            fail(call, f"marks where a microbatch begins or ends, but has not {number} and one result")
        value, result = call.operands[0], call.results[0]
        made: type[PwOp]
        attributes: dict[str, str | None] = {} if mark in ("split", "carry") else {"outer": loop.parent}
        match mark:
            case "split":
                made = SplitOp
                self.check_blocks(call, value, result, loop)
            case "carry":
                made = CarryOp
                self.check_types_equal(call, "carries")
            case "next":
                made = NextOp
                self.check_types_equal(call, "hands on")
                source = None if isinstance(value, ir.BlockArgument) else value.owner.opview
                if not isinstance(source, CarryOp) or source.loop != loop.sym_name:
                    fail(call, f"hands on what is not carried by @{loop.sym_name}")
            case "sum" | "concat":
                made, attributes["kind"] = ReduceOp, mark
                if mark == "concat":
                    self.check_blocks(call, result, value, loop)
                else:
                    self.check_types_equal(call, "sums")
        operation = made.build(
            list(call.operands),
            [result.type],
            loop=loop.sym_name,
            **attributes,
            loc=call.operation.location,
            ip=ir.InsertionPoint(call),
        )
        return _replace(call, operation)

    def check_types_equal(self, call: ir.OpView, verb: str) -> None:
        for value in call.operands:
            if value.type != call.results[0].type:
                fail(call, f"{verb} {value.type}, but the result is {call.results[0].type}")

    def check_blocks(self, call: ir.OpView, whole: ir.Value, block: ir.Value, loop: LoopOp) -> None:
        """Checks that microbatches are blocks of the leading dimension; jax.vmap puts another in front."""
        shapes = [
            list(v.type.shape) if isinstance(v.type, ir.RankedTensorType) else [] for v in (whole, block)
        ]
        if not shapes[1] or [shapes[1][0] * loop.count, *shapes[1][1:]] != shapes[0]:
            fail(
                call,
                f"is a pw.accumulate under jax.vmap: apply jax.vmap inside its function '{loop.sym_name}'",
            )

    def reduce_constant(self, op: ReduceOp, loop: str | None) -> ir.Value:
        """Sums or concatenates a value that all microbatches share, and that is itself of `loop` or none."""
        value, count = op.operands[0], self.symbols[op.loop].count
        operations: list[ir.Value] = []
        with ir.InsertionPoint(op), op.operation.location:
            if op.kind == "concat":
                shape = list(ir.RankedTensorType(value.type).shape)
                rows = ir.RankedTensorType.get([count, *shape], value.type.element_type)
                operations.append(stablehlo.broadcast_in_dim(rows, value, range(1, len(shape) + 1)))
                operations.append(stablehlo.reshape(op.results[0].type, operations[0]))
            else:
                whole = value
                for _ in range(count - 1):
                    whole = stablehlo.add(whole, value)
                    operations.append(whole)
        for made in operations:
            set_loop(made.owner.opview, loop)
        whole = operations[-1] if operations else value
        op.results[0].replace_all_uses_with(whole)
        op.operation.erase()
        return whole

    def slice_symbol(self, op: ir.OpView, name: str) -> str:
        target = self.symbols.get(name)
        if target is None or target.operation.name != "pw.slice":
            fail(op, f"is placed on @{name}, but the module has no pw.slice of that name")
        return name

    def make_launches(self) -> None:
        renamed: dict[str, str] = {}
        taken = set(self.symbols)
        for op in list(body_block(self.main).operations):
            if op.operation.name != "func.call":
                continue
            metadata = self.metadata_of(op)
            slice_name = self.slice_symbol(op, metadata.slice or "")
            callee = op.attributes["callee"].value
            if callee not in renamed:
                base = metadata.name or callee
                self.check_nested(op, callee, slice_name, base)
                base = base if metadata.kind == "fwd" else f"{base}_{metadata.kind}"
                renamed[callee] = unique_name(base, taken - {callee})
                taken.add(renamed[callee])
            origin = Origin(metadata.kind, metadata.stage)
            launch = LaunchOp.build(
                list(op.operands),
                [r.type for r in op.results],
                callee=renamed[callee],
                slice=slice_name,
                loop=loop_of_op(op),
                loc=op.operation.location,
                ip=ir.InsertionPoint(op),
            )
            self.calls.append(PlacedCall(launch, metadata.call, origin, metadata.lineage))
            _replace(op, launch)
        self.rename_functions(renamed)
        self.symbols = symbol_table(self.module)

    def check_nested(self, call: ir.OpView, callee: str, slice_name: str, name: str) -> None:
        for other, inner in self.placements_inside(self.symbols[callee], {callee}).items():
            if other != slice_name:
                fail(
                    inner,
                    f"'{self.metadata_of(inner).name or '?'}' is placed on @{other} but called inside "
                    f"'{name}', which is placed on @{slice_name}; call it from the program instead",
                )

    def rename_functions(self, renamed: dict[str, str]) -> None:
        """Gives what launches call its name, in regions and functions too, whose metadata has been read."""
        # Not before all of it was read: functions are shared by regions and by launches of several slices.
        pending = [op for op in body_block(self.main).operations if not isinstance(op, PwOp)]
        pending += [self.symbols[name] for name in renamed]
        seen = set(renamed)
        while pending:
            current = pending.pop()
            for inner in (current, *nested_ops(current)):
                if not len(inner.attributes):
                    continue
                if inner.operation.name == "func.call":
                    CallMetadata().write(inner)
                names = {f.attributes["sym_name"].value for f in referenced_functions(inner, self.symbols)}
                pending += [self.symbols[name] for name in sorted(names - seen)]
                seen |= names
                if not names.isdisjoint(renamed):
                    rename_references(inner, renamed)
        for old, new in renamed.items():
            self.symbols[old].attributes["sym_name"] = ir.StringAttr.get(new)

    def split_barriers(self) -> None:
        for op in list(body_block(self.main).operations):
            if not _is_barrier(op):
                continue
            for source, result in zip(list(op.operands), list(op.results), strict=True):
                with ir.InsertionPoint(op), op.operation.location:
                    single = stablehlo.OptimizationBarrierOp([source])
                result.replace_all_uses_with(single.results[0])
            op.operation.erase()

    def accumulating(self) -> set[str]:
        """The loops over microbatches."""
        return {name for name, op in self.symbols.items() if isinstance(op, LoopOp) and not op.sequential}

    def drop_barriers(self) -> None:
        """Takes barriers from what launches read; those that read behind one repeat what was done before."""
        operations = list(body_block(self.main).operations)
        barriers = {op.results[0]: op for op in operations if _is_barrier(op)}
        through_barrier: set[ir.Value] = set()
        # Launches stand in the order of the calls that they were made of.
        calls = iter(self.calls)
        first: dict[tuple[str, str], PlacedCall] = {}
        for op in operations if barriers else ():
            tainted = any(v in through_barrier for v in op.operands)
            if _is_barrier(op):
                through_barrier.update(op.results)
                continue
            if isinstance(op, LaunchOp):
                # Modules are a barrier already: what a launch reads needs none.
                for number, value in enumerate(list(op.operands)):
                    if value in barriers:
                        op.operands[number] = barriers[value].operands[0]
                call = next(calls)
                # A gradient may read what is repeated without being that itself.
                before = first.setdefault(call.identity, call)
                kind = call.kind
                repeats = kind == "fwd" or (kind == "grad" and before is not call)
                if not repeats:
                    continue
                if tainted:
                    call.set_origin(kind="recompute")
                    if kind == "grad" and before.kind == "bwd":
                        # Nothing differentiated it where it was done first.
                        before.make_gradient()
            if tainted:
                through_barrier.update(op.results)
        for op in barriers.values():
            if not any(True for _ in op.results[0].uses):
                op.operation.erase()


def _is_barrier(op: ir.OpView) -> bool:
    return op.operation.name == "stablehlo.optimization_barrier"


def _loops_among(operations: Iterable[ir.OpView]) -> list[ir.OpView]:
    return [op for op in operations if op.operation.name == "stablehlo.while"]


def _replace[T: ir.OpView](old: ir.OpView, new: T) -> T:
    """Puts one operation in the place of another."""
    for result, replacement in zip(old.results, new.results, strict=True):
        result.replace_all_uses_with(replacement)
    old.operation.erase()
    return new
