"""Three programs of one with a loop whose end depends on values: before it, a chunk of turns, after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from pathways.dialect import (
    LaunchOp,
    LoopOp,
    NextOp,
    PwOp,
    UntilOp,
    argument_attrs,
    loop_of_op,
    make_slices,
    op_has,
    set_argument_attrs,
    set_result_attrs,
    slices_of,
    symbol_table,
)
from pathways.dialect.attributes.names import CONSTANT, DONATED, SHARDING, SLICE
from pathways.dialect.attributes.shardings import sharding_of
from pathways.dialect.operations.traits import Trait
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.passes.manager.base import main_function
from pathways.passes.util.computations import Computations
from pathways.passes.util.functions import body_block, erase_unused_functions, set_signature
from pathways.passes.util.operations import captured


class Handed(NamedTuple):
    """A value that parts pass on: a result of an operation of the whole, or, without one, an argument."""

    operation: int | None
    number: int


@dataclasses.dataclass(frozen=True)
class ProgramPart:
    """One of the three programs.

    Attributes:
      module: the program, in the form that the whole was in.
      inputs: what it takes, in order; what is closed over is in the module.
      outputs: what it returns, in order.
    """

    module: ir.Module
    inputs: Sequence[Handed]
    outputs: Sequence[Handed]


@dataclasses.dataclass(frozen=True)
class Chunks:
    """A program in three parts.

    Attributes:
      before: what comes before the loop; its first outputs are what the first chunk takes first.
      turns: a chunk. What it returns is what the next chunk takes first, in this order.
      after: what comes after the loop; it returns what the whole does.
      goes_on: the output of `turns` that says whether there is one more chunk.
    """

    before: ProgramPart
    turns: ProgramPart
    after: ProgramPart
    goes_on: int


def split_chunks(module: ir.Module) -> Chunks | None:
    """Makes three programs of one in form `sharded`, which stays as it is; None where no loop is in chunks.

    What the loop starts from is a copy: the first chunk consumes it. Arguments of the whole are not donated
    to parts.
    """
    main = main_function(module)
    operations = list(body_block(main).operations)
    until = next((op for op in operations if isinstance(op, UntilOp)), None)
    if until is None:
        return None
    with module.context, main.operation.location:
        return _ChunkSplitter(module, operations, until).split()


def _begins_or_ends(op: ir.OpView) -> bool:
    return op_has(op, Trait.OPENS_LOOP) or op_has(op, Trait.CLOSES_LOOP)


class _ChunkSplitter:
    """Splits one program; its operations are known by their positions."""

    def __init__(self, module: ir.Module, operations: Sequence[ir.OpView], until: UntilOp) -> None:
        self.module = module
        self.operations = operations
        self.until = until
        self.arguments = argument_attrs(main_function(module))
        self.makers = {result: n for n, op in enumerate(operations) for result in op.results}
        symbols = symbol_table(module)

        def is_inside(loop: str | None) -> bool:
            while loop is not None and loop != until.loop:
                loop = symbols[loop].parent
            return loop is not None

        self.loop: set[int] = set()
        self.after: set[int] = set()
        self.carries: dict[int, int] = {}
        """The positions of what begins turns, and of what ends them."""
        for n, op in enumerate(operations):
            if is_inside(op.loop if isinstance(op, PwOp) and _begins_or_ends(op) else loop_of_op(op)):
                self.loop.add(n)
                if isinstance(op, NextOp) and op.loop == until.loop:
                    self.carries[self.makers[op.operands[0]]] = n
            elif op != until and (n == len(operations) - 1 or self._leads_here(op)):
                self.after.add(n)

    def _leads_here(self, op: ir.OpView) -> bool:
        """Whether an operation reads what the loop ends with, at once or by way of others."""
        return any(self.makers.get(value) in self.after | self.loop for value in captured(op))

    def split(self) -> Chunks:
        """The three programs."""
        count = len(self.operations)
        is_until = {n for n, op in enumerate(self.operations) if isinstance(op, UntilOp)}
        before = set(range(count)) - self.loop - self.after - is_until
        starts = [self.port(self.operations[n].operands[0]) for n in self.carries]
        into_turns = self.read_by(self.loop - set(self.carries))
        into_after = self.read_by(self.after)
        handed = [p for p in dict.fromkeys([*into_turns, *into_after]) if p.operation in before]
        ends = [Handed(n, 0) for n in self.carries.values()]
        arguments = [p for p in dict.fromkeys([*self.read_by(before), *starts]) if p.operation is None]
        return Chunks(
            _PartWriter(self, before, arguments).write(
                [*starts, *handed], copied=self.shared(starts, handed)
            ),
            _PartWriter(self, self.loop, [*(Handed(n, 0) for n in self.carries), *into_turns]).write(ends),
            _PartWriter(self, self.after, into_after).write(None),
            ends.index(self.port(self.until.operands[0])),
        )

    def shared(self, starts: Sequence[Handed], handed: Sequence[Handed]) -> list[int]:
        """Which of what the loop starts from is read by others too, or is an argument."""
        return [
            n
            for n, port in enumerate(starts)
            if port.operation is None or port in handed or starts.count(port) > 1
        ]

    def port(self, value: ir.Value) -> Handed:
        if isinstance(value, ir.BlockArgument):
            return Handed(None, value.arg_number)
        return Handed(self.makers[value], ir.OpResult(value).result_number)

    def read_by(self, operations: Collection[int]) -> list[Handed]:
        """What operations read and do not make."""
        values = (value for n in sorted(operations) for value in captured(self.operations[n]))
        made = operations | self.carries.keys() if set(operations) <= self.loop else operations
        return [p for p in dict.fromkeys(map(self.port, values)) if p.operation not in made]


class _PartWriter:
    """Writes one part.

    Args:
      whole: the program.
      kept: the operations of the part.
      inputs: what it takes; a `pw.carry` that it keeps is what that starts from.
    """

    def __init__(self, whole: _ChunkSplitter, kept: Collection[int], inputs: Sequence[Handed]) -> None:
        self.whole = whole
        self.kept = kept
        self.inputs = inputs
        self.module = ir.Module.parse(bytecode_of(whole.module), whole.module.context)
        self.main = main_function(self.module)
        self.operations = list(body_block(self.main).operations)
        self.symbols = symbol_table(self.module)
        self.sources = argument_attrs(self.main)

    def write(self, outputs: Sequence[Handed] | None, copied: Sequence[int] = ()) -> ProgramPart:
        """Writes it, with some outputs, of which some are copies, or with what the whole returns."""
        block, location = body_block(self.main), self.main.operation.location
        count = len(block.arguments)
        attributes = [self.attributes(port) for port in self.inputs]
        types = [self.value(port).type for port in self.inputs]
        # Before anything is replaced.
        returned = None if outputs is None else [(self.value(p), self.place(self.value(p))) for p in outputs]
        made = [block.add_argument(type_, location) for type_ in types]
        terminator = self.operations[-1]
        if returned is not None:
            with ir.InsertionPoint(terminator), location:
                values = [value for value, _ in returned]
                for n in copied:
                    values[n] = self.copied(values[n], returned[n][1])
                func.ReturnOp(values)
            terminator.operation.erase()
            set_result_attrs(self.main, [place for _, place in returned])
        for port, argument in zip(self.inputs, made, strict=True):
            if port.operation is not None and port.operation in self.kept:
                self.operations[port.operation].operands[0] = argument
            else:
                self.value(port).replace_all_uses_with(argument)
        # The return of the whole is the last one; where there is another, it is erased already.
        last = len(self.operations) - (returned is not None)
        for n in reversed([n for n in range(last) if n not in self.kept]):
            self.operations[n].operation.erase()
        for n in reversed(range(count)):
            block.erase_argument(n)
        results = [value.type for value in list(block.operations)[-1].operands]
        set_signature(self.main, types, results)
        set_argument_attrs(self.main, attributes)
        self.drop_loops()
        erase_unused_functions(self.module)
        passed = [p for p in self.inputs if p.operation is not None or CONSTANT not in self.sources[p.number]]
        return ProgramPart(self.module, passed, outputs or ())

    def value(self, port: Handed) -> ir.Value:
        if port.operation is None:
            return body_block(self.main).arguments[port.number]
        return self.operations[port.operation].results[port.number]

    def place(self, value: ir.Value) -> dict[str, ir.Attribute]:
        """The slices of a value, and how it lies there."""
        said = {SLICE: make_slices(slices_of(value) or ())}
        sharding = sharding_of(value, self.symbols, self.sources)
        return said if sharding is None else said | {SHARDING: sharding}

    def attributes(self, port: Handed) -> dict[str, ir.Attribute]:
        """What is said of an input."""
        if port.operation is None:
            return {name: value for name, value in self.sources[port.number].items() if name != DONATED}
        said = self.place(self.value(port))
        # What turns pass on is consumed by the next chunk.
        return said | {DONATED: ir.UnitAttr.get()} if port.operation in self.kept else said

    def copied(self, value: ir.Value, place: dict[str, ir.Attribute]) -> ir.Value:
        """A copy of a value on the first of its slices, which it is said to be on."""
        slices = slices_of(value) or ()
        layout = place.get(SHARDING)
        name = Computations(self.module, self.symbols).make(
            "copy",
            [value.type],
            lambda arguments: [stablehlo.optimization_barrier(arguments)],
            self.main.operation.location,
            arguments=layout,
            results=layout,
        )
        place[SLICE] = make_slices(slices[:1])
        location = self.main.operation.location
        launch = LaunchOp.build([value], [value.type], callee=name, slice=slices[0], loc=location)
        return launch.results[0]

    def drop_loops(self) -> None:
        """Erases loops that nothing is of."""
        named: set[str] = set()
        for op in body_block(self.main).operations:
            if isinstance(op, PwOp):
                named.update(op.attributes[n].value for n in ("loop", "outer") if n in op.attributes)
        for name in list(named):
            parent = self.symbols[name].parent
            while parent is not None and parent not in named:
                named.add(parent)
                parent = self.symbols[parent].parent
        for name, op in self.symbols.items():
            if isinstance(op, LoopOp) and name not in named:
                op.operation.erase()
