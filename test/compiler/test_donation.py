"""Warnings of donated buffers that no result reuses, once for each program."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from models import placed_stages

import pathways as pw

X = np.ones((4, 2), np.float32)


@pytest.fixture
def stages() -> list[Any]:
    return placed_stages(2, jnp.tanh)


def warnings_of(fun: Callable[..., Any], *arguments: Any, donated: tuple[int, ...] = (0,)) -> list[str]:
    """Returns the warnings of two calls of a program that donates arguments."""
    program = pw.program(fun, donate_argnums=donated)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            program(*arguments)
    assert {(w.category, w.filename) for w in seen} <= {(pw.PathwaysWarning, __file__)}
    return [str(w.message) for w in seen]


def test_donation_without_a_result_of_the_type(stages: list[Any]) -> None:
    (message,) = warnings_of(lambda params, x: stages[0](params["w"] @ x), {"w": X}, X.T)
    assert "donated buffers were not usable: params['w'] of 4x2xf32; no result" in message


def test_donation_of_which_some_is_used(stages: list[Any]) -> None:
    (message,) = warnings_of(lambda x, y: stages[0](x) * y.sum(), X, X[:1], donated=(0, 1))
    assert "not usable: y of 1x2xf32;" in message


def test_donation_counts_many_unused_buffers(stages: list[Any]) -> None:
    total = pw.jit(lambda xs: sum(x.sum() for x in xs), devices=stages[0].devices)
    (message,) = warnings_of(lambda xs: total(xs), [X] * 5)
    assert "xs[0] of 4x2xf32, xs[1] of 4x2xf32, xs[2] of 4x2xf32 and 2 more" in message


def test_donation_of_used_buffers_is_silent(stages: list[Any]) -> None:
    assert warnings_of(lambda x: stages[0](x), X) == []
    # Returned as it is, not read at all, or a small argument of several slices.
    assert warnings_of(lambda x, y: (stages[0](x), y), X, X, donated=(1,)) == []
    assert warnings_of(lambda x, y: stages[0](x), X, X, donated=(1,)) == []
    assert (
        warnings_of(lambda x, n: (stages[0](x) * n, stages[1](x) * n), X, np.float32(2), donated=(1,)) == []
    )


def test_donation_of_a_count_that_is_read_twice_is_silent(stages: list[Any]) -> None:
    """Learning rate schedules read the count of an optimizer, too; four bytes are not worth a warning."""

    def step(x: Any, count: Any) -> Any:
        y = stages[0](x) / (count + 1)
        return stages[0](y * jnp.exp2(-count.astype(np.float32))), x.sum()

    assert warnings_of(step, X, np.int32(3), donated=(1,)) == []
