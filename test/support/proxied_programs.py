"""Programs of Pathways in a process behind `pw-proxy`, and the same in a process of their own.

As a script, runs all of them and pickles their results: `python proxied_programs.py RESULTS`.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P
from proxy_programs import run_all

import pathways as pw

PROGRAMS: dict[str, Callable[[], Any]] = {}


def compared(function: Callable[[], Any]) -> Callable[[], Any]:
    """Registers a function that returns values to compare."""
    PROGRAMS[function.__name__] = function
    return function


def two_stages() -> tuple[Any, Any]:
    """Returns functions on slices of four and of two devices."""
    devices = pw.make_virtual_device_set()
    large, small = (devices.add_slice(shape=(n,), axis_names=("x",)) for n in (4, 2))
    first = pw.jit(lambda x: jnp.sin(x) + 1, devices=large, in_shardings=P("x"), out_shardings=P("x"))
    second = pw.jit(lambda x: x * 2, devices=small, in_shardings=P("x"), out_shardings=P("x"))
    return first, second


@compared
def slices_of_different_sizes() -> Any:
    first, second = two_stages()
    step = pw.program(lambda x: (second(first(x)), first(x).sum()))
    results = step(np.arange(16.0, dtype=np.float32))
    assert all(isinstance(result, jax.Array) for result in results)
    return [(np.asarray(result), len(result.sharding.device_set)) for result in results]


@compared
def jit_between_two_programs() -> Any:
    first, second = two_stages()
    before, after = pw.program(lambda x: first(x)), pw.program(lambda x: second(x))
    between = jax.jit(lambda x: jnp.cumsum(x) / 16)
    return np.asarray(after(between(before(np.arange(16.0, dtype=np.float32)))))


@compared
def state_donated_both_ways() -> Any:
    first, second = two_stages()
    step = pw.program(lambda x: (second(first(x)), x.mean()), donate_argnums=0)
    halve = jax.jit(lambda x: x / 2, donate_argnums=0)
    x, means = jnp.arange(16.0), []
    for number in range(20):
        given = x
        x, mean = step(given)
        means.append(mean)
        # Nothing else is where the program reads it at the first call.
        assert number == 0 or given.is_deleted()
        given, x = x, halve(x)
        assert given.is_deleted()
    return np.asarray(x), np.stack(means)


@compared
def argument_handed_through_lives() -> Any:
    first, _ = two_stages()
    step = pw.program(lambda state, x: (state, first(x)), donate_argnums=0)
    state = {"w": jnp.arange(4.0)}
    for _ in range(3):
        state, y = step(state, np.arange(16.0, dtype=np.float32))
    return np.asarray(state["w"]), np.asarray(y)


@compared
def optax_on_results() -> Any:
    devices = pw.make_virtual_device_set()
    stage = devices.add_slice(shape=(2,), axis_names=("x",))
    gradients = pw.program(
        pw.jit(
            jax.grad(lambda w, x: ((x @ w) ** 2).mean()),
            devices=stage,
            in_shardings=(P(), P("x")),
            out_shardings=P(),
        )
    )
    optimizer = optax.adam(0.1)
    w = jnp.ones(4)
    state = optimizer.init(w)
    for _ in range(3):
        updates, state = optimizer.update(gradients(w, np.eye(4, dtype=np.float32)), state)
        w = optax.apply_updates(w, updates)
    return np.asarray(w), float(optax.tree.norm(w)), bool(jnp.isfinite(w).all())


@compared
def typed_keys() -> Any:
    devices = pw.make_virtual_device_set()
    stage = devices.add_slice(shape=(1,), axis_names=("x",))
    draw = pw.jit(lambda key: (jax.random.split(key), jax.random.normal(key, (4,))), devices=stage)
    keys, drawn = pw.program(lambda key: draw(key))(jax.random.key(3))
    return np.asarray(jax.random.key_data(keys)), np.asarray(jax.random.uniform(keys[1])), np.asarray(drawn)


@compared
def an_argument_of_two_slices() -> Any:
    first, second = two_stages()
    step = pw.program(lambda x: (first(x), second(x)))
    x = jax.jit(jnp.sin)(np.arange(16.0, dtype=np.float32))
    return [np.asarray(result) for _ in range(2) for result in step(x)]


@compared
def arguments_without_names() -> Any:
    first, second = two_stages()
    step = pw.program(lambda *args: second(first(args[0][0]) + args[0][1]) + args[1])
    return np.asarray(step([np.ones(16, np.float32), np.float32(2)], np.float32(3)))


@compared
def shardings_of_a_mesh_of_two_dimensions() -> Any:
    # XLA has the tiles of some in another order than that of the devices.
    stage = pw.make_virtual_device_set().add_slice(shape=(2, 2), axis_names=("x", "y"))
    x, results = np.arange(64, dtype=np.float32).reshape(8, 8), []
    for spec in (P(None, "y"), P("x"), P("y", "x"), P(("y", "x")), P()):
        step = pw.program(pw.jit(jnp.cos, devices=stage, in_shardings=spec), donate_argnums=0)
        results += [step(x), step(*step.lower(x).compile().place(x)), step(step(x))]
    return [np.asarray(result) for result in results]


@compared
def pipeline_of_microbatches() -> Any:
    devices = pw.make_virtual_device_set()
    stages = [devices.add_slice(shape=(2,), axis_names=("x",)) for _ in range(2)]
    layers = [
        pw.jit(lambda w, x: jnp.tanh(x @ w), devices=stage, in_shardings=(P(), P("x")), out_shardings=P("x"))
        for stage in stages
    ]

    def loss(weights: Any, batch: Any) -> Any:
        for layer, w in zip(layers, weights, strict=True):
            batch = layer(w, batch)
        return (batch**2).mean()

    def step(weights: Any, batch: Any) -> Any:
        value, slopes = pw.accumulate(jax.value_and_grad(loss), 4)(weights, batch)
        return value, jax.tree.map(lambda w, slope: w - 0.1 * slope, weights, slopes)

    step = pw.program(step, schedule="1f1b")
    weights = [np.eye(8, dtype=np.float32) / 2 for _ in layers]
    batch = np.linspace(0, 1, 16 * 8, dtype=np.float32).reshape(16, 8)
    values = []
    for _ in range(3):
        value, weights = step(weights, batch)
        values.append(np.asarray(value))
    return values, jax.tree.map(np.asarray, weights)


@compared
def manual_computation() -> Any:
    stage = pw.make_virtual_device_set().add_slice(shape=(2,), axis_names=("x",))
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def total(x: Any) -> Any:
        return jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())(x)

    step = pw.program(pw.jit(total, devices=stage, in_shardings=P("x"), out_shardings=P()))
    return np.asarray(step(np.arange(16.0, dtype=np.float32)))


@compared
def loop_that_ends_by_value() -> Any:
    first, _ = two_stages()
    step = pw.program(lambda x: jax.lax.while_loop(lambda x: x.sum() < 100, lambda x: first(x) + x, x))
    return np.asarray(step(np.arange(16.0, dtype=np.float32)))


@compared
def thousand_steps_of_jits_and_programs() -> Any:
    first, second = two_stages()
    program = pw.program(lambda x, n: (second(first(x)), n + 1), donate_argnums=(0, 1))
    # Of arrays on different devices, so one each.
    scaled = jax.jit(lambda x: jnp.tanh(x * 3), donate_argnums=0)
    counted = jax.jit(lambda n: n * 3 % 1001, donate_argnums=0)

    def jitted(x: Any, n: Any) -> Any:
        return scaled(x), counted(n)

    state = np.linspace(-1, 1, 16, dtype=np.float32), np.int32(1)
    for number in range(1000):
        # A jit between two programs, then a program between two jits.
        steps = (program, jitted, program) if number % 2 else (jitted, program, jitted)
        for step in steps:
            before, state = state, step(*state)
            # A question to the server.
            assert number % 100 != 1 or all(array.is_deleted() for array in before)
    return [np.asarray(array) for array in state]


@compared
def loops_with_kept_and_donated_arguments() -> Any:
    first, second = two_stages()

    def body(state: Any) -> Any:
        n, x, key = state
        key, now = jax.random.split(key)
        return n + 1, second(first(x)) / 3 + jax.random.normal(now, x.shape), key

    def step(state: Any, table: Any, end: Any, key: Any) -> Any:
        n, x, key = jax.lax.while_loop(lambda s: s[0] < end, body, (0, state["x"], key))
        # The second loop starts with a kept argument, and reads results of the first one.
        m, y, _ = jax.lax.while_loop(lambda s: s[0] < n + end, body, (n, table, key))
        return {"x": x + y, "n": state["n"] + m}, jax.random.key_data(key), table, first(y)

    step = pw.program(step, donate_argnums=0, chunk=2)
    table = jnp.arange(16.0)
    state, results = {"x": jnp.ones(16), "n": jnp.int32(0)}, []
    for end in (0, 1, 2, 5):
        given = state
        state, *more = step(given, table, end, jax.random.key(end))
        # Nothing else is where the program reads it at the first call.
        assert not results or given["x"].is_deleted()
        results.append(more)
    return jax.tree.map(np.asarray, (results, state, table))


@compared
def programs_of_bundles() -> Any:
    first, second = two_stages()

    def loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x.sum() < 200, lambda x: second(first(x)) + x, x)

    x, results = np.arange(16.0, dtype=np.float32), []
    for step in (lambda x: {"a": second(first(x)), "b": first(x)}, loop):
        with tempfile.NamedTemporaryFile(suffix=".pwb") as file:
            pw.program(step).lower(x).save(file.name)
            loaded = pw.load(file.name)
        results.append(jax.tree.map(np.asarray, dict(loaded.by_name({"x": x}))))
    return results


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(pickle.dumps(run_all(PROGRAMS)))
