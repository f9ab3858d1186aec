"""Calls of sub-programs: their order, and the values that they pass to each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect import argument_attrs, form_of, symbol_table
from pathways.dialect.attributes.names import MAIN, MEMORY_KIND
from pathways.dialect.operations.operation import parts_of, symbol_name
from pathways.dialect.operations.ops import RepeatOp
from pathways.dialect.relations.subprogram_relations import ports_of_part
from pathways.dialect.syntax.bytecode import copy_of
from pathways.dialect.verification.forms import PARTS
from pathways.runtime.plan.lower import array_type
from pathways.runtime.plan.plan import Argument, ArrayType, Plan, Result


@dataclasses.dataclass(frozen=True)
class SubProgramCall:
    """Call of a sub-program: one `pw.run` or `pw.repeat`.

    Values are numbered: first the arguments of the program, then the results of calls in order.

    Attributes:
      operands: the values that it reads.
      results: the values that it produces.
      types: the types of its results, as callers see them.
      kinds: the memory kinds of its results, None for the default memory of devices.
      until: the number of the result that holds the exit flag of a repeated sub-program; None for one that
        runs once.
      last: the values that nothing reads after the call.
    """

    sub_program: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[ArrayType, ...]
    kinds: tuple[str | None, ...]
    until: int | None
    last: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SubProgramCalls:
    """The `@main` of a program that is cut in several sub-programs.

    Attributes:
      argument_kinds: the memory kinds of its arguments, None for the default memory of devices.
      donated: the numbers of the arguments that it consumes.
      calls: its calls, in order; the results of the last one are those of the program.
    """

    arguments: tuple[ArrayType, ...]
    argument_kinds: tuple[str | None, ...]
    donated: frozenset[int]
    calls: tuple[SubProgramCall, ...]

    @property
    def repeated(self) -> str:
        """The first repeated sub-program; its plan represents the program in reports."""
        return next(
            (call.sub_program for call in self.calls if call.until is not None), self.calls[-1].sub_program
        )

    def consumers(self, number: int) -> list[tuple[str, int]]:
        """Returns the sub-programs that read an argument, with its position there; repeated ones first."""
        calls = sorted(self.calls, key=lambda call: call.until is None)
        return [
            (call.sub_program, n)
            for call in calls
            for n, value in enumerate(call.operands)
            if value == number
        ]

    def ports(self, plans: Mapping[str, Plan]) -> tuple[list[Argument], Sequence[Result]]:
        """Returns the arguments and results of the program, as the plans of its sub-programs have them."""
        passed = {name: [a for a in plan.arguments if a.constant is None] for name, plan in plans.items()}
        arguments = []
        for number, type_ in enumerate(self.arguments):
            slots = {
                slice: slot
                for name, n in self.consumers(number)
                for slice, slot in passed[name][n].slots.items()
            }
            kind = self.argument_kinds[number]
            arguments.append(Argument(type_, slots, number in self.donated, memory_kind=kind))
        return arguments, plans[self.calls[-1].sub_program].results


def shown_program(module: ir.Module) -> ir.Module:
    """Returns the module that tools show: the first repeated sub-program, or a program without any, itself.

    The verifier must have accepted the module.
    """
    if form_of(module) != PARTS.name:
        return module
    name = calls_of(module).repeated
    return next(copy_of(part) for part in parts_of(module) if symbol_name(part.operation.opview) == name)


def calls_of(module: ir.Module) -> SubProgramCalls:
    """Reads the `@main` of a module in the form `parts`, which the verifier has accepted."""
    symbols = symbol_table(module)
    main = symbols[MAIN]
    block = main.regions[0].blocks[0]
    *operations, terminator = block.operations
    numbers: dict[ir.Value, int] = {}
    for value in (*block.arguments, *(result for op in operations for result in op.results)):
        numbers[value] = len(numbers)
    needed = {numbers[value] for value in terminator.operands}
    calls: list[SubProgramCall] = []
    consumed: set[int] = set()
    # Backward, since `needed` must hold what later calls read.
    for op in reversed(operations):
        operands = tuple(numbers[value] for value in op.operands)
        ports = ports_of_part(symbols[op.part])
        consumed.update(n for n, port in zip(operands, ports.inputs, strict=True) if port.is_donated)
        results = tuple(numbers[value] for value in op.results)
        calls.append(
            SubProgramCall(
                op.part,
                operands,
                results,
                tuple(array_type(value.type) for value in op.results),
                tuple(port.memory_kind for port in ports.outputs),
                op.until if isinstance(op, RepeatOp) else None,
                tuple(sorted({*operands, *results} - needed)),
            )
        )
        needed.update(operands)
    return SubProgramCalls(
        tuple(array_type(value.type) for value in block.arguments),
        tuple(attrs[MEMORY_KIND].value if MEMORY_KIND in attrs else None for attrs in argument_attrs(main)),
        frozenset(n for n in range(len(block.arguments)) if n in consumed),
        tuple(reversed(calls)),
    )
