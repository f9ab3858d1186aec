"""Stages of pipelines with branches: calls of a slice beside each other, or on both sides of another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw

Stage = Callable[[jax.Array, jax.Array], jax.Array]
Branches = Callable[..., jax.Array]


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def step(stages: Sequence[Stage], branches: Branches) -> Callable[..., Any]:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(branches(*stages, w, x) ** 2)

    return lambda w, x: pw.accumulate(jax.value_and_grad(loss), 4)(w, x)


def placed(order: Sequence[int], numbers: Sequence[int | None]) -> list[Stage]:
    """The same layer on a slice for each number, which are named in an order of their own."""
    devices = pw.make_virtual_device_set()
    slices = {k: devices.add_slice((1,), ("x",)) for k in order}
    return [pw.jit(layer, devices=slices[k], stage=number) for k, number in enumerate(numbers)]


ARGUMENTS = np.eye(4, dtype=np.float32) / 2, np.arange(32, dtype=np.float32).reshape(8, 4) / 32


@pytest.mark.parametrize(
    ("branches", "count"),
    [
        (lambda a, b, w, x: b(w, a(w, x) + b(w, x)), 2),
        (lambda a, b, w, x: b(w, b(w, x) + a(w, x)), 2),
        (lambda a, b, w, x: b(w, a(w, b(w, x))), 3),
        (lambda a, b, c, w, x: c(w, a(w, x) + b(w, x)), 3),
        (lambda a, b, c, w, x: c(w, b(w, a(w, x)) + b(w, x)), 3),
        (lambda a, b, c, w, x: c(w, a(w, x) + b(w, x)) + b(w, x), 3),
    ],
    ids=["beside", "first", "around", "towers", "joining", "joined late"],
)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)], ids=["in order", "reversed"])
def test_branches_across_slices(branches: Branches, count: int, order: Sequence[int]) -> None:
    places = branches.__code__.co_argcount - 2
    stages = placed([k for k in order if k < places], [None] * places)
    program = pw.program(step(stages, branches), schedule="1f1b")
    text = program.lower(*ARGUMENTS).as_text("imported")
    assert {f"stage = {n} : i64" in text for n in range(count)} == {True}
    assert f"stage = {count} : i64" not in text
    expected = jax.jit(step([layer] * places, branches))(*ARGUMENTS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), program(*ARGUMENTS), expected)


@pytest.mark.parametrize(
    ("branches", "message"),
    [
        (
            lambda a, b, w, x: b(w, a(w, x) + b(w, x)),
            "belongs to stage 0 and reads results of stage 1; number stages in the order in which",
        ),
        (
            lambda a, b, w, x: b(w, a(w, b(w, x))),
            "belongs to stage 0 and reads results of stage 1, which needs results of stage 0: no numbers fit",
        ),
    ],
)
def test_numbers_that_do_not_fit(branches: Branches, message: str) -> None:
    program = pw.program(step(placed((0, 1), (1, 0)), branches), schedule="1f1b")
    with pytest.raises(pw.ProgramError, match=message):
        program.lower(*ARGUMENTS).compile()
