"""Markers of Shardy in StableHLO: how a portable artifact has meshes, shardings and manual computations.

XLA turns them into operations of Shardy again, and aborts the process where one is wrong. These checks have
MLIR verify those operations instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from pathways.dialect import make_context, nested_ops, ops_named

FRONTEND = "mhlo.frontend_attributes"
_MESHES, _SHARDING, _MANUAL_AXES = "xla.sdy.meshes", "xla.sdy.sharding", "xla.sdy.manual_axes"
_IN, _OUT = "xla.sdy.in_shardings", "xla.sdy.out_shardings"
_TO_LOCAL, _TO_GLOBAL, _BODY = (
    "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
    "xla.sdy.manual_computation_body",
)


class _MarkerError(Exception):
    """Marker without an operation of Shardy; the message is the end of a sentence."""


def problem_of_markers(module: ir.Module) -> str | None:
    """Returns the problem of the markers of an untrusted computation, the end of a sentence about it."""
    try:
        text = _Equivalent(module).text()
    except _MarkerError as error:
        return str(error)
    try:
        ir.Module.parse(text, make_context())
    except ir.MLIRError as error:
        reason = error.error_diagnostics[0].message if error.error_diagnostics else str(error)
        return f"has an invalid sharding: {' '.join(reason.split())[:200]}"
    return None


def parse_attribute(text: str, context: ir.Context) -> ir.Attribute | None:
    """Returns the attribute that a text is; None if it is none."""
    try:
        # In a list, since the bindings crash on a text without any.
        attributes = ir.ArrayAttr(ir.Attribute.parse(f"[{text}\n]", context))
    except (ir.MLIRError, ValueError):
        return None
    return attributes[0] if len(attributes) == 1 else None


class _Equivalent:
    """Module with the operations of Shardy for the markers of a computation, each in its function."""

    def __init__(self, module: ir.Module) -> None:
        self._context = module.context
        self._lines = [f"sdy.mesh @{name} = {mesh}" for name, mesh in self._meshes(module)]
        for view in nested_ops(module.operation.opview):
            self._add(view.operation)

    def text(self) -> str:
        """Returns the module."""
        return "\n".join(self._lines)

    def _meshes(self, module: ir.Module) -> Iterator[tuple[str, str]]:
        """Yields the meshes of a module with their names, as they are printed."""
        text = _frontend(module.operation).get(_MESHES)
        if text is None:
            for op in ops_named(module, ["sdy.mesh"]):
                attributes = op.operation.attributes
                yield str(attributes["sym_name"]), str(attributes["mesh"]).removeprefix("#sdy.mesh")
            return
        meshes = self._parsed(text)
        if not isinstance(meshes, ir.DictAttr) or not all(sdy.MeshAttr.isinstance(m.attr) for m in meshes):
            raise _MarkerError(f"has invalid meshes: {text[:100]!r}")
        for named in meshes:
            yield f'"{named.name}"', str(named.attr).removeprefix("#sdy.mesh")

    def _add(self, op: ir.Operation) -> None:
        if op.name == "func.func":
            self._add_function(op)
        elif op.name == "func.call" and _is_body(op):
            self._add_manual_computation(op)
        elif op.name == "stablehlo.custom_call":
            target = op.attributes["call_target_name"].value
            text = _frontend(op).get(_SHARDING)
            if target == "xla.sdy.FuncResultSharding" or (target == "Sharding" and text is not None):
                for sharding in self._shardings(text, len(op.results)):
                    self._add_constraint(sharding, op.results[0].type)
            around = op.results if _is_marker(op, _TO_LOCAL) else op.operands
            if _is_marker(op, _TO_LOCAL) or _is_marker(op, _TO_GLOBAL):
                users = {use.owner.operation for value in around for use in value.uses}
                owners = users if _is_marker(op, _TO_LOCAL) else {_owner(value) for value in around}
                if not owners or not all(owner is not None and _is_body(owner) for owner in owners):
                    raise _MarkerError(f"calls {target!r} apart from a manual computation")

    def _add_function(self, function: ir.Operation) -> None:
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        for name, types in (("arg_attrs", type_.inputs), ("res_attrs", type_.results)):
            for attributes, of_value in zip(function.attributes.get(name) or (), types, strict=False):
                frontend = next((named.attr for named in attributes if named.name == FRONTEND), None)
                text = _entries(frontend).get(_SHARDING)
                if text is not None:
                    self._add_constraint(self._parsed(text), of_value)

    def _add_constraint(self, sharding: ir.Attribute, type_: ir.Type) -> None:
        if not sdy.TensorShardingAttr.isinstance(sharding):
            raise _MarkerError(f"has an invalid sharding: {str(sharding)[:100]!r}")
        if isinstance(type_, ir.RankedTensorType):
            line = f'"sdy.sharding_constraint"(%a0) <{{sharding = {sharding}}}> : ({type_}) -> {type_}'
            self._add_lines([type_], f"%0 = {line}")

    def _add_manual_computation(self, call: ir.Operation) -> None:
        """Adds the manual computation of a call of its body."""
        to_local, to_global = _around(call)
        axes = {_frontend(op).get(_MANUAL_AXES) for op in (to_local, to_global) if op is not None}
        manual = next(iter(axes), None)
        if manual is None or len(axes) != 1:
            raise _MarkerError("has a manual computation of unknown axes")
        inputs = [] if to_local is None else [value.type for value in to_local.operands]
        outputs = [] if to_global is None else [value.type for value in to_global.results]
        sides = [
            ", ".join(str(each).removeprefix("#sdy.sharding") for each in self._shardings(text, len(types)))
            for text, types in (
                (to_local and _frontend(to_local).get(_IN), inputs),
                (to_global and _frontend(to_global).get(_OUT), outputs),
            )
        ]
        block = ", ".join(f"%l{n}: {value.type}" for n, value in enumerate(call.operands))
        results = [value.type for value in call.results]
        body = [
            f'%r{n} = "builtin.unrealized_conversion_cast"() : () -> {type_}'
            for n, type_ in enumerate(results)
        ]
        self._add_lines(
            inputs,
            f"{f'%0:{len(outputs)} = ' if outputs else ''}"
            f'"sdy.manual_computation"({", ".join(f"%a{n}" for n in range(len(inputs)))}) '
            f"<{{in_shardings = #sdy.sharding_per_value<[{sides[0]}]>, "
            f"out_shardings = #sdy.sharding_per_value<[{sides[1]}]>, "
            f"manual_axes = {self._parsed(manual)}}}> ({{",
            f"^bb0({block}):",
            *body,
            f'"sdy.return"({", ".join(f"%r{n}" for n in range(len(results)))}) : ({_types(results)}) -> ()',
            f"}}) : ({_types(inputs)}) -> ({_types(outputs)})",
        )

    def _add_lines(self, types: Sequence[ir.Type], *lines: str) -> None:
        """Adds a function with lines in its body, whose arguments are `%a0` and so on."""
        arguments = ", ".join(f"%a{n}: {type_}" for n, type_ in enumerate(types))
        name = f"@f{len(self._lines)}"
        self._lines += [f"func.func {name}({arguments}) {{", *lines, "return", "}"]

    def _shardings(self, text: str | None, count: int) -> list[ir.Attribute]:
        """Returns the shardings of a number of values."""
        if not count:
            return []
        attribute = self._parsed(text or "")
        if sdy.TensorShardingPerValueAttr.isinstance(attribute):
            shardings = list(sdy.TensorShardingPerValueAttr(attribute).shardings)
            if len(shardings) == count:
                return shardings
        raise _MarkerError(f"has no shardings of {count} values: {(text or '')[:100]!r}")

    def _parsed(self, text: str) -> ir.Attribute:
        attribute = parse_attribute(text, self._context)
        if attribute is None:
            raise _MarkerError(f"has an invalid sharding: {text[:100]!r}")
        return attribute


def _around(call: ir.Operation) -> tuple[ir.Operation | None, ir.Operation | None]:
    """Returns the markers before and after a call of a body: they are for all of its operands and results."""
    before = {_owner(value) for value in call.operands}
    after = {use.owner.operation for value in call.results for use in value.uses}
    to_local, to_global = next(iter(before), None), next(iter(after), None)
    is_right = (
        max(len(before), len(after)) <= 1
        and (not before or (to_local is not None and _is_marker(to_local, _TO_LOCAL)))
        and (not after or (to_global is not None and _is_marker(to_global, _TO_GLOBAL)))
        and (to_local is None or list(to_local.results) == list(call.operands))
        and list(to_global.operands if to_global else ()) == list(call.results)
    )
    if not is_right:
        raise _MarkerError("has a manual computation without the shapes of its values")
    return to_local, to_global


def _owner(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _is_body(op: ir.Operation) -> bool:
    return op.name == "func.call" and _BODY in ir.FlatSymbolRefAttr(op.attributes["callee"]).value


def _is_marker(op: ir.Operation, target: str) -> bool:
    return (
        op.name == "stablehlo.custom_call"
        and op.attributes["call_target_name"].value.removeprefix("local_") == target
    )


def _frontend(op: ir.Operation) -> Mapping[str, str]:
    return _entries(op.attributes.get(FRONTEND))


def _entries(attributes: ir.Attribute | None) -> Mapping[str, str]:
    """Returns the texts of frontend attributes."""
    if not isinstance(attributes, ir.DictAttr):
        return {}
    return {named.name: named.attr.value for named in attributes if isinstance(named.attr, ir.StringAttr)}


def _types(types: Sequence[ir.Type]) -> str:
    return ", ".join(map(str, types))
