"""Operations of random programs, on any two arrays, which they convert to the form that they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

Operation = Callable[[Any, Any, int], Any]
Constrain = Callable[[Any, P], Any]

_LARGEST = 2048
_TABLE = np.linspace(-1, 1, 600, dtype=np.float32)
_COMPLEX = np.array([1 + 2j, 0.5j, -1], np.complex64)


def is_key(x: Any) -> bool:
    """Returns whether an array is one of typed PRNG keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def plain(x: Any) -> Any:
    """Returns an array of numbers."""
    return jax.random.key_data(x) if is_key(x) else x


def inexact(x: Any) -> Any:
    """Returns an array that can be differentiated."""
    x = plain(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else _small(x)


def real(x: Any) -> Any:
    """Returns an array of real floating-point numbers."""
    x = plain(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return x.real
    return x if jnp.issubdtype(x.dtype, jnp.floating) else _small(x)


def _small(x: Any) -> Any:
    """Returns integers of reasonable size as floating-point numbers."""
    # In two steps: not all narrow types convert to and from everything.
    return (x.astype(jnp.int32) % 64).astype(jnp.float32) / 8


def integral(x: Any) -> Any:
    """Returns an array of integers."""
    x = plain(x)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x
    if x.dtype == jnp.bool_:
        return x.astype(jnp.int32)
    # Platforms convert values that are not finite differently.
    return jnp.clip(jnp.nan_to_num(real(x).astype(jnp.float32) * 4), -99, 99).astype(jnp.int32)


def fit(x: Any, like: Any) -> Any:
    """Returns an array in the shape and the dtype of another one."""
    if is_key(like):
        return like
    x = plain(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(like.dtype, jnp.complexfloating):
        x = x.real
    if x.dtype != like.dtype:
        if jnp.issubdtype(like.dtype, jnp.integer):
            x = integral(x)
        x = (x != 0) if like.dtype == jnp.bool_ else x.astype(like.dtype)
    return shaped(x, like.shape)


def shaped(x: Any, shape: tuple[int, ...]) -> Any:
    """Returns an array cut or repeated to a shape."""
    if x.shape == shape:
        return x
    return jnp.broadcast_to(x, shape) if x.shape == () else jnp.resize(x, shape)


def bounded(x: Any) -> Any:
    """Returns an array cut down so that programs stay small."""
    return x if x.size <= _LARGEST else x.reshape(-1)[:_LARGEST]


def _row(x: Any) -> Any:
    return jnp.atleast_1d(x)


def _rows(x: Any) -> Any:
    return jnp.atleast_2d(x)


def _axis(x: Any, n: int) -> int:
    return n % max(1, x.ndim)


def _key(x: Any, n: int) -> Any:
    return x.reshape(-1)[0] if is_key(x) and x.size else jax.random.key(n)


def _tame(x: Any) -> Any:
    return x / (1 + jnp.abs(x))


def _unary(f: Callable[[Any], Any]) -> Operation:
    return lambda x, y, n: f(real(x))


def _binary(f: Callable[[Any, Any], Any]) -> Operation:
    return lambda x, y, n: f(plain(x), fit(y, plain(x)))


def _numeric(f: Callable[[Any, Any], Any]) -> Operation:
    def apply(x: Any, y: Any, n: int) -> Any:
        x = plain(x)
        x = x.astype(jnp.int32) if x.dtype == jnp.bool_ else x
        return f(x, fit(y, x))

    return apply


def _matmul(x: Any, y: Any, n: int) -> Any:
    a = _rows(inexact(x))
    a = a.reshape(-1, a.shape[-1])
    b = shaped(fit(y, a), (a.shape[-1], 1 + n % 5))
    return _tame(a @ b)


def _batched(x: Any, y: Any, n: int) -> Any:
    a = inexact(x)
    a = shaped(a, (2, 3, 4))
    return jnp.einsum("bij,bjk->bik" if n % 2 else "bij,bjk->ik", a, shaped(fit(y, a), (2, 4, 2)))


def _cast(x: Any, y: Any, n: int) -> Any:
    dtypes = ("float32", "bfloat16", "float16", "int32", "int8", "uint8", "bool", "complex64", "uint32")
    name = dtypes[n % len(dtypes)]
    x = plain(x)
    if name == "bool":
        return x != 0
    if name in ("float32", "bfloat16", "float16"):
        return real(x).astype(name)
    return (x if name == "complex64" else integral(x)).astype(name)


def _narrow(x: Any, y: Any, n: int) -> Any:
    dtypes = ("float8_e4m3fn", "float8_e5m2", "int4", "uint4", "float8_e4m3b11fnuz")
    name = dtypes[n % len(dtypes)]
    return integral(x).astype(name) if "int" in name else real(x).astype(name)


def _wide(x: Any, y: Any, n: int) -> Any:
    # Without 64 bit types, these are 32 bits wide.
    with_warnings = jnp.float64 if n % 2 else jnp.int64
    return (real(x) if n % 2 else integral(x)).astype(jax.dtypes.canonicalize_dtype(with_warnings))


def _scatter(x: Any, y: Any, n: int) -> Any:
    a = _row(plain(x))
    if a.shape[0] == 0 or a.dtype == jnp.bool_:
        return a
    return a.at[n % a.shape[0]].set(a[0]) if n % 2 else a.at[jnp.arange(3) % a.shape[0]].add(a[:1])


def _gather(x: Any, y: Any, n: int) -> Any:
    a = _row(plain(x))
    if a.shape[0] == 0:
        return a
    return a[jnp.abs(integral(y).reshape(-1)[:7].astype(jnp.int32)) % a.shape[0]]


def _window(x: Any, y: Any, n: int) -> Any:
    a = _row(plain(x))
    start = jnp.sum(integral(y).astype(jnp.int32)) % 3
    size = max(0, a.shape[0] - n % 2)
    if n % 3 == 0 and size:
        return lax.dynamic_update_slice_in_dim(a, a[:1], start, 0)
    return lax.dynamic_slice_in_dim(a, start, size, 0)


def _sort(x: Any, y: Any, n: int) -> Any:
    a = _row(real(x))
    if n % 3 == 0 and a.shape[-1]:
        return lax.top_k(a, min(3, a.shape[-1]))[0]
    if n % 3 == 1:
        return lax.sort((a, a * 2), num_keys=1)[1]
    return jnp.sort(a, axis=_axis(a, n), descending=bool(n % 2))


def _approximate(x: Any, y: Any, n: int) -> Any:
    a = shaped(real(x).astype(jnp.float32), (16,))
    return lax.approx_max_k(a, 3, recall_target=1.0)[0]


def _composite(x: Any, y: Any, n: int) -> Any:
    def decomposition(a: Any, *, scale: Any) -> Any:
        return jnp.sin(a) * jnp.float32(scale).astype(a.dtype)

    return lax.composite(decomposition, "fuzz.scaled", version=1)(real(x), scale=np.float32(1 + n % 3))


def _convolution(x: Any, y: Any, n: int) -> Any:
    a = shaped(real(x).astype(jnp.float32), (1, 2, 8))
    k = shaped(real(y).astype(jnp.float32), (3, 2, 3))
    return _tame(lax.conv_general_dilated(a, k, (1 + n % 2,), "SAME", feature_group_count=1))


def _fft(x: Any, y: Any, n: int) -> Any:
    a = _row(inexact(x))
    a = a if jnp.issubdtype(a.dtype, jnp.complexfloating) else a.astype(jnp.float32)
    return jnp.fft.fft(a) / max(1, a.shape[-1]) if a.shape[-1] else a


def _cholesky(x: Any, y: Any, n: int) -> Any:
    a = shaped(_tame(real(x).astype(jnp.float32)), (3, 3))
    positive = a @ a.T + 3 * jnp.eye(3)
    if n % 2:
        return jnp.linalg.cholesky(positive)
    return jnp.linalg.solve(positive, shaped(real(y).astype(jnp.float32), (3, 2)))


def _random(x: Any, y: Any, n: int) -> Any:
    key = _key(x, n)
    match n % 5:
        case 0:
            return jax.random.normal(key, (3, 2))
        case 1:
            return jax.random.bits(jax.random.fold_in(key, n), (4,))
        case 2:
            return jax.random.bernoulli(key, 0.5, (5,))
        case 3:
            return jax.random.split(key, 2)
    return jax.random.permutation(key, _row(plain(y)))


def _constrained(mesh: dict[str, int] | None, constrain: Constrain) -> Operation:
    """Returns a constraint over the axes of a slice; a no-op without a slice."""

    def apply(x: Any, y: Any, n: int) -> Any:
        x = plain(x)
        if not mesh or not x.ndim:
            return x
        axes = list(mesh)
        choice = [axes[0], axes[-1], None, tuple(axes)][n % 4]
        sizes = {None: 1, tuple(axes): int(np.prod(list(mesh.values()))), **mesh}
        # Most specs divide the array.
        dims = [d for d in range(x.ndim) if x.shape[d] % sizes[choice] == 0]
        dim = n % x.ndim if n % 16 == 15 else dims[n % len(dims)] if dims else None
        if dim is None:
            return x
        return constrain(x, P(*[None] * dim, choice))

    return apply


def _new_ref(x: Any, y: Any, n: int) -> Any:
    ref = jax.new_ref(plain(x))
    ref[...] = fit(y, plain(x))
    return ref[...]


def _callback(x: Any, y: Any, n: int) -> Any:
    a = real(x).astype(jnp.float32)
    return jax.pure_callback(
        lambda v: np.asarray(v) * np.float32(2), jax.ShapeDtypeStruct(a.shape, a.dtype), a
    )


def _bits(x: Any, y: Any, n: int) -> Any:
    a = integral(x)
    b = fit(y, a)
    return [a ^ b, a & b, a | b, ~a, lax.population_count(a)][n % 5]


def _compare(x: Any, y: Any, n: int) -> Any:
    a = plain(x)
    if jnp.issubdtype(a.dtype, jnp.complexfloating):
        return a == fit(y, a)
    # Quantized, so that nearly equal values are equal.
    a = jnp.round(a.astype(jnp.float32) * 4) if jnp.issubdtype(a.dtype, jnp.floating) else a
    b = fit(y, a)
    return a == b if n % 2 else a >= b


def _where(x: Any, y: Any, n: int) -> Any:
    a = plain(x)
    if n % 2:
        return jnp.where(jnp.arange(a.size).reshape(a.shape) % 2 == 0, a, fit(y, a))
    return jnp.where(_compare(x, y, 0), a, fit(y, a))


def _reduce(x: Any, y: Any, n: int) -> Any:
    a = plain(x)
    a = a.astype(jnp.int32) if a.dtype == jnp.bool_ else a
    axis = None if n % 3 == 0 or not a.ndim else _axis(a, n)
    if a.size == 0 or n % 4 == 0:
        return jnp.sum(a, axis=axis)
    return [jnp.max, jnp.min, jnp.mean][n % 3](a if n % 3 < 2 else inexact(a), axis=axis)


def _index(x: Any, y: Any, n: int) -> Any:
    a = jnp.round(real(x).astype(jnp.float32) * 2)
    return jnp.argmax(a.reshape(-1)) if a.size else jnp.int32(0)


def _pad(x: Any, y: Any, n: int) -> Any:
    a = _row(plain(x))
    widths = [(n % 2, n % 3, n % 2)] + [(0, 0, 0)] * (a.ndim - 1)
    return bounded(lax.pad(a, jnp.zeros((), a.dtype), widths))


def _joined(x: Any, y: Any, n: int) -> Any:
    a = _row(plain(x))
    return bounded(jnp.concatenate([a, fit(y, a)], axis=_axis(a, n)))


def _cut(x: Any, y: Any, n: int) -> Any:
    a = _row(plain(x))
    return a[: n % 4] if n % 2 else a[n % 3 :: 1 + n % 2]


def _constant(x: Any, y: Any, n: int) -> Any:
    a = inexact(x)
    match n % 5:
        case 0:
            return a * shaped(jnp.asarray(_TABLE), a.shape).astype(a.dtype)
        case 1:
            return shaped(a, (3,)).astype(jnp.complex64) * _COMPLEX
        case 2:
            return a + np.asarray(0.5, jnp.bfloat16)
        case 3:
            return jnp.where(shaped(jnp.asarray(np.array([True, False])), a.shape), a, 2.0)
    return a * 1.5 + np.float32(0.25)


def _complex(x: Any, y: Any, n: int) -> Any:
    a = real(x).astype(jnp.float32)
    c = lax.complex(a, fit(real(y), a))
    return [c, jnp.conj(c), c * jnp.complex64(1j), jnp.abs(c), jnp.angle(c + 2), jnp.exp(-1j * a)][n % 6]


def _softmax(x: Any, y: Any, n: int) -> Any:
    a = _row(real(x))
    if not a.size:
        return a
    return jax.nn.log_softmax(a) if n % 2 else jax.nn.softmax(a)


def _one_hot(x: Any, y: Any, n: int) -> Any:
    return bounded(jax.nn.one_hot(integral(x).reshape(-1)[:8].astype(jnp.int32) % 4, 4))


def _divide(x: Any, y: Any, n: int) -> Any:
    a = integral(x).astype(jnp.int32)
    b = 1 + jnp.abs(fit(y, a)) % 7
    return a // b if n % 2 else a % b


def _associative(x: Any, y: Any, n: int) -> Any:
    a = _row(real(x))
    return lax.associative_scan(jnp.maximum, a) if a.shape[0] else a


def _barrier(x: Any, y: Any, n: int) -> Any:
    return lax.optimization_barrier((plain(x), plain(y)))[n % 2]


OPERATIONS: dict[str, Operation] = {
    **{
        name: _unary(f)
        for name, f in {
            "sin": jnp.sin,
            "tanh": jnp.tanh,
            "gelu": jax.nn.gelu,
            "erf": lax.erf,
            "exp": lambda x: jnp.exp(-jnp.abs(x)),
            "log": lambda x: jnp.log1p(jnp.abs(x)),
            "sqrt": lambda x: jnp.sqrt(1 + jnp.abs(x)),
            "square": lambda x: _tame(x * x),
            "cumsum": lambda x: jnp.cumsum(_row(x), axis=-1) / max(1, x.size),
            "norm": lambda x: jnp.sqrt(1e-3 + jnp.sum(x * x)),
            "stop": lax.stop_gradient,
            "finite": jnp.isfinite,
        }.items()
    },
    **{
        name: _numeric(f)
        for name, f in {
            "add": lambda x, y: x + y,
            "subtract": lambda x, y: x - y,
            "multiply": lambda x, y: x * y,
            "increment": lambda x, y: x + 1,
        }.items()
    },
    "double": lambda x, y, n: inexact(x) * 2,
    "bias": lambda x, y, n: inexact(x) + 1.0,
    "identity": lambda x, y, n: x,
    "literal": lambda x, y, n: jnp.full((2, n % 3), n % 5, jnp.float32),
    "iota": lambda x, y, n: jnp.arange(n % 7) * jnp.sum(real(x)),
    "maximum": lambda x, y, n: jnp.maximum(real(x), fit(y, real(x))),
    "reshape": lambda x, y, n: plain(x).reshape(-1) if n % 2 else plain(x)[None],
    "transpose": lambda x, y, n: plain(x).T,
    "flip": lambda x, y, n: jnp.flip(_row(plain(x)), _axis(x, n)),
    "roll": lambda x, y, n: jnp.roll(_row(plain(x)), n % 5),
    "broadcast": lambda x, y, n: bounded(jnp.broadcast_to(plain(x), (2, *x.shape))),
    "shape": lambda x, y, n: shaped(plain(x), ((8,), (4, 4), (8, 4), (2, 6), (0,))[n % 5]),
    "matmul": _matmul,
    "einsum": _batched,
    "cast": _cast,
    "narrow": _narrow,
    "wide": _wide,
    "scatter": _scatter,
    "gather": _gather,
    "window": _window,
    "sort": _sort,
    "approximate": _approximate,
    "composite": _composite,
    "convolution": _convolution,
    "fft": _fft,
    "cholesky": _cholesky,
    "random": _random,
    "bits": _bits,
    "compare": _compare,
    "where": _where,
    "reduce": _reduce,
    "index": _index,
    "pad": _pad,
    "joined": _joined,
    "cut": _cut,
    "constant": _constant,
    "complex": _complex,
    "softmax": _softmax,
    "one_hot": _one_hot,
    "divide": _divide,
    "associative": _associative,
    "barrier": _barrier,
    "ref": _new_ref,
    "callback": _callback,
}


def operation(name: str, mesh: dict[str, int] | None, constrain: Constrain) -> Operation:
    """Returns an operation by its name; `constrain` is over the mesh that it is on."""
    return _constrained(mesh, constrain) if name == "constrain" else OPERATIONS[name]
