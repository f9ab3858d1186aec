"""`pw.auto`: a loss in plain JAX, cut into stages, has the gradients that it has without cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw

MICROBATCHES = 4


def slices(count: int) -> list[Any]:
    devices = pw.make_virtual_device_set()
    return [devices.add_slice((1,), ("x",)) for _ in range(count)]


def check_gradients(
    plan: pw.AutoPlan, loss: Callable[..., Any], init: Callable[..., Any], batch: Any, has_aux: bool = False
) -> Any:
    """Compares a step of a plan with one of plain JAX; returns the gradients of the plan."""

    def gradient(loss: Callable[..., Any]) -> Callable[..., Any]:
        def of_microbatch(*args: Any) -> Any:
            return jax.value_and_grad(loss, has_aux=has_aux)(*args)

        return pw.accumulate(of_microbatch, MICROBATCHES)

    @pw.program(schedule=plan.schedule)
    def step(params: Any, batch: Any) -> Any:
        return gradient(plan.loss)(params, batch)

    got, grads = step(plan.init(init, jax.random.key(0)), batch)
    wanted, wanted_grads = jax.jit(gradient(loss))(init(jax.random.key(0)), batch)
    assert norm(difference(got, wanted)) <= 1e-6 * norm(wanted)
    assert norm(difference(plan.merge(grads), wanted_grads)) <= 1e-6 * norm(wanted_grads)
    return grads


def difference(a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: np.asarray(x, np.float64) - np.asarray(y, np.float64), a, b)


def norm(tree: Any) -> float:
    return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree))))


def microbatch_of(batch: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[: leaf.shape[0] // MICROBATCHES], batch)


def numbers(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(9), (MICROBATCHES * shape[0], *shape[1:]))


DIMS = (16, 16, 16, 16, 16, 16, 32, 32, 16)


def init_mlp(key: jax.Array) -> Any:
    keys = jax.random.split(key, len(DIMS) - 1)
    shapes = zip(keys, DIMS, DIMS[1:], strict=False)
    return [jax.random.normal(key, (a, b)) / np.sqrt(a) for key, a, b in shapes]


def mlp_loss(params: Any, batch: Any) -> jax.Array:
    x, y = batch
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


def test_a_slice_with_wide_layers_gets_fewer_of_them() -> None:
    batch = numbers(8, 16), numbers(8, 16)
    plan = pw.auto(
        mlp_loss, slices=slices(2), microbatches=4, args=(init_mlp(jax.random.key(0)), microbatch_of(batch))
    )
    even = next(cut for cut in plan.tried if cut.kind == "even")
    assert plan.tried[0].step < 0.8 * even.step
    assert "even" in str(plan)
    check_gradients(plan, mlp_loss, init_mlp, batch)


def init_lm(key: jax.Array) -> Any:
    keys = jax.random.split(key, 3)
    return {
        "embed": jax.random.normal(keys[0], (32, 8)),
        "up": jax.random.normal(keys[1], (6, 8, 16)) / 3,
        "down": jax.random.normal(keys[2], (6, 16, 8)) / 4,
    }


def lm_loss(scan: bool, remat: bool) -> Callable[..., jax.Array]:
    def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1])))
        scores = jnp.where(mask == 1, x @ x.swapaxes(1, 2), -1e9)
        x = x + jax.nn.softmax(scores) @ x
        return x + jax.nn.gelu(x @ weights["up"].astype(x.dtype)) @ weights["down"], None

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = params["embed"][inputs] + jnp.sin(jnp.arange(inputs.shape[1])[:, None])
        turn = jax.checkpoint(layer) if remat else layer
        weights = {"up": params["up"], "down": params["down"]}
        if scan:
            x, _ = jax.lax.scan(turn, x, weights)
        else:
            for n in range(6):
                x, _ = turn(x, jax.tree.map(lambda leaf, n=n: leaf[n], weights))
        # Tied to the embedding.
        logits = jax.nn.log_softmax(x @ params["embed"].T)
        return -jnp.take_along_axis(logits, targets[..., None], -1).mean()

    return loss


@pytest.mark.parametrize(("scan", "remat"), [(True, False), (True, True), (False, True)])
def test_a_language_model_with_tied_embeddings_is_cut_between_layers(scan: bool, remat: bool) -> None:
    loss = lm_loss(scan, remat)
    tokens = jax.random.randint(jax.random.key(1), (4 * MICROBATCHES, 9), 0, 32)
    plan = pw.auto(
        loss,
        slices=slices(3),
        microbatches=4,
        args=(init_lm(jax.random.key(0)), microbatch_of(tokens)),
        schedules=("1f1b", "zb-h1"),
    )
    assert isinstance(plan.params["up"], tuple) == scan
    check_gradients(plan, loss, init_lm, tokens)
