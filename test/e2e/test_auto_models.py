"""`pw.auto` on models as people write them: branches, skips, modules of flax and equinox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw

MICROBATCHES = 3
WIDTH = 8

Model = tuple[Callable[..., Any], Callable[..., Any], Any]
"""Loss, function that creates its parameters from a key, and batch."""


def numbers(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(len(shape)), (MICROBATCHES * 2, *shape))


def weights(key: jax.Array, *shapes: tuple[int, ...]) -> list[jax.Array]:
    keys = jax.random.split(key, len(shapes))
    return [jax.random.normal(k, shape) / shape[-2] ** 0.5 for k, shape in zip(keys, shapes, strict=True)]


def attention(x: jax.Array, memory: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x + jax.nn.softmax(x @ w @ memory.swapaxes(1, 2)) @ memory)


def encoder_decoder() -> Model:
    """Returns two stacks of layers; each layer of the second reads the result of the first stack."""

    def init(key: jax.Array) -> Any:
        return weights(key, (3, WIDTH, WIDTH), (3, WIDTH, WIDTH), (3, WIDTH, WIDTH), (WIDTH, WIDTH))

    def loss(params: Any, batch: Any) -> jax.Array:
        encoder, own, cross, head = params
        memory, x, y = batch
        memory, _ = jax.lax.scan(lambda c, w: (attention(c, c, w), None), memory, encoder)

        def layer(x: jax.Array, ws: Any) -> tuple[jax.Array, None]:
            return attention(attention(x, x, ws[0]), memory, ws[1]), None

        x, _ = jax.lax.scan(layer, x, (own, cross))
        return jnp.mean((x @ head - y) ** 2)

    return loss, init, (numbers(5, WIDTH), numbers(6, WIDTH), numbers(6, WIDTH))


def unet() -> Model:
    """Returns a model with skip connections over the middle."""

    def init(key: jax.Array) -> Any:
        return weights(key, *[(3, 3, a, b) for a, b in ((3, 4), (4, 8), (8, 8), (12, 4), (4, 3))])

    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(params: Any, batch: Any) -> jax.Array:
        first, down, middle, up, last = params
        x, y = batch
        skip = jax.nn.relu(convolve(x, first))
        x = skip.reshape(-1, 4, 2, 4, 2, 4).mean((2, 4))
        x = jax.nn.relu(convolve(jax.nn.relu(convolve(x, down)), middle))
        x = jnp.concatenate([jnp.repeat(jnp.repeat(x, 2, 1), 2, 2), skip], -1)
        return jnp.mean((convolve(jax.nn.relu(convolve(x, up)), last) - y) ** 2)

    return loss, init, (numbers(8, 8, 3), numbers(8, 8, 3))


def linen() -> Model:
    """Returns a module of flax linen."""
    nn = pytest.importorskip("flax.linen")

    class Model(nn.Module):  # type: ignore[name-defined,misc]
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(2):
                x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x))))
            return x

    model = Model()

    def loss(params: Any, batch: Any) -> jax.Array:
        return jnp.mean((model.apply(params, batch[0]) - batch[1]) ** 2)

    return loss, lambda key: model.init(key, jnp.ones((1, WIDTH))), (numbers(WIDTH), numbers(WIDTH))


def nnx() -> Model:
    """Returns a module of flax nnx, split into its structure and its state."""
    flax_nnx = pytest.importorskip("flax.nnx")

    class Model(flax_nnx.Module):  # type: ignore[name-defined,misc]
        def __init__(self, rngs: Any) -> None:
            self.layers = flax_nnx.List([flax_nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(5)])

        def __call__(self, x: jax.Array) -> jax.Array:
            for layer in self.layers:
                x = jnp.tanh(layer(x))
            return x

    structure, _ = flax_nnx.split(Model(flax_nnx.Rngs(0)))

    def init(key: jax.Array) -> Any:
        return flax_nnx.split(Model(flax_nnx.Rngs(key)))[1]

    def loss(params: Any, batch: Any) -> jax.Array:
        return jnp.mean((flax_nnx.merge(structure, params)(batch[0]) - batch[1]) ** 2)

    return loss, init, (numbers(WIDTH), numbers(WIDTH))


def equinox() -> Model:
    """Returns a module of equinox, which is a pytree itself; its layers are stacked."""
    eqx = pytest.importorskip("equinox")

    class Model(eqx.Module):  # type: ignore[name-defined,misc]
        layers: Any
        head: Any

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 6)
            self.layers = eqx.filter_vmap(lambda k: eqx.nn.Linear(WIDTH, WIDTH, key=k))(keys[:5])
            self.head = eqx.nn.Linear(WIDTH, WIDTH, key=keys[5])

        def __call__(self, x: jax.Array) -> jax.Array:
            arrays, static = eqx.partition(self.layers, eqx.is_array)

            def layer(x: jax.Array, arrays: Any) -> tuple[jax.Array, None]:
                return jnp.tanh(jax.vmap(eqx.combine(arrays, static))(x)), None

            return jax.vmap(self.head)(jax.lax.scan(layer, x, arrays)[0])

    def loss(model: Any, batch: Any) -> jax.Array:
        return jnp.mean((model(batch[0]) - batch[1]) ** 2)

    return loss, Model, (numbers(WIDTH), numbers(WIDTH))


@pytest.mark.parametrize("model", [encoder_decoder, unet, linen, nnx, equinox])
def test_auto_gradients_agree_with_uncut_model(model: Callable[[], Model]) -> None:
    loss, init, batch = model()
    microbatch = jax.tree.map(lambda leaf: leaf[:2], batch)
    devices = pw.make_virtual_device_set()
    plan = pw.auto(
        loss,
        slices=[devices.add_slice(1, "x") for _ in range(2)],
        num_microbatches=MICROBATCHES,
        args=(jax.eval_shape(init, jax.random.key(0)), microbatch),
        schedules=("zb-v",) if model is unet else ("1f1b",),
    )

    @pw.program(schedule=plan.schedule)
    def step(params: Any, batch: Any) -> Any:
        return pw.accumulate(jax.value_and_grad(plan.loss), MICROBATCHES)(params, batch)

    value, grads = step(plan.init(init, jax.random.key(0)), batch)
    plain = jax.jit(pw.accumulate(jax.value_and_grad(loss), MICROBATCHES))
    wanted_value, wanted = plain(init(jax.random.key(0)), batch)
    np.testing.assert_allclose(value, wanted_value, rtol=1e-6)
    merged = plan.merge(grads)
    assert jax.tree.structure(merged) == jax.tree.structure(wanted)
    errors = [
        np.asarray(a) - b for a, b in zip(jax.tree.leaves(merged), jax.tree.leaves(wanted), strict=True)
    ]
    assert norm(errors) <= 1e-6 * norm(jax.tree.leaves(wanted))


def norm(leaves: list[Any]) -> float:
    return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in leaves)))
