"""`pw-fuse-launches`: neighbouring launches of a slice become one where nothing waits longer for it."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from pathways.dialect import LaunchOp, Trait, argument_attrs, nested_ops, op_has, result_attrs, symbol_table
from pathways.dialect.attributes.names import SHARDING
from pathways.dialect.verification.forms import ORDERED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block, erase_unused_functions, inlined
from pathways.passes.analysis.operations import EXPENSIVE, byte_size
from pathways.passes.manager.base import Pass, main_function, option
from pathways.passes.schedule.fuse.compile_cost import LARGE, CompileCost
from pathways.passes.schedule.order.positions import renumber

SMALL_BYTES = 1024
"""Values of at most so many bytes cost less than the launch that makes them."""


@dataclasses.dataclass(frozen=True)
class FuseLaunches(Pass):
    """Fuses launches that follow each other on a slice into one computation.

    The results of a computation are ready only when all of it has ended, so careless fusion serialises
    pipeline. A and the next launch B of the slice become one only if

    1. no result of A leaves the slice, and
    2. B reads no value from another slice that the slice has not waited for by then, or A only counts: it is
       glue on values of at most 1 KB, of the loop and microbatch of B, and costs less than a launch.
    3. Between them the slice forwards no received value: an operand of A would be received after it.

    Glue is fused with its neighbours; two placed calls of the user only with `user-calls`, or where they are
    the forward and the backward call of one stage and microbatch, as on the last stage of a pipeline. Glue
    that reads only arguments, or values computed before a loop, and serves one launch (a constant, a PRNG
    key, a block of the batch) becomes part of it; glue without operands is first repeated for each launch
    that it serves. A launch has the origins of all its members, and the loop and microbatch of the first
    placed call among them.

    One launch whose results leave may be fused: the last launch of a loop on its slice also takes the
    glue after the loop, when that is cheap (an optimizer's update). Its results leave a little later, for one
    microbatch; a launch is saved on each slice.

    A large computation that is launched several times, such as a stage of a model, is fused only with glue of
    its own loop and microbatch, so that all its launches run one computation, which is compiled once. Outside
    of loops, such as the update of equal stages, all its launches are fused with equal launches, or none is.

    ```mlir
    // before
    %0 = pw.launch @f(%arg0) on @s0 [fwd 0] order 0
    %1 = pw.launch @glue(%0) on @s0 order 1
    %2 = pw.launch @f(%1) on @s0 [fwd 0] order 2
    // after
    %0 = pw.launch @f_fused(%arg0) on @s0 [fwd 0] order 0
    %1 = pw.launch @f(%0) on @s0 [fwd 0] order 1
    ```

    Requires: launches with `order`, and a block that is sorted by it, from `pw-schedule`.
    Guarantees: the same values; `order` counts the launches and sends that are left.
    """

    name: ClassVar[str] = "pw-fuse-launches"
    input_forms = (ORDERED,)
    user_calls: bool = option(False, "also fuse the user's own placed calls with each other")
    large: int = option(LARGE, "size of a computation from which on all launches run one version")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        fuser = _Fuser(module)
        launches = [op for op in body_block(main).operations if op_has(op, Trait.EXECUTES)]
        # Fusing user calls implies versions of them.
        cost = CompileCost(fuser.symbols, sys.maxsize if self.user_calls else self.large)
        versions = _Versions(cost, launches)
        _give_own_constants(launches, versions)
        by_slice: dict[str, list[_Unfused]] = {}
        for launch in _read_launches(main, fuser.symbols):
            by_slice.setdefault(launch.slice, []).append(launch)
        clusters: list[list[_Unfused]] = []
        for on_slice in by_slice.values():
            on_slice.sort(key=lambda launch: launch.order)
            clusters += self.clusters(fuser.symbols, versions, *_preparations(on_slice, versions))
        for cluster in versions.split_unlike(clusters):
            if len(cluster) > 1:
                fuser.fuse(cluster)
        _move_mirrors(main)
        erase_unused_functions(module)
        renumber(module, body_block(main).operations)

    def clusters(
        self,
        symbols: dict[str, ir.OpView],
        versions: _Versions,
        launches: list[_Unfused],
        preparations: dict[_Unfused, list[_Unfused]],
    ) -> list[list[_Unfused]]:
        """Splits the launches of a slice into runs that become one launch each."""
        runs: list[list[_Unfused]] = []
        arrived: set[ir.Value] = set()
        head: _Unfused | None = None
        closed = True
        for launch in launches:
            is_call = not launch.is_glue
            counts = bool(runs) and all(
                other.only_counts and other.iteration == launch.iteration for other in runs[-1]
            )
            joins = (counts or launch.incoming <= arrived) and not (
                is_call and head is not None and not self.joins(head, launch)
            )
            # Sent values wait for all of their launch, so that only cheap glue after the loop may still join.
            if closed:
                joins = joins and bool(runs) and _ends_loop(runs[-1], launch, symbols)
            piece = [*preparations.get(launch, ()), launch]
            joins = joins and bool(runs) and versions.stay_alike([*runs[-1], *piece])
            joins = joins and launch.sent_on == runs[-1][-1].sent_on
            if not joins:
                runs.append([])
                head, closed = None, False
            runs[-1] += piece
            # The slice runs in order: launches after this one need not wait for these values again.
            arrived |= launch.incoming
            head = launch if head is None and is_call else head
            closed = closed or launch.leaves
        return runs

    def joins(self, head: _Unfused, call: _Unfused) -> bool:
        """Returns whether a placed call may become one with an earlier one."""
        if self.user_calls:
            return True
        first, last = head.op.origins[-1], call.op.origins[0]
        is_one_stage = (first.stage, first.microbatch) == (last.stage, last.microbatch)
        is_in_loop = head.loop is not None and head.loop == call.loop
        # Nothing waits for the weights' half; its readers are delayed.
        is_awaited = last.part != "weight"
        return is_in_loop and is_one_stage and is_awaited and first.is_forward and last.kind == "bwd"


@dataclasses.dataclass(eq=False, slots=True)
class _Unfused:
    """A launch before anything is fused, read once.

    Attributes:
      callee, slice, order, loop, microbatch, is_glue: its attributes.
      incoming: the values among its operands that transfers bring.
      is_ready: whether its operands are ready without a wait: arguments, or values computed before its loop.
      only_counts: whether it is glue of a loop on small values, such as a counter and its comparison.
      sent_on: the number of received values that the slice forwards before.
      leaves: whether a result of it is moved to another slice.
      read_by: the readers of each result: launches, and None for all other readers.
    """

    op: LaunchOp
    callee: str
    slice: str
    order: int
    loop: str | None
    microbatch: int | None
    is_glue: bool
    incoming: set[ir.Value]
    is_ready: bool
    only_counts: bool
    sent_on: int
    leaves: bool
    read_by: list[set[_Unfused | None]]

    @property
    def iteration(self) -> tuple[str | None, int | None]:
        """Loop and microbatch that it works on."""
        return self.loop, self.microbatch

    def only_reader(self) -> _Unfused | None:
        """Returns the launch that alone reads its results; None for another reader, none or several."""
        readers = set[_Unfused | None]().union(*self.read_by)
        return readers.pop() if len(readers) == 1 else None


def _read_launches(main: ir.OpView, symbols: dict[str, ir.OpView]) -> list[_Unfused]:
    """Returns the launches of a program, in their order."""
    launches: list[_Unfused] = []
    moved: set[ir.Value] = set()
    joined: set[ir.Value] = set()
    sent_on: collections.Counter[str] = collections.Counter()
    producers: dict[ir.Value, tuple[_Unfused, set[_Unfused | None]]] = {}
    for op in body_block(main).operations:
        reads = list(op.operands)
        if not op_has(op, Trait.EXECUTES):
            moves = op_has(op, Trait.TRANSFERS)
            is_of_received = any(value in moved or value in joined for value in reads)
            if moves:
                moved.update(op.results)
                sent_on[symbols[op.channel].src] += is_of_received
            elif is_of_received:
                joined.update(op.results)
            for value in reads:
                if value in producers:
                    maker, readers = producers[value]
                    readers.add(None)
                    maker.leaves = maker.leaves or moves
            continue
        loop = op.loop
        launch = _Unfused(
            op,
            op.callee,
            op.slice,
            op.order,
            loop,
            op.microbatch,
            op.is_glue,
            incoming={value for value in reads if value in moved},
            is_ready=True,
            only_counts=loop is not None and op.is_glue and _only_counts(op, symbols),
            sent_on=sent_on[op.slice],
            leaves=False,
            read_by=[],
        )
        for value in reads:
            if value in producers:
                maker, readers = producers[value]
                readers.add(launch)
                launch.is_ready = launch.is_ready and loop is not None and maker.loop is None
            elif not isinstance(value, ir.BlockArgument):
                launch.is_ready = False
        for result in op.results:
            launch.read_by.append(set())
            producers[result] = launch, launch.read_by[-1]
        launches.append(launch)
    return launches


def _ends_loop(cluster: list[_Unfused], glue: _Unfused, symbols: dict[str, ir.OpView]) -> bool:
    """Returns whether glue is cheap work after a loop whose last launch is in a cluster."""
    if not glue.is_glue or glue.loop is not None or all(op.loop is None for op in cluster):
        return False
    return _is_cheap(symbols[glue.callee])


def _only_counts(launch: LaunchOp, symbols: dict[str, ir.OpView]) -> bool:
    """Returns whether glue takes and gives small values, and is cheap."""
    values = (*launch.operands, *launch.results)
    return all(byte_size(v.type) <= SMALL_BYTES for v in values) and _is_cheap(symbols[launch.callee])


def _is_cheap(computation: ir.OpView) -> bool:
    inside = nested_ops(computation)
    return not any(op.operation.name in EXPENSIVE | {"stablehlo.while", "func.call"} for op in inside)


class _Versions:
    """Guard against compiling large computations once for each of their launches.

    Args:
      cost: a classifier of large computations.
      launches: all launches, before any is fused.
    """

    def __init__(self, cost: CompileCost, launches: Sequence[LaunchOp]) -> None:
        self.counts = collections.Counter(op.callee for op in launches)
        self.large = {name for name in cost.large_among(launches) if self.counts[name] > 1}

    def stay_alike(self, cluster: Sequence[_Unfused]) -> bool:
        """Returns whether all launches of the large computations of a cluster can take the same along."""
        if not self.large or not any(launch.callee in self.large for launch in cluster):
            return True
        return len({op.iteration for op in cluster if op.is_glue or op.callee in self.large}) == 1

    def split_unlike(self, clusters: Sequence[list[_Unfused]]) -> list[list[_Unfused]]:
        """Splits clusters where the launches of a large computation outside of loops take other things along.

        The updates of equal stages are an example: that of the last one would take along the mean of the
        loss.
        """
        companions: dict[str, set[tuple[str, ...]]] = {}
        for cluster in clusters:
            for op in cluster:
                if op.callee in self.large and op.loop is None:
                    companions.setdefault(op.callee, set()).add(tuple(other.callee for other in cluster))
        alone = {name for name, variants in companions.items() if len(variants) > 1}
        runs: list[list[_Unfused]] = []
        for cluster in clusters:
            for is_alone, run in itertools.groupby(
                cluster, lambda op: op.callee in alone and op.loop is None
            ):
                ops = list(run)
                runs += [[op] for op in ops] if is_alone else [ops]
        return runs

    def read_alike(self, readers: Collection[LaunchOp]) -> bool:
        """Returns whether all launches of a large computation are among these, or none of them."""
        counts = collections.Counter(op.callee for op in readers)
        return all(counts[name] == self.counts[name] for name in counts if name in self.large)


class _Fuser:
    def __init__(self, module: ir.Module) -> None:
        self.symbols = symbol_table(module)
        self.computations = Computations(module, self.symbols)

    def fuse(self, cluster: list[_Unfused]) -> None:
        """Replaces a run of launches by one."""
        members = set(cluster)
        # Other runs have become one by now, so that operands are others than they were.
        reads = [list(launch.op.operands) for launch in cluster]
        inside: dict[ir.Value, int] = {}
        outputs: list[ir.Value] = []
        for launch in cluster:
            for result, readers in zip(launch.op.results, launch.read_by, strict=True):
                inside[result] = len(inside)
                if not readers <= members:
                    outputs.append(result)
        inputs = list(dict.fromkeys(v for read in reads for v in read if v not in inside))
        position = {v: n for n, v in enumerate(inputs)}
        wiring = (
            tuple(launch.callee for launch in cluster),
            tuple(("out", inside[v]) if v in inside else ("in", position[v]) for read in reads for v in read),
            tuple(inside[r] for r in outputs),
        )
        head = next((launch for launch in cluster if not launch.is_glue), cluster[0])
        # Results that leave the slice must exist for the transfers that move them.
        place = next((launch for launch in cluster if launch.leaves), cluster[-1])
        ops = [launch.op for launch in cluster]
        # Not parsed and rebuilt: all that happens to origins is that they are listed together.
        calls = [op.attributes["origins"] for op in ops if "origins" in op.attributes]
        fused = head.op.rebuilt(
            inputs,
            [r.type for r in outputs],
            callee=self.make(ops, inputs, outputs, f"{head.callee}_fused", wiring),
            origins=ir.ArrayAttr.get([origin for origins in calls for origin in origins]) if calls else None,
            order=place.order,
            ip=ir.InsertionPoint(place.op),
        )
        for old, new in zip(outputs, fused.results, strict=True):
            old.replace_all_uses_with(new)
        for op in reversed(ops):
            op.operation.erase()

    def make(
        self,
        cluster: list[LaunchOp],
        inputs: list[ir.Value],
        outputs: list[ir.Value],
        base: str,
        wiring: object,
    ) -> str:
        """Builds the computation that replaces the launches of a cluster, one after the other."""
        existing = self.computations.find(base, wiring)
        if existing is not None:
            return existing
        shardings: dict[ir.Value, ir.Attribute] = {}
        for op in cluster:
            callee = self.symbols[op.callee]
            for values, all_attrs in (
                (op.operands, argument_attrs(callee)),
                (op.results, result_attrs(callee)),
            ):
                pairs = zip(values, all_attrs, strict=True)
                shardings.update((v, attrs[SHARDING]) for v, attrs in pairs if SHARDING in attrs)

        def body(arguments: list[ir.Value]) -> list[ir.Value]:
            mapping = dict(zip(inputs, arguments, strict=True))
            for op in cluster:
                with op.operation.location:
                    results = inlined(self.symbols[op.callee], [mapping[v] for v in op.operands])
                    mapping.update(zip(op.results, results, strict=True))
                    self.constrain(op, mapping, shardings)
            return [mapping[v] for v in outputs]

        return self.computations.make(
            base,
            [v.type for v in inputs],
            body,
            cluster[0].operation.location,
            arguments=[shardings.get(v) for v in inputs],
            results=[shardings.get(v) for v in outputs],
            key=wiring,
        )

    def constrain(
        self, op: LaunchOp, mapping: dict[ir.Value, ir.Value], shardings: dict[ir.Value, ir.Attribute]
    ) -> None:
        """Holds the results of an inlined computation to the shardings that were written on them."""
        for value in op.results:
            if value in shardings:
                mapping[value] = sdy.ShardingConstraintOp(mapping[value], shardings[value]).result


def _give_own_constants(launches: Iterable[LaunchOp], versions: _Versions) -> None:
    """Assigns glue without operands to the microbatch of its reader.

    Each launch that reads such glue gets its own copy.
    """
    for launch in launches:
        if not launch.is_glue or len(launch.operands):
            continue
        readers = {_first_result(use.owner): use.owner for r in launch.results for use in r.uses}
        if None in readers or not versions.read_alike(readers.values()):
            continue
        after = ir.InsertionPoint.after(launch)
        for n, reader in enumerate(readers.values()):
            constant = launch
            if n > 0:
                constant = launch.operation.clone(after).opview
                for old, new in zip(launch.results, constant.results, strict=True):
                    reader.operation.replace_uses_of_with(old, new)
            constant.loop, constant.microbatch = reader.loop, reader.microbatch


def _first_result(op: ir.OpView) -> ir.Value | None:
    return op.results[0] if op_has(op, Trait.EXECUTES) and op.results else None


def _preparations(
    launches: list[_Unfused], versions: _Versions
) -> tuple[list[_Unfused], dict[_Unfused, list[_Unfused]]]:
    """Splits off glue that only prepares for one launch, by the launch that it serves."""
    rest: list[_Unfused] = []
    serves: dict[_Unfused, list[_Unfused]] = {}
    for launch in launches:
        reader = launch.only_reader() if launch.is_glue and launch.is_ready else None
        if reader is not None and versions.stay_alike([launch, reader]):
            serves.setdefault(reader, []).append(launch)
        else:
            rest.append(launch)
    # Work that serves a launch goes with it, also where that one was split off itself.
    chained = {launch for served in serves.values() for launch in served}
    for reader in [reader for reader in serves if reader in chained]:
        rest += serves.pop(reader)
    return sorted(rest, key=lambda launch: launch.order), serves


def _move_mirrors(main: ir.OpView) -> None:
    """Moves mirrors that only the caller reads to the end: after launches that fusion has delayed."""
    *operations, terminator = body_block(main).operations
    for op in operations:
        if op_has(op, Trait.ALIASES) and all(use.owner == terminator for use in op.results[0].uses):
            op.operation.move_before(terminator)
