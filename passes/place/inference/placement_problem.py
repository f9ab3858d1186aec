"""Problem that `pw-infer-placement` solves, read from `@main` before anything is decided."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect import CarryOp, IndexOp, NextOp, PwOp, argument_attrs, loop_of, op_has, read_slices
from pathways.dialect.attributes.names import DONATED, SLICE
from pathways.dialect.operations.traits import Trait
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import byte_size, captured, has_side_effect

Homes = Mapping[ir.Value, int]
"""The slice, by its number, of each value that lives on one; a value that is not a key is mirrored."""

Places = frozenset[int]
"""The slices, by their numbers, of an operation or an argument."""


@dataclasses.dataclass(eq=False, slots=True)
class Operation:
    """An operation of `@main`, or the part of a slice in an exchange of blocks.

    Views are equal where their content is, so it is known by its position.

    Attributes:
      view: the operation itself.
      reads: the values that it or its regions read.
      results: the values that it makes.
      slice: its slice, where it has one before anything is decided.
      repeatable: whether it may be done on any slice, and on several: glue that only computes its results.
      handed_on: of a `pw.carry`, the position of its `pw.next`, and the other way round.
    """

    view: ir.OpView
    reads: Sequence[ir.Value]
    results: Sequence[ir.Value]
    slice: int | None
    repeatable: bool
    handed_on: int | None


@dataclasses.dataclass(frozen=True, eq=False)
class PlacementProblem:
    """All operations and arguments of `@main`.

    Attributes:
      main: the function.
      names: the slices.
      mirror_bytes: the size up to which a value is small.
      operations: all operations in order, except the return and operations available on every slice.
      indices: the numbers of iterations of loops, which are available on every slice.
      donated: the arguments that the caller gives up.
      fixed: the slice, by its number, of each argument that stays on the caller's slice.
      returned: the returned values.
      producer: the position of the operation that makes a value; arguments have none.
      readers: the positions of the operations that read a value.
      byte_size: the bytes of a type.
    """

    main: ir.OpView
    symbols: Mapping[str, ir.OpView]
    names: Sequence[str]
    mirror_bytes: int
    operations: Sequence[Operation]
    indices: frozenset[ir.Value]
    arguments: Sequence[ir.Value]
    donated: frozenset[ir.Value]
    fixed: Homes
    returned: Sequence[ir.Value]
    producer: Mapping[ir.Value, int]
    readers: Mapping[ir.Value, Sequence[int]]
    byte_size: Callable[[ir.Type], int]

    def read_again(self) -> PlacementProblem:
        """Returns the problem after `@main` was changed."""
        return read_problem(self.main, self.symbols, self.names, self.mirror_bytes)

    def is_small(self, values: Iterable[ir.Value]) -> bool:
        """Returns whether each of the values is small enough to be mirrored."""
        return all(self.byte_size(v.type) <= self.mirror_bytes for v in values)

    def is_brought(self, value: ir.Value) -> bool:
        """Returns whether the caller can bring a value to every slice that reads it."""
        return isinstance(value, ir.BlockArgument) and value not in self.donated and value not in self.fixed

    def cost(self, value: ir.Value) -> int:
        """Returns the bytes that cross when a value does, for all microbatches of its loop together."""
        loop = loop_of(value)
        return self.byte_size(value.type) * (1 if loop is None else self.symbols[loop].iterations)


def read_problem(
    main: ir.OpView, symbols: Mapping[str, ir.OpView], names: Sequence[str], mirror_bytes: int
) -> PlacementProblem:
    """Reads the problem from `@main`, which stays as it is."""
    block = body_block(main)
    *views, terminator = block.operations
    indices = frozenset(view.results[0] for view in views if isinstance(view, IndexOp))
    views = [view for view in views if not isinstance(view, IndexOp)]
    number = {name: n for n, name in enumerate(names)}
    effects: dict[str, bool] = {}

    # An exchange of blocks is an operation on each of its slices.
    parts = [
        (view, part)
        for view in views
        for part in (range(len(view.slices)) if op_has(view, Trait.EXCHANGES) else (None,))
    ]
    carried = {view.results[0]: n for n, (view, _) in enumerate(parts) if isinstance(view, CarryOp)}
    pairs = {carried[view.operands[0]]: n for n, (view, _) in enumerate(parts) if isinstance(view, NextOp)}
    pairs |= {n: carry for carry, n in pairs.items()}

    def operation(n: int, view: ir.OpView, part: int | None) -> Operation:
        if part is not None:
            place = number[view.slices[part]]
            return Operation(view, [view.operands[part]], [view.results[part]], place, False, None)
        slice_ = _stated_slice(view, number)
        is_glue = slice_ is None and not isinstance(view, PwOp)
        repeatable = is_glue and not has_side_effect(view, symbols, effects)
        return Operation(view, captured(view), list(view.results), slice_, repeatable, pairs.get(n))

    operations = [operation(n, *part) for n, part in enumerate(parts)]
    arguments, attrs = list(block.arguments), argument_attrs(main)
    readers: dict[ir.Value, list[int]] = {}
    for n, op in enumerate(operations):
        for value in op.reads:
            readers.setdefault(value, []).append(n)
    return PlacementProblem(
        main,
        symbols,
        names,
        mirror_bytes,
        operations,
        indices,
        arguments,
        frozenset(a for a, entries in zip(arguments, attrs, strict=True) if DONATED in entries),
        {
            a: number[read_slices(entries[SLICE])[0]]
            for a, entries in zip(arguments, attrs, strict=True)
            if SLICE in entries
        },
        list(terminator.operands),
        {result: n for n, op in enumerate(operations) for result in op.results},
        readers,
        functools.cache(byte_size),
    )


def _stated_slice(view: ir.OpView, number: Mapping[str, int]) -> int | None:
    """Returns the slice that an operation names."""
    if op_has(view, Trait.EXECUTES):
        return number[view.slice]
    if SLICE in view.attributes:
        return number[read_slices(view.attributes[SLICE])[0]]
    return None
