"""Typed fields of `pw` operations: one declaration serves views, builders, the verifier and the docs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast, overload

from jaxlib.mlir import ir

from pathways.dialect.attributes.call_times import CALL_KINDS, CALL_UNITS, CallKey, CallTimes
from pathways.dialect.attributes.origins import KINDS, PARTS, Origin
from pathways.dialect.attributes.shardings import is_sharding


@dataclasses.dataclass(eq=False)
class Kind[T]:
    """Kind of an attribute: how it is recognised, read as a Python value, and created from one."""

    description: str
    matches: Callable[[ir.Attribute], bool]
    read: Callable[[Any], T]
    make: Callable[[T], ir.Attribute]
    symbol_kind: str | None = None
    """The operation name that symbols of this kind must resolve to, or None for other kinds."""
    irdl: Sequence[str] = dataclasses.field(kw_only=True)
    """Constraints of MLIR's IRDL dialect; the attribute meets one of them (`dialect/syntax/irdl.py`)."""


def _is_natural(attribute: ir.Attribute) -> bool:
    if not isinstance(attribute, ir.IntegerAttr) or not isinstance(attribute.type, ir.IntegerType):
        return False
    return attribute.type.is_signless and attribute.type.width == 64 and attribute.value >= 0


def _is_elements(attribute: ir.Attribute) -> bool:
    if isinstance(attribute, ir.DenseElementsAttr):
        return True
    try:
        # The bindings do not recognise a parsed one, and can only convert it or raise.
        ir.DenseResourceElementsAttr(attribute)
    except ValueError:
        return False
    return isinstance(attribute.type, ir.RankedTensorType)


def symbol(op_name: str) -> Kind[str]:
    """Returns the kind of references to an operation `op_name` of the module."""
    return Kind(
        f"flat symbol reference to a `{op_name}`",
        lambda a: isinstance(a, ir.FlatSymbolRefAttr),
        lambda a: a.value,
        ir.FlatSymbolRefAttr.get,
        symbol_kind=op_name,
        irdl=['base "#builtin.symbol_ref"'],
    )


def symbols(op_name: str) -> Kind[Sequence[str]]:
    """Returns the kind of lists of references to operations `op_name` of the module."""
    return Kind(
        f"array of flat symbol references to a `{op_name}`",
        lambda a: _is_list(a, lambda entry: isinstance(entry, ir.FlatSymbolRefAttr)),
        lambda a: tuple(entry.value for entry in a),
        lambda names: ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(name) for name in names]),
        symbol_kind=op_name,
        irdl=['base "#builtin.array"'],
    )


def one_of(*choices: str) -> Kind[str]:
    """Returns the kind of strings from a fixed list."""
    return Kind(
        "string attribute, one of " + ", ".join(f'"{c}"' for c in choices),
        lambda a: isinstance(a, ir.StringAttr) and a.value in choices,
        lambda a: a.value,
        ir.StringAttr.get,
        irdl=[f'is "{c}"' for c in choices],
    )


NATURAL: Kind[int] = Kind(
    "64-bit signless integer attribute of at least 0",
    _is_natural,
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
    is_sharding,
    lambda a: a,
    lambda a: a,
    irdl=["any"],  # A stock mlir-opt does not know Shardy.
)


ORDERS: Kind[Sequence[int]] = Kind(
    "array of 64-bit integers of at least 0",
    lambda a: isinstance(a, ir.DenseI64ArrayAttr) and all(number >= 0 for number in a),
    lambda a: tuple(a),
    ir.DenseI64ArrayAttr.get,
    irdl=['base "#builtin.dense_array"'],
)


class Route(NamedTuple):
    """Source of a piece: the number of the operand, and of the device of the source that holds it."""

    operand: int
    device: int


ROUTES: Kind[Sequence[Route]] = Kind(
    "array of pairs of 64-bit integers",
    lambda a: isinstance(a, ir.DenseI64ArrayAttr) and len(a) % 2 == 0,
    lambda a: tuple(map(Route, *(list(a)[start::2] for start in (0, 1)))),
    lambda routes: ir.DenseI64ArrayAttr.get([n for route in routes for n in route]),
    irdl=['base "#builtin.dense_array"'],
)


def entries_of(dictionary: ir.DictAttr) -> dict[str, ir.Attribute | None]:
    """Returns the entries of a dictionary, with None for locations, which the bindings abort on in a loop."""
    entries: dict[str, ir.Attribute | None] = {}
    for name in [entry.name for entry in dictionary]:
        try:
            entries[name] = dictionary[name]
        except TypeError:
            entries[name] = None
    return entries


def _is_list(attribute: ir.Attribute | None, matches: Callable[[ir.Attribute], bool]) -> bool:
    """Returns whether all elements of an array match; bindings cannot return locations in one."""
    try:
        return isinstance(attribute, ir.ArrayAttr) and all(map(matches, attribute))
    except TypeError:
        return False


def _is_origin(attribute: ir.Attribute) -> bool:
    if not isinstance(attribute, ir.DictAttr):
        return False
    fields = entries_of(attribute)
    numbers = [fields.pop(name) for name in ("stage", "microbatch") if name in fields]
    pieces = fields.pop("pieces", None)
    when = fields.pop("when", None)
    words = {
        name: value.value if isinstance(value := fields.pop(name), ir.StringAttr) else ""
        for name in ("kind", "part")
        if name in fields
    }
    return (
        not fields
        and all(map(_is_natural, numbers))
        and (pieces is None or (_is_natural(pieces) and pieces.value > 0))
        and (when is None or (isinstance(when, ir.BoolAttr) and when.value))
        and words.get("kind") in KINDS
        and words.get("part", PARTS[0]) in PARTS
    )


def _make_origin(origin: Origin) -> ir.Attribute:
    fields: dict[str, ir.Attribute] = {"kind": ir.StringAttr.get(origin.kind)}
    fields |= {
        name: NATURAL.make(number)
        for name, number in (
            ("stage", origin.stage),
            ("microbatch", origin.microbatch),
            ("pieces", origin.pieces),
        )
        if number is not None
    }
    if origin.part is not None:
        fields["part"] = ir.StringAttr.get(origin.part)
    if origin.when:
        fields["when"] = ir.BoolAttr.get(True)
    return ir.DictAttr.get(fields)


ORIGINS: Kind[Sequence[Origin]] = Kind(
    "non-empty array of dictionaries, each with a `kind` (one of "
    + ", ".join(f'"{kind}"' for kind in KINDS)
    + ") and perhaps `stage`, `microbatch`, `part`, `pieces` and `when`",
    lambda a: _is_list(a, _is_origin) and len(a) > 0,
    lambda a: tuple(Origin(**{entry.name: entry.attr.value for entry in origin}) for origin in a),
    lambda origins: ir.ArrayAttr.get([_make_origin(origin) for origin in origins]),
    irdl=['base "#builtin.array"'],
)

_MADE_WITH = "made_with"


def _make_call_times(times: CallTimes) -> ir.Attribute:
    entries: dict[str, ir.Attribute] = {
        unit: ir.ArrayAttr.get([_make_call_time(*entry) for entry in table.items()])
        for unit, table in times.tables.items()
    }
    if times.made_with is not None:
        entries[_MADE_WITH] = ir.StringAttr.get(times.made_with)
    return ir.DictAttr.get(entries)


def _make_call_time(key: CallKey, time: float) -> ir.Attribute:
    fields: dict[str, ir.Attribute] = {
        "kind": ir.StringAttr.get(key.kind),
        "time": ir.FloatAttr.get_f64(time),
    }
    if key.loop is not None:
        fields["loop"] = ir.StringAttr.get(key.loop)
    if key.stage is not None:
        fields["stage"] = NATURAL.make(key.stage)
    return ir.DictAttr.get(fields)


def _read_call_times(attribute: Any) -> CallTimes:
    entries = {entry.name: entry.attr for entry in attribute}
    made_with = entries.pop(_MADE_WITH, None)
    tables = {unit: dict(map(_read_call_time, table)) for unit, table in entries.items()}
    return CallTimes(tables, None if made_with is None else made_with.value)


def _read_call_time(entry: Any) -> tuple[CallKey, float]:
    fields = {field.name: field.attr.value for field in entry}
    return CallKey(fields.get("loop"), fields.get("stage"), fields["kind"]), fields["time"]


def _is_call_times(attribute: ir.Attribute) -> bool:
    if not isinstance(attribute, ir.DictAttr):
        return False
    entries = entries_of(attribute)
    if _MADE_WITH in entries:
        made_with = entries.pop(_MADE_WITH)
        if not isinstance(made_with, ir.StringAttr) or made_with.value not in entries:
            return False
    return entries.keys() <= set(CALL_UNITS) and all(
        _is_list(table, _is_call_time) for table in entries.values()
    )


def _is_call_time(entry: ir.Attribute) -> bool:
    if not isinstance(entry, ir.DictAttr):
        return False
    fields = entries_of(entry)
    time = fields.pop("time", None)
    # None represents a location here, which is wrong; an absent stage is not.
    stage = fields.pop("stage", None) if "stage" in fields else NATURAL.make(0)
    words = {
        name: value.value if isinstance(value, ir.StringAttr) else None for name, value in fields.items()
    }
    return (
        words.keys() <= {"kind", "loop"}
        and words.get("kind") in CALL_KINDS
        and None not in words.values()
        and stage is not None
        and NATURAL.matches(stage)
        and isinstance(time, ir.FloatAttr)
        and isinstance(time.type, ir.F64Type)
        and 0 <= time.value < math.inf
    )


CALL_TIMES: Kind[CallTimes] = Kind(
    "dictionary of lists of times of placed calls by their unit, one of which may be `made_with`",
    _is_call_times,
    _read_call_times,
    _make_call_times,
    irdl=['base "#builtin.dictionary"'],
)


class Attr[T]:
    """Required attribute: a descriptor that reads it as a Python value.

    Args:
      doc: its meaning, in one sentence for the dialect page.
    """

    required = True

    def __init__(self, kind: Kind[T], doc: str) -> None:
        self.kind = kind
        self.doc = doc
        self.name = ""
        self._read = kind.read

    def is_absent(self, value: Any) -> bool:
        """Returns whether the attribute is absent when it has this value."""
        return value is None

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, op: None, owner: type) -> Attr[T]: ...
    @overload
    def __get__(self, op: ir.OpView, owner: type) -> T: ...
    def __get__(self, op: ir.OpView | None, owner: type) -> Attr[T] | T:
        if op is None:
            return self
        return self._read(op.attributes[self.name])

    def __set__(self, op: ir.OpView, value: T) -> None:
        op.attributes[self.name] = self.kind.make(value)


class OptionalAttr[T](Attr[T]):
    """Attribute that may be absent: reads as its default then, and is removed by assigning that."""

    required = False

    def __init__(self, kind: Kind[T], doc: str, default: Any = None) -> None:
        super().__init__(kind, doc)
        self.default = default

    def is_absent(self, value: Any) -> bool:
        # The bindings refuse to compare attributes with anything else.
        return value is None or (self.default is not None and value == self.default)

    def __get__(self, op: ir.OpView | None, owner: type) -> Any:
        if op is None:
            return self
        attribute = op.attributes.get(self.name)
        return self.default if attribute is None else self._read(attribute)

    def __set__(self, op: ir.OpView, value: T | None) -> None:
        if not self.is_absent(value):
            op.attributes[self.name] = self.kind.make(cast(T, value))
        elif self.name in op.attributes:
            del op.attributes[self.name]


@dataclasses.dataclass(frozen=True)
class Values:
    """Operands or results of an operation.

    Attributes:
      doc: their meaning, in one sentence for the dialect page.
      count: how many there must be; None for any number.
      one_type: whether they all have the same type.
    """

    doc: str
    count: int | None = None
    one_type: bool = dataclasses.field(default=False, kw_only=True)
