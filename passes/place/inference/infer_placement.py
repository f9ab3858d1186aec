"""`pw-infer-placement`: gives a slice to all code that is between placed calls."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.dialect.attributes.fields import NATURAL
from pathways.dialect.attributes.names import MIRRORED, REPLACED_BY, SLICE
from pathways.dialect.verification.forms import IMPORTED, LOCATED
from pathways.passes.analysis.functions import named_arguments
from pathways.passes.import_.branches.open_branches import BRANCHING
from pathways.passes.manager.base import Pass, fail, main_function, option, remark
from pathways.passes.place.inference.glue_work import remark_glue
from pathways.passes.place.inference.homes import copy_for_readers, homes_by_cut
from pathways.passes.place.inference.mirrored import (
    mirrorable,
    mirrored_places,
    own_places,
    repeat_round_trips,
    repeat_where_free,
)
from pathways.passes.place.inference.partials import fold_on_each_slice
from pathways.passes.place.inference.placement_problem import (
    Homes,
    Operation,
    PlacementProblem,
    Places,
    read_problem,
)
from pathways.passes.place.inference.replaced import replaced_arguments


@dataclasses.dataclass(frozen=True)
class InferPlacement(Pass):
    """Assigns a slice to every unplaced operation and argument of `@main`, so that the fewest bytes cross.

    1. Work that depends only on small arguments and constants (step counters, learning rates, PRNG
       keys) is mirrored: computed on every slice that reads it.
    2. All other operations and arguments are split by a minimum cut with the bytes of each value as its
       cost; forward and backward code are cut together. Its terminals are the launches, and arguments with a
       slice, as in a program without placed calls. Code that touches no terminal goes to the first slice. A
       broadcast of a small value is repeated for each reader, so that the small value crosses, not the
       broadcast.
    3. Associative chains that alternate between slices (a global norm over all layers) become partial
       results on each slice and one combination.
    4. A small operation is also mirrored where all its operands cross anyway; and a small result that would
       go back to the slice of its operands is computed on both sides instead, from exchanged operands.
    5. An argument that several slices read is mirrored, unless it is donated and large: then it has one
       home, the home of its updated result, and is sent from there. A remark states how many bytes a call
       moves of arguments that are on more slices than the results that replace them.
    6. A value of a microbatch costs its bytes once for each microbatch. A batch that the caller passes is
       split where its microbatches are read.
    7. Each operation of a branch is placed separately. A loop without placed calls, and a conditional with a
       callback or with placed calls of one slice, is on one slice; a remark states how many bytes cross for
       it, and how many that slice keeps besides.
    8. A remark names the slice of glue that is more than a tenth of the work, such as a layer that was not
       placed.
    9. A value carried by a loop stays on its slice, or is mirrored in all iterations. A remark states how
       many bytes cross in each of them where it is made on another slice.

    ```mlir
    // before
    %0 = pw.launch @f(%arg0) on @s0 [fwd]
    %1 = stablehlo.tanh %0
    %3 = pw.launch @f(%1) on @s1 [fwd]
    %5 = stablehlo.subtract %0, %2
    // after
    %0 = pw.launch @f(%arg0) on @s0 [fwd]
    %1 = stablehlo.tanh %0 {pw.slice = @s0}
    %3 = pw.launch @f(%1) on @s1 [fwd]
    %5 = stablehlo.subtract %0, %2 {pw.slice = @s0}
    ```

    Requires: form `imported`.
    Guarantees: every operation, argument and result of `@main` has a slice.
    """

    name: ClassVar[str] = "pw-infer-placement"
    input_forms = (IMPORTED,)
    output_form = LOCATED
    mirror_bytes: int = option(1024, "values up to this size may be mirrored")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        names = [op.sym_name for op in dialect.ops_named(module, ["pw.slice"])]
        if not names:
            fail(
                main,
                "has no slice to run on: the program calls no placed function, and no argument lives on a "
                "slice; place a function with pw.jit(f, devices=slice) and call it",
            )
        problem = read_problem(main, dialect.symbol_table(module), names, self.mirror_bytes)
        may_be_mirrored = mirrorable(problem)
        problem = copy_for_readers(problem, may_be_mirrored)
        problem, homes = fold_on_each_slice(problem, homes_by_cut(problem, may_be_mirrored))
        op_places = own_places(problem, homes)
        op_places = repeat_round_trips(problem, homes, op_places)
        # Last: repeated round trips bring operands to more slices, where other operations become free.
        op_places = repeat_where_free(problem, homes, op_places)
        _remark_whole(problem, homes, op_places)
        _remark_carries(problem, homes, op_places)
        remark_glue(problem, op_places)
        _write(problem, homes, op_places, mirrored_places(problem, homes, op_places))


def _remark_whole(problem: PlacementProblem, homes: Homes, op_places: Sequence[Places]) -> None:
    """Remarks the cost of a condition or a loop that is not cut by slice."""
    for op, places in zip(problem.operations, op_places, strict=True):
        why = _why_whole(op)
        if why is None or not places:
            continue
        place = problem.names[min(places)]
        moved, extra = _cost_of_whole(problem, homes, op_places, op, places)
        costs = [f"moves {moved} bytes"] * bool(moved)
        costs += [f"keeps {extra} bytes more there"] * bool(extra)
        if costs:
            remark(op.view, f"stays whole on @{place}, which {' and '.join(costs)}: {why}")


def _why_whole(op: Operation) -> str | None:
    """Explains why an operation with operands on several slices is on one slice; None if it is not."""
    if op.view.operation.name == "stablehlo.while":
        return "it is a loop without placed calls" if op.slice is None else None
    if op.view.operation.name not in BRANCHING:
        return None
    return "it has side effects" if op.slice is None else "all its placed calls are there"


def _cost_of_whole(
    problem: PlacementProblem, homes: Homes, op_places: Sequence[Places], op: Operation, places: Places
) -> tuple[int, int]:
    """Returns the bytes that cross because an operation is on one slice, and the bytes that the slice keeps.

    Placed calls bring their operands to their slice, so of an operation that holds some only arguments count.
    """
    moved = extra = 0
    for value in op.reads:
        if value not in homes or problem.is_small([value]):
            continue
        other_readers = [op_places[n] for n in problem.readers[value] if problem.operations[n] is not op]
        elsewhere = frozenset[int]().union(*other_readers) - places
        is_home = homes[value] in places
        if value in problem.producer:
            moved += problem.cost(value) * (not is_home and op.slice is None)
        # The slice has it for another reader as well.
        elif any(place & places for place in other_readers):
            continue
        elif problem.is_brought(value):
            extra += problem.byte_size(value.type) * bool(elsewhere)
        else:
            # Its home is here for this operation: all other readers get it from here.
            moved += problem.cost(value) * (len(elsewhere) if is_home else 1)
    if op.slice is None:
        for result in op.results:
            readers = (op_places[n] for n in problem.readers.get(result, ()))
            moved += problem.cost(result) * len(frozenset[int]().union(*readers) - places)
    return moved, extra


def _remark_carries(problem: PlacementProblem, homes: Homes, op_places: Sequence[Places]) -> None:
    """Remarks on values that cross in each iteration because a loop computes them on another slice."""
    for op, places in zip(problem.operations, op_places, strict=True):
        if not isinstance(op.view, dialect.NextOp) or not places:
            continue
        _, passed_on = op.reads
        if passed_on in homes and homes[passed_on] not in places and not problem.is_small([passed_on]):
            remark(
                op.view,
                f"moves {problem.byte_size(passed_on.type)} bytes from @{problem.names[homes[passed_on]]} to "
                f"@{problem.names[min(places)]} in each iteration: a carried value stays on one slice",
            )


def _write(
    problem: PlacementProblem, homes: Homes, op_places: Sequence[Places], mirrored: Mapping[ir.Value, Places]
) -> None:
    """Writes the slices of all arguments, operations and results.

    Args:
      op_places: the slices of its operations, without mirrored operations.
    """

    @functools.cache
    def attribute(places: Places) -> ir.Attribute:
        return dialect.make_slices([problem.names[p] for p in sorted(places)])

    slices: dict[ir.Value, Places] = {}
    arguments, results = dialect.argument_attrs(problem.main), dialect.result_attrs(problem.main)
    for argument, attrs in zip(problem.arguments, arguments, strict=True):
        slices[argument] = mirrored.get(argument) or _argument_places(problem, homes, op_places, argument)
        attrs[SLICE] = attribute(slices[argument])
    for op, chosen in zip(problem.operations, op_places, strict=True):
        places = chosen or mirrored[op.results[0]]
        slices.update(dict.fromkeys(op.results, places))
        # Carries and their next values may be on several slices until `pw-outline`, and name them as glue
        # does.
        if isinstance(op.view, dialect.AllToAllOp):
            continue
        if isinstance(op.view, dialect.PwOp) and op.handed_on is None:
            op.view.slice = problem.names[min(places)]
            continue
        op.view.attributes[SLICE] = attribute(places)
        if not chosen and op.handed_on is None:
            op.view.attributes[MIRRORED] = ir.UnitAttr.get()
    for attrs, value in zip(results, problem.returned, strict=True):
        attrs[SLICE] = attribute(slices[value])
    for argument, number in _moved_arguments(problem, slices).items():
        arguments[argument.arg_number][REPLACED_BY] = NATURAL.make(number)
    dialect.set_argument_attrs(problem.main, arguments)
    dialect.set_result_attrs(problem.main, results)


def _moved_arguments(problem: PlacementProblem, slices: Mapping[ir.Value, Places]) -> dict[ir.Value, int]:
    """Returns the moved arguments, with the number of the result replacing each; remarks on large ones."""
    moved: dict[ir.Value, int] = {}
    remarks: dict[tuple[Places, Places], list[ir.Value]] = {}
    for argument, number in replaced_arguments(problem).items():
        source, target = slices[problem.returned[number]], slices[argument]
        if not target <= source:
            moved[argument] = number
            if not problem.is_small([argument]):
                remarks.setdefault((source, target - source), []).append(argument)
    for (source, target), arguments in remarks.items():
        total = len(target) * sum(problem.byte_size(argument.type) for argument in arguments)
        remark(
            problem.main,
            f"moves {total} bytes of {named_arguments(problem.main, arguments)} to "
            f"{_listed(problem, target)} in each call that is passed the results of the last: these are on "
            f"{_listed(problem, source)}",
        )
    return moved


def _listed(problem: PlacementProblem, places: Places) -> str:
    return " and ".join(f"@{problem.names[place]}" for place in sorted(places))


def _argument_places(
    problem: PlacementProblem, homes: Homes, op_places: Sequence[Places], argument: ir.Value
) -> Places:
    """Returns the slices of an argument with a home: the slices of all readers, unless it is donated."""
    read_on = frozenset[int]().union(*(op_places[n] for n in problem.readers.get(argument, ())))
    is_sent = not problem.is_brought(argument) or not read_on
    return frozenset([homes[argument]]) if is_sent else read_on
