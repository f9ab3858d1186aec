"""Equal programs give equal bytes, whatever seed Python hashes strings with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import lower_examples
import pytest

from pathways.compiler.lower.phases import PHASES

SEEDS = ("0", "1", "7")

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


def run(
    seed: str, *command: str | Path, more: Mapping[str, str] = {}, **options: object
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu", **more}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
        **options,
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, bytes]]:
    """What each seed gives, by the names of the files."""
    # What examples compute with JAX itself, such as their parameters, is compiled once for all seeds.
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache_of_jax")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    folders = [tmp_path_factory.mktemp(f"seed{seed}") for seed in SEEDS]
    for seed, folder in zip(SEEDS, folders, strict=True):
        result = run(seed, lower_examples.__file__, folder, more=cache)
        assert result.returncode == 0, result.stderr
    return [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]


def test_every_example_is_lowered() -> None:
    examples = {path.stem for path in lower_examples.EXAMPLES.glob("[!_]*.*")}
    assert {program.__name__ for program in lower_examples.PROGRAMS} == examples


@pytest.mark.parametrize("program", [program.__name__ for program in lower_examples.PROGRAMS])
def test_forms_and_bundles_are_equal(written: list[dict[str, bytes]], program: str) -> None:
    first, *others = ({n: d for n, d in files.items() if n.startswith(f"{program}.")} for files in written)
    assert {f"{program}.pwb", f"{program}.{PHASES[-1]}.mlir"} <= first.keys()
    for other in others:
        assert other.keys() == first.keys()
        assert [name for name in first if other[name] != first[name]] == []


def test_halves_are_equal() -> None:
    examples = Path(__file__).parents[1] / "passes" / "backward" / "split_backward.mlir"
    pipeline = "pw-split-backward{policy=zb-h1},pw-propagate-shardings,pw-lower-transfers"
    command = ("-m", "pathways.tools.pw_opt", examples, "--split-input-file", "-p", pipeline)
    first, *others = (run(seed, *command).stdout for seed in SEEDS)
    assert first.count('part = "weight"') == 7
    assert others == [first] * 2


def test_split_updates_are_equal() -> None:
    examples = Path(__file__).parents[1] / "passes" / "replicate" / "split_updates.mlir"
    pipeline = "pw-split-updates,pw-replicate,pw-lower-all-reduces"
    command = ("-m", "pathways.tools.pw_opt", examples, "--split-input-file", "-p", pipeline)
    first, *others = (run(seed, *command).stdout for seed in SEEDS)
    assert "@scatter_total" in first
    assert others == [first] * 2


def test_errors_are_equal() -> None:
    first, *others = (
        run(seed, "-m", "pathways.tools.pw_opt", "-", input=MOVES_FROM_TWO_SLICES).stderr for seed in SEEDS
    )
    assert first.count("error: ") == 3
    assert others == [first] * 2
