"""`jax_debug_nans` and `jax_debug_infs` name the user's line that produces the first NaN or infinity."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw

THIS = Path(__file__)


def at(marker: str) -> str:
    """Returns the position of `# marker` in this file, as messages name it."""
    (number,) = (n for n, line in enumerate(THIS.read_text().splitlines(), 1) if line.endswith(f"# {marker}"))
    return rf"{re.escape(str(THIS))}:{number}:\d+"


@pytest.fixture(autouse=True)
def debug_nans() -> Iterator[None]:
    with jax.debug_nans(True):
        yield


@pytest.fixture
def slices() -> list[pw.VirtualSlice]:
    devices = pw.make_virtual_device_set()
    return [devices.add_slice(1, "x"), devices.add_slice(2, "x")]


@jax.jit
def logarithm(x: jax.Array) -> jax.Array:
    return jnp.log(x * 2)  # a function in a function


def test_debug_nans_names_line_in_called_function(slices):
    fun = pw.jit(lambda x: jax.nn.relu(logarithm(x)) + 1, devices=slices[0])
    with pytest.raises(FloatingPointError) as raised:
        pw.program(lambda x: fun(x))(-np.ones(3, np.float32))
    message = rf"program 'lambda', step .* on slice {slices[0].name}: log at {at('a function in a function')}"
    assert re.fullmatch(f"{message} gives nan", str(raised.value))


def test_debug_nans_names_microbatch(slices):
    front = pw.jit(lambda w, x: x @ w, devices=slices[0])
    back = pw.jit(lambda x: jnp.sqrt(x).sum(), devices=slices[1], in_shardings=(jax.P("x"),))  # a square root

    @pw.program(schedule="1f1b", donate_argnums=0)
    def step(w, x):
        loss, gradient = pw.accumulate(jax.value_and_grad(lambda w, x: back(front(w, x))), 4)(w, x)
        return w - gradient, loss

    x = np.ones((8, 4), np.float32)
    x[5] = -1
    with pytest.raises(FloatingPointError) as raised:
        step(np.ones((4, 4), np.float32), x)
    message = f"on slice {slices[1].name}, microbatch 2: sqrt at {at('a square root')} gives nan"
    assert re.search(message, str(raised.value))
    # Donated arguments are kept, so that the launch can be repeated; the results are the same.
    weights, loss = step(np.ones((4, 4), np.float32), np.abs(x))
    assert (weights.shape, float(loss)) == ((4, 4), 16)


def test_debug_nans_names_infinity(slices):
    fun = pw.jit(lambda x: 1 / x, devices=slices[0])  # a division
    with jax.debug_nans(False), jax.debug_infs(True), pytest.raises(FloatingPointError) as raised:
        fun(np.zeros(2, np.float32))
    assert re.search(f"div(ide)? at {at('a division')} gives inf", str(raised.value))
