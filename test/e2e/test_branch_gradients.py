"""Branches of stages, random trees and graphs, under policies of their own: the gradients of JAX."""

from __future__ import annotations

import itertools
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw

MICROBATCHES = 3
POLICIES = ("1f1b", "zb-h1", "1f1b(times=units)", "eager")


def join(w: jax.Array, *rows: jax.Array) -> jax.Array:
    return jnp.tanh(sum(rows) @ w)


def drawn(seed: int) -> tuple[list[list[int]], list[int], str]:
    """Draws for each stage the earlier stages that it reads and its slice; and a policy."""
    rng = random.Random(seed)
    count = rng.randint(3, 5)
    if rng.random() < 0.5:
        reader = [rng.randint(stage + 1, count - 1) for stage in range(count - 1)]
        reads = [[k for k, other in enumerate(reader) if other == stage] for stage in range(count)]
    else:
        reads = [sorted(rng.sample(range(k), rng.randint(0, min(k, 2)))) for k in range(count)]
    own = rng.random() < 0.6
    owners = list(range(count)) if own else [0, 1, *(rng.randrange(3) for _ in range(count - 2))]
    return reads, owners, rng.choice(POLICIES if own else ("1f1b", "1f1b(times=units)", "eager"))


def loss_of(stages: list[Any], reads: list[list[int]]) -> Any:
    """Returns the sum of the results that no stage reads, in stages that read the batch or each other."""
    losses = set(range(len(reads))) - set(itertools.chain(*reads))

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        rows: list[jax.Array] = []
        for stage, w, read in zip(stages, weights, reads, strict=True):
            rows.append(stage(w, *([rows[k] for k in read] or [x])))
        return sum((rows[k] ** 2).mean() for k in sorted(losses))

    return loss


def weights_of(seed: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(4, 4)).astype(np.float32) for _ in range(count)]


X = np.random.default_rng(9).normal(size=(2 * MICROBATCHES, 4)).astype(np.float32)


@pytest.mark.parametrize("seeds", [range(n, n + 5) for n in range(0, 20, 5)], ids=lambda seeds: str(seeds[0]))
def test_branches_random_gradients_agree_with_jax(seeds: range):
    """One program with a loop for each seed."""
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((1,), ("x",)) for _ in range(5)]
    cases = [drawn(seed) for seed in seeds]
    weights = [weights_of(seed, len(reads)) for seed, (reads, _, _) in zip(seeds, cases, strict=True)]

    @pw.program
    def step(weights: Any, x: jax.Array) -> Any:
        grads = []
        for each, (reads, owners, policy) in zip(weights, cases, strict=True):
            stages = [pw.jit(join, devices=slices[owner], stage=n) for n, owner in enumerate(owners)]
            loop = pw.accumulate(jax.grad(loss_of(stages, reads)), MICROBATCHES, schedule=policy)
            grads.append(loop(each, x))
        return grads

    for got, each, (reads, _, _) in zip(step(weights, X), weights, cases, strict=True):
        loss = loss_of([join] * len(reads), reads)
        terms = [jax.grad(loss)(each, rows) for rows in np.split(X, MICROBATCHES)]
        wanted = jax.tree.map(lambda *each: sum(each) / MICROBATCHES, *terms)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_accumulate_schedule_of_each_loop():
    devices = pw.make_virtual_device_set()
    stages = [pw.jit(join, devices=devices.add_slice((1,), ("x",))) for _ in range(2)]
    grad = jax.grad(loss_of(stages, [[], [0]]))

    @pw.program(schedule="gpipe")
    def step(weights: Any, x: jax.Array) -> Any:
        own = pw.accumulate(grad, MICROBATCHES, schedule="zb-h1(max-live=2)")
        return own(weights, x), pw.accumulate(grad, 2)(weights, x)

    text = step.lower(weights_of(0, 2), X).as_text("placed")
    loops = [line.strip() for line in text.splitlines() if '"pw.loop"' in line]
    assert ['schedule = "zb-h1(max-live=2)"' in line for line in loops] == [True, False]
    assert ['schedule = "gpipe"' in line for line in loops] == [False, True]
    assert "pw.schedule" not in text


def test_branches_stage_after_condition_on_one_slice():
    """A condition that is whole on its slice comes after the stages that it reads, and before its readers."""
    devices = pw.make_virtual_device_set()
    placed = [pw.jit(join, devices=devices.add_slice((1,), ("x",))) for _ in range(3)]

    def gradient(stages: list[Any], n: Any) -> Any:
        def loss(weights: Any, x: jax.Array) -> Any:
            x = stages[1](weights[1], stages[0](weights[0], x))
            x = jax.lax.cond(n > 0, lambda x: stages[0](weights[0], x), lambda x: x, x)
            return (stages[2](weights[2], stages[1](weights[1], x)) ** 2).mean()

        return pw.accumulate(jax.value_and_grad(loss), MICROBATCHES)

    weights = weights_of(0, 3)
    program = pw.program(lambda n: gradient(placed, n)(weights, X), schedule="1f1b")
    for n in (0, 1):
        expected = jax.jit(lambda n: gradient([join] * 3, n)(weights, X))(n)
        for ours, theirs in zip(*map(jax.tree.leaves, (program(n), expected)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
