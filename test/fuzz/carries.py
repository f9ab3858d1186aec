"""Values that microbatches pass on: statistics that they only add to, and state that they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

type Step = Callable[[jax.Array, jax.Array], jax.Array]
"""Function from the carried value and an array of its type to the next carried value."""

ADDING: Mapping[str, Step] = {
    "average": lambda c, x: 0.75 * c + 0.25 * x,
    "towards": lambda c, x: c - 0.1 * (c - x),
    "sum": lambda c, x: c + x,
    "difference": lambda c, x: x - c,
    "halved": lambda c, x: (c + x) / 2,
    "constrained": lambda c, x: jax.lax.optimization_barrier(0.5 * c) + jnp.exp(-x * x),
}
"""Steps that add to a constant times the carried value."""

OTHER: Mapping[str, Step] = {
    "largest": jnp.maximum,
    "growing": lambda c, x: 1.25 * c + x,
    "weighted": lambda c, x: jnp.tanh(x) * c + x,
    "last": lambda c, x: x,
    "kept": lambda c, x: c,
    "rolled": lambda c, x: 0.5 * jnp.roll(c, 1) + x,
    "bounded": lambda c, x: jnp.tanh(c + x),
}
"""Steps that replicas cannot turn into sums."""

STEPS = {**ADDING, **OTHER}
