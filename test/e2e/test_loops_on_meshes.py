"""Loops inside placed functions on slices of several devices: values, and shardings of carries.

In child processes, since XLA aborts on unexpected programs.
"""

import re
from pathlib import Path

import check
import preloaded
import pytest

pytestmark = pytest.mark.process

PREPARE = f"""
import sys

sys.path.insert(0, {str(Path(check.__file__).parent)!r})

import jax
import jax.numpy as jnp
import numpy as np
from check import assert_close
from jax import lax
from jax.sharding import PartitionSpec as P
import pathways as pw

pw.connect(cpu_devices=2)
two = pw.make_virtual_device_set().add_slice((2,), ("x",))
ws = np.linspace(-1, 1, 4 * 16 * 16, dtype=np.float32).reshape(4, 16, 16)
x = np.linspace(-1, 2, 8 * 16, dtype=np.float32).reshape(8, 16)
"""

LOOPS = {
    "scan": "lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, ws)",
    "map": "lax.map(lambda w: jnp.tanh(x @ w), ws)",
    "fori_loop": "lax.fori_loop(0, 4, lambda i, c: jnp.tanh(c @ ws[i] + x), x)",
    "while_loop": "lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, jnp.tanh(c[1] @ ws[0])), (0, x))",
    "cond": "lax.cond(x.max() > 0, lambda: jnp.tanh(x @ ws[0]), lambda: x @ ws[1])",
}


def run(script: str) -> str:
    done = preloaded.run("-c", PREPARE + script)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("loop", LOOPS)
def test_loop_on_a_mesh_and_its_gradients(loop):
    script = f"""
def fun(ws, x):
    return {LOOPS[loop]}


def gradients(ws, x):
    return jax.grad(lambda *args: sum((leaf**2).sum() for leaf in jax.tree.leaves(fun(*args))), (0, 1))(ws, x)


for f in (fun, gradients) if {loop != "while_loop"} else (fun,):
    for specs in ((None, P("x")), (P(None, None, "x"), P(None, "x"))):
        assert_close(pw.jit(f, devices=two, in_shardings=specs)(ws, x), jax.jit(f)(ws, x))
    placed = pw.jit(f, devices=two)
    program = pw.program(lambda ws, x: placed(ws, x), in_shardings=(None, P("x")))
    assert_close(program(ws, x), jax.jit(f)(ws, x))
"""
    run(script)


@pytest.mark.parametrize("constraint", ["", "lax.with_sharding_constraint"])
def test_loop_on_a_mesh_keeps_its_carry_sharded(constraint):
    """A device's rows go through all layers without communication; the body's constraint keeps them there."""
    script = f"""
def body(c, w):
    return ({constraint or "lambda v, spec: v"})(jnp.tanh(c @ w), P("x")), None


placed = pw.jit(lambda ws, x: lax.scan(body, x, ws)[0], devices=two, in_shardings=(None, P("x")))
print(pw.program(lambda ws, x: placed(ws, x)).lower(ws, x).compile().as_text("device"))
"""
    text = run(script)
    (carried,) = re.findall(r"%while\S* = \((.*?)\) while\(", text)
    assert "f32[4,16]" in carried
    assert "f32[8,16]" not in carried
    assert "all-" not in text


def test_approximate_top_k_of_rows_on_several_devices():
    run("""
top = lambda x: lax.approx_max_k(x, 2)
assert_close(pw.jit(top, devices=two, in_shardings=P("x"))(x), jax.jit(top)(x))
""")
