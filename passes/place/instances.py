"""Graph of the placed operations of `@main`: the operands of each on its slice, and its waits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.dialect.attributes.names import MIRRORED
from pathways.dialect.operations.traits import Trait
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import captured, has_side_effect
from pathways.passes.manager.base import fail, main_function

type Sources = Mapping[ir.Value, Instance | None]
"""Values that are read, each with the instance that makes it; None for an argument."""


@dataclasses.dataclass(eq=False, slots=True)
class Instance:
    """An operation on one slice. A mirrored one has an instance on each of its slices, and so has an exchange
    of blocks, which reads and makes one value on each.

    Attributes:
      position: where it is in `@main`, from 0.
      slice: where it runs.
      loop: the loop whose microbatches it works on.
      stands_alone: whether it is an operation of `pw`, which stays as it is.
      mirrored: whether each reader computes it for itself.
      has_effect: whether it does more than compute its results.
      sources: the values that it reads; where it can, it reads a value that is computed on its own slice.
      results: the values that it makes.
    """

    op: ir.OpView
    position: int
    slice: str
    loop: str | None
    stands_alone: bool
    mirrored: bool
    has_effect: bool
    sources: Sources
    results: Sequence[ir.Value]


@dataclasses.dataclass(frozen=True)
class InstanceGraph:
    """Graph of the work in `@main`.

    Attributes:
      operations: all of them; the return is the last.
      readers: each instance in program order, with its readers.
      results: each value that is returned, with the instances that make it for the caller, by slice; none for
        an argument.
    """

    operations: Sequence[ir.OpView]
    readers: dict[Instance, list[Instance]]
    results: Sequence[tuple[ir.Value, dict[str, Instance]]]


def instance_graph(module: ir.Module) -> InstanceGraph:
    """Reads the graph of `@main`, all placed; refuses a result that is returned on a slice without it."""
    main = main_function(module)
    operations = list(body_block(main).operations)
    symbols, effects = dialect.symbol_table(module), dict[str, bool]()
    readers: dict[Instance, list[Instance]] = {}
    makers: dict[ir.Value, dict[str, Instance]] = {}

    def source(value: ir.Value, place: str) -> Instance | None:
        copies = makers.get(value)
        return None if copies is None else copies.get(place, next(iter(copies.values())))

    for position, op in enumerate(operations[:-1]):
        if isinstance(op, dialect.IndexOp):
            # Available on every slice, as are arguments that live there.
            continue
        stands_alone, reads, loop = isinstance(op, dialect.PwOp), captured(op), dialect.loop_of_op(op)
        mirrored = MIRRORED in op.attributes
        has_effect = isinstance(op, dialect.UntilOp) or has_side_effect(op, symbols, effects)
        # An operation for its effect alone, without operands, may be on several slices too.
        places = dialect.slices_of_op(op) or ()
        is_exchange = dialect.op_has(op, Trait.EXCHANGES)
        for number, place in enumerate(places):
            reads_of_slice = slice(number, number + 1) if is_exchange else slice(None)
            instance = Instance(
                op,
                position,
                place,
                loop,
                stands_alone=stands_alone,
                mirrored=mirrored,
                has_effect=has_effect,
                sources={value: source(value, place) for value in reads[reads_of_slice]},
                results=list(op.results)[reads_of_slice],
            )
            for result in instance.results:
                makers.setdefault(result, {})[place] = instance
            readers[instance] = []
            for other in instance.sources.values():
                if other is not None:
                    readers[other].append(instance)
    return InstanceGraph(operations, readers, _results(main, operations[-1], makers))


def _results(
    main: ir.OpView, terminator: ir.OpView, makers: dict[ir.Value, dict[str, Instance]]
) -> list[tuple[ir.Value, dict[str, Instance]]]:
    results = []
    for number, (value, slices) in enumerate(
        zip(terminator.operands, dialect.result_slices(main), strict=True)
    ):
        copies = makers.get(value, {})
        for place in slices or ():
            if copies and place not in copies:
                homes = ", ".join(f"@{name}" for name in sorted(copies))
                fail(terminator, f"returns result #{number} on @{place}, but it is made on {homes}")
        results.append((value, {place: copies[place] for place in slices or copies} if copies else {}))
    return results


def wait_sets(graph: InstanceGraph) -> dict[Instance, int]:
    """Returns the launches and arrivals of values that each instance waits for, as bits."""
    # Sets as bits of integers, n * n bits at most: each instance joins the sets of all its sources.
    bits: dict[object, int] = {}
    waits: dict[Instance, int] = {}
    for instance in graph.readers:
        events: list[object] = []
        mask = 0
        for value, source in instance.sources.items():
            if source is None:
                continue
            mask |= waits[source]
            if source.slice != instance.slice:
                events.append((value, instance.slice))
        if instance.stands_alone:
            op = instance.op
            if dialect.op_has(op, Trait.EXECUTES):
                events.append(instance)
            elif dialect.op_has(op, Trait.EXCHANGES):
                events.append(instance.position)
            else:
                # The microbatches of a loop begin together, and end together.
                events.append((op.operation.name, op.loop))
        for event in events:
            mask |= bits.setdefault(event, 1 << len(bits))
        waits[instance] = mask
    return waits
