"""Figure 2 of the Pathways paper (arXiv:2203.12533): three functions, each on its own slice.

The slices are devices of this process; with --hosts each is a host, a worker process of its own.
"""

import sys

import jax
import jax.numpy as jnp
from _devices import connect

import pathways as pw

shape, overlap = connect(slices=3, shape=(1,), hosts="--hosts" in sys.argv)
devices = pw.make_virtual_device_set()


def a_slice() -> pw.VirtualSlice:
    return devices.add_slice(shape, axis_names=("x",), overlap=overlap)


a = pw.jit(lambda x: x * 2, devices=a_slice())
b = pw.jit(lambda x: x + 1, devices=a_slice())
c = pw.jit(lambda x: x / 2, devices=a_slice())


@pw.program
def f(v: jax.Array) -> tuple[jax.Array, jax.Array]:
    x = a(v)
    y = b(x)
    z = a(c(x))
    return y, z


if __name__ == "__main__":
    v = jnp.array([1.0, 2.0])
    y, z = f(v)
    print(f"f({v}) = ({y}, {z})")

    cost = f.lower(v).compile().cost_analysis()
    print(f"{cost['launches']} launches, {cost['transfers']} transfers between slices")
