"""JAX's transformations inside placed functions and around them: a program computes what `jax.jit` does.

Each test writes a function once, for two places. A program puts these on two slices; the reference replaces
them by `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close
from models import layer

import pathways as pw

Fun = Callable[..., Any]
Build = Callable[[Callable[[Fun], Fun], Callable[[Fun], Fun]], Fun]


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def check(build: Build, *args: Any, tolerance: float = 1e-6) -> None:
    """Runs a function on two slices, and as one module of `jax.jit`."""
    devices = pw.make_virtual_device_set()
    s0, s1 = devices.add_slice(1, "x"), devices.add_slice(1, "x")
    got = pw.program(build(pw.jit(devices=s0), pw.jit(devices=s1)))(*args)
    assert_close(got, jax.jit(build(jax.jit, jax.jit))(*args), tolerance)


def check_inside(fun: Fun, *args: Any) -> None:
    """Runs a function as the only computation of a program: XLA gets the same module, to the last bit."""
    check(lambda on_s0, on_s1: on_s0(fun), *args, tolerance=0)
    check(lambda on_s0, on_s1: lambda *xs: on_s1(lambda y: jax.tree.map(jnp.sin, y))(on_s0(fun)(*xs)), *args)


X, W0, W1 = array(4, 8), array(8, 8, seed=1), array(8, 8, seed=2)


def two_layers(on_s0: Any, on_s1: Any) -> Fun:
    """Returns a small model: one layer on each slice, and plain jax.numpy for the loss."""
    first, second = on_s0(layer), on_s1(layer)

    def loss(params: dict[str, Any], x: Any) -> Any:
        return jnp.mean(second(params["w1"], first(params["w0"], x)) ** 2)

    return loss


PARAMS = {"w0": W0, "w1": W1}


# Inside placed functions: all of JAX works, because JAX itself lowers the computation.


def test_transforms_grad_inside():
    check_inside(jax.grad(lambda w, x: jnp.sum(layer(w, x) ** 2)), W0, X)


def test_transforms_vjp_inside():
    def pull_back(w, x, y):
        out, vjp = jax.vjp(layer, w, x)
        return out, vjp(y)

    check_inside(pull_back, W0, X, array(4, 8, seed=3))


def test_transforms_jvp_inside():
    check_inside(lambda w, x, dx: jax.jvp(lambda x: layer(w, x), (x,), (dx,)), W0, X, array(4, 8, seed=3))


def test_transforms_vmap_inside():
    check_inside(jax.vmap(lambda x, w: jnp.dot(w, x), in_axes=(0, None)), X, W0)


def test_transforms_checkpoint_inside():
    check_inside(jax.grad(lambda w, x: jnp.sum(jax.checkpoint(layer)(w, x) ** 2)), W0, X)


@jax.custom_vjp
def clipped_square(x):
    return x**2


clipped_square.defvjp(lambda x: (x**2, x), lambda x, g: (jnp.clip(2 * x * g, -1, 1),))


def test_transforms_custom_vjp_inside():
    check_inside(jax.grad(lambda x: jnp.sum(clipped_square(x))), X)


def test_transforms_custom_vjp_inside_and_grad_around():
    def build(on_s0, on_s1):
        square, total = on_s0(clipped_square), on_s1(jnp.sum)
        return jax.grad(lambda x: total(square(x)))

    check(build, X)


def test_transforms_custom_vjp_around_placed_functions():
    def build(on_s0, on_s1):
        forward, backward = on_s0(jnp.sin), on_s1(lambda x, g: 3 * g * jnp.cos(x))

        @jax.custom_vjp
        def sine(x):
            return forward(x)

        sine.defvjp(lambda x: (forward(x), x), lambda x, g: (backward(x, g),))
        return jax.value_and_grad(lambda x: jnp.sum(sine(x)))

    check(build, X)


def test_transforms_scan_inside():
    def cumulative(x):
        return jax.lax.scan(lambda carry, row: (carry + row, jnp.tanh(carry)), jnp.zeros(8), x)

    check_inside(cumulative, X)


def test_transforms_grad_of_scan_inside():
    def last(w, x):
        carry, _ = jax.lax.scan(lambda h, row: (jnp.tanh(h @ w + row), None), jnp.zeros(8), x)
        return jnp.sum(carry)

    check_inside(jax.grad(last), W0, X)


@pytest.mark.parametrize("positive", [True, False])
def test_transforms_cond_inside(positive: bool):
    check_inside(lambda p, x: jax.lax.cond(p, jnp.sin, jnp.cos, x), positive, X)


def test_transforms_while_inside():
    def halve(x):
        return jax.lax.while_loop(lambda x: jnp.linalg.norm(x) > 1, lambda x: x / 2, x)

    check_inside(halve, X)


def test_transforms_cond_and_while_between_placed_functions():
    def build(on_s0, on_s1):
        first, second = on_s0(layer), on_s1(layer)

        def f(x):
            h = first(W0, x)
            h = jax.lax.cond(jnp.sum(h) > 0, lambda h: 2 * h, lambda h: h - 1, h)
            h = jax.lax.while_loop(lambda h: jnp.linalg.norm(h) > 1, lambda h: h / 2, h)
            return second(W1, h)

        return f

    check(build, X)


def test_transforms_scan_of_one_placed_function():
    def build(on_s0, on_s1):
        first, second = on_s0(layer), on_s1(jnp.sum)

        def f(ws, x):
            h, history = jax.lax.scan(lambda h, w: (first(w, h), jnp.mean(h)), x, ws)
            return second(h), history

        return jax.grad(lambda ws, x: f(ws, x)[0] + jnp.sum(f(ws, x)[1]))

    check(build, array(3, 8, 8), X)


def by_scan(f: Fun, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda h, _: (f(h), None), x, None, 2)[0]


def by_while(f: Fun, x: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda h: jnp.linalg.norm(h) > 1, lambda h: f(h) / 8, x)


def by_cond(f: Fun, x: jax.Array) -> jax.Array:
    return jax.lax.cond(jnp.sum(x) > 0, f, lambda h: f(-h), x)


@pytest.mark.parametrize("region", [by_scan, by_while, by_cond])
def test_transforms_one_placed_function_inside_and_beside_region(region: Fun):
    def build(on_s0, on_s1):
        first, second = on_s0(lambda x: jnp.sin(x) + x), on_s1(jnp.cos)
        shared = jax.jit(lambda x: 2 * first(x))
        return lambda x: second(first(region(first, x)) + region(shared, x) * region(shared, -x))

    check(build, X)


def test_transforms_closed_over_array_inside_and_beside_region():
    large = array(64, 8)

    def build(on_s0, on_s1):
        first, second = on_s0(lambda x: x + jnp.mean(large, 0)), on_s1(jnp.cos)
        return lambda x: second(first(by_scan(first, x)))

    check(build, X)


# References (`jax.new_ref`): state while a function runs.


def scaled(x):
    ref = jax.new_ref(x)
    ref[...] = ref[...] * 2
    ref[0] += 1.0
    return ref[...]


def frozen(x):
    ref = jax.new_ref(x)
    ref[1] = jnp.full(8, 3.0)
    return jax.freeze(ref)


def row_sums(x):
    ref = jax.new_ref(jnp.zeros(8))

    def add(n, _):
        ref[...] = ref[...] + x[n]

    jax.lax.fori_loop(0, 4, add, None)
    return x + ref[...]


def gradient_of_square(f: Fun) -> Fun:
    return jax.grad(lambda x: jnp.sum(f(x) ** 2))


def of_two(f: Fun) -> Fun:
    return lambda x: jax.vmap(f)(jnp.stack([x, 2 * x]))


@pytest.mark.parametrize(
    ("transform", "fun"),
    [
        (gradient_of_square, scaled),
        (gradient_of_square, frozen),
        (gradient_of_square, row_sums),
        (of_two, scaled),
        (of_two, row_sums),
    ],
)
def test_transforms_references_inside(transform, fun):
    def build(on_s0: Any, on_s1: Any) -> Fun:
        first, second = on_s0(fun), on_s1(fun)
        return transform(lambda x: second(jnp.sin(first(x))))

    check(build, X)


def test_transforms_reference_written_by_placed_functions():
    def build(on_s0: Any, on_s1: Any) -> Fun:
        def step(x):
            total = jax.new_ref(x)

            def add(y):
                total[...] = total[...] + y
                return jnp.sin(y)

            return on_s1(add)(on_s0(add)(x)), total[...]

        return step

    check(build, X)


# PRNG keys: typed and raw; they are small, so each slice computes its own.


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_transforms_keys_split_outside_dropout_inside(make_key: Fun):
    def dropout(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)

    def build(on_s0, on_s1):
        first, second = on_s0(dropout), on_s1(dropout)

        def f(key, x):
            key, k0, k1 = jax.random.split(key, 3)
            return key, second(k1, jnp.sin(first(k0, x)))

        return f

    check(build, make_key(7), X, tolerance=0)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_transforms_keys_of_every_implementation(impl: str):
    def build(on_s0, on_s1):
        first, second = on_s0(jax.random.split), on_s1(lambda keys: jax.vmap(jax.random.normal)(keys))

        def f(key):
            keys = first(key)
            return keys, second(keys), jax.random.fold_in(key, 3)

        return f

    check(build, jax.random.key(3, impl=impl), tolerance=1e-6)


def test_transforms_grad_through_dropout():
    def build(on_s0, on_s1):
        def dropout(key, w, x):
            return jax.random.bernoulli(key, 0.5, x.shape) * layer(w, x)

        first, second = on_s0(dropout), on_s1(dropout)

        def loss(ws, key, x):
            k0, k1 = jax.random.split(key)
            return jnp.sum(second(k1, ws[1], first(k0, ws[0], x)))

        return jax.grad(loss)

    check(build, (W0, W1), jax.random.key(0), X)


# Around placed functions: transformations of the program's own code reach into them.


def test_transforms_grad_around():
    check(lambda on_s0, on_s1: jax.grad(two_layers(on_s0, on_s1)), PARAMS, X)


def test_transforms_value_and_grad_with_aux_around():
    def build(on_s0, on_s1):
        loss = two_layers(on_s0, on_s1)
        return jax.value_and_grad(lambda p, x: (loss(p, x), {"doubled": 2 * p["w1"], "x": x}), has_aux=True)

    check(build, PARAMS, X)


def test_transforms_vjp_around():
    def build(on_s0, on_s1):
        first, second = on_s0(layer), on_s1(layer)

        def f(p, x, y):
            out, vjp = jax.vjp(lambda p: second(p["w1"], first(p["w0"], x)), p)
            return out, vjp(y)

        return f

    check(build, PARAMS, X, array(4, 8, seed=3))


def test_transforms_jvp_around():
    def build(on_s0, on_s1):
        loss = two_layers(on_s0, on_s1)
        return lambda p, t, x: jax.jvp(lambda p: loss(p, x), (p,), (t,))

    check(build, PARAMS, jax.tree.map(np.ones_like, PARAMS), X)


def test_transforms_vmap_around():
    check(lambda on_s0, on_s1: jax.vmap(two_layers(on_s0, on_s1), in_axes=(None, 0)), PARAMS, array(3, 4, 8))


def test_transforms_vmap_of_grad_around():
    def build(on_s0, on_s1):
        return jax.vmap(jax.grad(two_layers(on_s0, on_s1)), in_axes=(None, 0))

    check(build, PARAMS, array(3, 4, 8))


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_transforms_checkpoint_around(policy: Any):
    def build(on_s0, on_s1):
        return jax.value_and_grad(jax.checkpoint(two_layers(on_s0, on_s1), policy=policy))

    check(build, PARAMS, X)


def test_transforms_checkpoint_of_one_placed_function():
    def build(on_s0, on_s1):
        first, second = on_s0(layer), on_s1(layer)

        def loss(p, x):
            return jnp.sum(second(p["w1"], jax.checkpoint(first)(p["w0"], x)) ** 2)

        return jax.grad(loss)

    check(build, PARAMS, X)


def test_transforms_checkpoint_inside_and_grad_around():
    def build(on_s0, on_s1):
        return jax.grad(two_layers(lambda f: on_s0(jax.checkpoint(f)), lambda f: on_s1(jax.checkpoint(f))))

    check(build, PARAMS, X)


def test_transforms_jit_around_placed_calls():
    def build(on_s0, on_s1):
        loss = jax.jit(two_layers(on_s0, on_s1))
        return jax.jit(lambda p, x: jax.jit(jax.grad(loss))(p, x)["w0"] + loss(p, x))

    check(build, PARAMS, X)


def test_transforms_hessian_vector_product():
    def build(on_s0, on_s1):
        loss = two_layers(on_s0, on_s1)
        return lambda p, v, x: jax.jvp(lambda p: jax.grad(loss)(p, x), (p,), (v,))[1]

    check(build, PARAMS, jax.tree.map(lambda w: w[::-1].copy(), PARAMS), X)


def test_transforms_second_derivative_by_grad_of_grad():
    def build(on_s0, on_s1):
        sine, square = on_s0(jnp.sin), on_s1(jnp.square)
        return jax.grad(jax.grad(lambda x: square(sine(x))))

    check(build, np.float32(0.3))


def test_transforms_gradients_of_weight_read_by_both_slices():
    def build(on_s0, on_s1):
        first, second = on_s0(layer), on_s1(layer)
        return jax.grad(lambda w, x: jnp.sum(second(w, first(w, x))))

    check(build, W0, X)


def test_transforms_linearize_and_linear_transpose():
    def build(on_s0, on_s1):
        first, second = on_s0(lambda x: x @ W0), on_s1(jnp.cumsum)

        def f(x, y):
            out, linear = jax.linearize(lambda x: second(first(x)), x)
            return out, linear(x), jax.linear_transpose(lambda x: second(first(x)), x)(y)

        return f

    check(build, X, array(32, seed=5))


def test_transforms_jacobians():
    def build(on_s0, on_s1):
        first, second = on_s0(jnp.sin), on_s1(jnp.cumsum)
        return lambda x: (
            jax.jacrev(lambda x: second(first(x)))(x),
            jax.jacfwd(lambda x: second(first(x)))(x),
        )

    check(build, array(5))


# Operations that no result needs are never lowered, also where JAX could not.


@jax.custom_vjp
def without_jvp(x):
    return jnp.sin(x)


without_jvp.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))


def test_transforms_unused_tangent_that_does_not_exist():
    def build(on_s0, on_s1):
        f = on_s0(lambda x: (without_jvp(x), jnp.cos(x)))

        def step(x):
            (sin, cos), (_, tangent) = jax.jvp(f, (x,), (x,))
            return on_s1(jnp.tanh)(sin), cos, tangent

        return step

    check(build, X)


def test_transforms_unused_reference_that_cannot_be_lowered():
    def build(on_s0, on_s1):
        inside = jax.custom_jvp(on_s0(scaled))
        inside.defjvp(lambda primals, tangents: jax.jvp(scaled, primals, tangents))

        def step(x):
            inside(x)
            return on_s1(jnp.tanh)(x)

        return step

    check(build, X)


def test_transforms_unused_placed_functions():
    """Unused calls decide where the rest runs."""

    def build(on_s0, on_s1):
        def step(x):
            on_s0(jnp.tanh)(x)
            return x + 1

        return step

    check(build, X)


# Dtypes.


def test_transforms_dtypes():
    names = ["bfloat16", "float16", "int8", "uint8", "int32", "uint16", "bool", "complex64", "float8_e4m3fn"]
    values = {name: (10 * array(3, 5)).astype(jnp.dtype(name)) for name in names}

    def build(on_s0, on_s1):
        # There is no sum of floats with 8 bits.
        add = on_s0(lambda xs: {name: x if "8_" in name else x + x for name, x in xs.items()})
        both = on_s1(lambda ys: jax.tree.map(lambda y: (y, y.T), ys))
        return lambda xs: both(add(xs))

    check(build, values, tolerance=0)


def test_transforms_dtypes_smaller_than_a_byte():
    names = ["int4", "uint4", "int2", "float4_e2m1fn"]

    def build(on_s0, on_s1):
        first = on_s0(lambda x: [x.astype(name) for name in names])
        second = on_s1(lambda ys: [y.astype("float32") * 2 for y in ys])
        return lambda x: second(first(x))

    check(build, np.array([0, 1, 1, 0, 1], np.float32), tolerance=0)


def test_transforms_grad_in_bfloat16():
    params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), PARAMS)
    check(
        lambda on_s0, on_s1: jax.grad(two_layers(on_s0, on_s1)),
        params,
        X.astype(jnp.bfloat16),
        tolerance=2e-2,
    )


def test_transforms_grad_with_integer_argument():
    def build(on_s0, on_s1):
        lookup, total = on_s0(lambda table, n: table[n]), on_s1(jnp.sum)
        return jax.grad(lambda table, n: total(lookup(table, n) ** 2))

    check(build, W0, np.array([1, 5, 1], np.int8))


def test_transforms_complex_gradient():
    def build(on_s0, on_s1):
        first, second = on_s0(lambda z: z * jnp.exp(1j * z)), on_s1(lambda z: jnp.sum(jnp.abs(z) ** 2))
        return jax.grad(lambda z: second(first(z)))

    check(build, (array(6) + 1j * array(6, seed=1)).astype(np.complex64))


def test_transforms_doubles():
    with jax.enable_x64(True):
        params = jax.tree.map(lambda w: w.astype(np.float64), PARAMS)
        check(
            lambda on_s0, on_s1: jax.value_and_grad(jax.checkpoint(two_layers(on_s0, on_s1))),
            params,
            X.astype(np.float64),
            tolerance=1e-10,
        )


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())])
def test_transforms_keep_comparator_of_custom_call(transform: Fun):
    """A callback inside a placed function, between two, and under a transformation of both."""

    def build(on_s0, on_s1):
        top = on_s0(lambda x: jax.lax.approx_max_k(x, 3)[0])
        return lambda x: transform(lambda x: on_s1(jnp.sin)(jax.lax.approx_max_k(top(x), 2)[0]))(x)

    check(build, X)


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap])
def test_transforms_keep_decomposition_of_composite(transform: Fun):
    """Also a function with a placed call in it, which is placed as a whole then."""

    def build(on_s0, on_s1):
        inner = on_s0(lambda x: jnp.tanh(transform(jnp.cumsum)(x)))
        double = jax.lax.composite(lambda x: inner(x) * 2, name="test.double")
        square = jax.lax.composite(lambda x: x * x, name="test.square")
        return lambda x: on_s1(lambda x: square(x) + square(x + 1))(square(double(x)))

    check(build, X)


TABLE = array(1024, seed=4)


@pytest.mark.parametrize(
    "caller",
    [
        lambda f: jax.jit(lambda z: z * f())(2.0),
        lambda f: jax.jit(jax.grad(lambda z: jnp.sum(z * f())))(2.0),
        lambda f: jax.vmap(lambda z: z * f())(jnp.ones(2)),
        lambda f: jax.lax.cond(True, f, lambda: X),
        lambda f: jnp.zeros(jax.eval_shape(lambda z: z * f(), 2.0).shape),
    ],
    ids=["jit", "grad", "vmap", "cond", "eval_shape"],
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_transforms_around_a_program_that_is_called_with_values(caller, replicas):
    """Runs while its caller is traced, which reads the result as a constant, wherever the values are."""
    devices = pw.make_virtual_device_set(replicas=replicas)
    on_s0, on_s1 = (pw.jit(devices=devices.add_slice(1, "x")) for _ in range(2))

    def build(sine: Fun, cosine: Fun) -> Fun:
        def iterate(x: Any, scale: Any, end: Any) -> Any:
            body = lambda s: (s[0] + 1, scale * cosine(scale * sine(s[1])) + TABLE.sum())  # noqa: E731
            return jax.lax.while_loop(lambda s: s[0] < end, body, (0, x))[1]

        return iterate

    program = pw.program(build(on_s0(jnp.sin), on_s1(jnp.cos)))
    expected = caller(lambda: jax.jit(build(jnp.sin, jnp.cos))(X, 0.5, 3))
    # At first it is compiled, then it finds a value there, then it has to move one.
    for x in (X, jnp.asarray(X), jax.device_put(X, jax.devices()[-1]), X):
        assert_close(caller(lambda x=x: program(x, 0.5, 3)), expected)
