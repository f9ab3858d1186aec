"""Sharding rules of operations, which Shardy attaches as attributes, as passes read them."""

from __future__ import annotations

import pytest
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.passes.analysis.sharding_rules import RuleReader, attach_rules, drop_rules

ARGUMENTS = "%a: tensor<8x4xf32>, %z: tensor<f32>, %i: tensor<i32>"


def parse(operation: str) -> ir.Module:
    return ir.Module.parse(f"func.func @f({ARGUMENTS}) {{\n{operation}\nreturn\n}}", make_context())


@pytest.mark.parametrize(
    ("operation", "operands", "results"),
    [
        pytest.param("%0 = stablehlo.tanh %a : tensor<8x4xf32>", [(0, 1)], [(0, 1)], id="elementwise"),
        pytest.param(
            "%0 = stablehlo.clamp %z, %a, %z : "
            "(tensor<f32>, tensor<8x4xf32>, tensor<f32>) -> tensor<8x4xf32>",
            [(), (0, 1), ()],
            [(0, 1)],
            id="scalars go with every block",
        ),
        pytest.param(
            "%0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : "
            "(tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>",
            [(None, 1), ()],
            [(1,)],
            id="a reduced dimension is needed as a whole",
        ),
        pytest.param(
            "%0 = stablehlo.slice %a [0:4, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>",
            [(None, 1)],
            [(None, 1)],
            id="a range is not cut",
        ),
        pytest.param(
            "%0 = stablehlo.reshape %a : (tensor<8x4xf32>) -> tensor<2x4x4xf32>",
            [(None, 2)],
            [(0, 1, 2)],
            id="a dimension of two factors",
        ),
        pytest.param("%0 = chlo.erf %a : tensor<8x4xf32> -> tensor<8x4xf32>", [(0, 1)], [(0, 1)], id="chlo"),
        pytest.param(
            "%0:2 = stablehlo.optimization_barrier %a, %a : tensor<8x4xf32>, tensor<8x4xf32>",
            [(0, 1), (2, 3)],
            [(0, 1), (2, 3)],
            id="each result of a barrier is its operand",
        ),
    ],
)
def test_rule_reader_tells_which_dimensions_go_together(
    operation: str, operands: list[tuple[int | None, ...]], results: list[tuple[int | None, ...]]
) -> None:
    module = parse(operation)
    attach_rules(module.body.operations)
    rule = RuleReader().of(module.body.operations[0].regions[0].blocks[0].operations[0])
    assert (rule.operands, rule.results) == (operands, results)


def test_rules_of_users_stay_when_attached_ones_are_dropped() -> None:
    own = "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=4}, custom>"
    module = parse(
        "%0 = stablehlo.tanh %a : tensor<8x4xf32>\n"
        f"%1 = stablehlo.custom_call @f(%0) {{sdy.sharding_rule = {own}}} : "
        "(tensor<8x4xf32>) -> tensor<8x4xf32>"
    )
    before = str(module)
    attach_rules(module.body.operations)
    assert str(module) != before
    drop_rules(module)
    assert str(module) == before
