"""Functions that another program exported, as placed functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import preloaded
import pytest
from check import assert_close
from models import layer

import pathways as pw

WRITER = """
import sys, jax, jax.numpy as jnp
types = jax.ShapeDtypeStruct((4, 4), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.float32)
exported = jax.export.export(jax.jit(lambda w, x: jnp.tanh(x @ w)))(*types)
open(sys.argv[1], "wb").write(exported.serialize(vjp_order=1))
"""


@pytest.fixture
def embed(tmp_path: Path) -> Callable[..., jax.Array]:
    """A function that another process exported."""
    pytest.importorskip("flatbuffers")
    file = tmp_path / "embed.bin"
    done = preloaded.run("-c", WRITER, file)
    assert done.returncode == 0, done.stderr
    return jax.export.deserialize(file.read_bytes()).call


def check_gradients(embed: Callable[..., jax.Array]) -> None:
    """Compares a step through the function, on a slice, with `jax.jit` of what was exported."""
    devices = pw.make_virtual_device_set()
    placed = pw.jit(embed, devices=devices.add_slice(1, "x"))
    head = pw.jit(lambda w, h: jnp.mean((h @ w) ** 2), devices=devices.add_slice(1, "x"))

    @pw.program
    def step(params, x):
        return jax.value_and_grad(lambda params: head(params[1], placed(params[0], x)))(params)

    random = np.random.default_rng(0)
    params = [random.normal(size=(4, 4)).astype(np.float32) for _ in range(2)]
    x = random.normal(size=(8, 4)).astype(np.float32)
    plain = jax.jit(jax.value_and_grad(lambda params: jnp.mean((layer(params[0], x) @ params[1]) ** 2)))
    assert_close(step(params, x), plain(params), 1e-5)


@pytest.mark.process
@pytest.mark.feature("front_ends", "values")
def test_exported_function_is_placed_and_differentiated(embed) -> None:
    check_gradients(embed)


@pytest.mark.feature("front_ends", "hosts")
def test_exported_function_is_placed_on_hosts(shared_workers, embed) -> None:
    pw.connect(hosts=2)
    check_gradients(embed)
