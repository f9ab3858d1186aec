"""Transformations and control flow around any function of arrays that returns a tuple of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from operations import fit, inexact, plain, real

Function = Callable[..., tuple[Any, ...]]


def total(results: Any) -> Any:
    """Returns a differentiable number of all arrays in a tree."""
    leaves = jax.tree.leaves(results)
    parts = [jnp.sum(real(leaf)).astype(jnp.float32) / max(1, leaf.size) for leaf in leaves]
    return sum(parts, start=jnp.float32(0))


def is_inexact(x: Any) -> bool:
    """Returns whether an array can be differentiated."""
    return jnp.issubdtype(x.dtype, jnp.inexact)


def cotangents(results: Any) -> Any:
    """Returns ones for arrays that can be differentiated."""
    return jax.tree.map(
        lambda r: jnp.ones_like(r) if is_inexact(r) else np.zeros(r.shape, jax.dtypes.float0), results
    )


def tangents_or(results: Any, tangents: Any) -> Any:
    """Returns the tangents, and the results that have none."""
    return jax.tree.map(lambda r, t: t if is_inexact(r) else r, results, tangents)


def _scan(f: Function, n: int) -> Function:
    def g(x: Any, *rest: Any) -> tuple[Any, ...]:
        def body(carry: Any, _: Any) -> tuple[Any, tuple[Any, ...]]:
            first, *stacked = f(carry, *rest)
            return fit(first, carry), tuple(stacked)

        carry, stacked = lax.scan(body, plain(x), None, length=n % 4)
        return carry, *stacked

    return g


def _scan_rows(f: Function, n: int) -> Function:
    """Returns a scan over the rows of the last operand."""

    def g(x: Any, *rest: Any) -> tuple[Any, ...]:
        rows = jnp.atleast_2d(plain(rest[-1] if rest else x))[:3]

        def body(carry: Any, row: Any) -> tuple[Any, Any]:
            first, *_ = f(carry, *rest[:-1], *([row] if rest else []))
            return fit(first, carry), jnp.sum(real(first))

        carry, sums = lax.scan(body, plain(x), rows, reverse=bool(n % 2))
        return carry, sums

    return g


def _while(f: Function, n: int) -> Function:
    def g(x: Any, *rest: Any) -> tuple[Any, ...]:
        start = (jnp.int32(0), plain(x))
        step = lambda c: (c[0] + 1, fit(f(c[1], *rest)[0], c[1]))  # noqa: E731
        return (lax.while_loop(lambda c: c[0] < n % 3, step, start)[1],)

    return g


def _fori(f: Function, n: int) -> Function:
    def g(x: Any, *rest: Any) -> tuple[Any, ...]:
        return (lax.fori_loop(0, 1 + n % 3, lambda _, c: fit(f(c, *rest)[0], c), plain(x)),)

    return g


def _map(f: Function, n: int) -> Function:
    def g(x: Any, *rest: Any) -> tuple[Any, ...]:
        return lax.map(lambda row: f(row, *rest), jnp.atleast_1d(plain(x))[:3])

    return g


def _cond(f: Function, n: int) -> Function:
    def g(x: Any, *rest: Any) -> tuple[Any, ...]:
        shapes = jax.eval_shape(f, x, *rest)
        other = lambda *xs: tuple(fit(x if n % 2 else jnp.float32(1), s) for s in shapes)  # noqa: E731
        if any(jnp.issubdtype(s.dtype, jax.dtypes.extended) for s in shapes):
            other = f
        return lax.cond(jnp.sum(real(x)) > -100, f, other, x, *rest)

    return g


def _switch(f: Function, n: int) -> Function:
    def g(x: Any, *rest: Any) -> tuple[Any, ...]:
        return lax.switch(jnp.asarray(x.size + n, jnp.int32), [f, lambda *xs: f(*xs), f], x, *rest)

    return g


def _vmap(f: Function, n: int) -> Function:
    def g(x: Any, *rest: Any) -> tuple[Any, ...]:
        mapped = jax.vmap(f, in_axes=(0, *[None] * len(rest)), out_axes=0)
        return tuple(r[n % 2] for r in mapped(jnp.stack([x, x]), *rest))

    return g


def _grad(f: Function, n: int) -> Function:
    def g(x: Any, *rest: Any) -> tuple[Any, ...]:
        loss = lambda v: total(f(v, *rest))  # noqa: E731
        if n % 3 == 0:
            return jax.value_and_grad(loss)(inexact(x))
        return (jax.grad(loss)(inexact(x)),)

    return g


def _hessian(f: Function, n: int) -> Function:
    def g(x: Any, *rest: Any) -> tuple[Any, ...]:
        x = real(x)
        gradient = jax.grad(lambda v: total(f(v, *rest)))
        return (jax.jvp(gradient, (x,), (jnp.ones_like(x),))[1],)

    return g


def _jvp(f: Function, n: int) -> Function:
    def g(x: Any, *rest: Any) -> tuple[Any, ...]:
        x = inexact(x)
        if n % 2:
            results, push = jax.linearize(lambda v: f(v, *rest), x)
            return tangents_or(results, push(jnp.ones_like(x)))
        return tangents_or(*jax.jvp(lambda v: f(v, *rest), (x,), (jnp.ones_like(x),)))

    return g


def _vjp(f: Function, n: int) -> Function:
    def g(x: Any, *rest: Any) -> tuple[Any, ...]:
        results, pull = jax.vjp(lambda v: f(v, *rest), inexact(x))
        return pull(cotangents(results))

    return g


def _custom_vjp(f: Function, n: int) -> Function:
    @jax.custom_vjp
    def g(*xs: Any) -> tuple[Any, ...]:
        return f(*xs)

    g.defvjp(lambda *xs: (f(*xs), xs), lambda xs, given: jax.vjp(f, *xs)[1](given))
    return g


def _custom_jvp(f: Function, n: int) -> Function:
    @jax.custom_jvp
    def g(*xs: Any) -> tuple[Any, ...]:
        return f(*xs)

    g.defjvp(lambda primals, tangents: jax.jvp(f, primals, tangents))
    return g


TRANSFORMS: dict[str, Callable[[Function, int], Function]] = {
    "jit": lambda f, n: jax.jit(f),
    "checkpoint": lambda f, n: jax.checkpoint(f),
    "scan": _scan,
    "scan_rows": _scan_rows,
    "while": _while,
    "fori": _fori,
    "map": _map,
    "cond": _cond,
    "switch": _switch,
    "vmap": _vmap,
    "grad": _grad,
    "hessian": _hessian,
    "jvp": _jvp,
    "vjp": _vjp,
    "custom_vjp": _custom_vjp,
    "custom_jvp": _custom_jvp,
}


def _shifted(operands: tuple[Any, ...], row: Any) -> tuple[Any, ...]:
    """Returns operands that differ between iterations, if they are floating-point numbers."""
    x, *rest = map(jnp.asarray, operands)
    return (x * (1 + row).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x, *rest)


def _in_scan(f: Function, operands: tuple[Any, ...]) -> list[Any]:
    rows = lax.scan(lambda c, row: (c, list(f(*_shifted(operands, row)))), 0, jnp.arange(2.0))[1]
    return [each[-1] for each in rows]


def _in_cond(f: Function, operands: tuple[Any, ...]) -> list[Any]:
    holds = plain(jnp.asarray(operands[0])).astype(bool).any()
    return lax.cond(holds, lambda: list(f(*_shifted(operands, jnp.float32(1)))), lambda: list(f(*operands)))


def _in_while(f: Function, operands: tuple[Any, ...]) -> list[Any]:
    body = lambda s: (s[0] + 1, list(f(*_shifted(operands, s[0].astype(jnp.float32)))))  # noqa: E731
    return lax.while_loop(lambda s: s[0] < 2, body, (jnp.int32(0), list(f(*operands))))[1]


REGIONS: dict[str, Callable[[Function, tuple[Any, ...]], list[Any]]] = {
    "scan": _in_scan,
    "cond": _in_cond,
    "while": _in_while,
}
"""Regions of JAX that call a function of operands whose results have the same types."""


def wrapped(f: Function, names: tuple[str, ...], number: int) -> Function:
    """Returns a function under transformations, the innermost first."""
    for name in names:
        f = TRANSFORMS[name](f, number)
    return f
