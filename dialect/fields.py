"""Typed fields of `pw` operations: one declaration serves views, builders, the verifier and the docs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from jaxlib.mlir import ir

if TYPE_CHECKING:
    from pathways.dialect.operation import PwOp


class Kind[T]:
    """A kind of attribute: how it is recognised, read as a Python value, and made from one."""

    def __init__(
        self,
        description: str,
        matches: Callable[[ir.Attribute], bool],
        read: Callable[[Any], T],
        make: Callable[[T], ir.Attribute],
        symbol_kind: str | None = None,
        *,
        irdl: Sequence[str],
    ) -> None:
        self.description = description
        self.matches = matches
        self.read = read
        self.make = make
        self.symbol_kind = symbol_kind
        """The operation name that a symbol of this kind must resolve to, or None for other kinds."""
        self.irdl = irdl
        """Constraints of MLIR's IRDL dialect, one of which the attribute meets; see `dialect/irdl.py`."""


def _is_i64(attribute: ir.Attribute) -> bool:
    return isinstance(attribute, ir.IntegerAttr) and str(attribute.type) == "i64"


def _is_elements(attribute: ir.Attribute) -> bool:
    if isinstance(attribute, ir.DenseElementsAttr):
        return True
    try:
        # The bindings do not recognise one that is parsed, and refuse to make one of anything else.
        ir.DenseResourceElementsAttr(attribute)
    except ValueError:
        return False
    return isinstance(attribute.type, ir.RankedTensorType)


def symbol(op_name: str) -> Kind[str]:
    """A flat symbol reference to an operation `op_name` of the module."""
    return Kind(
        f"flat symbol reference to a `{op_name}`",
        lambda a: isinstance(a, ir.FlatSymbolRefAttr),
        lambda a: a.value,
        ir.FlatSymbolRefAttr.get,
        symbol_kind=op_name,
        irdl=['base "#builtin.symbol_ref"'],
    )


def one_of(*choices: str) -> Kind[str]:
    """A string from a fixed list."""
    return Kind(
        "string attribute, one of " + ", ".join(f'"{c}"' for c in choices),
        lambda a: isinstance(a, ir.StringAttr) and a.value in choices,
        lambda a: a.value,
        ir.StringAttr.get,
        irdl=[f'is "{c}"' for c in choices],
    )


I64: Kind[int] = Kind(
    "64-bit signless integer attribute",
    _is_i64,
    lambda a: a.value,
    lambda v: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), v),
    irdl=['base "#builtin.integer"'],
)
UNIT: Kind[bool] = Kind(
    "unit attribute",
    lambda a: isinstance(a, ir.UnitAttr),
    lambda _: True,
    lambda _: ir.UnitAttr.get(),
    irdl=['base "#builtin.unit"'],
)
STRING: Kind[str] = Kind(
    "string attribute",
    lambda a: isinstance(a, ir.StringAttr),
    lambda a: a.value,
    ir.StringAttr.get,
    irdl=['base "#builtin.string"'],
)
TENSOR_TYPE: Kind[ir.Type] = Kind(
    "type attribute of a ranked tensor",
    lambda a: isinstance(a, ir.TypeAttr) and isinstance(a.value, ir.RankedTensorType),
    lambda a: a.value,
    ir.TypeAttr.get,
    irdl=['base "!builtin.tensor"'],
)
ELEMENTS: Kind[ir.Attribute] = Kind(
    "elements attribute of a ranked tensor",
    _is_elements,
    lambda a: a,
    lambda a: a,
    irdl=['base "#builtin.dense_int_or_fp_elements"', 'base "#builtin.dense_resource_elements"'],
)
SHARDING: Kind[ir.Attribute] = Kind(
    "`#sdy.sharding` attribute",
    lambda a: str(a).startswith("#sdy.sharding<"),
    lambda a: a,
    lambda a: a,
    irdl=["any"],  # A stock mlir-opt does not know Shardy.
)


def several_of(*choices: str) -> Kind[Sequence[str]]:
    """An array of strings from a fixed list."""
    return Kind(
        "array of strings, each one of " + ", ".join(f'"{c}"' for c in choices),
        lambda a: (
            isinstance(a, ir.ArrayAttr)
            and all(isinstance(entry, ir.StringAttr) and entry.value in choices for entry in a)
        ),
        lambda a: tuple(entry.value for entry in a),
        lambda v: ir.ArrayAttr.get([ir.StringAttr.get(entry) for entry in v]),
        irdl=['base "#builtin.array"'],
    )


INTEGERS: Kind[Sequence[int]] = Kind(
    "array of 64-bit integers",
    lambda a: isinstance(a, ir.DenseI64ArrayAttr),
    tuple,
    lambda v: ir.DenseI64ArrayAttr.get(list(v)),
    irdl=['base "#builtin.dense_array"'],
)


class Attr[T]:
    """A required attribute: a descriptor that reads it as a Python value.

    Args:
      kind: what the attribute must be.
      doc: what it means, in one sentence for the dialect page.
    """

    required = True

    def __init__(self, kind: Kind[T], doc: str) -> None:
        self.kind = kind
        self.doc = doc
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, op: None, owner: type) -> Attr[T]: ...
    @overload
    def __get__(self, op: PwOp, owner: type) -> T: ...
    def __get__(self, op: PwOp | None, owner: type) -> Attr[T] | T:
        if op is None:
            return self
        return self.kind.read(op.attributes[self.name])

    def __set__(self, op: PwOp, value: T) -> None:
        op.attributes[self.name] = self.kind.make(value)


class OptionalAttr[T](Attr[T]):
    """An attribute that may be missing: reads as None, and is removed by assigning None."""

    required = False

    def __get__(self, op: PwOp | None, owner: type) -> Any:
        if op is None:
            return self
        return self.kind.read(op.attributes[self.name]) if self.name in op.attributes else None

    def __set__(self, op: PwOp, value: T | None) -> None:
        if value is not None:
            op.attributes[self.name] = self.kind.make(value)
        elif self.name in op.attributes:
            del op.attributes[self.name]


class Values:
    """The operands or the results of an operation.

    Args:
      doc: what they are, in one sentence for the dialect page.
      count: how many there must be; None for any number.
      one_type: whether they all have the same type.
    """

    def __init__(self, doc: str, count: int | None = None, *, one_type: bool = False) -> None:
        self.doc = doc
        self.count = count
        self.one_type = one_type
