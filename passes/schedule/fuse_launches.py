"""`pw-fuse-launches`: neighbouring launches of a slice become one where nothing waits longer for it."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from pathways.dialect import (
    LaunchOp,
    argument_attrs,
    nested_ops,
    op_has,
    result_attrs,
    symbol_table,
)
from pathways.dialect.forms import ORDERED
from pathways.dialect.names import SHARDING
from pathways.dialect.traits import Trait
from pathways.passes.base import Pass, main_function, option
from pathways.passes.schedule.orders import renumber
from pathways.passes.util.compile_cost import LARGE, CompileCost
from pathways.passes.util.computations import Computations
from pathways.passes.util.functions import body_block, erase_unused_functions, inlined
from pathways.passes.util.operations import EXPENSIVE


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
    A launch has the origins of all that it was made of, and the loop and microbatch of the first placed call
    among them.

    One thing may join a launch whose results leave: the last launch of a loop on its slice takes the glue
    behind the loop along, when that is cheap (an optimizer's update). What leaves does so a little later, for
    one microbatch; a launch is saved on each slice.

    A large computation that is launched several times, such as a stage of a model, is fused only with glue of
    its own loop and microbatch, so that all its launches run one computation, which is compiled once. Outside
    of loops, such as the update of equal stages, it is fused with what all its launches are, or with nothing.

    Requires: launches with `order`, and a block that is sorted by it, from `pw-schedule`.
    Guarantees: the same values; `order` counts the launches and sends that are left.
    """

    name: ClassVar[str] = "pw-fuse-launches"
    takes = (ORDERED,)
    user_calls: bool = option(False, "also fuse the user's own placed calls with each other")
    large: int = option(LARGE, "the operations of a computation from which on all launches run one version")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        by_slice: dict[str, list[LaunchOp]] = {}
        for op in body_block(main).operations:
            if op_has(op, Trait.EXECUTES):
                by_slice.setdefault(op.slice, []).append(op)
        fuser = _Fuser(module)
        every_launch = [op for launches in by_slice.values() for op in launches]
        # Who asks for user calls in one asks for versions.
        cost = CompileCost(fuser.symbols, sys.maxsize if self.user_calls else self.large)
        versions = _Versions(cost, every_launch)
        by_slice = {name: list(_with_own_constants(ops, versions)) for name, ops in by_slice.items()}
        clusters: list[list[LaunchOp]] = []
        for launches in by_slice.values():
            launches.sort(key=lambda op: op.order)
            clusters += self.clusters(fuser.symbols, versions, *_preparations(launches, versions))
        for cluster in versions.without_others(clusters):
            if len(cluster) > 1:
                fuser.fuse(cluster)
        _move_mirrors(main)
        erase_unused_functions(module)
        renumber(module, body_block(main).operations)

    def clusters(
        self,
        symbols: dict[str, ir.OpView],
        versions: _Versions,
        launches: list[LaunchOp],
        preparations: dict[ir.Value, list[LaunchOp]],
    ) -> list[list[LaunchOp]]:
        """Splits the launches of a slice into runs that become one launch each."""
        runs: list[list[LaunchOp]] = []
        arrived: set[ir.Value] = set()
        head: LaunchOp | None = None
        closed = True
        for launch in launches:
            incoming = {v for v in launch.operands if _is_transfer(v)}
            is_call = not launch.is_glue
            joins = incoming <= arrived and not (
                is_call and head is not None and not self.joins(head, launch)
            )
            if closed:
                joins = joins and bool(runs) and _ends_loop(runs[-1], launch, symbols)
            piece = [*preparations.get(launch.results[0], ()), launch] if launch.results else [launch]
            joins = joins and bool(runs) and versions.stay_alike([*runs[-1], *piece])
            if not joins:
                runs.append([])
                head, closed = None, False
            runs[-1] += piece
            arrived |= incoming
            head = launch if head is None and is_call else head
            closed = closed or _leaves(launch)
        return runs

    def joins(self, head: LaunchOp, call: LaunchOp) -> bool:
        """Whether a placed call may become one with an earlier one."""
        if self.user_calls:
            return True
        first, last = head.origins[-1], call.origins[0]
        is_one_stage = (first.stage, first.microbatch) == (last.stage, last.microbatch)
        is_in_loop = head.loop is not None and head.loop == call.loop
        # Nobody waits for the weights' half; what has to wait for it is delayed.
        is_awaited = last.part != "weight"
        return is_in_loop and is_one_stage and is_awaited and first.is_forward and last.kind == "bwd"


def _leaves(launch: LaunchOp) -> bool:
    """Whether a result of a launch is moved to another slice."""
    return any(op_has(use.owner, Trait.MOVES) for r in launch.results for use in r.uses)


def _ends_loop(cluster: list[LaunchOp], glue: LaunchOp, symbols: dict[str, ir.OpView]) -> bool:
    """Whether glue is cheap work behind a loop whose last launch is in a cluster."""
    if not glue.is_glue or glue.loop is not None or all(op.loop is None for op in cluster):
        return False
    inside = nested_ops(symbols[glue.callee])
    return not any(op.operation.name in EXPENSIVE | {"stablehlo.while", "func.call"} for op in inside)


class _Versions:
    """Keeps computations that are large and launched several times from being compiled several times.

    Args:
      cost: tells what is large.
      launches: all launches, before any is fused.
    """

    def __init__(self, cost: CompileCost, launches: Sequence[LaunchOp]) -> None:
        self.counts = collections.Counter(op.callee for op in launches)
        self.large = {name for name in cost.large_among(launches) if self.counts[name] > 1}

    def stay_alike(self, cluster: Sequence[LaunchOp]) -> bool:
        """Whether all launches of the large computations of a cluster can take the same along."""
        if not any(op.callee in self.large for op in cluster):
            return True
        return len({_microbatch(op) for op in cluster if op.is_glue or op.callee in self.large}) == 1

    def without_others(self, clusters: Sequence[list[LaunchOp]]) -> list[list[LaunchOp]]:
        """Splits clusters where the launches of a large computation outside of loops take other things along.

        Such are the updates of equal stages: that of the last one would take what makes the loss a mean.
        """
        taken: dict[str, set[tuple[str, ...]]] = {}
        for cluster in clusters:
            for op in cluster:
                if op.callee in self.large and op.loop is None:
                    taken.setdefault(op.callee, set()).add(tuple(other.callee for other in cluster))
        alone = {name for name, several in taken.items() if len(several) > 1}
        runs: list[list[LaunchOp]] = []
        for cluster in clusters:
            for stands, run in itertools.groupby(cluster, lambda op: op.callee in alone and op.loop is None):
                ops = list(run)
                runs += [[op] for op in ops] if stands else [ops]
        return runs

    def read_alike(self, readers: Collection[LaunchOp]) -> bool:
        """Whether all launches of a large computation are among these, or none of them."""
        counts = collections.Counter(op.callee for op in readers)
        return all(counts[name] == self.counts[name] for name in counts if name in self.large)


def _microbatch(launch: LaunchOp) -> tuple[str | None, int | None]:
    return launch.loop, launch.microbatch


class _Fuser:
    def __init__(self, module: ir.Module) -> None:
        self.symbols = symbol_table(module)
        self.computations = Computations(module, self.symbols)

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
        head = next((op for op in cluster if not op.is_glue), cluster[0])
        # What leaves must be there for those who move it.
        place = next((op for op in cluster if _leaves(op)), cluster[-1])
        launch = head.rebuilt(
            inputs,
            [r.type for r in outputs],
            callee=self.make(cluster, inputs, outputs, f"{head.callee}_fused", wiring),
            origins=tuple(origin for op in cluster for origin in op.origins),
            order=place.order,
            ip=ir.InsertionPoint(place),
        )
        for old, new in zip(outputs, launch.results, strict=True):
            old.replace_all_uses_with(new)
        for op in reversed(cluster):
            op.operation.erase()

    def make(
        self,
        cluster: list[LaunchOp],
        inputs: list[ir.Value],
        outputs: list[ir.Value],
        base: str,
        wiring: object,
    ) -> str:
        """Builds the computation that does what the launches of a cluster do one after the other."""
        known = self.computations.known(base, wiring)
        if known is not None:
            return known
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


def _with_own_constants(launches: Iterable[LaunchOp], versions: _Versions) -> Iterator[LaunchOp]:
    """The launches of a slice, with glue without operands as part of the microbatch of what reads it.

    Each launch that reads such glue gets one of its own.
    """
    for launch in launches:
        yield launch
        if not launch.is_glue or list(launch.operands):
            continue
        readers = {_first_result(use.owner): use.owner for r in launch.results for use in r.uses}
        if None in readers or not versions.read_alike(readers.values()):
            continue
        for n, reader in enumerate(readers.values()):
            own = launch
            if n > 0:
                own = launch.operation.clone(ir.InsertionPoint(launch)).opview
                for old, new in zip(launch.results, own.results, strict=True):
                    reader.operation.replace_uses_of_with(old, new)
                yield own
            own.loop, own.microbatch = _microbatch(reader)


def _preparations(
    launches: list[LaunchOp], versions: _Versions
) -> tuple[list[LaunchOp], dict[ir.Value, list[LaunchOp]]]:
    """Splits off glue that only prepares for one launch, by the first result of the launch it serves."""
    rest: list[LaunchOp] = []
    serves: dict[ir.Value, list[LaunchOp]] = {}
    for launch in launches:
        readers = {_first_result(use.owner) for r in launch.results for use in r.uses}
        reader = readers.pop() if len(readers) == 1 else None
        if (
            launch.is_glue
            and reader is not None
            and versions.stay_alike([launch, reader.owner.opview])
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
    return launch.loop is not None and op_has(producer, Trait.EXECUTES) and producer.loop is None


def _first_result(op: ir.OpView) -> ir.Value | None:
    return op.results[0] if op_has(op, Trait.EXECUTES) and op.results else None


def _is_transfer(value: ir.Value) -> bool:
    return not isinstance(value, ir.BlockArgument) and op_has(value.owner.opview, Trait.MOVES)


def _move_mirrors(main: ir.OpView) -> None:
    """Moves what only the caller reads to the end: behind launches that fusion has delayed."""
    *operations, terminator = body_block(main).operations
    for op in operations:
        if op_has(op, Trait.JOINS) and all(use.owner == terminator for use in op.results[0].uses):
            op.operation.move_before(terminator)
