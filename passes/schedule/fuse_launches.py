"""`pw-fuse-launches`: neighbouring launches of a slice become one where nothing waits longer for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from pathways.dialect import (
    LaunchOp,
    MirrorOp,
    TransferOp,
    argument_attrs,
    ops_named,
    result_attrs,
    set_argument_attrs,
    set_result_attrs,
    symbol_table,
)
from pathways.dialect.shardings import SHARDING
from pathways.passes.base import Pass, fail, main_function, option
from pathways.passes.schedule.order import device_queues
from pathways.passes.util.ir_utils import (
    EXPENSIVE,
    body_block,
    erase_unused_functions,
    finish_function,
    function_of_block,
    inlined,
    nested_ops,
    unique_name,
)


@dataclasses.dataclass(frozen=True)
class FuseLaunches(Pass):
    """Fuses launches that follow each other on a slice into one computation.

    The results of a computation appear when the whole of it ends, so careless fusion serialises a
    pipeline. A and the next launch B of the slice become one only if

    1. no result of A leaves the slice, and
    2. B reads no value from another slice that the slice has not waited for by then.

    Glue is fused with its neighbours; two placed calls of the user only with `user-calls`, or where they are
    the forward and the backward call of one stage and microbatch, as on the last stage of a pipeline. Glue
    that reads nothing but arguments, or what is worked out before a loop begins, and serves one launch (a
    constant, a PRNG key, a block of the batch) becomes part of it; glue that reads nothing at all is first
    repeated for each launch that it serves.
    A launch has the stage and phase of the first placed call in it; where it holds several, `fused` lists
    their phases.

    One thing may join a launch whose results leave: the last launch of a loop on its slice takes the glue
    behind the loop along, when that is cheap (an optimizer's update). What leaves does so a little later, for
    one microbatch; a launch is saved on each slice.

    Requires: launches with `order`, and a block that is sorted by it, from `pw-schedule`.
    Guarantees: the same values; `order` counts the launches and sends that are left.
    """

    name: ClassVar[str] = "pw-fuse-launches"
    user_calls: bool = option(False, "also fuse the user's own placed calls with each other")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        by_slice: dict[str, list[LaunchOp]] = {}
        for op in body_block(main).operations:
            if isinstance(op, LaunchOp):
                if op.order is None:
                    fail(op, "has no `order`; run pw-schedule first")
                by_slice.setdefault(op.slice, []).append(op)
        fuser = _Fuser(module)
        by_slice = {name: list(_with_own_constants(launches)) for name, launches in by_slice.items()}
        for launches in by_slice.values():
            launches.sort(key=lambda op: op.order)
            for cluster in self.clusters(fuser.symbols, *_preparations(launches)):
                if len(cluster) > 1:
                    fuser.fuse(cluster)
        _move_mirrors(main)
        erase_unused_functions(module)
        _renumber(module, main)

    def clusters(
        self,
        symbols: dict[str, ir.OpView],
        launches: list[LaunchOp],
        preparations: dict[ir.Value, list[LaunchOp]],
    ) -> list[list[LaunchOp]]:
        """Splits the launches of a slice into runs that become one launch each."""
        found: list[list[LaunchOp]] = []
        arrived: set[ir.Value] = set()
        head: LaunchOp | None = None
        closed = True
        for launch in launches:
            incoming = {v for v in launch.operands if _is_transfer(v)}
            is_call = launch.phase != "glue"
            joins = incoming <= arrived and not (
                is_call and head is not None and not self.joins(head, launch)
            )
            if closed:
                joins = joins and bool(found) and _ends_loop(found[-1], launch, symbols)
            if not joins:
                found.append([])
                head, closed = None, False
            found[-1] += [*preparations.get(launch.results[0], ()), launch] if launch.results else [launch]
            arrived |= incoming
            head = launch if head is None and is_call else head
            closed = closed or _leaves(launch)
        return found

    def joins(self, head: LaunchOp, call: LaunchOp) -> bool:
        """Whether a placed call may become one with an earlier one."""
        if self.user_calls:
            return True
        is_one_microbatch = head.loop is not None and (head.loop, head.stage, head.microbatch) == (
            call.loop,
            call.stage,
            call.microbatch,
        )
        return is_one_microbatch and head.phase == "fwd" and call.phase == "bwd"


def _leaves(launch: LaunchOp) -> bool:
    """Whether a result of a launch is moved to another slice."""
    return any(isinstance(use.owner, TransferOp) for r in launch.results for use in r.uses)


def _ends_loop(cluster: list[LaunchOp], glue: LaunchOp, symbols: dict[str, ir.OpView]) -> bool:
    """Whether glue is cheap work behind a loop whose last launch is in a cluster."""
    if glue.phase != "glue" or glue.loop is not None or all(op.loop is None for op in cluster):
        return False
    inside = nested_ops(symbols[glue.callee])
    return not any(op.operation.name in EXPENSIVE | {"stablehlo.while", "func.call"} for op in inside)


class _Fuser:
    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.symbols = symbol_table(module)
        self.fused: dict[object, str] = {}

    def fuse(self, cluster: list[LaunchOp]) -> None:
        """Replaces a run of launches by one."""
        inside = {r: n for n, r in enumerate(r for op in cluster for r in op.results)}
        inputs = list(dict.fromkeys(v for op in cluster for v in op.operands if v not in inside))
        position = {v: n for n, v in enumerate(inputs)}
        outputs = [r for r in inside if any(_first_result(use.owner) not in inside for use in r.uses)]
        wiring = (
            tuple(op.callee for op in cluster),
            tuple(
                ("in", position[v]) if v in position else ("out", inside[v])
                for op in cluster
                for v in op.operands
            ),
            tuple(inside[r] for r in outputs),
        )
        head = next((op for op in cluster if op.phase != "glue"), cluster[0])
        if wiring not in self.fused:
            self.fused[wiring] = self.make(cluster, inputs, outputs, f"{head.callee}_fused")
        # What leaves must be there for those who move it.
        place = next((op for op in cluster if _leaves(op)), cluster[-1])
        calls = [phase for op in cluster for phase in op.fused or (op.phase,) if phase not in (None, "glue")]
        launch = LaunchOp.build(
            inputs,
            [r.type for r in outputs],
            **{f: getattr(head, f) for f in LaunchOp.fields() if f not in ("callee", "fused", "order")},
            callee=self.fused[wiring],
            fused=calls if len(calls) > 1 else None,
            order=place.order,
            loc=head.operation.location,
            ip=ir.InsertionPoint(place),
        )
        for old, new in zip(outputs, launch.results, strict=True):
            old.replace_all_uses_with(new)
        for op in reversed(cluster):
            op.operation.erase()

    def make(
        self, cluster: list[LaunchOp], inputs: list[ir.Value], outputs: list[ir.Value], name: str
    ) -> str:
        """Builds the function that does what the launches of a cluster do one after the other."""
        name = unique_name(name, self.symbols)
        location = cluster[0].operation.location
        function, block = function_of_block(self.module, name, [v.type for v in inputs], location)
        mapping = dict(zip(inputs, block.arguments, strict=True))
        shardings: dict[ir.Value, ir.Attribute] = {}
        for op in cluster:
            callee = self.symbols[op.callee]
            with ir.InsertionPoint(block), op.operation.location:
                results = inlined(callee, [mapping[v] for v in op.operands])
            mapping.update(zip(op.results, results, strict=True))
            for values, all_attrs in (
                (op.operands, argument_attrs(callee)),
                (op.results, result_attrs(callee)),
            ):
                pairs = zip(values, all_attrs, strict=True)
                shardings.update((v, attrs[SHARDING]) for v, attrs in pairs if SHARDING in attrs)
            self.constrain(op, block, mapping, shardings)
        finish_function(function, [mapping[v] for v in outputs])
        if shardings:
            for set_attrs, values in ((set_argument_attrs, inputs), (set_result_attrs, outputs)):
                set_attrs(function, [{SHARDING: shardings[v]} if v in shardings else {} for v in values])
        self.symbols[name] = function
        return name

    def constrain(
        self,
        op: LaunchOp,
        block: ir.Block,
        mapping: dict[ir.Value, ir.Value],
        shardings: dict[ir.Value, ir.Attribute],
    ) -> None:
        """Holds the results of an inlined computation to the shardings that were written on them."""
        with ir.InsertionPoint(block), op.operation.location:
            for value in op.results:
                if value in shardings:
                    mapping[value] = sdy.ShardingConstraintOp(mapping[value], shardings[value]).result


def _with_own_constants(launches: Iterable[LaunchOp]) -> Iterator[LaunchOp]:
    """The launches of a slice, with a copy of glue without operands for each launch that reads it."""
    for launch in launches:
        yield launch
        if launch.phase != "glue" or list(launch.operands):
            continue
        readers = {_first_result(use.owner): use.owner for r in launch.results for use in r.uses}
        if None in readers:
            continue
        for reader in list(readers.values())[1:]:
            copy = launch.operation.clone(ir.InsertionPoint(launch)).opview
            for old, new in zip(launch.results, copy.results, strict=True):
                reader.operation.replace_uses_of_with(old, new)
            yield copy


def _preparations(launches: list[LaunchOp]) -> tuple[list[LaunchOp], dict[ir.Value, list[LaunchOp]]]:
    """Splits off glue that only prepares for one launch, by the first result of the launch it serves."""
    rest: list[LaunchOp] = []
    serves: dict[ir.Value, list[LaunchOp]] = {}
    for launch in launches:
        readers = {_first_result(use.owner) for r in launch.results for use in r.uses}
        reader = readers.pop() if len(readers) == 1 else None
        if (
            launch.phase == "glue"
            and reader is not None
            and all(_is_there_before(v, launch) for v in launch.operands)
        ):
            serves.setdefault(reader, []).append(launch)
        else:
            rest.append(launch)
    # What serves a launch that was split off itself goes where that one goes.
    chained = {op.results[0]: op for ops in serves.values() for op in ops}
    for reader in [r for r in serves if r in chained]:
        rest += serves.pop(reader)
    return sorted(rest, key=lambda op: op.order), serves


def _is_there_before(value: ir.Value, launch: LaunchOp) -> bool:
    """Whether nothing has to be waited for to read a value: an argument, or work in front of the loop."""
    if isinstance(value, ir.BlockArgument):
        return True
    producer = value.owner.opview
    return launch.loop is not None and isinstance(producer, LaunchOp) and producer.loop is None


def _first_result(op: ir.OpView) -> ir.Value | None:
    return op.results[0] if isinstance(op, LaunchOp) and op.results else None


def _is_transfer(value: ir.Value) -> bool:
    return not isinstance(value, ir.BlockArgument) and isinstance(value.owner, TransferOp)


def _move_mirrors(main: ir.OpView) -> None:
    """Moves what only the caller reads to the end: behind launches that fusion has delayed."""
    *operations, terminator = body_block(main).operations
    for op in operations:
        if isinstance(op, MirrorOp) and all(use.owner == terminator for use in op.results[0].uses):
            op.operation.move_before(terminator)


def _renumber(module: ir.Module, main: ir.OpView) -> None:
    """Closes the gaps that fusion left in the order of each slice, or of slices that share one."""
    queues = device_queues(module)
    source = {c.sym_name: c.src for c in ops_named(module, ["pw.channel"])}
    members: dict[str, list[ir.OpView]] = {}
    for op in body_block(main).operations:
        match op:
            case LaunchOp():
                members.setdefault(queues[op.slice], []).append(op)
            case TransferOp():
                members.setdefault(queues[source[op.channel]], []).append(op)
    for ops in members.values():
        for n, op in enumerate(sorted(ops, key=lambda op: op.order)):
            op.order = n
