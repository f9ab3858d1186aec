"""A regression over two slices, for the tests of pw-compile; `wrong_*` are mistakes of users."""

import functools

import jax
import jax.numpy as jnp

import pathways as pw

print("importing regression")
# JAX has now started, with one device.
TABLE = jnp.arange(64.0).reshape(8, 8) ** 2

devices = pw.make_virtual_device_set()
front = devices.add_slice(shape=(1,), axis_names=("x",), name="front")
back = devices.add_slice(shape=(1,), axis_names=("x",), name="back")

embed = pw.jit(lambda w, x: jnp.tanh(x @ w), devices=front)
head = pw.jit(lambda b, h: jnp.mean((h + b) ** 2), devices=back)


@pw.program
def step(params, x, scale=1.0):
    def loss(params):
        return head(params["b"], embed(params["w"], x)) * scale

    return jax.grad(loss)(params)


def step_example_args():
    f32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    return {"w": f32((8, 8)), "b": f32((8,))}, f32((4, 8))


@functools.partial(pw.program, static_argnames="times")
def repeat(x, times, key):
    for _ in range(times):
        x = embed(x, x) + jax.random.normal(key, x.shape)
    return x


@pw.program
def chain(x):
    return embed(x, embed(x, x)) @ TABLE


@pw.program
def wrong_shapes(x):
    y = embed(x, x)
    return jnp.concatenate([y, jnp.zeros((3, 5))])


wrong_tuple = chain
wrong_tuple_example_args = [1.0]


def plain(x):
    return x
