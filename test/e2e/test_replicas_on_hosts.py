"""Replicas on different hosts return what they return in one process."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close
from models import apply, gradients_of, layer, sgd, squared_error, training_step

import pathways as pw


def step_of(layers):
    return training_step(squared_error(layers), 4)


def scaled(p, x):
    return jnp.tanh(x @ p["w"]) * p["scales"].sum(axis=0)


def momentum_of(layers):
    gradients = gradients_of(squared_error(layers), 4)

    def step(params, moments, batch):
        _, grads = gradients(params, batch)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return sgd(params, moments), moments

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
        assert_close(value, wanted, 1e-5)
    assert_close(params, expected, 1e-5)
    assert len(params[0].copies) == 2

    rows_of = functools.partial(apply, layers)
    predict = pw.program(lambda w, x: pw.accumulate(rows_of, 4, reduce="concat")(w, x))
    rows = predict(start, batch[0])
    assert_close(rows, apply([layer, layer], start, batch[0]), 1e-5)
    assert_close(predict(start, rows), apply([layer, layer], start, np.asarray(rows)), 1e-5)

    # Replicas have rows of the moments of weights, and columns of those of scales, which have three rows.
    start = [{"w": array(rng, 8, 8), "scales": array(rng, 3, 8)} for _ in slices]
    zeros = jax.tree.map(np.zeros_like, start)
    step = momentum_of([pw.jit(scaled, devices=s) for s in slices])
    train = pw.program(step, donate_argnums=(0, 1), schedule="1f1b", zero1=True)
    state, expected = (start, zeros), (start, zeros)
    for _ in range(3):
        state = train(*state, batch)
        expected = jax.jit(momentum_of([scaled, scaled]))(*expected, batch)
    assert_close(state, expected, 1e-5)
    parts = {
        (where.block.number, where.block.count, where.block.dim) for where in state[1][0]["scales"].copies
    }
    assert parts == {(0, 2, 1), (1, 2, 1)}

    # State of microbatches goes from replica to replica, and so from host to host.
    args = [p["w"] for p in start], np.zeros(8, np.float32), batch
    assert_close(pw.program(seen_of(layers))(*args), jax.jit(seen_of([layer, layer]))(*args), 1e-5)
    islands = {}
    for s in pw.status().slices:
        islands.setdefault(s.name.partition("_r")[2], set()).add(s.island)
    assert hosts == 4 or [len(names) for names in islands.values()] == [1, 1], islands
