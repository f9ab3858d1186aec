"""The computations and the origins of the fragments of a partitioned program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, mpmd

from pathways.dialect import argument_attrs, set_argument_attrs, set_result_attrs
from pathways.dialect.attributes.names import ALIASING, DONOR, SHARDING
from pathways.dialect.attributes.origins import CallKind, Origin
from pathways.passes.analysis.functions import body_block, unique_name
from pathways.passes.analysis.glue_names import GlueNames
from pathways.passes.import_.mpmd.slices import symbol_of
from pathways.passes.manager.base import fail

Half = Literal["input", "weight"]

Layouts = tuple[ir.Attribute | None, ...]

_CALL_COUNTER = "call_counter"
_REMAT = "remat"
_HALVES: Mapping[str, Half] = {"split_keep_transferred": "input", "split_drop_transferred": "weight"}
"""The halves of a backward that Shardy splits: the one before the transfer, and the other one."""

_OF_SHARDY = ("mesh_shape", "reserved_hbm_bytes")


class Origins:
    """Reader of the origins of fragments.

    Args:
      program: the name of the program.
    """

    def __init__(self, fragments: Sequence[ir.OpView], program: str) -> None:
        self._glue = GlueNames(program)
        self._last: dict[str, int] = {}
        for op in fragments:
            for name, count in _user_origins(op):
                self._last[name] = max(self._last.get(name, 0), count)

    def of(self, op: ir.OpView) -> tuple[Origin, ...]:
        """Returns the named computations that a fragment was made of; none for one that Shardy inferred."""
        stage, call = (op.attributes.get(name) for name in ("stage_id", _CALL_COUNTER))
        half = next((half for name, half in _HALVES.items() if name in op.attributes), None)
        if stage is not None and stage.value < 0:
            fail(op, f"is of stage {stage.value}, less than 0")
        origins = [
            Origin(
                self._kind(op, name, count),
                None if stage is None else stage.value,
                None if call is None else call.value,
                half,
            )
            for name, count in _user_origins(op)
        ]
        return tuple(dict.fromkeys(origins))

    def base_name(self, op: ir.OpView) -> str:
        """Returns the base of the name of the computation of a fragment with a body."""
        named = list(_user_origins(op))
        if not named:
            locations = [each.location for each in op.regions[0].blocks[0].operations]
            # The last one is of the operation that returns the results.
            return self._glue.name(locations[:-1], locations[-2] if len(locations) > 1 else op.location)
        name, count = named[0]
        kind = self._kind(op, name, count)
        return symbol_of(name) if kind == "fwd" else f"{symbol_of(name)}_{kind}"

    def _kind(self, op: ir.OpView, name: str, count: int) -> CallKind:
        """Returns the side of differentiation of a call, by how often it was transposed."""
        if _REMAT in op.attributes and not count:
            return "recompute"
        if not count:
            return "fwd"
        # What is transposed again later is differentiated itself, and so is a gradient.
        return "bwd" if count == self._last[name] else "grad"


def _user_origins(op: ir.OpView) -> Iterator[tuple[str, int]]:
    for attribute in op.attributes["origin"]:
        origin = mpmd.UserOriginAttr(attribute)
        yield origin.user_name, origin.transpose_count


class FragmentComputations:
    """Creator of the private function of each fragment, and of a variant for each sharding of its values.

    Args:
      symbols: its symbols; the symbols of new functions are added.
    """

    def __init__(self, module: ir.Module, symbols: dict[str, ir.OpView]) -> None:
        self._module = module
        self._symbols = symbols
        self._counts: dict[str, int] = {}
        self._variants: dict[tuple[str, Layouts, Layouts], str] = {}
        self._original: set[str] = set()
        self._first: dict[str, str] = {}

    def outlined(self, fragment: ir.OpView, base: str) -> str:
        """Takes the body of a fragment out into a function."""
        count = self._counts.get(base, 0)
        self._counts[base] = count + 1
        name = unique_name(base, self._symbols, count)
        block = fragment.regions[0].blocks[0]
        terminator = block.operations[len(block.operations) - 1]
        inputs = [argument.type for argument in block.arguments]
        results = [value.type for value in terminator.operands]
        with ir.InsertionPoint(self._module.body), fragment.location:
            function = func.FuncOp(name, ir.FunctionType.get(inputs, results), visibility="private")
        block.append_to(function.regions[0])
        with ir.InsertionPoint(terminator), terminator.location:
            func.ReturnOp(list(terminator.operands))
        terminator.operation.erase()
        self._symbols[name] = function
        return name

    def shared(self, name: str, base: str) -> str:
        """Returns the first computation that is equal to one just outlined, which is erased if there is one.

        Here and not once all are there: most fragments of a pipeline are equal to earlier ones.
        """
        # In local scope attributes are written out: aliases have numbers of the whole module.
        text = self._symbols[name].operation.get_asm(use_local_scope=True)
        head, _, rest = text.partition(f"@{name}(")
        first = self._first.setdefault(head + rest, name)
        if first != name:
            self._symbols.pop(name).operation.erase()
            self._counts[base] -= 1
        return first

    def is_known(self, callee: str) -> bool:
        """Returns whether a callee was called before."""
        return callee in self._original

    def variant(self, callee: str, arguments: Layouts, results: Layouts) -> str:
        """Returns the computation of a callee with these shardings of arguments and results."""
        key = callee, arguments, results
        if key in self._variants:
            return self._variants[key]
        function = self._symbols[callee]
        name = callee
        if callee in self._original:
            name = unique_name(callee, self._symbols)
            function = function.operation.clone(ir.InsertionPoint(function)).opview
            function.attributes["sym_name"] = ir.StringAttr.get(name)
            self._symbols[name] = function
        self._original.add(callee)
        self._variants[key] = name
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        for attribute in _OF_SHARDY:
            if attribute in function.attributes:
                del function.attributes[attribute]
        set_argument_attrs(function, _with_layouts(argument_attrs(function), arguments))
        set_result_attrs(function, [{} if layout is None else {SHARDING: layout} for layout in results])
        return name


def _with_layouts(
    all_attrs: Sequence[Mapping[str, ir.Attribute]], layouts: Layouts
) -> list[dict[str, ir.Attribute]]:
    """Returns the attributes of arguments, without Shardy's donation, which is planned anew."""
    plain_attrs = [
        {n: a for n, a in attrs.items() if n not in (ALIASING, DONOR, SHARDING)} for attrs in all_attrs
    ]
    return [
        attrs if layout is None else {**attrs, SHARDING: layout}
        for attrs, layout in zip(plain_attrs, layouts, strict=True)
    ]


def constrain(function: ir.OpView, arguments: Layouts, results: Layouts) -> None:
    """Constrains the shardings of arguments and results in a computation, for propagation to start from."""
    block = body_block(function)
    if any(layout is not None for layout in arguments):
        ip = ir.InsertionPoint.at_block_begin(block)
        for argument, layout in zip(block.arguments, arguments, strict=True):
            if layout is not None:
                constrained = _constraint(argument, layout, ip, function.operation.location)
                argument.replace_all_uses_except(constrained.results[0], constrained)
    terminator = block.operations[len(block.operations) - 1]
    for number, layout in enumerate(results):
        if layout is not None:
            value = terminator.operands[number]
            constraint = _constraint(value, layout, ir.InsertionPoint(terminator), terminator.location)
            terminator.operands[number] = constraint.results[0]


def _constraint(
    value: ir.Value, layout: ir.Attribute, ip: ir.InsertionPoint, location: ir.Location
) -> ir.Operation:
    attributes = {"sharding": layout}
    return ir.Operation.create(
        "sdy.sharding_constraint", [value.type], [value], attributes, loc=location, ip=ip
    )
