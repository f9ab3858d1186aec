"""Replicas on different hosts give what they give in one process."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys

import jax
import jax.numpy as jnp
import numpy as np

import pathways as pw

hosts = int(sys.argv[1])
pw.connect(hosts=hosts, devices_per_host=4 // hosts)
devices = pw.make_virtual_device_set(replicas=2)
slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]


def layer(w, x):
    return jnp.tanh(x @ w)


def step_of(layers):
    def loss(params, batch):
        x, y = batch
        for one, w in zip(layers, params):
            x = one(w, x)
        return ((x - y) ** 2).mean()

    def step(params, batch):
        value, grads = pw.accumulate(jax.value_and_grad(loss), 4)(params, batch)
        return value, [w - 0.1 * g for w, g in zip(params, grads)]

    return step


rng = np.random.default_rng(0)
array = lambda *shape: rng.normal(size=shape).astype(np.float32) / 2
start, batch = [array(8, 8), array(8, 8)], (array(24, 8), array(24, 8))
layers = [pw.jit(layer, devices=s) for s in slices]
train = pw.program(step_of(layers), schedule="1f1b", donate_argnums=0)
params, expected = start, start
for _ in range(3):
    value, params = train(params, batch)
    wanted, expected = jax.jit(step_of([layer, layer]))(expected, batch)
    np.testing.assert_allclose(np.asarray(value), wanted, rtol=1e-5)
for got, want in zip(params, expected):
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-6)
assert len(params[0]._copies) == 2

one, other = layers
forward = lambda w, x: other(w[1], one(w[0], x))
predict = pw.program(lambda w, x: pw.accumulate(forward, 4, reduce="concat")(w, x))
rows = predict(start, batch[0])
np.testing.assert_allclose(np.asarray(rows), layer(start[1], layer(start[0], batch[0])), rtol=1e-4, atol=1e-6)
again = predict(start, rows)
np.testing.assert_allclose(
    np.asarray(again), layer(start[1], layer(start[0], np.asarray(rows))), rtol=1e-4, atol=1e-6
)


def scaled(p, x):
    return jnp.tanh(x @ p["w"]) * p["scales"].sum(axis=0)


def momentum_of(layers):
    def loss(params, batch):
        x, y = batch
        for one, p in zip(layers, params):
            x = one(p, x)
        return ((x - y) ** 2).mean()

    def step(params, moments, batch):
        value, grads = pw.accumulate(jax.value_and_grad(loss), 4)(params, batch)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return jax.tree.map(lambda w, m: w - 0.1 * m, params, moments), moments

    return step


# Replicas have rows of the moments of weights, and columns of those of scales, which have three rows.
start = [{"w": array(8, 8), "scales": array(3, 8)} for _ in slices]
zeros = jax.tree.map(np.zeros_like, start)
step = momentum_of([pw.jit(scaled, devices=s) for s in slices])
train = pw.program(step, donate_argnums=(0, 1), schedule="1f1b", zero1=True)
state, expected = (start, zeros), (start, zeros)
for _ in range(3):
    state = train(*state, batch)
    expected = jax.jit(momentum_of([scaled, scaled]))(*expected, batch)
for got, want in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-6)
parts = {(where.part.number, where.part.count, where.part.dim) for where in state[1][0]["scales"]._copies}
assert parts == {(0, 2, 1), (1, 2, 1)}, parts


def seen_of(layers):
    def of_microbatch(params, mean, batch):
        h = layers[0](params[0], batch[0] - mean)
        return 0.9 * mean + 0.1 * h.mean(0), (layers[1](params[1], h) - batch[1]).sum()

    return lambda *args: pw.accumulate(of_microbatch, 4, carry_argnums=1)(*args)


# What microbatches hand on goes from replica to replica, and so from host to host.
args = [p["w"] for p in start], np.zeros(8, np.float32), batch
ours, theirs = pw.program(seen_of(layers))(*args), jax.jit(seen_of([layer, layer]))(*args)
for got, want in zip(ours, theirs, strict=True):
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-6)
islands = {}
for s in pw.status().slices:
    islands.setdefault(s.name.partition("_r")[2], set()).add(s.island)
assert hosts == 4 or [len(names) for names in islands.values()] == [1, 1], islands
print("done")
"""


@pytest.mark.parametrize("hosts", [2, 4])
def test_replicas_on_hosts(hosts: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(hosts)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")
