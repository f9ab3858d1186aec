"""Memory kinds of values inside of computations, by the rules of the types of JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, Trait, nested_ops, op_has
from pathways.dialect.attributes.fields import entries_of
from pathways.dialect.attributes.names import (
    BUFFER_PLACEMENT,
    FRONTEND_ATTRIBUTES,
    HOST_MEMORY,
    MEMORY_KIND,
    PLACE_IN_MEMORY,
)
from pathways.dialect.operations.operation import attribute_of
from pathways.dialect.relations.program_view import ProgramView
from pathways.passes.analysis.functions import body_block
from pathways.passes.manager.base import fail

type Kind = str | None
"""Memory kind as JAX names it; None for the default memory of devices."""

type Kinds = tuple[Kind, ...]

_DEVICE_MEMORY = "device"


def placed_in(op: ir.OpView) -> str | None:
    """Returns the name of the memory that an operation moves its operand to; None for other operations."""
    if op.operation.name != "stablehlo.custom_call":
        return None
    if op.attributes["call_target_name"].value != PLACE_IN_MEMORY:
        return None
    entries = attribute_of(op, FRONTEND_ATTRIBUTES)
    placement = entries_of(entries).get(BUFFER_PLACEMENT) if isinstance(entries, ir.DictAttr) else None
    return placement.value if isinstance(placement, ir.StringAttr) else None


def named(kind: Kind) -> str:
    """Returns a memory kind for messages."""
    return kind or _DEVICE_MEMORY


def uses_memory_kinds(program: ProgramView) -> bool:
    """Returns whether any value of a program is in other memory than the default one of devices."""
    if any(MEMORY_KIND in attrs for attrs in (*program.arguments, *program.results)):
        return True
    return any(
        op.operation.name == "stablehlo.custom_call" and placed_in(op) is not None
        for op in nested_ops(program.module.operation.opview)
    )


def kinds_of_values(program: ProgramView, overrides: Mapping[ir.Value, Kind]) -> dict[ir.Value, Kind]:
    """Returns the memory kind of each value of a program whose operations are launches, transfers and loops.

    Args:
      overrides: results of launches whose memory kinds are known otherwise.

    Raises:
      PassFailure: an operation joins values in different memories.
    """
    computed = _ComputedKinds(program.symbols)
    kinds: dict[ir.Value, Kind] = {}
    arguments = program.main.regions[0].blocks[0].arguments
    for argument, attrs in zip(arguments, program.arguments, strict=True):
        kinds[argument] = attrs[MEMORY_KIND].value if MEMORY_KIND in attrs else None
    for op, read, produced in zip(program.ops, program.reads, program.produces, strict=True):
        operands = tuple(kinds[value] for value in read)
        if isinstance(op, LaunchOp):
            inferred = computed.of_function(op.callee, operands)
            results = [overrides.get(value, kind) for value, kind in zip(produced, inferred, strict=True)]
        elif op_has(op, Trait.SPREADS):
            results = list(operands)
        else:
            if len(set(operands)) > 1:
                each = ", ".join(sorted(map(named, set(operands))))
                fail(op, f"joins values in different memories: {each}")
            results = [next(iter(operands), None)] * len(produced)
        kinds.update(zip(produced, results, strict=True))
    return kinds


class _ComputedKinds:
    """Memory kinds that computations return their results in."""

    def __init__(self, symbols: Mapping[str, ir.OpView]) -> None:
        self._symbols = symbols
        self._kinds: dict[tuple[str, Kinds], Kinds] = {}

    def of_function(self, name: str, operands: Kinds) -> Kinds:
        """Returns the memory kinds of the results of a function, given the kinds of its arguments."""
        # Other kinds than that of `jax.memory.Space.Host` are in no type of JAX: nothing inherits them.
        operands = tuple(kind if kind == HOST_MEMORY else None for kind in operands)
        key = name, operands
        if key not in self._kinds:
            function = self._symbols[name]
            # Before its body is read: this ends the recursion where functions call each other.
            self._kinds[key] = (None,) * len(function.type.results)
            self._kinds[key] = self._of_block(body_block(function), operands, {})
        return self._kinds[key]

    def _of_block(self, block: ir.Block, arguments: Sequence[Kind], outer: dict[ir.Value, Kind]) -> Kinds:
        """Returns the memory kinds of the values that a block returns."""
        kinds = dict(outer)
        kinds.update(zip(block.arguments, arguments, strict=False))
        *ops, terminator = block.operations
        for op in ops:
            operands = tuple(kinds.get(value) for value in op.operands)
            kinds.update(zip(op.results, self._of_op(op, operands, kinds), strict=True))
        return tuple(kinds.get(value) for value in terminator.operands)

    def _of_op(self, op: ir.OpView, operands: Kinds, kinds: dict[ir.Value, Kind]) -> Sequence[Kind]:
        """Returns the memory kinds of the results of an operation."""
        match op.operation.name:
            case "stablehlo.custom_call" if (placed := placed_in(op)) is not None:
                return [None if placed == _DEVICE_MEMORY else placed]
            case "func.call":
                return self.of_function(op.attributes["callee"].value, operands)
            case "stablehlo.optimization_barrier":
                return operands
            case "stablehlo.while":
                # A carried value may get its memory in the body: it starts from zeros, which have none.
                body = op.regions[1].blocks[0]
                return _joined(operands, self._of_block(body, operands, kinds))
            case "stablehlo.case" | "stablehlo.if":
                return _joined(*(self._of_block(region.blocks[0], (), kinds) for region in op.regions))
            case "sdy.manual_computation":
                return self._of_block(op.regions[0].blocks[0], operands, kinds)
        return [HOST_MEMORY if HOST_MEMORY in operands else None] * len(op.results)


def _joined(*each: Sequence[Kind]) -> list[Kind]:
    return [next((kind for kind in kinds if kind is not None), None) for kinds in zip(*each, strict=True)]
