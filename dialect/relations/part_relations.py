"""What holds of a program in parts: what each of them takes and returns, and how long that lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jaxlib.mlir import ir

from pathways.dialect.attributes.names import CONSTANT, DONATED, FORM, MAIN, REPLICA, SHARDING, SLICE
from pathways.dialect.attributes.replica_ports import ReplicaPort, ports_of_callers
from pathways.dialect.operations.operation import attribute_of, counted, parts_of, symbol_table
from pathways.dialect.operations.ops import RepeatOp, RunOp
from pathways.dialect.operations.placement import argument_attrs, result_attrs
from pathways.dialect.relations.program_view import ProgramView, read_program

Report = Callable[[ir.OpView, str], None]


class PassedValue(NamedTuple):
    """An argument or result of a part.

    Attributes:
      type: its type, as callers see it.
      is_donated: whether the part consumes it.
      places: for each copy that replicas have, where it is and how it is sharded, in words.
    """

    type: ir.Type
    is_donated: bool
    places: Sequence[str]


class PartPorts(NamedTuple):
    """What a part takes, but for constants, and what it returns."""

    inputs: Sequence[PassedValue]
    outputs: Sequence[PassedValue]


def ports_of_part(part: ir.OpView | ir.Module) -> PartPorts:
    """The ports of a part, which the verifier has passed."""
    main = symbol_table(part)[MAIN]
    sides = []
    for attrs, types in ((argument_attrs(main), main.type.inputs), (result_attrs(main), main.type.results)):
        passed = []
        for first, *others in ports_of_callers(attrs):
            said = attrs[first]
            if CONSTANT in said:
                continue
            places = [_place(attrs[n]) for n in (first, *others)]
            passed.append(PassedValue(_whole(types[first], said), DONATED in said, places))
        sides.append(passed)
    return PartPorts(*sides)


def parts_are_programs(program: ProgramView, report: Report) -> None:
    """Each part is a program, and all of them are in one form."""
    forms: dict[str, ir.Module] = {}
    for part in parts_of(program.module):
        claim = attribute_of(part.operation, FORM)
        forms.setdefault(str(claim), part)
        if claim is None:
            report(part.operation.opview, "is a part of a program, and says no form (`pw.form`)")
        if read_program(part) is None:
            report(part.operation.opview, "is a part of a program, and has no function @main with a body")
    if len(forms) > 1:
        (one, _), (other, part) = list(forms.items())[:2]
        report(part.operation.opview, f"is in the form {other}, but another part in the form {one}")


def parts_fit(program: ProgramView, report: Report) -> None:
    """A part gets what it takes, and makes what it returns."""
    for op, read in zip(program.ops, program.reads, strict=True):
        ports = ports_of_part(program.symbols[op.part])
        for what, values, expected in (
            ("operand", read, ports.inputs),
            ("result", op.results, ports.outputs),
        ):
            if len(values) != len(expected):
                report(op, f"has {counted(len(values), what)}, but @{op.part} has {len(expected)}")
                continue
            for number, (value, port) in enumerate(zip(values, expected, strict=True)):
                if value.type != port.type:
                    report(op, f"{what} #{number} has type {value.type}, but that of @{op.part} {port.type}")


def _place(attrs: dict[str, ir.Attribute]) -> str:
    """Where a value is, and how it is sharded there."""
    sharded = f", sharded as {attrs[SHARDING]}" if SHARDING in attrs else ""
    return f"on {attrs.get(SLICE)}{sharded}"


def _whole(type_: ir.Type, attrs: dict[str, ir.Attribute]) -> ir.Type:
    """The type that callers see of what a replica has."""
    if REPLICA not in attrs:
        return type_
    tensor = ir.RankedTensorType(type_)
    shape = ReplicaPort.read(attrs[REPLICA]).whole(tensor.shape)
    return ir.RankedTensorType.get(shape, tensor.element_type, loc=ir.Location.unknown(type_.context))


def last_part_returns(program: ProgramView, report: Report) -> None:
    """The program returns what its last part does, which runs once."""
    returned = list(program.terminator.operands)
    if not program.ops or not isinstance(program.ops[-1], RunOp) or returned != program.makes[-1]:
        report(program.terminator, "does not return the results of a `pw.run` in front of it, in their order")


def values_last(program: ProgramView, report: Report) -> None:
    """A value that a part consumes is not read after it: by no part, no result, and no further iteration."""
    given = {
        argument: f"argument #{n}, which is not donated"
        for n, argument in enumerate(program.main.regions[0].blocks[0].arguments)
        if DONATED not in program.arguments[n]
    }
    consumed: dict[ir.Value, str] = {}
    for op, value, donates in _readings(program):
        if value in consumed:
            report(op, f"reads a value that @{consumed[value]} has consumed")
        elif donates and value in given:
            report(op, f"consumes {given[value]}")
        elif donates:
            consumed[value] = op.part


def _readings(program: ProgramView) -> Iterator[tuple[ir.OpView, ir.Value, bool]]:
    """Each reading of a value, and whether it consumes it."""
    for op, read in zip(program.ops, program.reads, strict=True):
        for value, port in zip(read, ports_of_part(program.symbols[op.part]).inputs, strict=False):
            yield op, value, port.is_donated
    for value in program.terminator.operands:
        yield program.terminator, value, False


def turns_keep_what_they_share(program: ProgramView, report: Report) -> None:
    """A part that is repeated consumes nothing that it gets every time."""
    for op, _ in program.ops_of(RepeatOp):
        for number, port in enumerate(ports_of_part(program.symbols[op.part]).inputs):
            if number >= len(op.results) and port.is_donated:
                report(op, f"consumes operand #{number}, which @{op.part} gets every time")


def turns_pass_on_in_place(program: ProgramView, report: Report) -> None:
    """A part that is repeated returns what it takes the next time on the same slices, sharded alike."""
    for op, _ in program.ops_of(RepeatOp):
        ports = ports_of_part(program.symbols[op.part])
        for number, (taken, returned) in enumerate(zip(ports.inputs, ports.outputs, strict=False)):
            for given, expected in zip(returned.places, taken.places, strict=False):
                if given != expected:
                    report(op, f"result #{number} of @{op.part} is {given}, but operand #{number} {expected}")
