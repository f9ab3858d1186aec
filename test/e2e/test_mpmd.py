"""Programs that Shardy's MPMD compiler has partitioned give what `jax.jit` of the same function gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jaxlib.mlir import ir
from mpmd_programs import PROGRAMS, MpmdProgram

from pathways.compiler.mpmd.from_mpmd import lower_partitioned
from pathways.compiler.mpmd.front_end import Partitioned
from pathways.compiler.stages import Lowered
from pathways.dialect import make_context
from pathways.dialect.syntax.bytecode import bytecode_of

STORED = Path(__file__).parent / "mpmd"
FORMS = ("call", "fragment")


def bytecode(name: str, form: str) -> bytes:
    text = (STORED / f"{name}.{form}.mlir").read_text()
    return bytecode_of(ir.Module.parse(text, make_context()))


def partitioned(name: str, form: str) -> Partitioned:
    """What the front end hands over, from what is stored of it."""
    program = PROGRAMS[name]
    lowered = jax.jit(program.plain(), donate_argnums=program.donate).lower(*program.args)
    known = lowered._lowering.compile_args
    out_avals = [jax.core.ShapedArray(out.shape, out.dtype) for out in jax.tree.leaves(lowered.out_info)]
    return Partitioned(
        name=name,
        bytecode=bytecode(name, form),
        exported=bytecode(name, "call") if form == "fragment" else None,
        topology=program.topology(),
        in_tree=jax.tree.structure(tuple(program.args)),
        arguments=jax.tree.leaves(lowered.args_info),
        kept=sorted(known["kept_var_idx"]),
        constants=(),
        out_tree=lowered.out_tree,
        out_avals=out_avals,
        callbacks=known["host_callbacks"],
    )


def check(lowered: Lowered, program: MpmdProgram) -> Any:
    """Runs a program twice and compares with `jax.jit`."""
    run, expected = lowered.compile(), jax.jit(program.plain())(*program.args)
    for _ in range(2):
        args = jax.tree.map(jax.numpy.array, tuple(program.args))
        results = run(*args)
        assert jax.tree.structure(results) == jax.tree.structure(expected)
        for got, want in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(np.array(got), np.array(want), rtol=2e-5, atol=1e-6)
    return args, results


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_equal_plain_jax(name, form):
    check(lower_partitioned(partitioned(name, form)), PROGRAMS[name])


def test_donated_arguments_end_also_where_jax_has_dropped_them():
    args, results = check(lower_partitioned(partitioned("two_stages", "call")), PROGRAMS["two_stages"])
    assert all(array.is_deleted() for array in jax.tree.leaves((args[0], args[2])))
    assert not args[1].is_deleted()
    assert [next(iter(w.devices())).id for w in results["params"]["w"]] == [0, 1]


def test_results_lie_as_shardy_says():
    lowered = lower_partitioned(partitioned("sharded", "call"))
    traced = lower_partitioned(partitioned("sharded", "fragment"))
    first, second = (set(mesh.devices.flat) for mesh in PROGRAMS["sharded"].topology().values())
    for one in (lowered, traced):
        loss, params = one.compile().output_shardings
        assert [set(s.device_set) for s in (loss, *params)] == [second, first, second]
        assert [s.spec for s in params] == [jax.P(None, "x"), jax.P("x")]
