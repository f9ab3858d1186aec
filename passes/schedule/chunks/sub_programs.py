"""Sub-programs of a program that has loops in chunks, and the writer of their modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

import pathways.dialect as dialect
from pathways.dialect.attributes.names import CONSTANT, DONATED, MEMORY_KIND, REPLACED_BY, SHARDING, SLICE
from pathways.dialect.attributes.shardings import sharding_of
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block, erase_unused_functions, set_signature
from pathways.passes.manager.base import main_function


class ProgramPort(NamedTuple):
    """Value of the whole program: a result of the operation at a position, or, without one, an argument."""

    operation: int | None
    number: int

    def value(self, block: ir.Block, operations: Sequence[ir.OpView]) -> ir.Value:
        """Returns the value in `@main`, whose block and operations are given."""
        if self.operation is None:
            return block.arguments[self.number]
        return operations[self.operation].results[self.number]


@dataclasses.dataclass
class SubProgram:
    """Sub-program: a chunk of iterations, or the operations before, between or after loops in chunks.

    Attributes:
      positions: the positions of its operations.
      loop: the loop that it is a chunk of; None for other sub-programs.
      inputs: its arguments, in order; in a chunk, carried values come first.
      outputs: its results, in order.
      copied: the indices of outputs that are copies.
      donated: the inputs that it consumes.
      reads: the values that its operations read and do not compute.
      starts: the initial values of its loop.
    """

    name: str
    positions: Collection[int]
    loop: str | None = None
    inputs: list[ProgramPort] = dataclasses.field(default_factory=list)
    outputs: list[ProgramPort] = dataclasses.field(default_factory=list)
    copied: set[int] = dataclasses.field(default_factory=set)
    donated: set[ProgramPort] = dataclasses.field(default_factory=set)
    reads: list[ProgramPort] = dataclasses.field(default_factory=list)
    starts: list[ProgramPort] = dataclasses.field(default_factory=list)


class SubProgramWriter:
    """Writer of the module of one sub-program, from a copy of the program.

    Args:
      sub_program: the sub-program; a `pw.carry` in it begins an iteration.
      kinds: the memory kinds of values of the program; others are in the default memory of devices.
      is_last: whether it returns the results of the program.
    """

    def __init__(
        self,
        program: ir.Module,
        sub_program: SubProgram,
        kinds: Mapping[ProgramPort, str | None],
        *,
        is_last: bool,
    ) -> None:
        self.sub_program = sub_program
        self.kinds = kinds
        self.is_last = is_last
        self.module = ir.Module.parse(bytecode_of(program), program.context)
        self.main = main_function(self.module)
        self.operations = list(body_block(self.main).operations)
        self.symbols = dialect.symbol_table(self.module)
        self.sources = dialect.argument_attrs(self.main)

    def write(self) -> ir.Module:
        """Returns the sub-program as a module of its own."""
        block, location = body_block(self.main), self.main.operation.location
        sub, count = self.sub_program, len(block.arguments)
        attributes = [self.attributes(port) for port in sub.inputs]
        types = [self.value(port).type for port in sub.inputs]
        terminator = self.operations[-1]
        # Before anything is replaced.
        outputs = [(self.value(p), self.place(p)) for p in sub.outputs]
        added = [block.add_argument(type_, location) for type_ in types]
        if not self.is_last:
            with ir.InsertionPoint(terminator), location:
                values = [value for value, _ in outputs]
                for n in sorted(sub.copied):
                    values[n] = self.copied(values[n], outputs[n][1])
                func.ReturnOp(values)
            terminator.operation.erase()
            dialect.set_result_attrs(self.main, [place for _, place in outputs])
        for port, argument in zip(sub.inputs, added, strict=True):
            if port.operation is not None and port.operation in sub.positions:
                self.operations[port.operation].operands[0] = argument
            else:
                self.value(port).replace_all_uses_with(argument)
        # The return of the program is the last operation; it is erased already if there is a new one.
        body = self.operations if self.is_last else self.operations[:-1]
        for n, op in reversed(list(enumerate(body))):
            if n not in sub.positions:
                op.operation.erase()
        for n in reversed(range(count)):
            block.erase_argument(n)
        results = [value.type for value in list(block.operations)[-1].operands]
        set_signature(self.main, types, results)
        dialect.set_argument_attrs(self.main, attributes)
        self.settle_loops()
        read = {attrs[CONSTANT].value for attrs in attributes if CONSTANT in attrs}
        for op in dialect.ops_named(self.module, ["pw.constant"]):
            if op.sym_name not in read:
                op.operation.erase()
        erase_unused_functions(self.module)
        return self.module

    def value(self, port: ProgramPort) -> ir.Value:
        return port.value(body_block(self.main), self.operations)

    def place(self, port: ProgramPort) -> dict[str, ir.Attribute]:
        """Returns the attributes for the slices of a value, for its sharding and its memory."""
        value = self.value(port)
        attributes = {SLICE: dialect.make_slices(dialect.slices_of(value) or ())}
        if (kind := self.kinds.get(port)) is not None:
            attributes[MEMORY_KIND] = ir.StringAttr.get(kind)
        sharding = sharding_of(value, self.symbols, self.sources)
        return attributes if sharding is None else attributes | {SHARDING: sharding}

    def attributes(self, port: ProgramPort) -> dict[str, ir.Attribute]:
        """Returns the attributes of an input."""
        if port.operation is None:
            source = self.sources[port.number]
            attributes = {name: source[name] for name in source if name not in (DONATED, REPLACED_BY)}
        else:
            attributes = self.place(port)
        return attributes | {DONATED: ir.UnitAttr.get()} if port in self.sub_program.donated else attributes

    def copied(self, value: ir.Value, place: dict[str, ir.Attribute]) -> ir.Value:
        """Copies a value on the first of its slices, which becomes the slice in `place`."""
        slices = dialect.slices_of(value) or ()
        layout = place.get(SHARDING)
        name = Computations(self.module, self.symbols).make(
            "copy",
            [value.type],
            lambda arguments: [stablehlo.optimization_barrier(arguments)],
            self.main.operation.location,
            arguments=layout,
            results=layout,
        )
        place[SLICE] = dialect.make_slices(slices[:1])
        location = self.main.operation.location
        launch = dialect.LaunchOp.build([value], [value.type], callee=name, slice=slices[0], loc=location)
        return launch.results[0]

    def settle_loops(self) -> None:
        """Erases loops without operations; the loop of a chunk has as many iterations as the chunk."""
        named: set[str] = set()
        for op in body_block(self.main).operations:
            if isinstance(op, dialect.PwOp):
                named.update(op.attributes[n].value for n in ("loop", "outer") if n in op.attributes)
        # Outer loops of loops with operations stay, although no operation may name them.
        for name in list(named):
            parent = self.symbols[name].parent
            while parent is not None and parent not in named:
                named.add(parent)
                parent = self.symbols[parent].parent
        for name, op in self.symbols.items():
            if isinstance(op, dialect.LoopOp) and name not in named:
                op.operation.erase()
            elif isinstance(op, dialect.LoopOp) and op.chunk is not None:
                op.count, op.chunk = op.chunk, None
