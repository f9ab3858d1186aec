"""`pw-share-loops`: a large loop that several computations hold becomes a computation of its own."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, Origin, argument_attrs, symbol_table
from pathways.dialect.attributes.names import SHARDING
from pathways.dialect.attributes.shardings import SliceMesh, decided_inside, make_sharding, slice_meshes
from pathways.dialect.verification.forms import ORDERED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block, erase_unused_functions, inline_call
from pathways.passes.analysis.operations import captured, copy_into, has_side_effect, replace
from pathways.passes.manager.base import Pass, main_function, option
from pathways.passes.schedule.fuse.compile_cost import LARGE_LOOP, CompileCost
from pathways.passes.schedule.order.positions import renumber


@dataclasses.dataclass(frozen=True)
class ShareLoops(Pass):
    """Splits computations at large loops that they share with others, so that XLA compiles each loop once.

    The layers of a model are mostly one loop in every stage, between an embedding and a loss that only the
    first and the last stage have: as whole computations the stages are all different. A loop is a barrier to
    fusion anyway, so a cut there costs a launch but no memory traffic. The code that a
    computation does in front of its loops, between them and after them become computations too; each
    operation goes as close to its readers as it can. What reads no argument is repeated where it is read,
    inside of the loop's computation too.

    Loops are the same when they are the same code on operands of the same types and shardings.
    Computations with side effects are left whole.

    ```mlir
    // before
    %0 = pw.launch @first(%arg0) on @s0 [fwd 0] order 0
    %1 = pw.transfer %0 to @s1 over @c0 order 1
    %2 = pw.launch @last(%arg1, %1) on @s1 [fwd 1] order 0
    // after
    %0 = pw.launch @first_part(%arg0) on @s0 [fwd 0] order 0
    %1 = pw.launch @first_loop(%0) on @s0 [fwd 0] order 1
    %2 = pw.launch @first_part_1(%0, %1) on @s0 [fwd 0] order 2
    %3 = pw.transfer %2 to @s1 over @c0 order 3
    %4 = pw.launch @first_loop(%3) on @s1 [fwd 1] order 0
    %5 = pw.launch @last_part(%4, %arg1) on @s1 [fwd 1] order 1
    ```

    Requires: launches with `order`, after `pw-fuse-launches`.
    Guarantees: the same values; `order` counts the launches and sends that are there now.
    """

    name: ClassVar[str] = "pw-share-loops"
    input_forms = (ORDERED,)
    large: int = option(LARGE_LOOP, "number of operations from which computations are cut at a loop")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        launches = [op for op in body_block(main).operations if isinstance(op, LaunchOp)]
        symbols = symbol_table(module)
        homes = slice_meshes(symbols)
        by_callee: dict[str, list[LaunchOp]] = collections.defaultdict(list)
        for op in launches:
            by_callee[op.callee].append(op)
        cost, effects = CompileCost(symbols, self.large), dict[str, bool]()
        bodies = dict[str, _Body]()
        for name, group in by_callee.items():
            function = symbols[name]
            if cost.holds_large_loop(name) and not has_side_effect(function, symbols, effects):
                _inline_loops(function, symbols, cost)
                bodies[name] = _Body(function, group, homes[group[0].slice], cost)
        computations = Computations(module, symbols)
        shared = _shared(list(bodies.values()), computations)
        pieces = {
            name: _cut(bodies[name], shared, computations) for name in dict.fromkeys(n for n, _ in shared)
        }
        if not pieces:
            return
        for launch in launches:
            if launch.callee in pieces:
                _launch_pieces(launch, bodies[launch.callee], pieces[launch.callee])
        erase_unused_functions(module)
        renumber(module, body_block(main).operations)


def _inline_loops(function: ir.OpView, symbols: Mapping[str, ir.OpView], cost: CompileCost) -> None:
    """Inlines the functions that a computation calls for a large loop."""
    pending = list(body_block(function).operations)
    while pending:
        op = pending.pop()
        if op.operation.name != "func.call" or not cost.holds_large_loop(op.attributes["callee"].value):
            continue
        before = set(body_block(function).operations)
        inline_call(op, symbols[op.attributes["callee"].value])
        # What was inlined may call further functions.
        pending += [new for new in body_block(function).operations if new not in before]


type _Call = tuple[str, str | None]
"""The kind of a placed call, and which half of it."""


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A part of a computation that is launched by itself.

    Attributes:
      computation: the computation.
      inputs: the values of the whole computation that it reads.
      outputs: the values for other pieces and for readers of the whole.
      calls: the kinds of placed calls that hold it, of a shared loop; None for any.
    """

    computation: str
    inputs: Sequence[ir.Value]
    outputs: Sequence[ir.Value]
    calls: frozenset[_Call] | None = None


class _Body:
    """The operations of a computation by number, as far as it can be cut.

    Attributes:
      calls: the kinds of placed calls that all its launches are of.
      operations: all but the return.
      loops: the large loops among the operations.
    """

    def __init__(
        self, function: ir.OpView, launches: Sequence[LaunchOp], home: SliceMesh, cost: CompileCost
    ) -> None:
        self.name: str = function.attributes["sym_name"].value
        calls = [frozenset((o.kind, o.part) for o in launch.origins) for launch in launches]
        self.calls: frozenset[_Call] = frozenset.intersection(*calls)
        self.arguments = list(function.arguments)
        *self.operations, terminator = body_block(function).operations
        self.returned = list(terminator.operands)
        self._location = function.operation.location
        self._home = home
        self._layouts = [attrs.get(SHARDING) for attrs in argument_attrs(function)]
        self._reads = [captured(op) for op in self.operations]
        self._maker = {r: n for n, op in enumerate(self.operations) for r in op.results}
        self._constants = set[int]()
        for n, values in enumerate(self._reads):
            if all(self._maker.get(v) in self._constants for v in values):
                self._constants.add(n)
        self.loops = [
            n
            for n, op in enumerate(self.operations)
            if op.operation.name == "stablehlo.while" and n not in self._constants and cost.is_large_loop(op)
        ]

    def segments(self, loops: Sequence[int]) -> list[list[int]]:
        """Returns the other operations in front of each of some loops, and after the last of them.

        An operation goes as close to its readers as it can; one that only the caller reads, as far to the
        front as it can. Operations that depend on no argument are in none.
        """
        first: dict[int, int] = {}
        for n, values in enumerate(self._reads):
            makers = [self._maker[v] for v in values if v in self._maker]
            reached = max((first[m] + (m in loops) for m in makers if m in first), default=0)
            if n not in self._constants:
                first[n] = loops.index(n) if n in loops else reached
        segment: dict[int, int] = {}
        # From the end: readers have their segments by then, and an operation goes to the first of these.
        latest: dict[int, int] = {}
        for n in reversed(first):
            segment[n] = first[n] if n in loops else latest.get(n, first[n])
            for maker in {self._maker[v] for v in self._reads[n] if v in self._maker}:
                latest[maker] = min(latest.get(maker, len(loops)), segment[n])
        return [[n for n in first if n not in loops and segment[n] == k] for k in range(len(loops) + 1)]

    def outputs(self, members: Sequence[int]) -> list[ir.Value]:
        """Returns the results of some operations that others, or the caller, read."""
        outside = {v for n, values in enumerate(self._reads) if n not in members for v in values}
        read = outside.union(self.returned)
        return [r for n in members for r in self.operations[n].results if r in read]

    def passed_through(self) -> list[ir.Value]:
        """Returns the values returned that depend on no argument, or are arguments."""
        makers = {v: self._maker.get(v) for v in self.returned}
        return [v for v, maker in makers.items() if maker is None or maker in self._constants]

    def inputs(self, members: Iterable[int], outputs: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns the values from others that some operations and outputs, with their constants, read."""
        contents = self._with_constants(members, outputs)
        produced = {r for n in contents for r in self.operations[n].results}
        read = [*(v for n in contents for v in self._reads[n]), *outputs]
        return [v for v in dict.fromkeys(read) if v not in produced]

    def piece(
        self, members: Iterable[int], outputs: Sequence[ir.Value], base: str, computations: Computations
    ) -> _Piece:
        """Makes a computation of some operations, and of the constants that they and the outputs need."""
        contents = self._with_constants(members, outputs)
        inputs = self.inputs(members, outputs)

        def body(arguments: list[ir.Value]) -> list[ir.Value]:
            mapping = dict(zip(inputs, arguments, strict=True))
            copy_into((self.operations[n] for n in contents), mapping)
            return [mapping[v] for v in outputs]

        name = computations.make(
            base,
            [v.type for v in inputs],
            body,
            self._location,
            arguments=[self._layout(v) for v in inputs],
            results=[self._layout(v) for v in outputs],
        )
        return _Piece(name, inputs, outputs)

    def _with_constants(self, members: Iterable[int], outputs: Iterable[ir.Value]) -> list[int]:
        contents = set(members)
        pending = [*(v for n in contents for v in self._reads[n]), *outputs]
        while pending:
            maker = self._maker.get(pending.pop())
            if maker is not None and maker in self._constants and maker not in contents:
                contents.add(maker)
                pending += self._reads[maker]
        return sorted(contents)

    def _layout(self, value: ir.Value) -> ir.Attribute | None:
        """Returns the sharding of a value, as decided when shardings were propagated."""
        if isinstance(value, ir.BlockArgument):
            return self._layouts[value.arg_number]
        if self._home.mesh.size == 1:
            return None
        return make_sharding(self._home.symbol, decided_inside(value, self._home))


@dataclasses.dataclass(frozen=True)
class _SharedLoop:
    """Loop that several computations hold.

    Attributes:
      computation: the computation that replaces it.
      calls: the kinds of placed calls that all launches of its holders are of.
    """

    computation: str
    returned: Sequence[int]
    calls: frozenset[_Call]


type _Shared = Mapping[tuple[str, int], _SharedLoop]
"""The shared loops, by the computations that hold them and their numbers there."""


def _shared(bodies: Sequence[_Body], computations: Computations) -> _Shared:
    """Moves loops that several bodies hold to computations of their own."""
    same: dict[str, list[tuple[_Body, int]]] = collections.defaultdict(list)
    for body in bodies:
        for n in body.loops:
            # By itself, so that it has the same name as an equal one.
            alone = ir.Module.create(computations.module.operation.location)
            body.piece([n], list(body.operations[n].results), "loop", Computations(alone, {}))
            same[alone.operation.get_asm(use_local_scope=True)].append((body, n))
    shared: dict[tuple[str, int], _SharedLoop] = {}
    for loops in same.values():
        if len({body.name for body, _ in loops}) > 1:
            held = [enumerate(body.operations[n].results) for body, n in loops]
            returned = sorted({r for each in held for r, value in each if any(True for _ in value.uses)})
            body, n = loops[0]
            results = [body.operations[n].results[r] for r in returned]
            name = body.piece([n], results, f"{body.name}_loop", computations).computation
            calls = frozenset.intersection(*(body.calls for body, _ in loops))
            shared.update(((body.name, n), _SharedLoop(name, returned, calls)) for body, n in loops)
    return shared


def _cut(body: _Body, shared: _Shared, computations: Computations) -> list[_Piece]:
    """Returns the pieces of a computation in the order in which they run."""
    loops = [n for n in body.loops if (body.name, n) in shared]
    pieces: list[_Piece] = []
    for k, segment in enumerate(body.segments(loops)):
        outputs = body.outputs(segment) + (body.passed_through() if k == len(loops) else [])
        if outputs:
            pieces.append(body.piece(segment, outputs, f"{body.name}_part", computations))
        if k < len(loops):
            loop = shared[body.name, loops[k]]
            results = body.operations[loops[k]].results
            outputs = [results[n] for n in loop.returned]
            inputs = body.inputs([loops[k]], outputs)
            pieces.append(_Piece(loop.computation, inputs, outputs, loop.calls))
    return pieces


def _origins(launch: LaunchOp, pieces: Sequence[_Piece]) -> list[tuple[Origin, ...]]:
    """Returns the placed calls of a launch that each of its pieces is of.

    A shared loop has the origins that all its holders have in common. Operations between two loops belong to
    them and to the loops between them.
    """
    calls = [(origin.kind, origin.part) for origin in launch.origins]
    ranges = []
    for piece in pieces:
        held = [n for n, call in enumerate(calls) if piece.calls and call in piece.calls]
        ranges.append((held[0], held[-1]) if held else None)
    of_pieces = []
    for n, held_range in enumerate(ranges):
        before = next((r[0] for r in reversed(ranges[:n]) if r), 0)
        later = next((r[1] for r in ranges[n + 1 :] if r), len(calls) - 1)
        first, last = held_range or sorted((before, later))
        of_pieces.append(range(first, last + 1) if calls else range(0))
    shares = collections.Counter(call for piece in of_pieces for call in piece)
    origins = [
        dataclasses.replace(origin, pieces=shares[n] if shares[n] > 1 else None)
        for n, origin in enumerate(launch.origins)
    ]
    return [tuple(origins[n] for n in piece) for piece in of_pieces]


def _launch_pieces(launch: LaunchOp, body: _Body, pieces: Sequence[_Piece]) -> None:
    """Replaces a launch of a computation by launches of its pieces."""
    values = dict(zip(body.arguments, launch.operands, strict=True))
    for piece, origins in zip(pieces, _origins(launch, pieces), strict=True):
        new = launch.rebuilt(
            [values[v] for v in piece.inputs],
            [v.type for v in piece.outputs],
            callee=piece.computation,
            origins=origins,
            ip=ir.InsertionPoint(launch),
        )
        values.update(zip(piece.outputs, new.results, strict=True))
    replace(launch, [values[returned] for returned in body.returned])
