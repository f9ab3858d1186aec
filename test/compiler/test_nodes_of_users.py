"""Pytree nodes of users: every use of a program builds them from arrays and tracers only."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import pathways as pw


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Scale:
    """Loss scale, as in libraries of mixed precision, which accepts only arrays."""

    value: Any
    steps: Any

    def tree_flatten(self):
        return (self.value, self.steps), None

    @classmethod
    def tree_unflatten(cls, _, children):
        for child in children:
            if not isinstance(child, jax.Array):
                raise TypeError(f"a scale of {type(child).__name__}")
        return cls(*children)

    def adjusted(self, finite: jax.Array) -> Scale:
        return Scale(jnp.where(finite, self.value * 2, self.value / 2), self.steps + 1)


def scale() -> Scale:
    return Scale(jnp.float32(8), jnp.int32(0))


X = np.arange(1, 9, dtype=np.float32)


@pytest.fixture
def double():
    return pw.jit(lambda x: 2 * x, devices=pw.make_virtual_device_set().add_slice(1, "x"))


@pytest.fixture
def step(double):
    def step(scale: Scale, x: jax.Array) -> tuple[Scale, jax.Array]:
        y = double(x) * scale.value
        return scale.adjusted(jnp.isfinite(y).all()), y

    return step


def check(results: Any) -> None:
    new, y = results
    assert isinstance(new, Scale)
    assert (float(new.value), int(new.steps)) == (16, 1)
    np.testing.assert_array_equal(y, 16 * X)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"donate_argnums": 0},
        {"in_shardings": P()},
        {"in_shardings": (P(), None)},
        {"out_shardings": P()},
        {"static_argnames": "name"},
    ],
)
def test_nodes_in_calls(step, options):
    program = pw.program(
        step if "static_argnames" not in options else lambda s, x, name: step(s, x), **options
    )
    named = {"name": "a"} if "static_argnames" in options else {}
    check(program(scale(), X, **named))
    check(program(*program.place(scale(), X, **named)[:2], **named))
    compiled = program.lower(scale(), X, **named).compile()
    check(compiled(scale(), X))
    check(compiled(*compiled.place(scale(), X)))


def test_nodes_in_placed_functions():
    devices = pw.make_virtual_device_set().add_slice(1, "x")
    placed = pw.jit(
        lambda s, x: (s.adjusted(True), 2 * x * s.value), devices=devices, in_shardings=P(), out_shardings=P()
    )
    check(placed(scale(), X))
    check(pw.program(lambda s, x: placed(s, x))(scale(), X))


@pytest.mark.parametrize("inside", [True, False])
def test_nodes_in_accumulate(double, inside):
    """Nodes are carried, cut, and returned, with one reduction for all leaves."""

    def run(s, batch):
        def body(s, block):
            y = double(block.value) if inside else 2 * block.value
            return s.adjusted(True), Scale(y * s.value, block.steps)

        return pw.accumulate(body, 2, reduce="concat", carry_argnums=0)(s, batch)

    batch = Scale(jnp.asarray(X), jnp.arange(8))
    last, y = pw.program(run)(scale(), batch) if inside else run(scale(), batch)
    assert (float(last.value), int(last.steps)) == (32, 2)
    np.testing.assert_array_equal(y.value, np.concatenate([16 * X[:4], 32 * X[4:]]))
    np.testing.assert_array_equal(y.steps, np.arange(8))


def test_nodes_in_prefetch(double):
    step = pw.program(lambda batch: double(batch.value)).lower(Scale(X, X)).compile()
    with pw.prefetch([Scale(jnp.asarray(X), jnp.asarray(X))], step, "batch") as batches:
        np.testing.assert_array_equal(step(next(batches)), 2 * X)


def test_nodes_in_bundles(step, tmp_path):
    pw.program(step).lower(scale(), X).save(tmp_path / "step.pwb")
    loaded = pw.load(tmp_path / "step.pwb", trust=True)
    assert tuple(loaded.inputs) == ("scale.0", "scale.1", "x")
    assert tuple(loaded.outputs) == ("result.0.0", "result.0.1", "result.1")


def test_nodes_in_errors_of_arguments(step):
    compiled = pw.program(step).lower(scale(), X).compile()
    with pytest.raises(TypeError, match=r"was compiled for arguments of structure .*Scale.*, got "):
        compiled((jnp.float32(8), jnp.int32(0)), X)
    with pytest.raises(TypeError, match=r"compiled for scale\[1\] of type int32\[\], got float32"):
        compiled(Scale(jnp.float32(8), jnp.float32(0)), X)


def test_nodes_in_info_of_arguments(double):
    lowered = pw.program(lambda p, x: double(p["w"] + x), donate_argnums=0).lower({"w": X}, x=X)
    for stage in (lowered, lowered.compile()):
        ((params,), named) = stage.args_info
        assert [(info.shape, info.dtype, info.donated) for info in (params["w"], named["x"])] == [
            ((8,), jnp.float32, True),
            ((8,), jnp.float32, False),
        ]


def test_nodes_have_paths_in_lowered_programs(double):
    """JAX names arguments and results in what it lowers and in its errors."""

    def f(p, *rest, **named):
        return {"y": double(p["w"]) + rest[0][1], "z": [named["k"]]}

    text = pw.program(f).lower({"w": X}, (X, X), k=X).as_text("imported")
    for name in ("p['w']", "rest[0][1]", "named['k']"):
        assert f'jax.arg_info = "{name}"' in text
    for name in ("['y']", "['z'][0]"):
        assert f'jax.result_info = "result{name}"' in text


def test_nodes_in_errors_of_jax(double):
    @pw.program
    def f(p):
        return double(p["w"]) if p["w"][0] > 0 else p

    with pytest.raises(
        jax.errors.TracerBoolConversionError, match=r"function f at .*of the argument p\['w'\]"
    ):
        f({"w": X})
