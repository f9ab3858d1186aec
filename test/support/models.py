"""Models that tests pipeline: a layer, stages of it, their loss, and a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import pathways as pw


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    """Multiplies rows by a matrix, and applies a nonlinearity."""
    return jnp.tanh(x @ w)


def place_on(slices: Iterable[Any], function: Callable[..., Any] = layer, **options: Any) -> list[Any]:
    """Places a function on each of some slices; `options` are those of `pw.jit`."""
    return [pw.jit(function, devices=slice, **options) for slice in slices]


def placed_stages(
    count: int, function: Callable[..., Any] = layer, shape: int | tuple[int, ...] = (1,), **options: Any
) -> list[Any]:
    """Places a function on each of `count` new slices of one device set, whose axes are `a0`, `a1`, ..."""
    devices = pw.make_virtual_device_set()
    sizes = (shape,) if isinstance(shape, int) else shape
    axes = tuple(f"a{n}" for n in range(len(sizes)))
    return place_on([devices.add_slice(sizes, axes) for _ in range(count)], function, **options)


def apply(stages: Sequence[Callable[..., Any]], params: Sequence[Any], x: Any) -> Any:
    """Applies each stage, with its parameters, to the result of the one before it."""
    for stage, w in zip(stages, params, strict=True):
        x = stage(w, x)
    return x


def squared_error(stages: Sequence[Callable[..., Any]]) -> Callable[[Any, Any], jax.Array]:
    """Returns the loss of a chain of stages: the mean squared error for parameters and a batch `(x, y)`."""

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        return jnp.mean((apply(stages, params, x) - y) ** 2)

    return loss


def sgd(params: Any, gradients: Any, rate: float = 0.1) -> Any:
    """Returns the parameters after one step of gradient descent."""
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients)


def gradients_of(loss: Callable[..., Any], microbatches: int) -> Callable[..., Any]:
    """Returns a function of parameters and a batch: the loss and the gradients, in microbatches."""
    return lambda params, batch: pw.accumulate(jax.value_and_grad(loss), microbatches)(params, batch)


def training_step(loss: Callable[..., Any], microbatches: int) -> Callable[..., Any]:
    """Returns a step of gradient descent for parameters and a batch: the loss and the new parameters."""
    gradients = gradients_of(loss, microbatches)

    def step(params: Any, batch: Any) -> tuple[jax.Array, Any]:
        value, grads = gradients(params, batch)
        return value, sgd(params, grads)

    return step


def carrying_step(loss: Callable[..., Any], microbatches: int) -> Callable[..., Any]:
    """Returns a step of gradient descent whose microbatches hand on state: the loss, parameters and state.

    The step takes parameters, state and a batch, as `loss` does, which returns the loss and the new state.
    """

    def of_microbatch(params: Any, state: Any, batch: Any) -> Any:
        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params, state, batch)
        return state, (value, grads)

    def step(params: Any, state: Any, batch: Any) -> tuple[jax.Array, Any, Any]:
        carried = pw.accumulate(of_microbatch, microbatches, carry_argnums=1)
        state, (value, grads) = carried(params, state, batch)
        return value, sgd(params, grads), state

    return step
