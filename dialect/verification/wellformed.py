"""Checks of readability: attributes of the right kinds, existing symbols, bounds.

Nothing here reads an attribute before its kind was checked, and nothing else reads a module that was not
found well formed; see `dialect/verification/verifier.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from pathways.dialect.attributes import names
from pathways.dialect.attributes.dtypes import dtype_of
from pathways.dialect.attributes.fields import CALL_TIMES, NATURAL, STRING, UNIT, Kind, symbol
from pathways.dialect.attributes.fields import SHARDING as SHARDING_KIND
from pathways.dialect.attributes.replica_ports import is_replica_port
from pathways.dialect.attributes.shardings import mesh_of, read_mesh, read_sharding, unsupported
from pathways.dialect.operations.operation import (
    OPERATIONS,
    PwOp,
    attribute_of,
    attributes_of,
    counted,
    is_program,
    is_public,
    is_text,
    nested_ops,
    op_has,
    printed,
    symbol_name,
)
from pathways.dialect.operations.placement import argument_attrs, read_slices, result_attrs
from pathways.dialect.operations.traits import Trait

Report = Callable[[ir.OpView, str], None]


def _is_placement(attribute: ir.Attribute) -> bool:
    entries = list(attribute) if isinstance(attribute, ir.ArrayAttr) else [attribute]
    return (
        len(entries) > 0
        and all(isinstance(entry, ir.FlatSymbolRefAttr) for entry in entries)
        and len({entry.value for entry in entries}) == len(entries)
    )


def _is_spec(attribute: ir.Attribute) -> bool:
    return isinstance(attribute, ir.ArrayAttr) and all(
        isinstance(dim, ir.ArrayAttr) and all(isinstance(axis, ir.StringAttr) for axis in dim)
        for dim in attribute
    )


def _kind(description: str, matches: Callable[[ir.Attribute], bool]) -> Kind[ir.Attribute]:
    return Kind(description, matches, lambda a: a, lambda a: a, irdl=())


_PLACEMENT = _kind("slice or a list of different slices", _is_placement)
_SPEC = _kind("array of arrays of strings", _is_spec)
_REPLICA = _kind("dictionary of `of`, `number` and a larger `count`, and perhaps `split`", is_replica_port)
_RESULT_NUMBER = _kind("integer attribute", lambda a: isinstance(a, ir.IntegerAttr))

_UNREADABLE = "is or contains a location or complex numbers, which is not allowed"

DISCARDABLE: Mapping[str, Kind] = {
    names.SLICE: _PLACEMENT,
    names.LOOP: symbol("pw.loop"),
    names.MIRRORED: UNIT,
    names.CONDITION: STRING,
    names.BRANCH: STRING,
    names.DONATED: UNIT,
    names.REPLACED_BY: NATURAL,
    names.CONSTANT: symbol("pw.constant"),
    names.SPEC: _SPEC,
    names.KEYS: UNIT,
    names.HOST: NATURAL,
    names.NUMBER: NATURAL,
    names.REPLICA: _REPLICA,
    names.BLOCK: NATURAL,
    names.ALIASING: _RESULT_NUMBER,
    names.ARGUMENT_INFO: STRING,
    names.RESULT_INFO: STRING,
    names.MEMORY_KIND: STRING,
}
"""The attributes that arguments, results and operations of other dialects may carry and that passes read."""


class WellFormed:
    """Checker of a module.

    Args:
      report: called with each invalid operation and the message about it.
      is_program: whether the module is taken for a program, whose functions have one block each.
      has_parts: whether it may contain sub-programs, which are checked apart.
    """

    def __init__(
        self, module: ir.Module, report: Report, *, is_program: bool, has_parts: bool = False
    ) -> None:
        self.module = module
        self.has_parts = has_parts
        self.is_program = is_program
        self._report = report
        self.valid = True
        self.symbols: dict[str, ir.OpView] = {}
        self._types: dict[ir.Type, str | None] = {}
        self._fine: set[tuple[Kind, ir.Attribute]] = set()
        """Attributes that were found well formed: many operations share one."""
        self._called: set[str] | None = None

    def report(self, op: ir.OpView, message: str) -> None:
        self.valid = False
        self._report(op, message)

    def check_names(self) -> bool:
        """Checks names, and the top level of the module but functions; returns whether it is correct."""
        if self.check_text():
            self.check_symbols()
        return self.valid

    def check(self) -> bool:
        """Checks everything; returns whether it has no errors."""
        if not self.check_names():
            return False
        # The targets of references must be valid before the operations of functions are checked.
        for op in self.module.body.operations if self.valid else ():
            if op.operation.name == "func.func":
                self.check_function(op)
        return self.valid

    def check_text(self) -> bool:
        """Checks that all names and strings are UTF-8: the bindings cannot return others."""
        if is_text(printed(self.module)):
            return True
        self.report(self.module.operation.opview, "holds a name or a string that is not UTF-8 text")
        return False

    def check_symbols(self) -> None:
        """Checks the top level of the module, functions apart."""
        if symbol_name(self.module.operation.opview) == "":
            self.report(self.module.operation.opview, "has an empty name, which MLIR prints and cannot read")
        root = self.module.operation.opview
        if names.TIMES in root.attributes:
            self.check_kind(root, f"attribute `{names.TIMES}`", attribute_of(root, names.TIMES), CALL_TIMES)
        for op in self.module.body.operations:
            name = symbol_name(op)
            if name in self.symbols:
                self.report(op, f"redefines the symbol @{name}")
            if name == "":
                self.report(op, "has an empty name, which MLIR prints and cannot read")
            if name is not None:
                self.symbols.setdefault(name, op)
        operations = [op for op in self.module.body.operations if op.operation.name != "func.func"]
        for op in operations:
            self.check_operation(op)
            if self.is_program and op.operation.name == "builtin.module" and not self.has_parts:
                self.report(op, "is inside another: a program is one module")
            if op.operation.name == "sdy.mesh":
                self.check_mesh(op)
            elif isinstance(op, PwOp) and Trait.SYMBOL not in op.traits:
                self.report(op, "must be directly in a function")
        # The rules of a class read the symbols that an operation names: all must be well formed by then.
        for op in operations if self.valid else ():
            self.check_itself(op)

    def check_mesh(self, mesh: ir.OpView) -> None:
        sizes = [size for _, size in read_mesh(mesh).axes]
        if min(sizes, default=1) < 1:
            self.report(mesh, f"has an axis of size {min(sizes)}")
            return
        size = math.prod(sizes)
        if size > names.MAX_DEVICES:
            self.report(mesh, f"has {size} devices; a mesh has at most {names.MAX_DEVICES}")
        ids = list(sdy.MeshAttr(mesh.attributes["mesh"]).device_ids)
        if sizes and ids:
            self.report(
                mesh,
                f"orders its devices itself: leave out device_ids={ids}, since a slice gets its devices when "
                "the program is loaded",
            )

    def check_itself(self, op: ir.OpView) -> None:
        """Checks a well-formed operation by the rules of its class."""
        if isinstance(op, PwOp):
            op.check(self.symbols, lambda message: self.report(op, message))

    def check_operation(self, op: ir.OpView) -> bool:
        """Checks one operation by its declaration; returns whether it has no errors."""
        name = op.operation.name
        if not isinstance(op, PwOp):
            if name.startswith("pw."):
                self.report(op, f"is not an operation of the pw dialect; it has {', '.join(OPERATIONS)}")
                return False
            if not self.module.context.is_registered_operation(name):
                self.report(op, "is unknown: no dialect of this compiler defines it")
                return False
            return self.check_discardable(op, attributes_of(op))
        # `report` clears `valid`: this tells whether there are errors in this operation alone.
        valid, self.valid = self.valid, True
        fields = op.fields()
        attributes = attributes_of(op)
        for attribute, value in attributes.items():
            if value is None and attribute not in fields:
                self.report(op, f"attribute `{attribute}` {_UNREADABLE}")
            if attribute not in fields and "." not in attribute:
                self.report(op, f"has no attribute `{attribute}`; it has {', '.join(fields)}")
        for name, field in fields.items():
            if name not in attributes:
                if field.required:
                    self.report(op, f"requires attribute `{name}`")
            elif (field.kind, attributes[name]) not in self._fine:
                self.check_kind(op, f"attribute `{name}`", attributes[name], field.kind)
        for side, declared, actual in (
            ("operand", op.inputs, op.operands),
            ("result", op.outputs, op.results),
        ):
            if declared.count is not None and len(actual) != declared.count:
                self.report(op, f"expected {counted(declared.count, side)}, got {len(actual)}")
        for region in op.regions:
            if len(region.blocks):
                self.report(op, "has a region; operations of the pw dialect have none")
        if not attributes.keys() <= fields.keys():
            self.check_discardable(op, {name: attributes[name] for name in attributes if name not in fields})
        fine = self.valid
        self.valid = valid and fine
        return fine

    def check_kind(self, op: ir.OpView, subject: str, attribute: ir.Attribute | None, kind: Kind) -> bool:
        if attribute is None:
            self.report(op, f"{subject} {_UNREADABLE}")
            return False
        if (kind, attribute) in self._fine:
            return True
        if not kind.matches(attribute):
            article = "an" if kind.description[0] in "ae" else "a"
            self.report(op, f"{subject} must be {article} {kind.description}, got {attribute}")
            return False
        if kind.symbol_kind is not None:
            named = kind.read(attribute)
            for name in (named,) if isinstance(named, str) else named:
                if not self.check_symbol(op, subject, name, kind.symbol_kind):
                    return False
        if kind is SHARDING_KIND:
            # The limit depends on the value.
            return self.check_sharding(op, subject, attribute, [r.type for r in op.results][:1])
        self._fine.add((kind, attribute))
        return True

    def check_symbol(self, op: ir.OpView, subject: str, name: str, kind: str) -> bool:
        target = self.symbols.get(name)
        if target is None:
            self.report(op, f"{subject} refers to @{name}, which is not in the module")
        elif target.operation.name != kind:
            self.report(op, f"{subject} refers to @{name}, a {target.operation.name}, not a {kind}")
        else:
            return True
        return False

    def check_sharding(
        self, op: ir.OpView, subject: str, attribute: ir.Attribute, types: Iterable[ir.Type]
    ) -> bool:
        """Checks a sharding, for values of these types."""
        problem = unsupported(attribute)
        if problem is not None:
            self.report(op, f"{subject} {problem}: {attribute}")
            return False
        if not self.check_symbol(op, subject, mesh_of(attribute), "sdy.mesh"):
            return False
        sharding, mesh = read_sharding(attribute), read_mesh(self.symbols[mesh_of(attribute)])
        for type_ in types:
            if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
                continue
            shape = list(type_.shape)
            if len(sharding.dims) != len(shape):
                problem = f"has {len(sharding.dims)} dimensions for a value of type {type_}"
            else:
                problem = sharding.problem(shape, mesh)
            if problem is not None:
                self.report(op, f"{subject}: {problem}")
                return False
        return True

    def check_discardable(
        self, op: ir.OpView, attributes: Mapping[str, ir.Attribute | None], prefix: str = ""
    ) -> bool:
        """Checks the attributes that passes read from operations of other dialects."""
        fine = True
        for name, attribute in attributes.items():
            kind = DISCARDABLE.get(name)
            if kind is None:
                continue
            if not self.check_kind(op, f"{prefix}`{name}`", attribute, kind):
                fine = False
            elif name == names.SLICE:
                for slice in read_slices(attribute):
                    fine = self.check_symbol(op, f"{prefix}`{name}`", slice, "pw.slice") and fine
        return fine

    def check_function(self, function: ir.OpView) -> None:
        if not self.check_discardable(function, attributes_of(function)):
            return
        if self.is_program and is_program(function) and not is_public(function):
            role = "the program" if symbol_name(function) == names.MAIN else "the function of a host"
            self.report(function, f"must be public: it is {role}")
        self.check_ports(function)
        blocks = function.regions[0].blocks
        if len(blocks) > 1 and self.is_program:
            self.report(function, f"has {len(blocks)} blocks; functions of a program have one")
            return
        for block in blocks:
            operations = list(block.operations)
            last = operations[-1] if operations else function
            # MLIR lets a block end in any operation that it does not know, such as ours.
            if len(blocks) == 1 and not self.is_terminator(function, last.operation.name):
                self.report(last, "must be followed by a `func.return`, which ends the body")
                return
            for op in operations:
                if self.check_operation(op):
                    self.check_itself(op)
                if op_has(op, Trait.SYMBOL):
                    self.report(op, "must be directly in the module")
                if len(op.regions):
                    self.check_nested(op)

    def is_terminator(self, function: ir.OpView, name: str) -> bool:
        """Returns whether such an operation may end a function: JAX's comparators end like regions."""
        if name != "stablehlo.return":
            return name == "func.return"
        if self._called is None:
            callees = (attributes_of(op).get("callee") for op in nested_ops(self.module.operation.opview))
            self._called = {names.MAIN, *(c.value for c in callees if isinstance(c, ir.FlatSymbolRefAttr))}
        return symbol_name(function) not in self._called and names.HOST not in function.attributes

    def check_ports(self, function: ir.OpView) -> None:
        """Checks the attributes of arguments and results."""
        ports = (
            ("argument", argument_attrs(function), function.type.inputs),
            ("result", result_attrs(function), function.type.results),
        )
        for side, all_attrs, types in ports:
            for number, (attrs, type_) in enumerate(zip(all_attrs, types, strict=True)):
                self.check_discardable(function, attrs, f"{side} #{number}: ")
                for name in [n for n, value in attrs.items() if value is None and n not in DISCARDABLE]:
                    self.report(function, f"{side} #{number}: `{name}` {_UNREADABLE}")
                sharding = attrs.get(names.SHARDING)
                if sharding is not None:
                    subject = f"{side} #{number}: `{names.SHARDING}`"
                    if not SHARDING_KIND.matches(sharding):
                        self.report(
                            function, f"{subject} must be a {SHARDING_KIND.description}, got {sharding}"
                        )
                    else:
                        self.check_sharding(function, subject, sharding, [type_])

    def check_nested(self, op: ir.OpView) -> None:
        for inner in nested_ops(op):
            if isinstance(inner, PwOp):
                name = op.operation.name
                self.report(inner, f"must be directly in a function, not inside '{name}'")
            elif inner.operation.name.startswith("pw.") or not self.module.context.is_registered_operation(
                inner.operation.name
            ):
                self.check_operation(inner)

    def check_types(self) -> bool:
        """Checks that values of the program and of computations are arrays: static, of bounded size."""
        for function in self.module.body.operations:
            if function.operation.name != "func.func":
                continue
            for side, types in (("argument", function.type.inputs), ("result", function.type.results)):
                for number, type_ in enumerate(types):
                    self.check_type(function, f"{side} #{number}", type_)
            if not is_program(function):
                continue
            for block in function.regions[0].blocks:
                for op in block.operations:
                    for number, result in enumerate(op.results):
                        self.check_type(op, f"result #{number}", result.type)
        return self.valid

    def check_type(self, op: ir.OpView, subject: str, type_: ir.Type) -> None:
        if type_ not in self._types:
            self._types[type_] = type_problem(type_)
        problem = self._types[type_]
        if problem is not None:
            self.report(op, f"{subject} is of type {type_}, {problem}")


def type_problem(type_: ir.Type) -> str | None:
    """Returns why a type is not that of an array of a program; None if it is."""
    if not isinstance(type_, ir.RankedTensorType):
        return "not a ranked tensor"
    if not type_.has_static_shape:
        return "whose shape is not static"
    if dtype_of(type_.element_type) is None:
        return "whose elements have no dtype"
    if math.prod(type_.shape) > names.MAX_ELEMENTS:
        return "which has more than 2^48 elements"
    return None
