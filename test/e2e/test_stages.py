"""Stages of pipelines with branches: calls of a slice beside each other, or before and after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close
from models import gradients_of, layer

import pathways as pw

Stage = Callable[[jax.Array, jax.Array], jax.Array]
Branches = Callable[..., jax.Array]


def step(stages: Sequence[Stage], branches: Branches) -> Callable[..., Any]:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(branches(*stages, w, x) ** 2)

    return gradients_of(loss, 4)


def placed(order: Sequence[int], numbers: Sequence[int | None]) -> list[Stage]:
    """Places the same layer on a slice for each number; slices are created in an order of their own."""
    devices = pw.make_virtual_device_set()
    slices = {k: devices.add_slice((1,), ("x",)) for k in order}
    return [pw.jit(layer, devices=slices[k], stage=number) for k, number in enumerate(numbers)]


ARGUMENTS = np.eye(4, dtype=np.float32) / 2, np.arange(32, dtype=np.float32).reshape(8, 4) / 32


@pytest.mark.parametrize(
    ("branches", "count", "is_reversed"),
    [
        (lambda a, b, w, x: b(w, a(w, x) + b(w, x)), 2, False),
        (lambda a, b, w, x: b(w, b(w, x) + a(w, x)), 2, True),
        (lambda a, b, w, x: b(w, a(w, b(w, x))), 3, False),
        (lambda a, b, c, w, x: c(w, a(w, x) + b(w, x)), 3, False),
        (lambda a, b, c, w, x: c(w, a(w, x) + b(w, x)), 3, True),
        (lambda a, b, c, w, x: c(w, b(w, a(w, x)) + b(w, x)), 3, False),
        (lambda a, b, c, w, x: c(w, a(w, x) + b(w, x)) + b(w, x), 3, True),
    ],
    ids=["beside", "first", "around", "towers", "towers reversed", "joining", "joined late"],
)
def test_stages_of_branches_across_slices(branches: Branches, count: int, is_reversed: bool) -> None:
    places = branches.__code__.co_argcount - 2
    stages = placed(range(places)[:: -1 if is_reversed else 1], [None] * places)
    program = pw.program(step(stages, branches), schedule="1f1b")
    text = program.lower(*ARGUMENTS).as_text("imported")
    assert {f"stage = {n} : i64" in text for n in range(count)} == {True}
    assert f"stage = {count} : i64" not in text
    expected = jax.jit(step([layer] * places, branches))(*ARGUMENTS)
    assert_close(program(*ARGUMENTS), expected)


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
def test_stages_refuse_numbers_that_do_not_fit(branches: Branches, message: str) -> None:
    program = pw.program(step(placed((0, 1), (1, 0)), branches), schedule="1f1b")
    with pytest.raises(pw.ProgramError, match=message):
        program.lower(*ARGUMENTS).compile()
