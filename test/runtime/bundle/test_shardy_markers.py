"""Markers of Shardy in untrusted StableHLO, on which XLA aborts where they are wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.bundle.program import problem_of, read_artifact
from pathways.runtime.bundle.shardy_markers import parse_attribute
from pathways.runtime.xla import pjrt


@pytest.fixture(scope="module")
def sharded() -> str:
    """Returns a computation with shardings and a manual computation, as an artifact has it."""
    mesh = jax.make_mesh((2,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    split = NamedSharding(mesh, P("x"))

    def function(x: jax.Array) -> jax.Array:
        total = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())(x)
        return jnp.sin(jax.lax.with_sharding_constraint(total * 2, NamedSharding(mesh, P())))

    lowered = jax.jit(function, in_shardings=split, out_shardings=split).lower(jnp.ones(4))
    return str(read_artifact(pjrt.portable_artifact(bytecode_of(lowered.compiler_ir()))))


def problem(text: str) -> str | None:
    return problem_of(ir.Module.parse(text, make_context()))


def test_markers_of_jax_are_accepted(sharded: str) -> None:
    for marker in ("xla.sdy.meshes", "GlobalToLocalShape", "LocalToGlobalShape", "FuncResultSharding"):
        assert marker in sharded
    assert problem(sharded) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"#sdy.sharding<@mesh, [{\\22x\\22}]>"', '"#sdy.sharding<@m, [{}]>"', "unknown mesh: @m"),
        ('"#sdy.sharding<@mesh, [{\\22x\\22}]>"', '"#sdy.sharding<@mesh, []>"', "match tensor rank: 0 != 1"),
        (
            '"#sdy.sharding<@mesh, [{\\22x\\22}]>"',
            '"#sdy.sharding<@mesh, [{\\22y\\22}]>"',
            "unknown axis name",
        ),
        ('"#sdy.sharding<@mesh, [{\\22x\\22}]>"', '"1 : i32"', "an invalid sharding: '1 : i32'"),
        ('"{mesh = #sdy.mesh<[\\22x\\22=2]>}"', '"{mesh = 1}"', "has invalid meshes"),
        ('"{mesh = #sdy.mesh<[\\22x\\22=2]>}"', '"{}"', "unknown mesh: @mesh"),
        ("xla.sdy.out_shardings", "xla.sdy.other", "has an invalid sharding"),
        ('"#sdy<manual_axes{\\22x\\22}>", xla.sdy.out', '"#sdy<manual_axes{}>", xla.sdy.out', "unknown axes"),
        ("@xla.sdy.manual_computation_body", "@body", "apart from a manual computation"),
    ],
)
def test_a_marker_that_stands_for_nothing(sharded: str, old: str, new: str, message: str) -> None:
    assert old in sharded
    assert message in str(problem(sharded.replace(old, new)))


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        ", mhlo.frontend_attributes = {}",
        ', mhlo.frontend_attributes = {xla.sdy.sharding = ""}',
        ', mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<[]>"}',
        ', mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{}]>]>"}',
    ],
)
@pytest.mark.parametrize(
    "call", ["xla.sdy.FuncResultSharding", "xla.sdy.GlobalToLocalShape", "local_xla.sdy.LocalToGlobalShape"]
)
def test_a_marker_without_its_attributes(call: str, attributes: str) -> None:
    text = f"""
    func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %0 = stablehlo.custom_call @{call}(%x) {{has_side_effect = true{attributes}}}
        : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }}
    """
    assert problem(text) is not None


@pytest.mark.parametrize("text", ["", " ", "// nothing", "1, 2", "1], [2", "]"])
def test_text_that_is_no_attribute(text: str) -> None:
    assert parse_attribute(text, make_context()) is None
