"""Forms, bundles and errors are the same bytes for all seeds of the hashes of strings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import models
import pytest

from pathways.compiler.lower.phases import PHASES

pytestmark = pytest.mark.process

SEEDS = ("0", "7")
SUPPORT = Path(models.__file__).parent
PASSES = Path(__file__).parents[1] / "passes"

# Lowers a training step with most kinds of passes over it, and a loop with an unknown trip count.
LOWERED = """
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P
from models import apply, gradients_of, layer, place_on, squared_error

import pathways as pw
from pathways.compiler.lower.phases import PHASES

pw.connect(cpu_devices=10)
trained = pw.make_virtual_device_set(replicas=2)
stages = place_on([trained.add_slice((2,), ("x",)) for _ in range(2)], in_shardings=(P(None, "x"), P("x")))
decoders = place_on([pw.make_virtual_device_set().add_slice((1,), ("x",)) for _ in range(2)])
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
params = [np.ones((8, 8), np.float32)] * 2
x = np.ones((8, 8), np.float32)


def train(params, state, batch):
    value, gradients = gradients_of(squared_error(stages), 4)(params, batch)
    updates, state = optimizer.update(gradients, state, params)
    return value, optax.apply_updates(params, updates), state


def decode(params, x, end):
    def body(state):
        n, h, cache = state
        h = jax.lax.cond(h.sum() > 0, lambda: apply(decoders, params, h), lambda: decoders[0](params[0], h))
        return n + 1, h, {"rows": cache["rows"].at[n % 4].set(h[0]), "sum": cache["sum"] + h}

    cache = {"rows": jnp.zeros((4, 8)), "sum": x}
    return jax.lax.while_loop(lambda state: state[0] < end, body, (0, x, cache))


train = pw.program(train, schedule="zb-h1", zero1=True, donate_argnums=(0, 1))
for name, lowered in (
    ("train", train.lower(params, optimizer.init(params), (x, x))),
    ("decode", pw.program(decode, chunk=4).lower(params, x, 3)),
):
    for phase in PHASES:
        Path(f"{name}.{phase}.mlir").write_text(lowered.as_text(phase))
    lowered.save(f"{name}.pwb")
"""

MOVES_FROM_TWO_SLICES = """
module @moves_from_two_slices attributes {pw.form = "sharded"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s2"} : () -> ()
  func.func @main(%x: tensor<f32> {pw.slice = @s0}, %y: tensor<f32> {pw.slice = @s1}) {
    %0 = "pw.transfer"(%x, %y) {routes = array<i64: 0, 5>, slice = @s2}
        : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return
  }
}
"""


def run(seed: str, *command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(SUPPORT), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
        **options,
    )


def test_hash_seed_does_not_change_forms_and_bundles(tmp_path: Path) -> None:
    written = []
    for seed in SEEDS:
        folder = tmp_path / seed
        folder.mkdir()
        result = run(seed, "-c", LOWERED, cwd=folder)
        assert result.returncode == 0, result.stderr
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    first, second = written
    assert {"train.pwb", "decode.pwb", f"train.{PHASES[-1]}.mlir"} <= first.keys()
    assert second.keys() == first.keys()
    assert [name for name in first if second[name] != first[name]] == []


@pytest.mark.parametrize(
    ("file", "pipeline", "found"),
    [
        (
            "shard/halves/split_backward.mlir",
            "pw-split-backward{policy=zb-h1},pw-propagate-shardings,pw-lower-transfers",
            'part = "weight"',
        ),
        (
            "shard/updates/split_updates.mlir",
            "pw-split-updates,pw-replicate,pw-lower-all-reduces",
            "@scatter_total",
        ),
    ],
)
def test_hash_seed_does_not_change_results_of_passes(file: str, pipeline: str, found: str) -> None:
    command = ("-m", "pathways.tools.pw_opt", PASSES / file, "--split-input-file", "-p", pipeline)
    first, second = (run(seed, *command).stdout for seed in SEEDS)
    assert found in first
    assert second == first


def test_hash_seed_does_not_change_errors() -> None:
    first, second = (
        run(seed, "-m", "pathways.tools.pw_opt", "-", input=MOVES_FROM_TWO_SLICES).stderr for seed in SEEDS
    )
    assert first.count("error: ") == 3
    assert second == first
