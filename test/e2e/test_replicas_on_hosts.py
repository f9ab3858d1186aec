"""Replicas on different hosts give what they give in one process."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from on_hosts import assert_equal

import pathways as pw


def layer(w, x):
    return jnp.tanh(x @ w)


def step_of(layers):
    def loss(params, batch):
        x, y = batch
        for one, w in zip(layers, params, strict=True):
            x = one(w, x)
        return ((x - y) ** 2).mean()

    def step(params, batch):
        value, grads = pw.accumulate(jax.value_and_grad(loss), 4)(params, batch)
        return value, [w - 0.1 * g for w, g in zip(params, grads, strict=True)]

    return step


def scaled(p, x):
    return jnp.tanh(x @ p["w"]) * p["scales"].sum(axis=0)


def momentum_of(layers):
    def loss(params, batch):
        x, y = batch
        for one, p in zip(layers, params, strict=True):
            x = one(p, x)
        return ((x - y) ** 2).mean()

    def step(params, moments, batch):
        _, grads = pw.accumulate(jax.value_and_grad(loss), 4)(params, batch)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return jax.tree.map(lambda w, m: w - 0.1 * m, params, moments), moments

    return step


def seen_of(layers):
    def of_microbatch(params, mean, batch):
        h = layers[0](params[0], batch[0] - mean)
        return 0.9 * mean + 0.1 * h.mean(0), (layers[1](params[1], h) - batch[1]).sum()

    return lambda *args: pw.accumulate(of_microbatch, 4, carry_argnums=1)(*args)


def array(rng, *shape):
    return rng.normal(size=shape).astype(np.float32) / 2


@pytest.mark.feature("replicas", "hosts")
@pytest.mark.parametrize("hosts", [2, pytest.param(4, marks=pytest.mark.not_attached)])
def test_replicas_on_hosts(own_or_attached_workers, hosts):
    pw.disconnect()
    pw.connect(hosts=hosts, devices_per_host=4 // hosts)
    devices = pw.make_virtual_device_set(replicas=2)
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
    rng = np.random.default_rng(0)
    start, batch = [array(rng, 8, 8) for _ in slices], (array(rng, 24, 8), array(rng, 24, 8))
    layers = [pw.jit(layer, devices=s) for s in slices]
    train = pw.program(step_of(layers), schedule="1f1b", donate_argnums=0)
    params, expected = start, start
    for _ in range(3):
        value, params = train(params, batch)
        wanted, expected = jax.jit(step_of([layer, layer]))(expected, batch)
        np.testing.assert_allclose(np.asarray(value), wanted, rtol=1e-5)
    assert_equal(params, expected)
    assert len(params[0]._copies) == 2

    one, other = layers
    predict = pw.program(
        lambda w, x: pw.accumulate(lambda w, x: other(w[1], one(w[0], x)), 4, reduce="concat")(w, x)
    )
    rows = predict(start, batch[0])
    expected = layer(start[1], layer(start[0], batch[0]))
    np.testing.assert_allclose(np.asarray(rows), expected, rtol=1e-4, atol=1e-6)
    again = predict(start, rows)
    expected = layer(start[1], layer(start[0], np.asarray(rows)))
    np.testing.assert_allclose(np.asarray(again), expected, rtol=1e-4, atol=1e-6)

    # Replicas have rows of the moments of weights, and columns of those of scales, which have three rows.
    start = [{"w": array(rng, 8, 8), "scales": array(rng, 3, 8)} for _ in slices]
    zeros = jax.tree.map(np.zeros_like, start)
    step = momentum_of([pw.jit(scaled, devices=s) for s in slices])
    train = pw.program(step, donate_argnums=(0, 1), schedule="1f1b", zero1=True)
    state, expected = (start, zeros), (start, zeros)
    for _ in range(3):
        state = train(*state, batch)
        expected = jax.jit(momentum_of([scaled, scaled]))(*expected, batch)
    assert_equal(state, expected)
    parts = {(where.part.number, where.part.count, where.part.dim) for where in state[1][0]["scales"]._copies}
    assert parts == {(0, 2, 1), (1, 2, 1)}

    # What microbatches hand on goes from replica to replica, and so from host to host.
    args = [p["w"] for p in start], np.zeros(8, np.float32), batch
    assert_equal(pw.program(seen_of(layers))(*args), jax.jit(seen_of([layer, layer]))(*args))
    islands = {}
    for s in pw.status().slices:
        islands.setdefault(s.name.partition("_r")[2], set()).add(s.island)
    assert hosts == 4 or [len(names) for names in islands.values()] == [1, 1], islands
