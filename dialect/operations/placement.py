"""Placement of values: `slices_of` is the one place that decides it, for passes, verifier and plan."""

from collections.abc import Sequence
from typing import cast

from jaxlib.mlir import ir

from pathways.dialect.attributes.fields import entries_of
from pathways.dialect.attributes.names import ALIASING, DONOR, SLICE
from pathways.dialect.operations.operation import PwOp, op_has
from pathways.dialect.operations.traits import Trait

Slices = tuple[str, ...]


def read_slices(attribute: ir.Attribute) -> Slices:
    """Reads a placement: `@s0` for one slice, `[@s0, @s1]` for a value mirrored on several."""
    if isinstance(attribute, ir.ArrayAttr):
        return tuple(entry.value for entry in attribute)
    return (attribute.value,)


def make_slices(slices: Sequence[str]) -> ir.Attribute:
    """Creates the attribute that `read_slices` reads."""
    if len(slices) == 1:
        return ir.FlatSymbolRefAttr.get(slices[0])
    return ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(s) for s in slices])


def _attr_dicts(function: ir.OpView, name: str, count: int) -> list[dict[str, ir.Attribute]]:
    if name not in function.attributes:
        return [{} for _ in range(count)]
    # The verifier rejects ports with entries that cannot be read.
    return [cast(dict[str, ir.Attribute], entries_of(entries)) for entries in function.attributes[name]]


def argument_attrs(function: ir.OpView) -> list[dict[str, ir.Attribute]]:
    """Returns the attributes of each argument of a `func.func`."""
    return _attr_dicts(function, "arg_attrs", len(function.type.inputs))


def result_attrs(function: ir.OpView) -> list[dict[str, ir.Attribute]]:
    """Returns the attributes of each result of a `func.func`."""
    return _attr_dicts(function, "res_attrs", len(function.type.results))


def set_argument_attrs(function: ir.OpView, attrs: Sequence[dict[str, ir.Attribute]]) -> None:
    """Replaces the attributes of all arguments of a `func.func`."""
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attrs])


def set_result_attrs(function: ir.OpView, attrs: Sequence[dict[str, ir.Attribute]]) -> None:
    """Replaces the attributes of all results of a `func.func`."""
    function.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attrs])


def argument_slices(function: ir.OpView) -> list[Slices | None]:
    """Returns the slices of each argument of a `func.func`, None if it is not placed yet."""
    return [read_slices(a[SLICE]) if SLICE in a else None for a in argument_attrs(function)]


def result_slices(function: ir.OpView) -> list[Slices | None]:
    """Returns the slices of each result of a `func.func`, None if it is not placed yet."""
    return [read_slices(a[SLICE]) if SLICE in a else None for a in result_attrs(function)]


def slices_of(value: ir.Value, arguments: Sequence[Slices | None] | None = None) -> Slices | None:
    """Returns the slices of a value: one, more for a mirrored value, None if it is not placed yet.

    `arguments` is the result of `argument_slices` for the enclosing function, for callers with many values.
    """
    owner = value.owner
    if isinstance(owner, ir.Block):
        if arguments is not None:
            return arguments[ir.BlockArgument(value).arg_number]
        function = owner.owner.operation.opview
        if function.operation.name != "func.func":
            return None
        return argument_slices(function)[ir.BlockArgument(value).arg_number]
    op = owner.operation.opview
    if op_has(op, Trait.ALIASES):
        return joined_slices([slices_of(v, arguments) for v in op.operands])
    if op_has(op, Trait.SPREADS) and op.slice is None:
        return slices_of(op.operands[ir.OpResult(value).result_number], arguments)
    if op_has(op, Trait.EXCHANGES):
        return (op.slices[ir.OpResult(value).result_number],)
    return slices_of_op(op)


def slices_of_op(op: ir.OpView) -> Slices | None:
    """Returns the slices that an operation runs on, or moves to; None if it is not placed yet."""
    if isinstance(op, PwOp) and "slice" in op.attributes:
        return (op.attributes["slice"].value,)
    if op_has(op, Trait.EXCHANGES):
        return tuple(op.slices)
    return read_slices(op.attributes[SLICE]) if SLICE in op.attributes else None


def joined_slices(slices: Sequence[Slices | None]) -> Slices | None:
    """Returns the slices of a value that is mirrored from copies on `slices`."""
    if any(s is None for s in slices):
        return None
    return tuple(name for some in slices if some is not None for name in some)


def donated_arguments(function: ir.OpView) -> frozenset[int]:
    """Returns the arguments that a computation consumes, by their aliasing or donor attributes."""
    return frozenset(
        number for number, attrs in enumerate(argument_attrs(function)) if ALIASING in attrs or DONOR in attrs
    )
