"""Relations of a program of sub-programs: their operands and results, and the lifetimes of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxlib.mlir import ir

from pathways.dialect.attributes import names
from pathways.dialect.attributes.replica_ports import ReplicaPort, ports_of_callers
from pathways.dialect.operations.operation import attribute_of, counted, parts_of, symbol_table
from pathways.dialect.operations.ops import RepeatOp, RunOp
from pathways.dialect.operations.placement import argument_attrs, result_attrs
from pathways.dialect.relations.program_view import ProgramView, Report, read_program


class PassedValue(NamedTuple):
    """Argument or result of a sub-program.

    Attributes:
      type: its type, as callers see it.
      is_donated: whether the sub-program consumes it.
      places: the placement, sharding and memory of each replica's copy, in words.
      memory_kind: its memory kind; None for the default memory of devices.
    """

    type: ir.Type
    is_donated: bool
    places: Sequence[str]
    memory_kind: str | None = None


class PartPorts(NamedTuple):
    """Arguments of a sub-program without its constants, and its results."""

    inputs: Sequence[PassedValue]
    outputs: Sequence[PassedValue]


def ports_of_part(part: ir.OpView | ir.Module) -> PartPorts:
    """Returns the arguments and results of a verified sub-program."""
    main = symbol_table(part)[names.MAIN]
    sides = []
    for attrs, types in ((argument_attrs(main), main.type.inputs), (result_attrs(main), main.type.results)):
        passed = []
        for first, *copies in ports_of_callers(attrs):
            port = attrs[first]
            if names.CONSTANT in port:
                continue
            places = [_place(attrs[n]) for n in (first, *copies)]
            kind = port[names.MEMORY_KIND].value if names.MEMORY_KIND in port else None
            passed.append(PassedValue(_caller_type(types[first], port), names.DONATED in port, places, kind))
        sides.append(passed)
    return PartPorts(*sides)


def subprograms_are_programs(program: ProgramView, report: Report) -> None:
    """Each sub-program is a program, and all of them are in one form."""
    forms: dict[str, ir.Module] = {}
    for part in parts_of(program.module):
        claim = attribute_of(part.operation, names.FORM)
        forms.setdefault(str(claim), part)
        if claim is None:
            report(part.operation.opview, "is a sub-program, but claims no form (`pw.form`)")
        if read_program(part) is None:
            report(part.operation.opview, "is a sub-program, but has no function @main with a body")
    if len(forms) > 1:
        (first_form, _), (second_form, part) = list(forms.items())[:2]
        report(
            part.operation.opview,
            f"is in the form {second_form}, but another sub-program in the form {first_form}",
        )


def operands_match_signatures(program: ProgramView, report: Report) -> None:
    """Operands and results match the signature of the sub-program."""
    for op, read in zip(program.ops, program.reads, strict=True):
        ports = ports_of_part(program.symbols[op.part])
        for side, values, expected in (
            ("operand", read, ports.inputs),
            ("result", op.results, ports.outputs),
        ):
            if len(values) != len(expected):
                report(op, f"has {counted(len(values), side)}, but @{op.part} has {len(expected)}")
                continue
            for number, (value, port) in enumerate(zip(values, expected, strict=True)):
                if value.type != port.type:
                    report(op, f"{side} #{number} has type {value.type}, but that of @{op.part} {port.type}")


def _place(attrs: dict[str, ir.Attribute]) -> str:
    """Returns the placement, sharding and memory of a value, in words."""
    sharded = f", sharded as {attrs[names.SHARDING]}" if names.SHARDING in attrs else ""
    memory = f", in {attrs[names.MEMORY_KIND].value} memory" if names.MEMORY_KIND in attrs else ""
    return f"on {attrs.get(names.SLICE)}{sharded}{memory}"


def _caller_type(type_: ir.Type, attrs: dict[str, ir.Attribute]) -> ir.Type:
    """Returns the type that callers see, from that of a replica's value."""
    if names.REPLICA not in attrs:
        return type_
    tensor = ir.RankedTensorType(type_)
    shape = ReplicaPort.read(attrs[names.REPLICA]).caller_shape(tensor.shape)
    return ir.RankedTensorType.get(shape, tensor.element_type, loc=ir.Location.unknown(type_.context))


def last_subprogram_returns(program: ProgramView, report: Report) -> None:
    """The program returns the results of its last sub-program, which runs once."""
    returned = list(program.terminator.operands)
    if not program.ops or not isinstance(program.ops[-1], RunOp) or returned != program.produces[-1]:
        report(program.terminator, "does not return the results of a `pw.run` in front of it, in their order")


def values_last(program: ProgramView, report: Report) -> None:
    """A value that a sub-program consumes is not read later, by another, a result or an iteration."""
    not_donated = {
        argument: f"argument #{n}, which is not donated"
        for n, argument in enumerate(program.main.regions[0].blocks[0].arguments)
        if names.DONATED not in program.arguments[n]
    }
    consumed: dict[ir.Value, str] = {}
    for op, value, donates in _readings(program):
        if value in consumed:
            report(op, f"reads a value that @{consumed[value]} has consumed")
        elif donates and value in not_donated:
            report(op, f"consumes {not_donated[value]}")
        elif donates:
            consumed[value] = op.part


def _readings(program: ProgramView) -> Iterator[tuple[ir.OpView, ir.Value, bool]]:
    """Yields each operand of a sub-program with its operation, and whether it is consumed."""
    for op, read in zip(program.ops, program.reads, strict=True):
        # Not strict: all relations of a form run, also after `operands_match_signatures` has reported a
        # count.
        for value, port in zip(read, ports_of_part(program.symbols[op.part]).inputs, strict=False):
            yield op, value, port.is_donated
    for value in program.terminator.operands:
        yield program.terminator, value, False


def iterations_keep_shared_operands(program: ProgramView, report: Report) -> None:
    """A repeated sub-program consumes no operand that it gets in every iteration."""
    for op, _ in program.ops_of(RepeatOp):
        for number, port in enumerate(ports_of_part(program.symbols[op.part]).inputs):
            if number >= len(op.results) and port.is_donated:
                report(op, f"consumes operand #{number}, which @{op.part} gets every time")


def carried_values_stay_in_place(program: ProgramView, report: Report) -> None:
    """A repeated sub-program returns carried values on the slices and in the shardings of arguments."""
    for op, _ in program.ops_of(RepeatOp):
        ports = ports_of_part(program.symbols[op.part])
        for number, (argument, result) in enumerate(zip(ports.inputs, ports.outputs, strict=False)):
            for actual, expected in zip(result.places, argument.places, strict=False):
                if actual != expected:
                    report(
                        op, f"result #{number} of @{op.part} is {actual}, but operand #{number} {expected}"
                    )
