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


def route(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Routes tokens to two experts each, in order, up to a capacity; further tokens are dropped.

    Returns:
      The tokens for each expert; for each token the weights with which they come back; a loss that is
        smallest where all experts get as many tokens.
    """
    tokens, experts = x.shape[0], w.shape[1]
    gates = jax.nn.softmax(x @ w)
    values, chosen = jax.lax.top_k(gates, 2)
    values = values / values.sum(1, keepdims=True)
    # First choices of all tokens come before second choices.
    taken = jax.nn.one_hot(chosen.T, experts).reshape(2 * tokens, experts)
    places = (jnp.cumsum(taken, 0) - taken).astype(int)
    # A place beyond the capacity is all zeros.
    slots = taken[:, :, None] * jax.nn.one_hot(places, 2 * tokens // experts)
    slots = slots.reshape(2, tokens, experts, -1)
    weights = (values.T[:, :, None, None] * slots).sum(0)
    balance = experts * jnp.sum(gates.mean(0) * taken[:tokens].mean(0))
    return jnp.einsum("ktec,td->ecd", slots, x), weights, balance


def combine(x: jax.Array, weights: jax.Array, returned: jax.Array) -> jax.Array:
    """Adds what the experts return to the tokens; a dropped token stays as it is."""
    return x + jnp.einsum("tec,ecd->td", weights, returned)


def mixture_of_experts(
    slices: Sequence[Any] | int, exchange: Callable[[list[Any]], list[Any]]
) -> Callable[[Any, list[Any]], tuple[list[Any], jax.Array]]:
    """Returns a layer with an expert on each slice, or on as many ranks as a number says.

    The layer takes `(routers, experts)`, lists of matrices, and a list of the tokens of each slice; it
    returns the new tokens, and the sum of the losses that balance the routers.
    """

    def placed(function: Callable[..., Any]) -> list[Any]:
        return [function] * slices if isinstance(slices, int) else place_on(slices, function)

    routes, experts, combines = map(placed, (route, layer, combine))

    def mixture(params: Any, x: list[Any]) -> tuple[list[Any], jax.Array]:
        routed = [one(w, tokens) for one, w, tokens in zip(routes, params[0], x, strict=True)]
        sent, weights, balance = zip(*routed, strict=True)
        received = exchange(list(sent))
        returned = exchange([one(w, r) for one, w, r in zip(experts, params[1], received, strict=True)])
        outputs = [one(*values) for one, *values in zip(combines, x, weights, returned, strict=True)]
        return outputs, sum(balance)

    return mixture
