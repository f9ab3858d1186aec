"""Programs that test_gpu.py runs in processes of their own, on slices that share a GPU.

  JAX_PLATFORMS=cuda python test/e2e/gpu_programs.py NAME [FOLDER]

Each compares what it computes with `jax.jit` on the same GPU, to a few units in the last place: XLA picks
its kernels by measuring them, and so may multiply in another order. With JAX_PLATFORMS=cpu they run on CPUs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pathways as pw

PLATFORM = os.environ["JAX_PLATFORMS"]
WIDTH, ROWS = 64, 32
LAB = f"""
hosts = 2
platform = "{PLATFORM}"
"""

State = tuple[jax.Array, ...]


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def data() -> tuple[State, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    first, second = (jax.random.normal(key, (WIDTH, WIDTH)) / 8 for key in keys[:2])
    return (first, second), jax.random.normal(keys[2], (ROWS, WIDTH))


def slices(overlap: bool = True) -> list[pw.VirtualSlice]:
    """Returns two slices of one device each; with `overlap` it may be the same device."""
    devices = pw.make_virtual_device_set()
    return [devices.add_slice((1,), ("x",), overlap=overlap) for _ in range(2)]


def layers(overlap: bool = True) -> list[Callable[..., Any]]:
    return [pw.jit(layer, devices=slice) for slice in slices(overlap)]


def train_step(layers: list[Callable[..., Any]], w: State, x: jax.Array) -> State:
    first, second = layers
    grads = jax.grad(lambda w: jnp.mean(second(w[1], jax.nn.gelu(first(w[0], x))) ** 2))(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads)


def agree(ours: Any, theirs: Any, steps: int = 1) -> None:
    for p, q in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
        assert np.linalg.norm(p - q) <= 1e-6 * steps * np.linalg.norm(q), np.linalg.norm(p - q)


def train(step: Callable[..., Any], steps: int, w: Any) -> Any:
    _, x = data()
    for _ in range(steps):
        w = step(w, x)
    return w


def program_of(layers: list[Callable[..., Any]]) -> Callable[..., Any]:
    return pw.program(lambda w, x: train_step(layers, w, x), donate_argnums=0)


def trained(steps: int) -> State:
    """Returns the weights after a number of steps of `jax.jit`."""
    return train(jax.jit(lambda w, x: train_step([layer, layer], w, x)), steps, data()[0])


def training() -> None:
    agree(train(program_of(layers()), 10, jax.tree.map(jnp.copy, data()[0])), trained(10), steps=10)


def branches() -> None:
    placed, (w, x) = layers(), data()

    def gradients(layers: list[Callable[..., Any]], w: State, x: jax.Array, p: Any) -> Any:
        def loss(w: State) -> jax.Array:
            h = layers[0](w[0], x)
            return jnp.mean(jax.lax.cond(p, lambda h: layers[1](w[1], h), lambda h: 2 * h, h) ** 2)

        return jax.value_and_grad(loss)(w)

    ours = pw.program(lambda *arguments: gradients(placed, *arguments))
    theirs = jax.jit(lambda *arguments: gradients([layer, layer], *arguments))
    for p in (True, False):
        agree(ours(w, x, p), theirs(w, x, p))


def loops() -> None:
    placed, (w, x) = layers(), data()

    def decode(layers: list[Callable[..., Any]], w: State, x: jax.Array, end: Any) -> Any:
        def iteration(state: Any) -> Any:
            i, x, sums = state
            x = layers[1](w[1], layers[0](w[0], x))
            return i + 1, x, sums.at[i].set(x.sum())

        return jax.lax.while_loop(lambda state: state[0] < end, iteration, (0, x, jnp.zeros(16)))

    ours = pw.program(lambda *arguments: decode(placed, *arguments), chunk=4)
    theirs = jax.jit(lambda *arguments: decode([layer, layer], *arguments))
    for end in (0, 1, 4, 5, 16):
        agree(ours(w, x, end), theirs(w, x, end), steps=16)


def hosts() -> None:
    cluster = pw.connect(hosts=2, platform=PLATFORM)
    assert {device.platform for device in cluster.devices} == {PLATFORM}, cluster
    own = slices(overlap=False)
    step = program_of([pw.jit(layer, devices=slice) for slice in own])
    w = train(step, 10, jax.tree.map(np.asarray, data()[0]))
    agree(w, trained(10), steps=10)
    assert pw.on_hosts("gpu_programs:norm", devices=own[1])(w[1]).result() == [norm(w[1])]


def norm(x: Any) -> float:
    """Doubles as an example of a function that is called on hosts."""
    return float(np.linalg.norm(np.asarray(x)))


def checkpoints(folder: str) -> None:
    """Saves after three steps on slices that share a GPU here, continues on two hosts, then here again."""
    weights, x = data()
    here = slices()
    step = program_of([pw.jit(layer, devices=slice) for slice in here])
    pw.checkpoint.save(folder, train(step, 3, jax.tree.map(jnp.copy, weights)), 3)
    for slice in here:
        pw.release(slice)

    pw.connect(hosts=2, platform=PLATFORM)
    step = program_of(layers(overlap=False)).lower(weights, x).compile()
    w = train(step, 3, pw.checkpoint.restore(folder, program=step, argument="w"))
    pw.checkpoint.save(folder, w, 6)
    pw.disconnect()

    step = program_of(layers()).lower(weights, x).compile()
    w = train(step, 3, pw.checkpoint.restore(folder, program=step, argument="w"))
    agree(w, trained(9), steps=9)


def bundles(folder: str) -> None:
    file, (w, x) = Path(folder, "step.pwb"), data()
    program_of(layers()).lower(w, x).compile().save(file, executables=True)
    agree(train(pw.load(file, trust=True), 10, jax.tree.map(jnp.copy, w)), trained(10), steps=10)


def service(folder: str) -> None:
    """Runs two clients of a service, one after the other on the same islands."""
    file = Path(folder, "gpu.toml")
    file.write_text(LAB)
    command = [sys.executable, "-m", "pathways.tools.pw_cluster"]
    subprocess.run([*command, "up", str(file)], check=True)
    try:
        for client in ("ann", "bo"):
            pw.connect("gpu", client=client)
            step = program_of(layers(overlap=False))
            agree(train(step, 10, jax.tree.map(np.asarray, data()[0])), trained(10), steps=10)
            pw.disconnect()
    finally:
        subprocess.run([*command, "down", "gpu"], check=True)


if __name__ == "__main__":
    jax.config.update("jax_default_matmul_precision", "float32")
    globals()[sys.argv[1]](*sys.argv[2:])
    print("agrees")
