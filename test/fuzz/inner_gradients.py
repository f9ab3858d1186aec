"""Losses that contain gradients of themselves, so that loops are differentiated more than once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

type Loss = Callable[[Any], tuple[jax.Array, Any]]
"""Loss of parameters, with auxiliary values."""


def _value(loss: Loss) -> Callable[[Any], jax.Array]:
    return lambda c: loss(c)[0]


def _slope(loss: Loss, c: Any) -> Any:
    return jax.grad(_value(loss))(c)


def _size(gradients: Any) -> jax.Array:
    """Returns a small number that depends on all gradients."""
    leaves = [(x * x.conj()).real.astype(jnp.float32) for x in jax.tree.leaves(gradients) if x.size]
    return sum((jnp.mean(x / (1 + x)) for x in leaves), start=jnp.float32(0))


def _descended(loss: Loss, c: Any, slope: Any) -> Any:
    return jax.tree.map(lambda x, g: (x - 0.1 * jnp.tanh(g)).astype(x.dtype), c, slope)


def _penalty(loss: Loss) -> Loss:
    """Returns the loss and a penalty on its gradient."""

    def penalized(c: Any) -> tuple[jax.Array, Any]:
        value, rest = loss(c)
        return value + _size(_slope(loss, c)), rest

    return penalized


def _descent(loss: Loss) -> Loss:
    """Returns the loss after a step of gradient descent."""
    return lambda c: loss(_descended(loss, c, _slope(loss, c)))


def _descent_of_first_order(loss: Loss) -> Loss:
    """Returns the loss after a step of gradient descent that is not differentiated."""
    return lambda c: loss(_descended(loss, c, jax.lax.stop_gradient(_slope(loss, c))))


def _weighted(loss: Loss) -> Loss:
    """Returns the loss with a weight by a gradient that nothing differentiates."""

    def weighted(c: Any) -> tuple[jax.Array, Any]:
        value, rest = loss(c)
        return value * (1 + _size(_slope(loss, jax.lax.stop_gradient(c)))), rest

    return weighted


def _product(loss: Loss) -> Loss:
    """Returns a penalty on the product of the Hessian with a vector, forward over reverse."""

    def penalized(c: Any) -> tuple[jax.Array, Any]:
        value, rest = loss(c)
        ones = jax.tree.map(jnp.ones_like, c)
        return value + _size(jax.jvp(lambda x: _slope(loss, x), (c,), (ones,))[1]), rest

    return penalized


INNER: dict[str, Callable[[Loss], Loss]] = {
    "penalty": _penalty,
    "descent": _descent,
    "descent of first order": _descent_of_first_order,
    "weighted": _weighted,
    "product": _product,
    "twice": lambda loss: _penalty(_penalty(loss)),
    "two steps": lambda loss: _descent(_descent(loss)),
    "repeated": lambda loss: jax.checkpoint(_penalty(loss)),
    "of repeated": lambda loss: _penalty(jax.checkpoint(loss)),
    "of jitted": lambda loss: _penalty(jax.jit(loss)),
}
"""Transformations of a loss, by name."""
