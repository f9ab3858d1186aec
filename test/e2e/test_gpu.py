"""Nothing is for CPUs alone: slices that share one GPU run the same programs."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

TRAIN = """
import jax, jax.numpy as jnp, numpy as np, pathways as pw

jax.config.update("jax_default_matmul_precision", "float32")
devices = pw.make_virtual_device_set()
s0, s1 = (devices.add_slice(shape=(1,), axis_names=("x",), overlap=True) for _ in range(2))
layer = lambda w, x: jnp.tanh(x @ w)
first, second = pw.jit(layer, devices=s0), pw.jit(layer, devices=s1)

def step(first, second, w, x):
    grads = jax.grad(lambda w: jnp.mean(second(w[1], jax.nn.gelu(first(w[0], x))) ** 2))(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads)

keys = jax.random.split(jax.random.key(0), 3)
w, x = tuple(jax.random.normal(k, (32, 32)) for k in keys[:2]), jax.random.normal(keys[2], (16, 32))
ours = pw.program(lambda w, x: step(first, second, w, x), donate_argnums=0)
theirs = jax.jit(lambda w, x: step(layer, layer, w, x))
mine, reference = jax.tree.map(jnp.copy, w), w
for _ in range(10):
    mine, reference = ours(mine, x), theirs(reference, x)
for p, q in zip(mine, reference, strict=True):
    assert np.linalg.norm(p - q) <= 1e-5 * np.linalg.norm(q), np.linalg.norm(p - q)
print("agrees")
"""


def run_on_gpu(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs Python where JAX has nothing but GPUs."""
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env={**os.environ, "JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )


@functools.cache
def has_gpu() -> bool:
    return (
        shutil.which("nvidia-smi") is not None
        and run_on_gpu("-c", "import jax; jax.devices()").returncode == 0
    )


@pytest.fixture(autouse=True)
def gpu():
    if not has_gpu():
        pytest.skip("JAX sees no GPU")


def test_figure2():
    done = run_on_gpu(EXAMPLES / "figure2.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "f([1. 2.]) = ([3. 5.], [2. 4.])\n4 launches, 3 transfers between slices\n"


def test_the_language_model(tmp_path):
    done = run_on_gpu(EXAMPLES / "char_lm.py", "--quick", "--dump-dir", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "losses of the first 12 steps agree" in done.stdout


def test_training_on_slices_that_share_a_gpu():
    done = run_on_gpu("-c", TRAIN)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "agrees\n"
