"""What runs the parts of a program: which of them when, and what they pass to each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect import form_of, symbol_table
from pathways.dialect.attributes.names import MAIN
from pathways.dialect.operations.operation import parts_of, symbol_name
from pathways.dialect.operations.ops import RepeatOp
from pathways.dialect.relations.part_relations import ports_of_part
from pathways.dialect.syntax.bytecode import copy_of
from pathways.dialect.verification.forms import PARTS
from pathways.runtime.plan.lower import array_type
from pathways.runtime.plan.plan import Argument, ArrayType, Plan, Result


@dataclasses.dataclass(frozen=True)
class PartCall:
    """One `pw.run` or `pw.repeat`.

    Values are numbered: first the arguments of the program, then the results of calls in order.

    Attributes:
      part: the part.
      operands: the values that it takes.
      results: the values that it makes.
      types: the types of its results, as callers see them.
      until: the number of the result that says whether a part that is repeated has come to its end; None for
        one that runs once.
      last: values that nothing reads after it.
    """

    part: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[ArrayType, ...]
    until: int | None
    last: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class PartCalls:
    """What the `@main` of a program in parts says.

    Attributes:
      arguments: the types of its arguments.
      donated: the numbers of those that it consumes.
      calls: what it does, in order; it returns what the last one makes.
    """

    arguments: tuple[ArrayType, ...]
    donated: frozenset[int]
    calls: tuple[PartCall, ...]

    @property
    def repeated(self) -> str:
        """The first part that is repeated: of its plan is said what is said of the plan of a program."""
        return next((call.part for call in self.calls if call.until is not None), self.calls[-1].part)

    def takers(self, number: int) -> list[tuple[str, int]]:
        """The parts that take an argument, and as which of theirs; those that are repeated first."""
        calls = sorted(self.calls, key=lambda call: call.until is None)
        return [(call.part, n) for call in calls for n, value in enumerate(call.operands) if value == number]

    def ports(self, plans: Mapping[str, Plan]) -> tuple[list[Argument], Sequence[Result]]:
        """The arguments and results of the program, as the plans of its parts have them."""
        passed = {name: [a for a in plan.arguments if a.constant is None] for name, plan in plans.items()}
        arguments = []
        for number, type_ in enumerate(self.arguments):
            slots = {s: slot for part, n in self.takers(number) for s, slot in passed[part][n].slots.items()}
            arguments.append(Argument(type_, slots, number in self.donated))
        return arguments, plans[self.calls[-1].part].results


def shown_part(module: ir.Module) -> ir.Module:
    """What is shown of a program, which the verifier has passed: a chunk where it has parts, or itself."""
    if form_of(module) != PARTS.name:
        return module
    name = calls_of(module).repeated
    return next(copy_of(part) for part in parts_of(module) if symbol_name(part.operation.opview) == name)


def calls_of(module: ir.Module) -> PartCalls:
    """Reads the `@main` of a module in the form `parts`, which the verifier has passed."""
    symbols = symbol_table(module)
    main = symbols[MAIN]
    block = main.regions[0].blocks[0]
    *operations, terminator = block.operations
    numbers: dict[ir.Value, int] = {}
    for value in (*block.arguments, *(result for op in operations for result in op.results)):
        numbers[value] = len(numbers)
    needed = {numbers[value] for value in terminator.operands}
    calls: list[PartCall] = []
    consumed: set[int] = set()
    for op in reversed(operations):
        operands = tuple(numbers[value] for value in op.operands)
        ports = ports_of_part(symbols[op.part])
        consumed.update(n for n, port in zip(operands, ports.inputs, strict=True) if port.is_donated)
        made = tuple(numbers[value] for value in op.results)
        calls.append(
            PartCall(
                op.part,
                operands,
                made,
                tuple(array_type(value.type) for value in op.results),
                op.until if isinstance(op, RepeatOp) else None,
                tuple(sorted({*operands, *made} - needed)),
            )
        )
        needed.update(operands)
    return PartCalls(
        tuple(array_type(value.type) for value in block.arguments),
        frozenset(n for n in range(len(block.arguments)) if n in consumed),
        tuple(reversed(calls)),
    )
