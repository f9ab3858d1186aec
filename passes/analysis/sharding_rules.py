"""Shardy's sharding rules of operations: the dimensions of operands and results that go together.

The rule of a `stablehlo.reduce` over its first dimension is `([i, j], [])->([j]) {i=8, j=4} reduction={i}`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from pathways.dialect import run_mlir_passes
from pathways.dialect.operations.operation import attribute_of
from pathways.passes.analysis.memory_kinds import placed_in

RULE = "sdy.sharding_rule"
"""Attribute of an operation that holds its rule."""

Dims = tuple[int | None, ...]
"""For each dimension its factor in the rule; None where its elements are not independent of each other."""


@dataclasses.dataclass(frozen=True)
class ShardingRule:
    """Rule of an operation: dimensions with one factor are cut together.

    Attributes:
      operands, results: the factors of the dimensions of each.
    """

    operands: Sequence[Dims]
    results: Sequence[Dims]

    @property
    def is_elementwise(self) -> bool:
        """Whether an element of the only result depends on scalars and elements at the same position."""
        if len(self.results) != 1:
            return False
        every = tuple(range(len(self.results[0])))
        return self.results[0] == every and all(dims in (every, ()) for dims in self.operands)


def attach_rules(functions: Iterable[ir.OpView]) -> None:
    """Attaches rules to the operations of functions, as attributes, which copies of them keep."""
    for function in functions:
        run_mlir_passes("sdy-populate-op-sharding-rules", function, verify_each=False)


def drop_rules(root: ir.Module | ir.OpView) -> None:
    """Drops attached rules from a function, or all functions of a module; users' rules stay."""
    nested = "sdy-drop-sharding-rules"
    pipeline = f"func.func({nested})" if root.operation.name == "builtin.module" else nested
    run_mlir_passes(pipeline, root, verify_each=False)


class RuleReader:
    """Reader of attached rules, each distinct one once."""

    def __init__(self) -> None:
        self._rules: dict[ir.Attribute, ShardingRule] = {}

    def of(self, op: ir.OpView) -> ShardingRule | None:
        """Returns the rule of an operation; None where it has none, or is a custom call."""
        name = op.operation.name
        if name == "stablehlo.optimization_barrier":
            return _of_barrier(op)
        if name.startswith("chlo.") or placed_in(op) is not None:
            # Shardy knows StableHLO, to which these are lowered, and no moves between memories.
            return _if_elementwise(op)
        attribute = attribute_of(op, RULE)
        if attribute is None or name == "stablehlo.custom_call":
            return None
        if attribute not in self._rules:
            self._rules[attribute] = _read(sdy.OpShardingRuleAttr(attribute))
        return self._rules[attribute]


def _read(rule: sdy.OpShardingRuleAttr) -> ShardingRule:
    undivided = {*rule.reduction_factors, *rule.need_replication_factors, *rule.permutation_factors}
    return ShardingRule(
        [_dims(mapping, undivided) for mapping in rule.operand_mappings],
        [_dims(mapping, undivided) for mapping in rule.result_mappings],
    )


def _dims(mapping: ir.Attribute, undivided: Collection[int]) -> Dims:
    factors = [sdy.DimMappingAttr(dim).factor_indices for dim in sdy.TensorMappingAttr(mapping).dim_mappings]
    return tuple(each[0] if len(each) == 1 and each[0] not in undivided else None for each in factors)


def _of_barrier(op: ir.OpView) -> ShardingRule:
    """Returns a rule by which each result has the dimensions of its operand."""
    ranks = [ir.RankedTensorType(value.type).rank for value in op.operands]
    starts = [sum(ranks[:n]) for n in range(len(ranks))]
    dims = [tuple(range(start, start + rank)) for start, rank in zip(starts, ranks, strict=True)]
    return ShardingRule(dims, dims)


def _if_elementwise(op: ir.OpView) -> ShardingRule | None:
    """Returns the rule of an operation between arrays of one shape; None for any other."""
    shapes = {tuple(ir.RankedTensorType(value.type).shape) for value in (*op.operands, *op.results)}
    if len(shapes) != 1 or len(op.results) != 1:
        return None
    dims = tuple(range(len(shapes.pop())))
    return ShardingRule([dims] * len(op.operands), [dims])
