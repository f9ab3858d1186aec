"""Functions that another program exported, as placed functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw

WRITER = """
import sys, jax, jax.numpy as jnp
types = jax.ShapeDtypeStruct((4, 4), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.float32)
exported = jax.export.export(jax.jit(lambda w, x: jnp.tanh(x @ w)))(*types)
open(sys.argv[1], "wb").write(exported.serialize(vjp_order=1))
"""


@pytest.mark.process
@pytest.mark.feature("front_ends", "values")
def test_exported_function_is_placed_and_differentiated(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    file = tmp_path / "embed.bin"
    subprocess.run([sys.executable, "-c", WRITER, file], check=True)
    devices = pw.make_virtual_device_set()
    embed = pw.jit(jax.export.deserialize(file.read_bytes()).call, devices=devices.add_slice(1, "x"))
    head = pw.jit(lambda w, h: jnp.mean((h @ w) ** 2), devices=devices.add_slice(1, "x"))

    @pw.program
    def step(params, x):
        return jax.value_and_grad(lambda params: head(params[1], embed(params[0], x)))(params)

    random = np.random.default_rng(0)
    params = [random.normal(size=(4, 4)).astype(np.float32) for _ in range(2)]
    x = random.normal(size=(8, 4)).astype(np.float32)
    plain = jax.jit(jax.value_and_grad(lambda params: jnp.mean((jnp.tanh(x @ params[0]) @ params[1]) ** 2)))
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-5), step(params, x), plain(params)
    )
