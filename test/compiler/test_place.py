"""Placement of arguments before calls, and the shardings and types that programs report."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import pathways as pw


@pytest.fixture
def slices() -> list[pw.VirtualSlice]:
    devices = pw.make_virtual_device_set()
    return [devices.add_slice((2,), ("data",)), devices.add_slice((1,), ("x",))]


@pytest.fixture
def evaluate(slices: list[pw.VirtualSlice]) -> pw.Program:
    """Returns a program of two weights, one on each slice, and a batch that both read."""
    first = pw.jit(lambda w, x: jnp.tanh(x @ w), devices=slices[0], in_shardings=(P("data"), None))
    second = pw.jit(lambda w, x, h: {"loss": (h @ w + x).sum(), "h": h}, devices=slices[1])
    return pw.program(lambda weights, x: second(weights[1], x, first(weights[0], x)))


WIDTH = 512
WEIGHTS = [np.eye(WIDTH, dtype=np.float32), 2 * np.eye(WIDTH, dtype=np.float32)]
BATCH = np.ones((4, WIDTH), np.float32)


def test_place_puts_arguments_where_calls_read_them(evaluate: pw.Program) -> None:
    compiled = evaluate.lower(WEIGHTS, BATCH).compile()
    (weights,) = compiled.place(WEIGHTS)
    ((w0, w1), x), _ = compiled.input_shardings
    assert [w.sharding for w in weights] == [w0, w1]
    assert [len(s.device_set) for s in (w0, w1, x)] == [2, 1, 2]
    (again,) = compiled.place(weights)
    assert all(a is b for a, b in zip(again, weights, strict=True))
    wanted = evaluate(WEIGHTS, BATCH)
    for got in (compiled(weights, BATCH), evaluate(weights, BATCH)):
        assert jax.tree.all(jax.tree.map(np.array_equal, got, wanted))


def test_place_of_a_program_puts_all_arguments(evaluate: pw.Program) -> None:
    weights, batch = evaluate.place(WEIGHTS, BATCH)
    compiled = evaluate.lower(WEIGHTS, BATCH).compile()
    (w, x), _ = compiled.input_shardings
    assert [a.sharding for a in (*weights, batch)] == [*w, x]


def test_place_skips_static_arguments_and_copies_donated_ones(slices: list[pw.VirtualSlice]) -> None:
    step = pw.program(
        lambda w, kind, x: pw.jit(lambda w, x: w + x, devices=slices[1])(w, x),
        static_argnums=1,
        donate_argnums=0,
    )
    mine = np.ones(4, np.float32)
    w, kind, x = step.place(mine, "sgd", np.ones(4, np.float32))
    assert kind == "sgd"
    assert step(w, kind, x).tolist() == [2.0] * 4
    assert mine.tolist() == [1.0] * 4  # A copy was donated.


def test_place_leaves_arguments_on_the_slices_that_calls_run_on() -> None:
    """A program without placed functions runs on the slices that its arguments are on."""
    devices = pw.make_virtual_device_set()
    # Kept: a slice is released when nothing refers to it.
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
    ones = [pw.jit(jnp.ones, devices=slice, static_argnums=0)(8) for slice in slices]
    double = pw.program(lambda x: x * 2)
    for x in (*ones, *ones):
        (placed,) = double.place(x)
        assert placed is x
        assert double(x).devices() == double(placed).devices() == x.devices()
    assert len(double.executables) == 2


def test_place_refuses_arguments_that_calls_refuse(evaluate: pw.Program) -> None:
    compiled = evaluate.lower(WEIGHTS, BATCH).compile()
    with pytest.raises(TypeError, match=r"compiled for weights\[1\] of type float32\[512,512\], got int32"):
        compiled.place([WEIGHTS[0], np.ones((WIDTH, WIDTH), np.int32)])
    with pytest.raises(TypeError, match="is not a prefix"):
        compiled.place(WEIGHTS[0])
    with pytest.raises(TypeError, match="is not a prefix"):
        compiled.place(WEIGHTS, BATCH, BATCH)


def test_compiled_reports_shardings_and_types_of_results(evaluate: pw.Program) -> None:
    compiled = evaluate.lower(WEIGHTS, BATCH).compile()
    results = compiled(WEIGHTS, BATCH)
    assert jax.tree.map(lambda a: a.sharding, results) == compiled.output_shardings
    for info, array in zip(jax.tree.leaves(compiled.out_info), jax.tree.leaves(results), strict=True):
        assert (info.shape, info.dtype, info.sharding) == (array.shape, array.dtype, array.sharding)
    assert [a.shape for a in compiled.in_avals] == [a.shape for a in (*WEIGHTS, BATCH)]


def test_program_under_eval_shape(evaluate: pw.Program) -> None:
    types = jax.eval_shape(evaluate, WEIGHTS, BATCH)
    wanted = jax.tree.map(jax.typeof, evaluate(WEIGHTS, BATCH))
    assert jax.tree.map(lambda t: (t.shape, t.dtype), types) == jax.tree.map(
        lambda t: (t.shape, t.dtype), wanted
    )


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())])
def test_program_refuses_other_transformations(transform, slices: list[pw.VirtualSlice]) -> None:
    program = pw.program(pw.jit(lambda x: x * 2, devices=slices[1]))
    with pytest.raises(TypeError, match="cannot be called under"):
        transform(program)(jnp.ones(3))


def test_program_warns_once_of_a_large_argument_that_every_call_sends(evaluate: pw.Program) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(5):
            evaluate(WEIGHTS, BATCH)
    messages = [str(w.message) for w in seen if w.category is pw.PathwaysWarning]
    assert len(messages) == 2
    assert "argument weights[0] of 1.0 MiB is sent to slice" in messages[0]
    assert "put it there once with `place`" in messages[0]
    assert all(w.filename == __file__ for w in seen)


def test_program_does_not_warn_of_new_batches_or_placed_arrays(evaluate: pw.Program) -> None:
    large = [np.ones((WIDTH, WIDTH), np.float32) for _ in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", pw.PathwaysWarning)
        weights, _ = evaluate.place(WEIGHTS, large[0])
        for batch in large:
            evaluate(weights, batch)
