"""`pw-split-chunks`: makes parts of a program with loops whose end depends on values, to issue one by one."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

import pathways.dialect as dialect
from pathways.dialect.attributes.names import (
    BLOCK,
    CONSTANT,
    DONATED,
    MAIN,
    SHARDING,
    SLICE,
)
from pathways.dialect.attributes.shardings import sharding_of
from pathways.dialect.operations.traits import Trait
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.dialect.verification.forms import PARTS, SHARDED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block, erase_unused_functions, set_signature, unique_name
from pathways.passes.analysis.operations import captured
from pathways.passes.manager.base import Pass, fail, main_function


@dataclasses.dataclass(frozen=True)
class SplitChunks(Pass):
    """Splits a program that has loops with a `chunk` into parts, each of which is issued at once.

    1. A part is a module nested in the program's: a chunk of iterations of each such loop, what
       comes before the first one, between two, and after the last one. Work is done by the first part that
       can do it; a loop with a `count` by the first that can do all of it.
    2. `@main` specifies the order of the parts, by `pw.run` and `pw.repeat`, and what they pass on.
    3. Carried values are donated from chunk to chunk. The initial values of a loop are donated to its first
       chunk: a copy, where others read it too, or where it is an argument that is kept.
    4. A donated argument, and what a part makes for later ones, is donated to the part that reads it last.
       What all iterations read is kept: it is not known which chunk is the last one.

    A program without such loops stays as it is.

    ```mlir
    // before
    pw.loop @turns in chunks of 2 {sequential}
    %1 = pw.launch @has_ended(%arg0) on @s0
    %2 = pw.carry %1 in @turns on @s0
    %3 = pw.carry %arg0 in @turns on @s0
    %8 = pw.next %2, %7 in @turns on @s0
    %9 = pw.next %3, %6 in @turns on @s0
    pw.until %8 in @turns on @s0
    %11 = pw.launch @g(%9, %10) on @s0
    // after
    %0:3 = pw.run @before_turns(%arg1, %arg0)
    %1:2 = pw.repeat @turns(%0#0, %0#1, %arg1) until 0
    %2 = pw.run @after_turns(%1#1, %0#2)
    module @before_turns ...
    module @turns ...
    %0 = pw.carry %arg0 in @turns on @s0
    module @after_turns ...
    %0 = pw.launch @g(%arg0, %arg1) on @s0
    ```

    Guarantees: every part is a complete program, in the form `sharded`, and its loops have a `count`.
    """

    name: ClassVar[str] = "pw-split-chunks"
    takes = (SHARDED,)

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        if not any(isinstance(op, dialect.UntilOp) for op in body_block(main).operations):
            return
        if any(BLOCK in attrs for attrs in dialect.argument_attrs(main)):
            loop = next(op for op in dialect.ops_named(module, ["pw.loop"]) if op.chunk is not None)
            fail(loop, "has a data-dependent end, which cannot be combined with zero1")
        with main.operation.location:
            _PartSplitter(module, main).split()


class _Handed(NamedTuple):
    """A value of the whole: a result of the operation at a position, or, without one, an argument."""

    operation: int | None
    number: int


@dataclasses.dataclass
class _ProgramPart:
    """A part of the program.

    Attributes:
      name: the name of its module.
      kept: the positions of its operations.
      loop: the loop that it is a chunk of.
      inputs: what it takes, in order; of a chunk first what turns pass on.
      outputs: what it returns, in order.
      copied: which of these are copies.
      donated: which of its inputs it consumes.
    """

    name: str
    kept: Collection[int]
    loop: str | None = None
    inputs: list[_Handed] = dataclasses.field(default_factory=list)
    outputs: list[_Handed] = dataclasses.field(default_factory=list)
    copied: set[int] = dataclasses.field(default_factory=set)
    donated: set[_Handed] = dataclasses.field(default_factory=set)
    reads: list[_Handed] = dataclasses.field(default_factory=list)
    """What its operations read and none of them makes."""
    starts: list[_Handed] = dataclasses.field(default_factory=list)
    """What its loop starts from."""


def _begins_or_ends(op: ir.OpView) -> bool:
    return dialect.op_has(op, Trait.OPENS_LOOP) or dialect.op_has(op, Trait.CLOSES_LOOP)


class _PartSplitter:
    """Splits one program; its operations are known by their positions."""

    def __init__(self, module: ir.Module, main: ir.OpView) -> None:
        self.module = module
        self.main = main
        self.operations = list(body_block(main).operations)
        self.arguments = dialect.argument_attrs(main)
        self.makers = {result: n for n, op in enumerate(self.operations) for result in op.results}
        self.symbols = dialect.symbol_table(module)
        self.untils = {op.loop: op for op in self.operations if isinstance(op, dialect.UntilOp)}
        self.carries: dict[str, dict[int, int]] = {loop: {} for loop in self.untils}
        """Of each loop the positions of what begins a turn, with those of what ends it."""
        self.parts = self.made_parts()

    def split(self) -> None:
        """Replaces the program by its parts."""
        for before, part in itertools.pairwise(self.parts):
            if part.loop is not None:
                self.start(before, part)
        self.hand_on()
        self.donate()
        parts = [part for part in self.parts if part.kept or part.outputs]
        # All of them are made of the whole, which is there until then.
        modules = [_PartWriter(self, part).write() for part in parts]
        self.write_main(parts)
        for op in list(self.module.body.operations):
            if op.operation.name in ("pw.loop", "pw.constant") or (
                op.operation.name == "func.func" and op != self.main
            ):
                op.operation.erase()
        for part, module in zip(parts, modules, strict=True):
            copy = module.operation.clone(ip=ir.InsertionPoint(self.module.body))
            copy.attributes["sym_name"] = ir.StringAttr.get(part.name)
        dialect.set_form(self.module, PARTS)

    def made_parts(self) -> list[_ProgramPart]:
        """All parts, with their operations: what is in front of each loop, its turns, and what is last."""
        loops = list(self.untils)
        chunks: list[list[int]] = [[] for _ in loops]
        others: list[list[int]] = [[] for _ in range(len(loops) + 1)]
        around = [self.loops_around(op) for op in self.operations]
        for n, level in self.levels(around).items():
            op, loop = self.operations[n], self.chunked(around[n])
            (others[level] if loop is None else chunks[level - 1]).append(n)
            if isinstance(op, dialect.NextOp) and op.loop == loop:
                self.carries[loop][self.makers[op.operands[0]]] = n
        taken = dict.fromkeys([*loops, MAIN, *self.symbols])
        parts = []
        for loop, before, chunk in zip(loops, others, chunks, strict=False):
            parts += [_ProgramPart(_named(f"before_{loop}", taken), before), _ProgramPart(loop, chunk, loop)]
        parts.append(_ProgramPart(_named(f"after_{loops[-1]}", taken), others[-1]))
        for part in parts:
            own = set(part.kept)
            starts = self.carries[part.loop] if part.loop else {}
            values = (v for n in part.kept if n not in starts for v in captured(self.operations[n]))
            part.reads = [p for p in dict.fromkeys(map(self.port, values)) if p.operation not in own]
            part.starts = [self.port(self.operations[n].operands[0]) for n in starts]
        return parts

    def levels(self, around: Sequence[Sequence[str]]) -> dict[int, int]:
        """How many loops with a chunk each operation waits for, its own among them; ends are left out.

        Args:
          around: of each operation the loops that it is in.
        """
        loops = list(self.untils)
        # A loop with a `count` is all in one part, though some of its operations wait for less.
        of_loop: dict[str, int] = {}
        levels: dict[int, int] = {}
        is_settled = False
        while not is_settled:
            is_settled = True
            for n, op in enumerate(self.operations):
                if isinstance(op, dialect.UntilOp):
                    continue
                made = [self.makers[v] for v in captured(op) if v in self.makers]
                chunked = self.chunked(around[n])
                if chunked is not None:
                    levels[n] = loops.index(chunked) + 1
                    if any(levels[m] >= levels[n] and self.chunked(around[m]) != chunked for m in made):
                        fail(op, f"reads, in loop @{chunked}, what is made in a loop that waits for its end")
                    continue
                is_last = n == len(self.operations) - 1
                level = len(loops) if is_last else max((levels[m] for m in made), default=0)
                if around[n]:
                    outermost = around[n][-1]
                    level = max(level, of_loop.get(outermost, 0))
                    is_settled &= level == of_loop.setdefault(outermost, level)
                    of_loop[outermost] = level
                levels[n] = level
        return levels

    def loops_around(self, op: ir.OpView) -> list[str]:
        """The loops that an operation is in, begins or ends, from the innermost."""
        loop = op.loop if isinstance(op, dialect.PwOp) and _begins_or_ends(op) else dialect.loop_of_op(op)
        loops = []
        while loop is not None:
            loops.append(loop)
            loop = self.symbols[loop].parent
        return loops

    def chunked(self, around: Sequence[str]) -> str | None:
        """The loop with a chunk among those around an operation."""
        return next((loop for loop in around if loop in self.untils), None)

    def port(self, value: ir.Value) -> _Handed:
        if isinstance(value, ir.BlockArgument):
            return _Handed(None, value.arg_number)
        return _Handed(self.makers[value], ir.OpResult(value).result_number)

    def start(self, before: _ProgramPart, chunk: _ProgramPart) -> None:
        """Says what a loop starts from, and makes what is in front of it copy what others need as well."""
        later = self.parts[self.parts.index(chunk) :]
        read = {port for part in later for port in (*part.reads, *(part.starts if part is not chunk else ()))}
        ends = [_Handed(n, 0) for n in self.carries[chunk.loop or ""].values()]
        counts = Counter(chunk.starts)
        for n, port in enumerate(chunk.starts):
            is_kept = port.operation is None and DONATED not in self.arguments[port.number]
            if port in read or is_kept or counts[port] > 1:
                before.copied.add(len(before.outputs))
                before.outputs.append(port)
                if port.operation not in before.kept and port not in before.reads:
                    before.reads.append(port)
                # What the copy is called in @main.
                chunk.starts[n] = _Handed(-1 - self.parts.index(before), len(before.outputs) - 1)
            elif port.operation in before.kept:
                before.outputs.append(port)
        chunk.outputs = ends
        chunk.inputs = [_Handed(n, 0) for n in self.carries[chunk.loop or ""]] + chunk.reads

    def hand_on(self) -> None:
        """Lets parts return what later ones read, and take what they read."""
        for n, part in enumerate(self.parts):
            if part.loop is not None:
                continue
            part.inputs = part.reads
            later = [p for q in self.parts[n + 1 :] for p in (*q.starts, *q.reads)]
            own = {port for n, port in enumerate(part.outputs) if n not in part.copied}
            part.outputs += [p for p in dict.fromkeys(later) if p.operation in part.kept and p not in own]

    def donate(self) -> None:
        """Donates what turns pass on, and everything else to the part that reads it last."""
        for part in self.parts:
            part.donated.update(part.inputs[: len(part.starts)])
        last = {port: part for part in self.parts for port in (*part.reads, *part.starts)}
        for port, part in last.items():
            is_kept = port.operation is None and DONATED not in self.arguments[port.number]
            if part.loop is None and not is_kept:
                part.donated.add(port)

    def write_main(self, parts: Sequence[_ProgramPart]) -> None:
        """Makes of `@main` what runs the parts; it takes no constants."""
        block = body_block(self.main)
        passed = [n for n, attrs in enumerate(self.arguments) if CONSTANT not in attrs]
        types = [block.arguments[n].type for n in passed]
        returned = list(block.operations)[-1].operands
        result_types = [value.type for value in returned]
        results = dialect.result_attrs(self.main)
        made = func.FuncOp(MAIN, (types, result_types), visibility="public", ip=ir.InsertionPoint(self.main))
        dialect.set_argument_attrs(made, [self.arguments[n] for n in passed])
        dialect.set_result_attrs(made, results)
        body = made.add_entry_block()
        values: dict[_Handed, ir.Value] = {
            _Handed(None, n): argument for n, argument in zip(passed, body.arguments, strict=True)
        }
        with ir.InsertionPoint(body):
            for part in parts:
                count = len(part.starts)
                inputs = [p for p in part.inputs[count:] if p.operation is not None or p in values]
                operands = [values[p] for p in (*part.starts, *inputs)]
                if part.loop is None:
                    number = -1 - self.parts.index(part)
                    outputs = [
                        _Handed(number, n) if n in part.copied else port
                        for n, port in enumerate(part.outputs)
                    ]
                    last = part is self.parts[-1]
                    made_types = result_types if last else [self.value(p).type for p in part.outputs]
                    op = dialect.RunOp.build(operands, made_types, part=part.name)
                    if last:
                        func.ReturnOp(op.results)
                        continue
                else:
                    outputs = part.outputs
                    done = outputs.index(self.port(self.untils[part.loop].operands[0]))
                    made_types = [self.value(p).type for p in outputs]
                    op = dialect.RepeatOp.build(operands, made_types, part=part.name, until=done)
                values.update(zip(outputs, op.results, strict=True))
        self.main.operation.erase()
        self.main = made

    def value(self, port: _Handed) -> ir.Value:
        if port.operation is None:
            return body_block(self.main).arguments[port.number]
        return self.operations[port.operation].results[port.number]


def _named(name: str, taken: dict[str, None]) -> str:
    """A name that no other part has."""
    free = unique_name(name, taken)
    taken[free] = None
    return free


class _PartWriter:
    """Writes one part.

    Args:
      whole: the program.
      part: the part; a `pw.carry` in it is what a turn begins with.
    """

    def __init__(self, whole: _PartSplitter, part: _ProgramPart) -> None:
        self.part = part
        self.is_last = part is whole.parts[-1]
        self.module = ir.Module.parse(bytecode_of(whole.module), whole.module.context)
        self.main = main_function(self.module)
        self.operations = list(body_block(self.main).operations)
        self.symbols = dialect.symbol_table(self.module)
        self.sources = dialect.argument_attrs(self.main)

    def write(self) -> ir.Module:
        """The part as a program of its own."""
        block, location = body_block(self.main), self.main.operation.location
        part, count = self.part, len(block.arguments)
        attributes = [self.attributes(port) for port in part.inputs]
        types = [self.value(port).type for port in part.inputs]
        terminator = self.operations[-1]
        # Before anything is replaced.
        outputs = [(self.value(p), self.place(self.value(p))) for p in part.outputs]
        made = [block.add_argument(type_, location) for type_ in types]
        if not self.is_last:
            with ir.InsertionPoint(terminator), location:
                values = [value for value, _ in outputs]
                for n in sorted(part.copied):
                    values[n] = self.copied(values[n], outputs[n][1])
                func.ReturnOp(values)
            terminator.operation.erase()
            dialect.set_result_attrs(self.main, [place for _, place in outputs])
        for port, argument in zip(part.inputs, made, strict=True):
            if port.operation is not None and port.operation in part.kept:
                self.operations[port.operation].operands[0] = argument
            else:
                self.value(port).replace_all_uses_with(argument)
        # The return of the whole is the last one; where there is another, it is erased already.
        others = self.operations if self.is_last else self.operations[:-1]
        for n, op in reversed(list(enumerate(others))):
            if n not in part.kept:
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

    def value(self, port: _Handed) -> ir.Value:
        if port.operation is None:
            return body_block(self.main).arguments[port.number]
        return self.operations[port.operation].results[port.number]

    def place(self, value: ir.Value) -> dict[str, ir.Attribute]:
        """The slices of a value, and how it lies there."""
        said = {SLICE: dialect.make_slices(dialect.slices_of(value) or ())}
        sharding = sharding_of(value, self.symbols, self.sources)
        return said if sharding is None else said | {SHARDING: sharding}

    def attributes(self, port: _Handed) -> dict[str, ir.Attribute]:
        """What is said of an input."""
        if port.operation is None:
            said = {name: value for name, value in self.sources[port.number].items() if name != DONATED}
        else:
            said = self.place(self.value(port))
        return said | {DONATED: ir.UnitAttr.get()} if port in self.part.donated else said

    def copied(self, value: ir.Value, place: dict[str, ir.Attribute]) -> ir.Value:
        """A copy of a value on the first of its slices, which it is said to be on."""
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
        """Erases loops that nothing is of; the part has all turns of its own."""
        named: set[str] = set()
        for op in body_block(self.main).operations:
            if isinstance(op, dialect.PwOp):
                named.update(op.attributes[n].value for n in ("loop", "outer") if n in op.attributes)
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
