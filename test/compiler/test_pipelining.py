"""Warnings of microbatches that do not overlap, once for each program."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import placed_stages

import pathways as pw

X = np.ones((4, 2), np.float32)


@pytest.fixture
def stages() -> list[Callable]:
    return placed_stages(2, jnp.tanh)


def warnings_of(program: pw.Program) -> list[str]:
    """Returns the warnings of two lowerings of a program."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            program.lower(X)
    assert {(w.category, w.filename) for w in seen} <= {(pw.PathwaysWarning, __file__)}
    return [str(w.message) for w in seen]


def over(fun: Callable, microbatches: int = 2) -> Callable:
    def step(x):
        return pw.accumulate(fun, microbatches, batch_argnums=0)(x)

    return step


def test_pipelining_warns_of_a_schedule_without_microbatches(stages: list[Callable]) -> None:
    (message,) = warnings_of(pw.program(lambda x: stages[1](stages[0](x)), schedule="1f1b"))
    assert "schedule '1f1b' orders the microbatches of pw.accumulate, but there is none" in message


def test_pipelining_warns_of_microbatches_without_a_schedule(stages: list[Callable]) -> None:
    (message,) = warnings_of(pw.program(over(lambda x: stages[1](stages[0](x)).sum())))
    assert "has no schedule, so that its microbatches run one after the other" in message
    assert "schedule='1f1b'" in message


def test_pipelining_warns_of_microbatches_on_one_slice(stages: list[Callable]) -> None:
    (message,) = warnings_of(pw.program(over(lambda x: stages[0](x).sum()), schedule="gpipe"))
    assert "calls functions on slice" in message
    assert "alone: nothing is pipelined" in message


def test_pipelining_warns_of_microbatches_without_a_placed_function(stages: list[Callable]) -> None:
    program = pw.program(lambda x: stages[0](over(lambda x: jnp.tanh(x).sum())(x)), schedule="gpipe")
    (message,) = warnings_of(program)
    assert "calls no pw.jit function: nothing is pipelined" in message


@pytest.mark.parametrize(("count", "schedule"), [(2, "1f1b"), (1, None)])
def test_pipelining_is_silent_of_a_pipeline(count: int, schedule: str | None, stages: list[Callable]) -> None:
    fun = over(lambda x: stages[1](stages[0](x)).sum(), count)
    assert warnings_of(pw.program(fun, schedule=schedule)) == []


def test_pipelining_keeps_the_schedule_of_a_program_that_is_called(stages: list[Callable]) -> None:
    # JAX traces a function under jax.jit once for each schedule.
    fun = jax.jit(over(lambda x: stages[1](stages[0](x)).sum()))
    eager, gpipe, plain = (pw.program(fun, schedule=schedule) for schedule in ("eager", "gpipe", None))
    both = pw.program(lambda x: (gpipe(x), plain(x)), schedule="zb-h1")
    outer = pw.program(lambda x: (eager(x), both(x), fun(x)), schedule="1f1b")
    assert warnings_of(outer) == []
    loops = re.findall(r'"pw\.loop"\(.*schedule = "(.*?)"', outer.lower(X).as_text("imported"))
    assert loops == ["eager", "gpipe", "zb-h1", "1f1b"]
    assert warnings_of(pw.program(lambda x: gpipe(x))) == []


def test_pipelining_warns_of_the_schedule_file_of_a_program_that_is_called(stages: list[Callable]) -> None:
    inner = pw.program(over(lambda x: stages[1](stages[0](x)).sum()), schedule="order.csv")

    def step(x):
        return inner(x)

    (message,) = warnings_of(pw.program(step, schedule="gpipe"))
    assert "order.csv' is of a whole program: called in program 'step'" in message
