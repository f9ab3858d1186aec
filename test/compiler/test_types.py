"""Types of programs for a type checker: parameters and results of their functions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CODE = """
import jax
import pathways as pw

s0 = pw.make_virtual_device_set().add_slice(1, "x")

@pw.jit(devices=s0)
def front(w: jax.Array, x: jax.Array) -> jax.Array:
    return w * x

@pw.program(donate_argnums=0)
def step(w: jax.Array, count: int) -> tuple[jax.Array, float]:
    return front(w, w), 1.0

reveal_type(front)
reveal_type(step)
reveal_type(step(s0, 1))
step.foo()
"""


@pytest.mark.process
def test_types_of_programs_and_placed_functions(tmp_path: Path) -> None:
    subprocess.run(["make", "-s", "type-links"], cwd=ROOT, check=True)
    (tmp_path / "user.py").write_text(CODE)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", tmp_path / "user.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    text = done.stdout.replace("jax._src.basearray.", "").replace("pathways.compiler.", "")
    reports = dict(re.findall(r"user\.py:(\d+): (.*)", text))
    assert list(reports.values()) == [
        'note: Revealed type is "placed.PlacedFunction[[w: Array, x: Array], Array]"',
        'note: Revealed type is "program.Program[[w: Array, count: int], tuple[Array, float]]"',
        'error: Argument 1 to "__call__" of "Program" has incompatible type "VirtualSlice"; '
        'expected "Array"  [arg-type]',
        'error: "Program[[Array, int], tuple[Array, float]]" has no attribute "foo"  [attr-defined]',
    ]
