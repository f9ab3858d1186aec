"""Operations of random training steps on parameters, gradients and state, after the microbatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from operations import fit, inexact, is_key, plain, real, shaped

Operation = Callable[[Any, Any, int], Any]


def _beside(x: Any, y: Any) -> Any:
    """Returns a second operand: unchanged if it has the same shape or is a scalar, else in the shape."""
    y = plain(y)
    return y if y.shape in ((), x.shape) else fit(y, x)


def _of_two(f: Callable[[Any, Any], Any]) -> Operation:
    return lambda x, y, n: f(inexact(x), _beside(inexact(x), inexact(y)))


def _of_one(f: Callable[[Any], Any]) -> Operation:
    return lambda x, y, n: f(inexact(x))


def _counted(x: Any, y: Any, n: int) -> Any:
    """Returns the next count, or key."""
    if is_key(x):
        return jax.random.split(x)[n % 2] if x.shape == () else x
    return ~x if x.dtype == jnp.bool_ else x + jnp.asarray(1, x.dtype)


def _noise(x: Any, y: Any, n: int) -> Any:
    a = inexact(x)
    key = y if is_key(y) and y.shape == () else jax.random.key(n)
    return a + 0.01 * jax.random.normal(key, a.shape, jnp.float32).astype(a.dtype)


def _corrected(x: Any, y: Any, n: int) -> Any:
    """Returns an average divided by its bias after a number of steps."""
    a = inexact(x)
    count = real(y).astype(jnp.float32)
    count = count if count.shape == () else jnp.float32(n)
    return (a / (1.5 - 0.5 ** (1 + jnp.abs(count)))).astype(a.dtype)


def _every_second(x: Any, y: Any, n: int) -> Any:
    """Returns an update that a branch applies in some steps only."""
    a, b = inexact(x), fit(y, inexact(x))
    count = jnp.sum(real(y)) if n % 2 else jnp.float32(n)
    return lax.cond(
        count > 4, lambda a, b: a * 0.5 + b, lambda a, b: jnp.clip(real(b), -0.1, 0.1) + 0 * a, a, b
    )


def _by_rows(x: Any, y: Any, n: int) -> Any:
    a = inexact(x)
    return a if not a.ndim else a - 0.5 * jnp.mean(a, axis=n % a.ndim, keepdims=True)


def _largest(x: Any, y: Any, n: int) -> Any:
    a = real(x)
    return a if not a.size else a / (1 + jnp.max(jnp.abs(a)))


def _concatenated(x: Any, y: Any, n: int) -> Any:
    a = jnp.atleast_1d(inexact(x))
    b = fit(y, a)
    half = a.shape[n % a.ndim] // 2
    both = [lax.slice_in_dim(a, 0, half, axis=n % a.ndim), lax.slice_in_dim(b, half, None, axis=n % a.ndim)]
    return shaped(jnp.concatenate(both, axis=n % a.ndim), x.shape)


def _product(x: Any, y: Any, n: int) -> Any:
    a = inexact(x)
    if a.ndim != 2:
        return jnp.cumsum(a, axis=-1) / max(1, a.size) if a.ndim else a
    return a + 0.01 * (a @ (a.T @ a)) / max(1, a.size)


ELEMENTWISE: dict[str, Operation] = {
    "momentum": _of_two(lambda x, y: 0.9 * x + y),
    "average": _of_two(lambda x, y: 0.9 * x + 0.1 * y),
    "squares": _of_two(lambda x, y: 0.9 * x + 0.1 * y * y),
    "descend": _of_two(lambda x, y: x - 0.1 * y),
    "decay": _of_two(lambda x, y: x + 0.01 * y),
    "ratio": _of_two(lambda x, y: x / (jnp.sqrt(jnp.abs(y)) + 0.1)),
    "scaled": _of_two(lambda x, y: x * (1 / (1 + jnp.abs(y)))),
    "where": _of_two(lambda x, y: jnp.where(jnp.round(real(y) * 4) > 0, x, 0.5 * x)),
    "finite": _of_one(lambda x: jnp.where(jnp.isfinite(x), x, 0)),
    "clipped": lambda x, y, n: jnp.clip(real(x), -0.5, 0.4),
    "rounded": _of_one(lambda x: real(x).astype(jnp.bfloat16).astype(real(x).dtype)),
    "wide": lambda x, y, n: real(x).astype(jnp.float32),
    "stop": lambda x, y, n: lax.stop_gradient(plain(x)),
    "barrier": lambda x, y, n: lax.optimization_barrier((plain(x), plain(y)))[0],
    "turned": _of_two(lambda x, y: (x.T * 0.5 + (y if y.shape != x.shape else y.T)).T),
    "ramp": _of_one(
        lambda x: x * shaped(np.linspace(0.5, 1.5, 7, dtype=np.float32), x.shape).astype(x.dtype)
    ),
    "counted": _counted,
    "corrected": _corrected,
    "noise": _noise,
    "same": lambda x, y, n: x,
    "fresh": lambda x, y, n: jnp.full(x.shape, n, jnp.float32),
}
"""Operations by elements; the shape is that of the first operand."""

REDUCING: dict[str, Operation] = {
    "norm": lambda x, y, n: jnp.sqrt(jnp.sum(jnp.square(jnp.abs(inexact(x)))).astype(jnp.float32)),
    "sum": lambda x, y, n: jnp.sum(real(x)).astype(jnp.float32) / 8,
    "all finite": lambda x, y, n: jnp.all(jnp.isfinite(inexact(x))),
    "by rows": _by_rows,
    "largest": _largest,
    "every second": _every_second,
    "softmax": lambda x, y, n: (
        real(x) if not x.size else jax.nn.softmax(jnp.atleast_1d(real(x))).reshape(x.shape)
    ),
}
"""Operations that reduce each block, and then the results of all blocks."""

MIXING: dict[str, Operation] = {
    "flipped": lambda x, y, n: jnp.flip(jnp.atleast_1d(plain(x)), -1).reshape(x.shape),
    "rolled": lambda x, y, n: jnp.roll(plain(x), 1),
    "product": _product,
    "sorted": lambda x, y, n: jnp.sort(jnp.atleast_1d(real(x)), axis=-1).reshape(x.shape),
    "joined": _concatenated,
    "flat": lambda x, y, n: (jnp.arange(x.size) % 3 * 0.5 * real(x).reshape(-1)).reshape(x.shape),
    "first": lambda x, y, n: real(x).reshape(-1)[:1].reshape(()) if x.size else jnp.float32(0),
}
"""Operations that may need a whole array, and are rejected if replicas have blocks of it."""

UPDATES = {**ELEMENTWISE, **REDUCING, **MIXING}

TO_SCALARS = ("norm", "sum", "all finite", "first")


def next_of(value: Any, old: Any) -> Any:
    """Returns a value with the type of the argument that it replaces."""
    return (value if is_key(value) else old) if is_key(old) else fit(value, old)
