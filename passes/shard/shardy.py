"""Encoding of `@main` in operations that Shardy propagates through, and its decoding.

While Shardy runs, launches are calls; transfers between equal meshes, sums over microbatches and exchanges
of blocks are identities; splits and concatenations of microbatches are operations of StableHLO; and the next
value of a carry is added to the value before. Each names the replaced operation in an attribute. Transfers
between different meshes stay; Shardy does not look through them.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy, stablehlo

import pathways.dialect as dialect
from pathways.dialect.attributes.meshes import replicated
from pathways.dialect.attributes.names import SHARDING
from pathways.dialect.attributes.shardings import SliceMesh, make_sharding
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import replace
from pathways.passes.manager.base import main_function, remark

_KIND = "pw.kind"
"""The name of the operation that an encoding represents."""

_ORIGINAL = "pw.original"
"""The attributes of the operation that an encoding represents."""

_NUMBER = "pw.number"
"""Attribute that distinguishes transfers between different meshes."""

_COPY = "pw.copy_of_argument"
"""The operation that represents the copy of a mirrored argument on another mesh."""

_KEEP = "pw.keep"
"""The target of calls that keep their operands alive."""

_Decided = dict[str, ir.Attribute | None]
"""Attributes of an operation by name; None takes one away."""


class _Encoding[Op: dialect.PwOp](abc.ABC):
    """Encoding of the operations of one kind for Shardy."""

    @abc.abstractmethod
    def encode(self, op: Op) -> ir.OpView:
        """Builds the encoding of an operation."""

    @abc.abstractmethod
    def decode(self, op: ir.OpView) -> _Decided:
        """Reads Shardy's decisions on an operation from its encoding."""

    def operands(self, op: ir.OpView) -> list[ir.Value]:
        """Returns the operands of an operation from its encoding."""
        return [op.operands[0]]


class _Identity[Op: dialect.PwOp](_Encoding[Op]):
    """An identity, whose result has the sharding of its operand."""

    def encode(self, op: Op) -> ir.OpView:
        return stablehlo.OptimizationBarrierOp([op.operands[0]])

    def decode(self, op: ir.OpView) -> _Decided:
        return _sharding_if_any(op)


class _LaunchAsCall(_Encoding[dialect.LaunchOp]):
    """A call, of a variant of the computation where shardings differ."""

    def encode(self, op: dialect.LaunchOp) -> ir.OpView:
        callee = ir.FlatSymbolRefAttr.get(op.callee)
        return func.CallOp([r.type for r in op.results], callee, list(op.operands))

    def decode(self, op: ir.OpView) -> _Decided:
        return {"callee": op.attributes["callee"]}

    def operands(self, op: ir.OpView) -> list[ir.Value]:
        return list(op.operands)


class _TransferAsIdentity(_Identity[dialect.TransferOp]):
    """An identity, between equal meshes."""

    def decode(self, op: ir.OpView) -> _Decided:
        return {"sharding": _of_result(op, 0)}


class _SplitAsSlice(_Encoding[dialect.SplitOp]):
    """A slice of as many rows as a microbatch has."""

    def encode(self, op: dialect.SplitOp) -> ir.OpView:
        result = ir.RankedTensorType(op.results[0].type)
        # Which rows it takes does not matter for shardings; here all microbatches take the first ones.
        return stablehlo.SliceOp(op.operands[0], [0] * result.rank, list(result.shape), [1] * result.rank)

    def decode(self, op: ir.OpView) -> _Decided:
        return _sharding_if_any(op)


class _ReduceAsBlocks(_Identity[dialect.ReduceOp]):
    """An identity for a sum, a concatenation of equal blocks for one of microbatches."""

    def encode(self, op: dialect.ReduceOp) -> ir.OpView:
        value = op.operands[0]
        if op.kind == "sum":
            return super().encode(op)
        total = ir.RankedTensorType(op.results[0].type).shape[0]
        rows = ir.RankedTensorType(value.type).shape[0]
        # Any number of blocks without rows has none.
        return stablehlo.ConcatenateOp([value] * (total // rows if rows else 1), 0)


class _AllReduceAsIdentity(_Identity[dialect.AllReduceOp]):
    """Identity: the sum has the sharding of its terms."""

    def decode(self, op: ir.OpView) -> _Decided:
        return {}


class _AllToAllAsIdentities(_Identity[dialect.AllToAllOp]):
    """Identities, one on each slice: received blocks are sharded as the sent blocks are."""

    def encode(self, op: dialect.AllToAllOp) -> ir.OpView:
        return stablehlo.OptimizationBarrierOp(list(op.operands))

    def decode(self, op: ir.OpView) -> _Decided:
        return {}

    def operands(self, op: ir.OpView) -> list[ir.Value]:
        return list(op.operands)


class _NextAsSum(_Encoding[dialect.NextOp]):
    """Sum: the next value has the sharding of the carried one, and so does the result."""

    def encode(self, op: dialect.NextOp) -> ir.OpView:
        total = stablehlo.AddOp(*op.operands)
        # Read by nothing it would be erased, and the value not passed on.
        keep = {"call_target_name": ir.StringAttr.get(_KEEP), "has_side_effect": ir.BoolAttr.get(True)}
        ir.Operation.create("stablehlo.custom_call", [], [total.result], keep)
        return total

    def decode(self, op: ir.OpView) -> _Decided:
        return {}

    def operands(self, op: ir.OpView) -> list[ir.Value]:
        return list(op.operands)


_ENCODINGS: Mapping[str, _Encoding[Any]] = {
    "pw.launch": _LaunchAsCall(),
    "pw.transfer": _TransferAsIdentity(),
    "pw.split": _SplitAsSlice(),
    "pw.reduce": _ReduceAsBlocks(),
    "pw.all_reduce": _AllReduceAsIdentity(),
    "pw.all_to_all": _AllToAllAsIdentities(),
    # From the first iteration; `pw.next` ties it to later ones.
    "pw.carry": _Identity(),
    "pw.next": _NextAsSum(),
}


def encode(main: ir.OpView, meshes: Mapping[str, SliceMesh]) -> None:
    """Encodes `@main` for Shardy."""
    _copy_mirrored(main, meshes)
    arguments = dialect.argument_slices(main)
    operations = list(body_block(main).operations)
    # Read before anything changes: a call does not name its slice.
    for number, op in enumerate(operations):
        if isinstance(op, dialect.TransferOp):
            source = (dialect.slices_of(op.operands[0], arguments) or (op.slice,))[0]
            if meshes[source].symbol != meshes[op.slice].symbol:
                op.attributes[_NUMBER] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
    for op in operations:
        kind = op.operation.name
        if kind not in _ENCODINGS or _NUMBER in op.attributes:
            continue
        with ir.InsertionPoint(op), op.operation.location:
            new = _ENCODINGS[kind].encode(op)
        new.attributes[_KIND] = ir.StringAttr.get(kind)
        new.attributes[_ORIGINAL] = ir.DictAttr.get({name: op.attributes[name] for name in op.attributes})
        replace(op, new.results)


def decode(module: ir.Module) -> None:
    """Decodes `@main` with Shardy's decisions, and turns its operations in computations into plain ones."""
    for op in dialect.ops_named(module, ["sdy.mesh"]):
        # Shardy's note to other compilers; the mesh states it already.
        if "stablehlo.mesh" in op.attributes:
            del op.attributes["stablehlo.mesh"]
    for op in list(body_block(main_function(module)).operations):
        if op.operation.name == "stablehlo.custom_call":
            # Between launches only encoded operations represent operations of `pw`.
            op.operation.erase()
        elif _KIND in op.attributes:
            replace(op, _original(op).results)
        elif op.operation.name in (_COPY, "sdy.reshard"):
            # Where shardings differ after all, `settle` reshards, slice by slice.
            replace(op, [op.operands[0]])
        elif isinstance(op, dialect.TransferOp):
            op.sharding = _of_result(op, 0)
            for name in (SHARDING, _NUMBER):
                if name in op.attributes:
                    del op.attributes[name]
    for function in dialect.ops_named(module, ["func.func"]):
        _plain_stablehlo(function)


def _original(op: ir.OpView) -> ir.Operation:
    """Builds the operation that an encoding represents."""
    name = op.attributes[_KIND].value
    encoding = _ENCODINGS[name]
    merged = {entry.name: entry.attr for entry in op.attributes[_ORIGINAL]} | encoding.decode(op)
    attributes = {key: attribute for key, attribute in merged.items() if attribute is not None}
    with ir.InsertionPoint(op), op.operation.location:
        return ir.Operation.create(name, [r.type for r in op.results], encoding.operands(op), attributes)


def _copy_mirrored(main: ir.OpView, meshes: Mapping[str, SliceMesh]) -> None:
    """Keeps the copies of an argument on different meshes apart: all are replicated, each on its own mesh."""
    attrs = dialect.argument_attrs(main)
    operations = list(body_block(main).operations)
    for argument, entry, places in zip(main.arguments, attrs, dialect.argument_slices(main), strict=True):
        symbols = list(dict.fromkeys(meshes[place].symbol for place in places or ()))
        if len(symbols) < 2:
            continue
        rank = ir.RankedTensorType(argument.type).rank
        if SHARDING in entry:
            remark(
                main,
                f"argument #{argument.arg_number} is read on slices with different meshes, so it is "
                "replicated on each of them, whatever the program says of it",
            )
        entry[SHARDING] = make_sharding(symbols[0], replicated(rank))
        for symbol in symbols[1:]:
            sharding = sdy.TensorShardingPerValueAttr.get([make_sharding(symbol, replicated(rank))])
            with ir.InsertionPoint(operations[0]), main.operation.location:
                # Shardy has no rule for it, and so does not mix axes of both meshes.
                copy = ir.Operation.create(_COPY, [argument.type], [argument], {SHARDING: sharding})
            for op in operations:
                if isinstance(op, dialect.LaunchOp) and meshes[op.slice].symbol == symbol:
                    op.operation.replace_uses_of_with(argument, copy.results[0])
    dialect.set_argument_attrs(main, attrs)


def _plain_stablehlo(function: ir.OpView) -> None:
    """Undoes changes of the pipeline in computations that XLA does not revert."""
    for op in list(dialect.nested_ops(function)):
        match op.operation.name:
            case "sdy.constant":
                new = _plain_constant(op)
            case "sdy.reshard":
                attributes = {"sharding": op.attributes["sharding"]}
                with ir.InsertionPoint(op), op.operation.location:
                    types = [op.results[0].type]
                    new = ir.Operation.create("sdy.sharding_constraint", types, list(op.operands), attributes)
            case _:
                continue
        replace(op, new.results)


def _plain_constant(op: ir.OpView) -> ir.Operation:
    """Builds StableHLO's constant in front of Shardy's."""
    for name in [name for name in op.attributes if name != "value"]:
        del op.attributes[name]
    # By way of the text: the bindings cannot return complex elements.
    text = op.operation.get_asm(print_generic_op_form=True, use_local_scope=True)
    new = ir.Operation.parse(text.replace("sdy.constant", "stablehlo.constant", 1))
    new.location = op.operation.location
    ir.InsertionPoint(op).insert(new)
    return new


def propagate(module: ir.Module) -> None:
    """Runs Shardy over a module whose `@main` is encoded."""
    # Shardy warns of every operation that it has no rule for; ours are barriers to it, as they should be.
    handler = module.context.attach_diagnostic_handler(lambda d: "SDY sharding rule registry" in d.message)
    try:
        dialect.run_mlir_passes("sdy-propagation-pipeline", module)
    finally:
        handler.detach()


def between_meshes(module: ir.Module) -> Iterator[tuple[int, dialect.TransferOp]]:
    """Yields the transfers between different meshes of an encoded `@main`, by numbers that stay theirs."""
    for op in body_block(main_function(module)).operations:
        if isinstance(op, dialect.TransferOp):
            yield op.attributes[_NUMBER].value, op


def hint(module: ir.Module, hints: Mapping[int, ir.Attribute]) -> None:
    """Writes the shardings that transfers between different meshes pass on."""
    for number, op in between_meshes(module):
        if number in hints:
            op.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get([hints[number]])


def decided(value: ir.Value, main: ir.OpView) -> ir.Attribute | None:
    """Returns the sharding that propagation decided for a value of an encoded `@main`; None for none."""
    if isinstance(value, ir.BlockArgument):
        return dialect.argument_attrs(main)[value.arg_number].get(SHARDING)
    if value.owner.operation.name == "sdy.reshard":
        return value.owner.attributes["sharding"]
    return _of_result(value.owner, ir.OpResult(value).result_number)


def _of_result(op: ir.OpView, number: int) -> ir.Attribute | None:
    attribute = op.attributes.get(SHARDING)
    return None if attribute is None else sdy.TensorShardingPerValueAttr(attribute).shardings[number]


def _sharding_if_any(op: ir.OpView) -> _Decided:
    sharding = _of_result(op, 0)
    return {} if sharding is None else {"sharding": sharding}
