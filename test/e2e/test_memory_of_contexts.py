"""Memory of lowering and loading programs is freed: an MLIR context is 1.2 MB."""

import preloaded
import pytest

PROGRAM = """
import gc
import sys
from pathlib import Path

import jax
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
    jax.clear_caches()
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


pw.program(program).lower(x).compile().save(sys.argv[1])
for repeated in (lower, load):
    sizes = []
    for _ in range(6):
        for _ in range(20):
            repeated()
        sizes.append(resident())
    print(sizes[-1] - sizes[1])  # The first ones fill pools.
"""


@pytest.mark.process
def test_contexts_of_programs_and_bundles_are_freed(tmp_path):
    done = preloaded.run("-c", PROGRAM, tmp_path / "program.pwb", timeout=300)
    assert done.returncode == 0, done.stderr
    for grown in map(float, done.stdout.split()):
        assert grown < 10, f"{grown:.0f} MB in 80 times"
