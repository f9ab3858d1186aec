"""Calls of sub-programs: their order, and the values that they pass to each other."""

from __future__ import annotations

import dataclasses
import itertools
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
from pathways.runtime.plan.plan import Argument, ArrayType, Plan, Replicas, Slot


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
      calls: its calls, in order; the results of the last one are the results of the program.
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

    def plan_of_ports(self, name: str, plans: Mapping[str, Plan]) -> Plan:
        """Returns the arguments and results of the program, as a plan without steps.

        On each slice an argument has the sharding that its first reader expects; see `consumers`.

        Args:
          name: the name of the program.
          plans: the plans of its sub-programs.
        """
        passed = {part: [a for a in plan.arguments if a.constant is None] for part, plan in plans.items()}
        slots = _NewSlots([], [], [])
        arguments = []
        for number, type_ in enumerate(self.arguments):
            readers = [(plans[part], passed[part][n]) for part, n in self.consumers(number)]
            places = {
                slice: (plan, slot)
                for plan, argument in reversed(readers)
                for slice, slot in argument.slots.items()
            }
            replicas = _common_replicas([argument for _, argument in readers])
            order = [
                *dict.fromkeys(
                    itertools.chain.from_iterable(
                        replicas.slices if replicas else (argument.slots for _, argument in readers)
                    )
                )
            ]
            arguments.append(
                Argument(
                    type_,
                    slots.add({slice: places[slice] for slice in order}),
                    number in self.donated,
                    replicas=replicas,
                    memory_kind=self.argument_kinds[number],
                )
            )
        last = plans[self.calls[-1].sub_program]
        results = tuple(
            dataclasses.replace(
                result, slots=slots.add({slice: (last, slot) for slice, slot in result.slots.items()})
            )
            for result in last.results
        )
        kinds = tuple(slots.kinds) if any(slots.kinds) else ()
        return Plan(
            name,
            last.slices,
            {},
            tuple(arguments),
            results,
            (),
            tuple(slots.types),
            tuple(slots.shardings),
            kinds,
        )


@dataclasses.dataclass(frozen=True)
class _NewSlots:
    """Slots of a plan that is built from slots of other plans.

    Attributes:
      types, shardings, kinds: see `Plan`.
    """

    types: list[ArrayType]
    shardings: list[tuple[tuple[str, ...], ...]]
    kinds: list[str | None]

    def add(self, places: Mapping[str, tuple[Plan, Slot]]) -> dict[str, Slot]:
        """Returns new slots by slice, for slots of other plans."""
        first = len(self.types)
        for plan, slot in places.values():
            self.types.append(plan.slot_types[slot])
            self.shardings.append(plan.sharding(slot))
            self.kinds.append(plan.memory_kind(slot))
        return {slice: first + n for n, slice in enumerate(places)}


def _common_replicas(arguments: Sequence[Argument]) -> Replicas | None:
    """Returns the distribution of an argument over the slices of all its readers."""
    of_readers = [argument.replicas for argument in arguments if argument.replicas is not None]
    if not of_readers:
        return None
    groups = zip(*(replicas.slices for replicas in of_readers), strict=True)
    merged = tuple(tuple(dict.fromkeys(itertools.chain.from_iterable(group))) for group in groups)
    return dataclasses.replace(of_readers[0], slices=merged)


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
    # Backward, since `needed` must hold the values that later calls read.
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
