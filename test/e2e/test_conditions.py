"""`jax.lax.cond` and `switch` over scanned slices, each with its own code: the results of `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from check import assert_close
from models import apply, layer, place_on

import pathways as pw

Fun = Callable[..., Any]

WIDTH = 16
WEIGHTS = [np.random.default_rng(n).normal(0, 0.5, (WIDTH, WIDTH)).astype(np.float32) for n in range(4)]
X = np.random.default_rng(4).normal(size=(8, WIDTH)).astype(np.float32)


@pytest.fixture
def placed() -> list[Fun]:
    devices = pw.make_virtual_device_set()
    return place_on(devices.add_slice((1,), ("x",), name=f"s{n}") for n in range(4))


PLAIN = [layer] * 4


# Optimizers that wrap another one in a condition.


def training(optimizer: optax.GradientTransformation) -> Fun:
    """Returns a builder of a training step."""

    def make(layers: Sequence[Fun]) -> Fun:
        def loss(weights: Any, x: jax.Array) -> jax.Array:
            return jnp.mean(apply(layers, weights, x) ** 2)

        def step(weights: Any, state: Any, x: jax.Array) -> Any:
            value, grads = jax.value_and_grad(loss)(weights, x)
            updates, state = optimizer.update(grads, state, weights)
            return optax.apply_updates(weights, updates), state, value

        return step

    return make


def masked() -> optax.GradientTransformation:
    return optax.transforms.conditionally_mask(optax.adam(1e-2), lambda step: step % 2 == 1)


def clipped() -> optax.GradientTransformation:
    """Clips by the norm over all slices: each branch reads in its middle what other slices have computed."""
    return optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2))


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.MultiSteps(clipped(), 2).gradient_transformation(),
        optax.apply_if_finite(optax.adam(1e-2), 2),
        masked(),
    ],
    ids=["MultiSteps", "apply_if_finite", "conditionally_mask"],
)
def test_conditions_optimizers_stay_on_slices_of_weights(placed, optimizer):
    weights, batches = list(WEIGHTS), [X, X * np.nan, X, 2 * X, 3 * X]
    if "finite" not in str(optimizer.update.__qualname__):
        batches[1] = -X
    state = jax.tree.map(np.array, optimizer.init(weights))
    program = pw.program(training(optimizer)(placed), donate_argnums=(0, 1))
    compiled = program.lower(weights, state, X).compile()

    # Transfers are activations and gradients of them, and a few scalars of the condition.
    activations = 6 * X.nbytes
    assert activations <= compiled.cost_analysis()["bytes transferred"] < activations + 100
    peaks = [memory.peak_memory_in_bytes for memory in compiled.memory_analysis().values()]
    assert max(peaks) < 1.5 * min(peaks)

    expected = jax.jit(training(optimizer)(PLAIN))
    ours: Any = (weights, state)
    theirs: Any = (weights, state)
    for batch in batches:
        *ours, _ = program(*ours, batch)
        *theirs, _ = expected(*theirs, batch)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, theirs)


def test_conditions_noise_of_optimizer(placed):
    """`jax.random` is a loop: a branch that contains one is split as others are."""
    optimizer = optax.MultiSteps(optax.chain(optax.add_noise(1e-3, 0.5, 0), optax.adam(1e-2)), 2)
    weights, state = list(WEIGHTS), optimizer.init(list(WEIGHTS))
    program = pw.program(training(optimizer)(placed))
    compiled = program.lower(weights, state, X).compile()
    assert compiled.cost_analysis()["bytes transferred"] < 6 * X.nbytes + 100
    expected = jax.jit(training(optimizer)(PLAIN))
    ours: Any = (weights, state)
    theirs: Any = (weights, state)
    for _ in range(3):
        *ours, _ = program(*ours, X)
        *theirs, _ = expected(*theirs, X)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours[0], theirs[0])


def test_conditions_callback_keeps_condition_whole(placed):
    def step(layers: Sequence[Fun], weights: Any, x: Any, n: Any) -> Any:
        x = layers[1](weights[1], layers[0](weights[0], x))

        def grown(weights: Any) -> Any:
            jax.debug.print("grown {}", n)
            return [2 * w for w in weights]

        return x, jax.lax.cond(n > 0, grown, lambda weights: weights, weights)

    program = pw.program(lambda *args: step(placed, *args), donate_argnums=0)
    weights, x = [np.eye(32, dtype=np.float32)] * 2, np.ones((2, 32), np.float32)
    (remark,) = program.lower(weights, x, 1).remarks
    assert "which moves 4096 bytes: it has side effects" in str(remark)
    for n in (0, 1):
        ours, theirs = program(weights, x, n), step(PLAIN, weights, x, n)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), ours, theirs)


# Branches that hold placed calls.


def skipped(f: Sequence[Fun], w: Any, x: Any, n: Any) -> Any:
    """Applies a branch of two slices, with an unplaced operation between them."""
    h = f[0](w[0], x)
    h = jax.lax.cond(n > 0, lambda h: 2 * f[2](w[2], jnp.sin(f[1](w[1], h))), lambda h: h, h)
    return f[3](w[3], h)


def chosen(f: Sequence[Fun], w: Any, x: Any, n: Any) -> Any:
    """Nests branches in branches, in a loop over slices."""

    def first(h: Any) -> Any:
        return f[1](w[1], f[0](w[0], h))

    def other(h: Any, i: Any) -> Any:
        return jax.lax.switch(
            i % 3, [lambda h: f[2](w[2], h), jnp.negative, lambda h: f[3](w[3], f[0](w[0], h))], h
        )

    def iteration(h: Any, i: Any) -> Any:
        return jax.lax.cond((i + n) % 2 == 0, first, lambda h: other(h, i), h), h.sum()

    return jax.lax.scan(iteration, x, jnp.arange(4))


def repeated(f: Sequence[Fun], w: Any, x: Any, n: Any) -> Any:
    """Runs a loop over slices in a branch."""

    def scanned(h: Any) -> Any:
        h, sums = jax.lax.scan(lambda h, w: (f[2](w, f[1](w, h)), h.sum()), h, jnp.stack([w[1], w[2]]))
        return h + sums.sum()

    return jax.lax.cond(n > 0, scanned, lambda h: h * 2, x)


def gradient_of(fun: Fun, wrap: Fun = lambda fun: fun) -> Fun:
    def gradient(f: Sequence[Fun], w: Any, x: Any, n: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.mean(jax.tree.leaves(wrap(lambda *a: fun(f, *a))(w, x, n))[0] ** 2)

        return jax.value_and_grad(loss)(w)

    return gradient


def accumulated(f: Sequence[Fun], w: Any, x: Any, n: Any) -> Any:
    """Takes a branch for each microbatch."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(skipped(f, w, x, x[0, 0] > 0) ** 2)

    return pw.accumulate(jax.value_and_grad(loss), 4)(w, x)


@pytest.mark.feature("conditionals", "values")
@pytest.mark.parametrize(
    "fun",
    [skipped, chosen, repeated, gradient_of(chosen), gradient_of(skipped, jax.checkpoint)],
    ids=["skipped", "chosen", "repeated", "gradient", "checkpoint"],
)
def test_conditions_branch_over_several_slices(placed, fun):
    program = pw.program(lambda w, x, n: fun(placed, w, x, n))
    for n in (0, 1):
        expected = jax.jit(lambda w, x, n: fun(PLAIN, w, x, n))(WEIGHTS, X, n)
        results = program(WEIGHTS, X, n)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), results, expected)


@pytest.mark.feature("conditionals", "hosts")
def test_conditions_branch_over_hosts(shared_workers):
    pw.connect(hosts=2)
    devices = pw.make_virtual_device_set()
    layers = place_on(devices.add_slice((1,), ("x",)) for _ in range(2))

    def forward(layers: Sequence[Fun], weights: Any, x: Any, n: Any) -> Any:
        whole = lambda: apply(layers, weights, x)  # noqa: E731
        return jax.lax.switch(n, [whole, lambda: layers[0](weights[0], x), lambda: x])

    program = pw.program(lambda *args: forward(layers, *args))
    plain = jax.jit(lambda *args: forward(PLAIN[:2], *args))
    for n in range(3):
        assert_close(program(WEIGHTS[:2], X, n), plain(WEIGHTS[:2], X, n))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_conditions_branch_for_each_microbatch(placed, schedule):
    program = pw.program(lambda w, x: accumulated(placed, w, x, None), schedule=schedule)
    value, grads = program(WEIGHTS, X)
    rows = [
        jax.value_and_grad(lambda w, x=x: jnp.mean(skipped(PLAIN, w, x, x[0, 0] > 0) ** 2))(WEIGHTS)
        for x in np.split(X, 4)
    ]
    expected = jax.tree.map(lambda *terms: sum(terms) / 4, *rows)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), (value, grads), expected
    )
    assert len({bool(x[0, 0] > 0) for x in np.split(X, 4)}) == 2


def test_conditions_print_only_in_executed_branch(placed, capfd):
    def step(w: Any, x: Any, n: Any) -> Any:
        def on_true(x: Any) -> Any:
            h = placed[0](w[0], x)
            jax.debug.print("taken {}", n)
            return placed[1](w[1], h)

        return jax.lax.cond(n > 0, on_true, lambda x: x, x)

    program = pw.program(step)
    for n in (0, 1, 0):
        jax.block_until_ready(program(WEIGHTS, X, n))
    jax.effects_barrier()
    assert capfd.readouterr().out == "taken 1\n"
