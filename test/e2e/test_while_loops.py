"""`jax.lax.while_loop` over several slices, its end known to nobody before: chunks of turns, as `jax.jit`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import pathways as pw

Fun = Callable[..., Any]

WIDTH, CHUNK = 8, 4
WEIGHTS = [np.random.default_rng(n).normal(0, 0.6, (WIDTH, WIDTH)).astype(np.float32) for n in range(2)]
X = np.random.default_rng(2).normal(size=(4, WIDTH)).astype(np.float32)
LAYERS: list[Fun] = [lambda w, x: jnp.tanh(x @ w), lambda w, x: jnp.sin(x @ w) + 1]
ENDS = (0, 1, CHUNK, CHUNK + 1, 3 * CHUNK)


def decode(layers: Sequence[Fun], w: Any, x: Any, end: Any) -> Any:
    """Turns until a number or a value says that it is enough, with a cache that is filled row by row."""

    def goes_on(state: Any) -> Any:
        n, h, _ = state
        return (n < end) & (jnp.abs(h).sum() > 1e-6)

    def turn(state: Any) -> Any:
        n, h, cache = state
        h = layers[0](w[0], h)
        cache = cache.at[n % 4].set(h[0])
        return n + 1, layers[1](w[1], h) + cache.sum(), cache

    n, h, cache = jax.lax.while_loop(goes_on, turn, (0, jnp.sin(x), jnp.zeros((4, WIDTH))))
    return n, layers[1](w[1], h), cache, x


def check(program: Fun) -> None:
    expected = jax.jit(lambda *args: decode(LAYERS, *args))
    for end in ENDS:
        results = program(WEIGHTS, X, end)
        assert int(results[0]) == end
        for ours, theirs in zip(results, expected(WEIGHTS, X, end), strict=True):
            np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-5, atol=1e-5)


def program_on(shapes: Sequence[tuple[int, ...]], **shardings: Any) -> pw.Program:
    devices = pw.make_virtual_device_set()
    placed = [
        pw.jit(fun, devices=devices.add_slice(shape, ("x",)), **shardings)
        for fun, shape in zip(LAYERS, shapes, strict=True)
    ]
    return pw.program(lambda *args: decode(placed, *args), chunk=CHUNK)


def test_a_loop_ends_where_its_values_say():
    program = program_on([(1,), (1,)])
    check(program)
    weights, x = (jax.tree.map(jnp.asarray, value) for value in (WEIGHTS, X))
    first = program(weights, x, 2)
    assert not any(array.is_deleted() for array in (*weights, x)), "a loop keeps what it starts from"
    for ours, again in zip(first, program(weights, x, 2), strict=True):
        np.testing.assert_array_equal(ours, again)


def test_a_loop_on_slices_of_several_devices():
    check(program_on([(2,), (1,)], in_shardings=(P(None, "x"), None)))


def test_what_is_said_of_plans_is_said_of_a_chunk(tmp_path):
    lowered = program_on([(1,), (1,)]).lower(WEIGHTS, X, 3)
    assert lowered.as_text().count("func.func public @main") == 3
    assert '"pw.until"' in lowered.as_text("sharded")
    compiled = lowered.compile()
    placed = compiled.place(WEIGHTS, X)
    assert int(compiled(*placed, 3)[0]) == 3
    assert compiled.cost_analysis()["transfers"] >= 2 * CHUNK
    assert len(compiled.timeline().slices) == 2
    with pytest.raises(pw.BundleError, match="depends on values, which a bundle cannot hold"):
        compiled.save(tmp_path / "decode.pwb")
    with pytest.raises(TypeError, match="was compiled for"):
        compiled(WEIGHTS, X[:2], 3)


@pytest.fixture
def two_hosts(own_workers: None) -> None:
    pw.connect(hosts=2)


def test_a_loop_over_two_hosts(two_hosts):
    check(program_on([(1,), (1,)]))


def test_a_host_that_is_lost_in_a_loop(two_hosts):
    """The loop ends with an error between chunks; the next call compiles it for the new workers."""
    program = program_on([(1,), (1,)])
    program(WEIGHTS, X, 1)
    kill = threading.Timer(0.5, os.kill, (pw.status().hosts[1].pid, signal.SIGKILL))
    kill.start()
    with pytest.raises(pw.HostLostError, match=r"host 1 \(island1\) is lost"):
        program(WEIGHTS, X, 2**30)
    kill.join()
    check(program)


@pytest.mark.parametrize("chunk", [0, -1])
def test_chunks_have_turns(chunk):
    with pytest.raises(ValueError, match="chunk is a number of turns"):
        pw.program(lambda x: x, chunk=chunk)


def test_a_loop_of_an_unknown_end_in_a_branch():
    devices = pw.make_virtual_device_set()
    first, second = (pw.jit(fun, devices=devices.add_slice((1,), ("x",))) for fun in (jnp.sin, jnp.cos))

    def step(x: Any) -> Any:
        def grown(x: Any) -> Any:
            return jax.lax.while_loop(lambda x: x < 9, lambda x: second(first(x)), x)

        return jax.lax.cond(x > 0, grown, lambda x: x, x)

    with pytest.raises(
        pw.ProgramError, match=r"inside of a loop over slices or of a branch: use jax\.lax\.scan"
    ):
        pw.program(step).lower(1.0)
