"""The base class of `pw` operations, and the registry that declaring one fills."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self, cast

from jaxlib.mlir import ir

from pathways.dialect.attributes.fields import Attr, Values
from pathways.dialect.attributes.names import HOST, MAIN
from pathways.dialect.operations.bindings import register_dialect, register_operation
from pathways.dialect.operations.traits import Trait


@register_dialect
class PwDialect(ir.Dialect):
    """The dialect of placed, moved and ordered computations of one program over many slices."""

    DIALECT_NAMESPACE = "pw"


OPERATIONS: dict[str, type[PwOp]] = {}
"""Every declared operation by its full name."""

# The first alternative consumes an escaped backslash, so that digits after it are no escape. Escapes are
# matched in runs, since a character of UTF-8 has up to four bytes.
_ESCAPES = re.compile(rb"\\\\|((?:\\[0-9A-F]{2})+)")

Emit = Callable[[str], None]


class PwOp(ir.OpView):
    """Typed view of one `pw` operation.

    A subclass declares its attributes as `Attr` fields, its operands and results as `Values`, and in
    `check` the rules that fields cannot state. Its docstring is its documentation.
    """

    OPERATION_NAME: ClassVar[str]
    _ODS_REGIONS = (0, True)

    inputs: ClassVar[Values] = Values("None.", 0)
    outputs: ClassVar[Values] = Values("None.", 0)
    traits: ClassVar[frozenset[Trait]] = frozenset()

    @classmethod
    @functools.cache
    def fields(cls) -> dict[str, Attr[Any]]:
        """Returns the declared attributes by name, in the order of their declaration."""
        return {
            name: field
            for base in reversed(cls.__mro__)
            for name, field in vars(base).items()
            if isinstance(field, Attr)
        }

    @classmethod
    @functools.cache
    def may_name_symbols(cls, attribute: str) -> bool:
        """Returns whether an attribute of this name may hold symbols, by the declarations."""
        field = cls.fields().get(attribute)
        return field is None or field.kind.symbol_kind is not None

    @classmethod
    def build(
        cls,
        operands: Sequence[ir.Value] = (),
        result_types: Sequence[ir.Type] = (),
        *,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
        **attributes: Any,
    ) -> Self:
        """Creates the operation from attributes as Python values; None leaves an attribute out."""
        fields = cls.fields()
        operation = ir.Operation.create(
            cls.OPERATION_NAME,
            results=list(result_types),
            operands=list(operands),
            attributes={
                name: fields[name].kind.make(value)
                for name, value in attributes.items()
                if not fields[name].is_absent(value)
            },
            loc=loc,
            ip=ip,
        )
        return operation.opview

    def rebuilt(
        self,
        operands: Sequence[ir.Value] | None = None,
        result_types: Sequence[ir.Type] | None = None,
        *,
        ip: ir.InsertionPoint | None = None,
        **changes: Any,
    ) -> Self:
        """Creates a copy of the operation with some changes.

        Args:
          operands: the operands; the same by default.
          result_types: the types of the results; the same by default.
          ip: the insertion point; in front of the operation by default.
          **changes: attributes as Python values or as they are in the IR, None to remove one.
        """
        fields = self.fields()
        attributes = dict(self.attributes.items())
        for name, value in changes.items():
            attributes.pop(name, None)
            if isinstance(value, ir.Attribute):
                attributes[name] = value
            elif not fields[name].is_absent(value):
                attributes[name] = fields[name].kind.make(value)
        operation = ir.Operation.create(
            self.OPERATION_NAME,
            results=[r.type for r in self.results] if result_types is None else list(result_types),
            operands=list(self.operands) if operands is None else list(operands),
            attributes=attributes,
            loc=self.operation.location,
            ip=ir.InsertionPoint(self) if ip is None else ip,
        )
        return operation.opview

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        """Reports violations that the declared fields cannot state; all fields are well formed here."""


def operation[O: type[PwOp]](name: str) -> Callable[[O], O]:
    """Declares the operation `pw.<name>`."""

    def declare(cls: O) -> O:
        cls.OPERATION_NAME = f"pw.{name}"
        OPERATIONS[cls.OPERATION_NAME] = cls
        register_operation(PwDialect)(cls)
        return cls

    return declare


def op_has(op: ir.OpView, trait: Trait) -> bool:
    """Returns whether an operation, of this dialect or another, has a trait."""
    return isinstance(op, PwOp) and trait in op.traits


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: `1 operand`, `2 operands`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def symbol_name(op: ir.OpView) -> str | None:
    """Returns the symbol that an operation declares; None if it declares none."""
    name = attribute_of(op, "sym_name")
    return name.value if isinstance(name, ir.StringAttr) else None


def attribute_of(op: ir.OpView | ir.Operation, name: str) -> ir.Attribute | None:
    """Returns an attribute of an operation; None if it is absent, or if the bindings cannot return it.

    The bindings cannot return locations and elements that are complex numbers.
    """
    try:
        return op.attributes.get(name)
    except TypeError:
        return None


def attributes_of(op: ir.OpView | ir.Operation) -> dict[str, ir.Attribute | None]:
    """Returns the attributes of an operation by name, with None where the bindings cannot return one."""
    try:
        return dict(op.attributes.items())
    except TypeError:
        return {name: attribute_of(op, name) for name in op.attributes}


def is_public(function: ir.OpView) -> bool:
    """Returns whether a function is visible from outside of its module."""
    visibility = attribute_of(function, "sym_visibility")
    return visibility is None or visibility.value == "public"


def is_program(function: ir.OpView) -> bool:
    """Returns whether a function is the program or the share of one host in it, rather than a computation."""
    return symbol_name(function) == MAIN or HOST in function.attributes


def printed(module: ir.Module) -> bytes:
    """Returns a module as printed text without large constants, for `is_text`."""
    return module.operation.get_asm(binary=True, large_elements_limit=16)


def is_text(text: bytes) -> bool:
    """Returns whether names and strings of printed IR are UTF-8; other bytes are escaped in strings."""
    try:
        text.decode()
        if b"\\" not in text:
            return True
        for escapes in _ESCAPES.finditer(text):
            bytes.fromhex((escapes[1] or b"").replace(b"\\", b"").decode()).decode()
    except UnicodeDecodeError:
        return False
    return True


def symbol_table(module: ir.Module) -> dict[str, ir.OpView]:
    """Returns all symbols of a module by name; unlike `ir.SymbolTable` it knows the symbols of `pw` ops."""
    named = ((symbol_name(op), op) for op in module.body.operations)
    return {name: op for name, op in named if name is not None}


def parts_of(module: ir.Module) -> list[ir.Module]:
    """Returns the sub-programs of a module: the modules inside of it, in order. They live as long as it does.

    An `OpView` of one has the methods of `ir.Module` that we use.
    """
    parts: list[ir.Module] = ops_named(module, ["builtin.module"])
    return parts


def _only_computes(kind: type[ir.OpView]) -> bool:
    """Returns whether all operations of a kind do nothing but compute their results, by themselves.

    These are the operations of StableHLO that have no regions, call nothing and communicate with nothing:
    most of a program, which passes need not examine further.
    """
    name = getattr(kind, "OPERATION_NAME", "")
    has_no_regions = getattr(kind, "_ODS_REGIONS", None) == (0, True)
    return has_no_regions and name.startswith(("stablehlo.", "chlo.")) and name not in _DOES_MORE


# To mypy a class of the bindings is not hashable.
only_computes = cast(Callable[[type[ir.OpView]], bool], functools.cache(_only_computes))


_DOES_MORE = frozenset(
    f"stablehlo.{name}" for name in ("composite", "custom_call", "infeed", "outfeed", "recv", "send")
)


def nested_ops(op: ir.OpView) -> Iterator[ir.OpView]:
    """Yields all operations inside the regions of an operation."""
    # Without recursion: text may nest deeper than Python's stack.
    waiting = [op] if len(op.regions) else []
    while waiting:
        for region in waiting.pop().regions:
            for block in region.blocks:
                for inner in block.operations:
                    yield inner
                    if inner.regions:
                        waiting.append(inner)


def referenced_symbols(op: ir.OpView | ir.Operation, seen: set[ir.Attribute] | None = None) -> list[str]:
    """Returns the symbols that an operation refers to, in any attribute, also inside arrays and dictionaries.

    Args:
      seen: attributes to leave out; the attributes of the operation are added. For callers that collect the
        symbols of many operations, which share most of their attributes.
    """
    attributes = op.attributes
    if not len(attributes):
        return []
    names: list[str] = []
    try:
        if isinstance(op, PwOp):
            # The declaration tells of most attributes that they hold no symbols.
            waiting = [[a for name, a in attributes.items() if op.may_name_symbols(name)]]
        else:
            waiting = [attributes.values()]
    except TypeError:
        waiting = [_handed_out(attributes, list(attributes))]
    while waiting:
        for attribute in waiting.pop():
            if seen is not None:
                if attribute in seen:
                    continue
                seen.add(attribute)
            # Exact types are compared sooner than `isinstance` answers, and these have no subclasses.
            kind = type(attribute)
            if kind is ir.FlatSymbolRefAttr:
                names.append(attribute.value)
            elif kind is ir.SymbolRefAttr:
                # Of `@atom::@main` the root alone is a symbol of this module.
                names.append(attribute.value[0])
            elif kind is ir.ArrayAttr:
                waiting.append(_handed_out(attribute, range(len(attribute))))
            elif kind is ir.DictAttr:
                waiting.append(_handed_out(attribute, [entry.name for entry in attribute]))
    return names


def _handed_out(container: Any, keys: Collection[Any]) -> list[ir.Attribute]:
    """Returns the attributes in a container that bindings can return: no locations, no names with NUL."""
    try:
        return [container[key] for key in keys]
    except (TypeError, KeyError):
        pass
    attributes = []
    for key in keys:
        with contextlib.suppress(TypeError, KeyError):
            attributes.append(container[key])
    return attributes


def ops_named(module: ir.Module, names: Iterable[str]) -> list[ir.OpView]:
    """Returns the top-level operations of a module whose names are among `names`, in order."""
    op_names = frozenset(names)
    return [op for op in module.body.operations if op.operation.name in op_names]
