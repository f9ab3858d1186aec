"""`pw-split-chunks`: splits a program that has loops with a data-dependent end into sub-programs."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

import pathways.dialect as dialect
from pathways.dialect.attributes.names import BLOCK, CONSTANT, DONATED, MAIN
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.program_view import read_function
from pathways.dialect.verification.forms import PARTS, SHARDED
from pathways.passes.analysis.functions import body_block, unique_name
from pathways.passes.analysis.memory_kinds import kinds_of_values, uses_memory_kinds
from pathways.passes.analysis.operations import captured
from pathways.passes.manager.base import Pass, fail, main_function
from pathways.passes.schedule.chunks.sub_programs import ProgramPort, SubProgram, SubProgramWriter


@dataclasses.dataclass(frozen=True)
class SplitChunks(Pass):
    """Splits a program that has loops with a `chunk` into sub-programs, each issued at once.

    1. A sub-program is a module nested in the program's: a chunk of iterations of each such loop, or the code
       before the first one, between two, or after the last one. Work is done by the first sub-program that
       can do it; a loop with a `count` by the first that can do all of it.
    2. `@main` specifies the order of the sub-programs, by `pw.run` and `pw.repeat`, and the values between
       them.
    3. Carried values are donated from chunk to chunk. The initial values of a loop are donated to its first
       chunk: a copy, where others read it too, or where it is an argument that is kept.
    4. Donated arguments, and results of sub-programs for later ones, are donated to the sub-program that
       reads them last. Values that all iterations read are kept: it is not known which chunk is the last one.

    A program without such loops stays as it is.

    ```mlir
    // before
    pw.loop @steps in chunks of 2 {sequential}
    %1 = pw.launch @has_ended(%arg0) on @s0
    %2 = pw.carry %1 in @steps on @s0
    %3 = pw.carry %arg0 in @steps on @s0
    %8 = pw.next %2, %7 in @steps on @s0
    %9 = pw.next %3, %6 in @steps on @s0
    pw.until %8 in @steps on @s0
    %11 = pw.launch @g(%9, %10) on @s0
    // after
    %0:3 = pw.run @before_steps(%arg1, %arg0)
    %1:2 = pw.repeat @steps(%0#0, %0#1, %arg1) until 0
    %2 = pw.run @after_steps(%1#1, %0#2)
    module @before_steps ...
    module @steps ...
    %0 = pw.carry %arg0 in @steps on @s0
    module @after_steps ...
    %0 = pw.launch @g(%arg0, %arg1) on @s0
    ```

    Guarantees: every sub-program is complete, in the form `sharded`, and its loops have a `count`.
    """

    name: ClassVar[str] = "pw-split-chunks"
    input_forms = (SHARDED,)

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        if not any(isinstance(op, dialect.UntilOp) for op in body_block(main).operations):
            return
        if any(BLOCK in attrs for attrs in dialect.argument_attrs(main)):
            loop = next(op for op in dialect.ops_named(module, ["pw.loop"]) if op.chunk is not None)
            fail(loop, "has a data-dependent end, which cannot be combined with zero1")
        with main.operation.location:
            _ChunkSplitter(module, main).split()


def _is_boundary(op: ir.OpView) -> bool:
    """Returns whether a value enters or leaves a loop by an operation."""
    return dialect.op_has(op, Trait.OPENS_LOOP) or dialect.op_has(op, Trait.CLOSES_LOOP)


class _ChunkSplitter:
    """Splitter of one program, whose operations are known by their positions."""

    def __init__(self, module: ir.Module, main: ir.OpView) -> None:
        self.module = module
        self.main = main
        self.operations = list(body_block(main).operations)
        self.arguments = dialect.argument_attrs(main)
        self.makers = {result: n for n, op in enumerate(self.operations) for result in op.results}
        self.symbols = dialect.symbol_table(module)
        self.untils = {op.loop: op for op in self.operations if isinstance(op, dialect.UntilOp)}
        self.carries: dict[str, dict[int, int]] = {loop: {} for loop in self.untils}
        """For each loop the position of each carried value, with the position of its next value."""
        self.sub_programs = self.cut()

    def split(self) -> None:
        """Replaces the program by its sub-programs."""
        for before, sub in itertools.pairwise(self.sub_programs):
            if sub.loop is not None:
                self.start(before, sub)
        self.connect()
        self.donate()
        last = self.sub_programs[-1]
        subs = [sub for sub in self.sub_programs if sub.positions or sub.outputs]
        # Before the program is erased: each is written from a copy of it.
        kinds = self.memory_kinds()
        modules = [SubProgramWriter(self.module, sub, kinds, is_last=sub is last).write() for sub in subs]
        self.write_main(subs)
        for op in list(self.module.body.operations):
            if op.operation.name in ("pw.loop", "pw.constant") or (
                op.operation.name == "func.func" and op != self.main
            ):
                op.operation.erase()
        for sub, module in zip(subs, modules, strict=True):
            copy = module.operation.clone(ip=ir.InsertionPoint(self.module.body))
            copy.attributes["sym_name"] = ir.StringAttr.get(sub.name)
        dialect.set_form(self.module, PARTS)

    def cut(self) -> list[SubProgram]:
        """Returns all sub-programs in order: for each loop the code before it and a chunk, then the rest."""
        loops = list(self.untils)
        chunks: list[list[int]] = [[] for _ in loops]
        between: list[list[int]] = [[] for _ in range(len(loops) + 1)]
        around = [self.loops_around(op) for op in self.operations]
        for n, level in self.levels(around).items():
            op, loop = self.operations[n], self.chunked(around[n])
            (between[level] if loop is None else chunks[level - 1]).append(n)
            if isinstance(op, dialect.NextOp) and op.loop == loop:
                self.carries[loop][self.makers[op.operands[0]]] = n
        used_names = dict.fromkeys([*loops, MAIN, *self.symbols])
        subs = []
        for loop, before, chunk in zip(loops, between, chunks, strict=False):
            subs += [
                SubProgram(_unused_name(f"before_{loop}", used_names), before),
                SubProgram(loop, chunk, loop),
            ]
        subs.append(SubProgram(_unused_name(f"after_{loops[-1]}", used_names), between[-1]))
        for sub in subs:
            members = set(sub.positions)
            starts = self.carries[sub.loop] if sub.loop else {}
            values = (v for n in sub.positions if n not in starts for v in captured(self.operations[n]))
            sub.reads = [p for p in dict.fromkeys(map(self.port, values)) if p.operation not in members]
            sub.starts = [self.port(self.operations[n].operands[0]) for n in starts]
        return subs

    def levels(self, around: Sequence[Sequence[str]]) -> dict[int, int]:
        """Counts the loops in chunks that each operation waits for, its own included; `pw.until` is left out.

        Args:
          around: for each operation the loops that it is in.
        """
        loops = list(self.untils)
        # A loop with a `count` is all in one sub-program, though some of its operations wait for less.
        of_loop: dict[str, int] = {}
        levels: dict[int, int] = {}
        is_settled = False
        while not is_settled:
            is_settled = True
            for n, op in enumerate(self.operations):
                if isinstance(op, dialect.UntilOp):
                    continue
                read = [self.makers[v] for v in captured(op) if v in self.makers]
                chunked = self.chunked(around[n])
                if chunked is not None:
                    levels[n] = loops.index(chunked) + 1
                    if any(levels[m] >= levels[n] and self.chunked(around[m]) != chunked for m in read):
                        fail(op, f"reads, in loop @{chunked}, what is made in a loop that waits for its end")
                    continue
                is_last = n == len(self.operations) - 1
                level = len(loops) if is_last else max((levels[m] for m in read), default=0)
                if around[n]:
                    outermost = around[n][-1]
                    # An operation that waits for more takes its whole loop along, whose other operations
                    # are then levelled once more.
                    level = max(level, of_loop.get(outermost, 0))
                    is_settled &= level == of_loop.setdefault(outermost, level)
                    of_loop[outermost] = level
                levels[n] = level
        return levels

    def loops_around(self, op: ir.OpView) -> list[str]:
        """Returns the loops that an operation is in, begins or ends, from the innermost."""
        loop = op.loop if isinstance(op, dialect.PwOp) and _is_boundary(op) else dialect.loop_of_op(op)
        loops = []
        while loop is not None:
            loops.append(loop)
            loop = self.symbols[loop].parent
        return loops

    def chunked(self, around: Sequence[str]) -> str | None:
        """Returns the loop in chunks among the loops around an operation."""
        return next((loop for loop in around if loop in self.untils), None)

    def port(self, value: ir.Value) -> ProgramPort:
        if isinstance(value, ir.BlockArgument):
            return ProgramPort(None, value.arg_number)
        return ProgramPort(self.makers[value], ir.OpResult(value).result_number)

    def start(self, before: SubProgram, chunk: SubProgram) -> None:
        """Sets initial values of a loop; the sub-program before it copies values with other readers."""
        later = self.sub_programs[self.sub_programs.index(chunk) :]
        read = {port for sub in later for port in (*sub.reads, *(sub.starts if sub is not chunk else ()))}
        ends = [ProgramPort(n, 0) for n in self.carries[chunk.loop or ""].values()]
        counts = Counter(chunk.starts)
        for n, port in enumerate(chunk.starts):
            is_kept = port.operation is None and DONATED not in self.arguments[port.number]
            # A chunk consumes its initial values, so it gets copies of values that are needed elsewhere.
            if port in read or is_kept or counts[port] > 1:
                before.copied.add(len(before.outputs))
                before.outputs.append(port)
                if port.operation not in before.positions and port not in before.reads:
                    before.reads.append(port)
                # Copies are not operations of the program: a negative number represents the sub-program.
                chunk.starts[n] = ProgramPort(-1 - self.sub_programs.index(before), len(before.outputs) - 1)
            elif port.operation in before.positions:
                before.outputs.append(port)
        chunk.outputs = ends
        chunk.inputs = [ProgramPort(n, 0) for n in self.carries[chunk.loop or ""]] + chunk.reads

    def connect(self) -> None:
        """Sets the inputs and outputs of sub-programs to the values that they and later ones read."""
        for n, sub in enumerate(self.sub_programs):
            if sub.loop is not None:
                continue
            sub.inputs = sub.reads
            later = [p for other in self.sub_programs[n + 1 :] for p in (*other.starts, *other.reads)]
            present = {port for n, port in enumerate(sub.outputs) if n not in sub.copied}
            sub.outputs += [
                p for p in dict.fromkeys(later) if p.operation in sub.positions and p not in present
            ]

    def donate(self) -> None:
        """Donates carried values, and all other values to the sub-program that reads them last."""
        for sub in self.sub_programs:
            sub.donated.update(sub.inputs[: len(sub.starts)])
        last = {port: sub for sub in self.sub_programs for port in (*sub.reads, *sub.starts)}
        for port, sub in last.items():
            is_kept = port.operation is None and DONATED not in self.arguments[port.number]
            if sub.loop is None and not is_kept:
                sub.donated.add(port)

    def memory_kinds(self) -> dict[ProgramPort, str | None]:
        """Returns the memory kind of each value; of none if all are in the default memory of devices."""
        program = read_function(self.module, self.symbols, self.main)
        if not uses_memory_kinds(program):
            return {}
        return {self.port(value): kind for value, kind in kinds_of_values(program, {}).items()}

    def write_main(self, subs: Sequence[SubProgram]) -> None:
        """Replaces `@main` by one that runs the sub-programs; it has no arguments for constants."""
        block = body_block(self.main)
        passed = [n for n, attrs in enumerate(self.arguments) if CONSTANT not in attrs]
        types = [block.arguments[n].type for n in passed]
        returned = list(block.operations)[-1].operands
        result_types = [value.type for value in returned]
        results = dialect.result_attrs(self.main)
        new_main = func.FuncOp(
            MAIN, (types, result_types), visibility="public", ip=ir.InsertionPoint(self.main)
        )
        dialect.set_argument_attrs(new_main, [self.arguments[n] for n in passed])
        dialect.set_result_attrs(new_main, results)
        body = new_main.add_entry_block()
        values: dict[ProgramPort, ir.Value] = {
            ProgramPort(None, n): argument for n, argument in zip(passed, body.arguments, strict=True)
        }
        with ir.InsertionPoint(body):
            for sub in subs:
                count = len(sub.starts)
                inputs = [p for p in sub.inputs[count:] if p.operation is not None or p in values]
                operands = [values[p] for p in (*sub.starts, *inputs)]
                if sub.loop is None:
                    number = -1 - self.sub_programs.index(sub)
                    outputs = [
                        ProgramPort(number, n) if n in sub.copied else port
                        for n, port in enumerate(sub.outputs)
                    ]
                    last = sub is self.sub_programs[-1]
                    types_of_results = (
                        result_types if last else [p.value(block, self.operations).type for p in sub.outputs]
                    )
                    op = dialect.RunOp.build(operands, types_of_results, part=sub.name)
                    if last:
                        func.ReturnOp(op.results)
                        continue
                else:
                    outputs = sub.outputs
                    done = outputs.index(self.port(self.untils[sub.loop].operands[0]))
                    types_of_results = [p.value(block, self.operations).type for p in outputs]
                    op = dialect.RepeatOp.build(operands, types_of_results, part=sub.name, until=done)
                values.update(zip(outputs, op.results, strict=True))
        self.main.operation.erase()
        self.main = new_main


def _unused_name(name: str, used_names: dict[str, None]) -> str:
    """Returns a name that no other sub-program has, and adds it to `used_names`."""
    free = unique_name(name, used_names)
    used_names[free] = None
    return free
