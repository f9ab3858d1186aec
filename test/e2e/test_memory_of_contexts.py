"""Memory of programs is freed with them: what they close over, and MLIR contexts, which are 1.2 MB each."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import preloaded
import pytest

import pathways as pw

PROGRAM = """
import gc
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import pathways as pw

pw.connect(cpu_devices=2)
devices = pw.make_virtual_device_set()
front, back = (pw.jit(f, devices=devices.add_slice((1,), ("x",))) for f in (jnp.sin, jnp.cos))
x = np.ones(2, np.float32)


def program(x):
    return back(front(x))


def lower():
    pw.program(lambda x: program(x)).lower(x)


def load():
    pw.load(sys.argv[1], trust=True)


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


pw.program(program).lower(x).compile().save(sys.argv[1])
for repeated in (lower, load):
    sizes = []
    for _ in range(6):
        for _ in range(20):
            repeated()
        sizes.append(resident())
    print(sizes[-1] - sizes[1])  # The first programs fill pools.
"""


@pytest.mark.process
def test_contexts_of_programs_and_bundles_are_freed(tmp_path):
    done = preloaded.run("-c", PROGRAM, tmp_path / "program.pwb", timeout=300)
    assert done.returncode == 0, done.stderr
    for grown in map(float, done.stdout.split()):
        assert grown < 10, f"{grown:.0f} MB in 80 times"


Placed = Callable[[Any], Any]


def called(placed: Placed, x: np.ndarray) -> None:
    jax.block_until_ready(pw.program(lambda x: placed(x))(x))


def called_alone(placed: Placed, x: np.ndarray) -> None:
    jax.block_until_ready(placed(x))


def only_lowered(placed: Placed, x: np.ndarray) -> None:
    pw.program(lambda x: placed(x)).lower(x)


def lowered_without_unused(placed: Placed, x: np.ndarray) -> None:
    """Lowers a program without a tangent that is not needed and that JAX cannot lower."""

    @jax.custom_vjp
    def scale(x):
        return placed(x)

    scale.defvjp(lambda x: (placed(x), None), lambda _, cotangent: (cotangent,))
    pw.program(lambda x: jax.linearize(scale, x)[0]).lower(x)


def typed(placed: Placed, x: np.ndarray) -> None:
    jax.eval_shape(pw.program(lambda x: placed(x)), x)


def trained(placed: Placed, x: np.ndarray) -> None:
    def loss(w: Any, x: Any) -> Any:
        return placed(x * w).sum()

    pw.program(lambda w, x: pw.accumulate(jax.value_and_grad(loss), 2)(w, x)).lower(np.float32(1), x)


def refused(placed: Placed, x: np.ndarray) -> None:
    with pytest.raises(TypeError, match="reshape"):
        pw.program(lambda x: placed(x).reshape(3)).lower(x)


@pytest.mark.parametrize(
    "use", [called, called_alone, only_lowered, lowered_without_unused, typed, trained, refused]
)
def test_arrays_that_a_program_closes_over_are_freed(use):
    def cell() -> weakref.ref[jax.Array]:
        """Defines and calls a program as a cell of a notebook does each time it runs."""
        table = jnp.arange(4.0)
        placed = pw.jit(lambda x: x * table, devices=pw.make_virtual_device_set().add_slice(1, "x"))
        use(placed, np.ones((2, 4), np.float32))
        return weakref.ref(table)

    table = cell()
    gc.collect()
    assert table() is None
