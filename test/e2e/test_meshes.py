"""Slices with meshes of different sizes in one program, and meshes of JAX's around and inside of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close
from jax.sharding import AxisType, NamedSharding, get_abstract_mesh, use_abstract_mesh
from jax.sharding import PartitionSpec as P
from models import place_on

import pathways as pw

Fun = Callable[..., Any]

SHAPES = ((1,), (2,), (2, 2))
X, W, B = (
    np.random.default_rng(n).normal(size=s).astype(np.float32) for n, s in enumerate([(4, 4)] * 2 + [(4,)])
)


def slices() -> list[pw.VirtualSlice]:
    """Returns slices of one, two and four devices."""
    devices = pw.make_virtual_device_set()
    return [devices.add_slice(shape, ("x", "y")[: len(shape)]) for shape in SHAPES]


def placed(fun: Fun) -> list[Fun]:
    return place_on(slices(), fun)


def chain(stages: list[Fun]) -> Fun:
    """Returns the loss after a function on every slice; the first two run twice: there and back."""

    def loss(x: Any) -> Any:
        for stage in [*stages, *stages[:2]]:
            x = stage(x)
        return jnp.sum(x**2)

    return loss


# Gradients across slices of different sizes.


@jax.custom_vjp
def sine(h):
    return jnp.sin(h)


sine.defvjp(lambda h: (jnp.sin(h), jnp.cos(h)), lambda cosine, ct: (cosine * ct,))


@jax.custom_jvp
def cosine(h):
    return jnp.cos(h)


cosine.defjvp(lambda primals, tangents: (jnp.cos(primals[0]), -jnp.sin(primals[0]) * tangents[0]))

BODIES: dict[str, Fun] = {
    "a bias closed over": lambda h: h @ W + B,
    "where": lambda h: jnp.where(h > 0, h, 0.0),
    "cross entropy": lambda h: h - jax.nn.log_softmax(h)[jnp.arange(4), jnp.arange(4) % 3][:, None],
    "layers in a scan": lambda h: jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), h, jnp.stack([W, W]))[0],
    "cond": lambda h: jax.lax.cond(h.sum() > 0, lambda h: h + 1.0, lambda h: h * 2.0, h),
    "checkpoint": jax.checkpoint(lambda h: jnp.tanh(h @ W) + B),
    "custom_vjp": lambda h: sine(h) + 1.0,
    "custom_jvp": lambda h: cosine(h) + 1.0,
    "a gradient": jax.grad(lambda h: jnp.sum(jnp.sin(h) + 1.0)),
    "vmap": jax.vmap(lambda row: jnp.tanh(row * row.sum()) + 1.0),
    "constants only": lambda h: jnp.ones_like(h),
}


@pytest.mark.parametrize("body", BODIES)
def test_meshes_gradients_across_slices_of_different_size(body):
    fun = BODIES[body]
    got = pw.program(jax.value_and_grad(chain(placed(fun))))(X)
    assert_close(got, jax.jit(jax.value_and_grad(chain([fun] * 3)))(X))


TRANSFORMS: dict[str, Callable[[Fun], Fun]] = {
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, 2 * x])),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])).sum()),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),)),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.cos(x)),
    "jvp of grad": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (jnp.cos(x),)),
    "grad of grad": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f)(x) ** 2)),
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "jacfwd of grad": lambda f: lambda x: jax.jacfwd(jax.grad(f))(x)[0, 0],
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_meshes_transformations_across_slices_of_different_size(transform):
    def fun(h):
        return jnp.where(h > 0, jnp.sin(h), B) + 1.0

    got = pw.program(TRANSFORMS[transform](chain(placed(fun))))(X)
    assert_close(got, jax.jit(TRANSFORMS[transform](chain([fun] * 3)))(X))


def test_meshes_second_order_gradients_of_types_without_mesh():
    """A branch that returns its argument: the cotangent of it is on the mesh of another slice."""

    def branch(w, x):
        return jax.lax.cond(x.sum() > -100, lambda w, x: jnp.sin(w * x), lambda w, x: x, w, x)

    def penalty(first, second):
        def loss(w):
            return jnp.sum(second(first(w, X), w))

        return jax.grad(lambda w: loss(w) + jnp.sum(jax.grad(loss)(w) ** 2))

    one, two, _ = slices()
    got = pw.program(penalty(pw.jit(branch, devices=one), pw.jit(jnp.multiply, devices=two)))(W)
    assert_close(got, jax.jit(penalty(branch, jnp.multiply))(W))


def test_meshes_do_not_duplicate_results_of_forward():
    # The residual of the backward call and the result are one array, hence one result of the launch.
    loss = chain(placed(jnp.exp))
    text = pw.program(jax.grad(loss)).lower(X / 10).as_text("placed")
    forward = [line for line in text.splitlines() if 'kind = "fwd"' in line]
    assert len(forward) == 5
    assert not any(":2 =" in line for line in forward)


# A mesh of JAX's around calls does not affect slices.

MESHES = {
    f"{size} {kind.name}": lambda size=size, kind=kind: jax.make_mesh((size,), ("x",), (kind,))
    for size in (2, 8)
    for kind in (AxisType.Auto, AxisType.Explicit)
}
ENTER: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
    "set_mesh": lambda mesh: jax.set_mesh(mesh),
    "use_abstract_mesh": lambda mesh: use_abstract_mesh(mesh.abstract_mesh),
}


@pytest.mark.parametrize(
    ("mesh", "enter"),
    [
        ("2 Auto", "use_abstract_mesh"),
        ("2 Explicit", "set_mesh"),
        ("8 Auto", "set_mesh"),
        ("8 Explicit", "use_abstract_mesh"),
    ],
)
def test_meshes_of_caller_do_not_matter(mesh, enter):
    traces = []

    def fun(h):
        traces.append(get_abstract_mesh())
        return jnp.sin(h) + 1.0

    wanted = jax.value_and_grad(chain([lambda h: jnp.sin(h) + 1.0] * 3))(X)
    stages = placed(fun)
    before, after = (pw.program(jax.value_and_grad(chain(stages))) for _ in range(2))
    lowered = before.lower(X)
    assert_close(before(X), wanted)
    count = len(traces)
    with ENTER[enter](MESHES[mesh]()):
        assert_close(before(X), wanted)
        assert_close(lowered.compile()(X), wanted)
        assert len(traces) == count
        assert_close(after(X), wanted)
        assert_close(stages[1](X), np.sin(X) + 1)
    assert_close(after(X), wanted)


def test_meshes_arrays_sharded_by_their_types():
    first, second, _ = placed(lambda h: h * 2)
    mesh = jax.make_mesh((4,), ("x",), (AxisType.Explicit,))
    z = jax.device_put(X, NamedSharding(mesh, P("x")))
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(pw.program(lambda z: second(first(z)))(z), X * 4)
        np.testing.assert_array_equal(pw.program(lambda x: first(x) + second(z))(X), X * 4)


def test_meshes_result_of_one_slice_closed_over_on_another():
    _, double, _ = placed(lambda h: h * 2)
    table = double(X)
    *_, multiply = placed(lambda h: h @ table)
    assert_close(pw.program(lambda x: multiply(x) + table)(X), jnp.asarray(X @ (2 * X) + 2 * X))


# Explicit sharding and manual axes inside placed functions.


def explicit(fun: Fun) -> Fun:
    return jax.sharding.explicit_axes(fun, in_sharding=P("x"))


def on_explicit_mesh(fun: Fun) -> Fun:
    def inside(h):
        mesh = get_abstract_mesh()
        with use_abstract_mesh(mesh.update(axis_types=(AxisType.Explicit,) * len(mesh.axis_names))):
            return fun(jax.sharding.reshard(h, P("x")))

    return inside


def manual(fun: Fun) -> Fun:
    def block(h):
        return fun(h) + 0 * jax.lax.psum(h.sum(), "x")

    return lambda h: jax.shard_map(block, in_specs=P("x"), out_specs=P("x"))(h)


@pytest.mark.parametrize(
    ("inside", "transform"),
    [
        (explicit, "value"),
        (explicit, "vmap of grad"),
        (on_explicit_mesh, "grad of checkpoint"),
        (manual, "vmap of grad"),
        (manual, "jvp of grad"),
    ],
)
def test_meshes_explicit_and_manual_axes_inside_placed_functions(inside, transform):
    def fun(h):
        return jnp.exp(-h) + 1.0

    around = TRANSFORMS.get(transform, lambda f: f)
    got = pw.program(around(chain(placed(inside(fun)))))(X)
    assert_close(got, jax.jit(around(chain([fun] * 3)))(X))


def test_meshes_refuse_placed_function_inside_shard_map():
    _, double, _ = placed(lambda h: h * 2)
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    with pytest.raises(ValueError, match=r"'lambda', placed on s\d+, is called on .*put jax.shard_map"):
        pw.program(jax.shard_map(double, mesh=mesh, in_specs=P("x"), out_specs=P("x"))).lower(X)


def test_meshes_refuse_placed_function_under_explicit_sharding():
    double, *_ = placed(lambda h: h * 2)

    def step(x):
        with use_abstract_mesh(jax.sharding.AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))):
            return double(x)

    with pytest.raises(
        ValueError, match=re.escape("is called on AbstractMesh('x': 2, axis_types=(Explicit,)")
    ):
        pw.program(step).lower(X)


def test_meshes_refuse_array_with_explicit_sharding_between_calls():
    double, *_ = placed(lambda h: h * 2)
    mesh = jax.make_mesh((2,), ("x",), (AxisType.Explicit,))
    z = jax.device_put(X, NamedSharding(mesh, P("x")))
    message = r"the value computed at .*test_meshes.py:\d+.* has the type f32\[4@x,4\], sharded over"
    with pytest.raises(ValueError, match=message):
        pw.program(lambda x: double(x) + z).lower(X)
