"""Stored output of Shardy's MPMD front end for `mpmd_programs`."""

from __future__ import annotations

from pathlib import Path

import jax
from jaxlib.mlir import ir
from mpmd_programs import PROGRAMS

from pathways.compiler.mpmd.front_end import Partitioned
from pathways.dialect import make_context
from pathways.dialect.syntax.bytecode import bytecode_of

STORED = Path(__file__).parents[1] / "e2e" / "mpmd"


def bytecode(name: str, form: str) -> bytes:
    """Returns the output of the front end as bytecode."""
    text = (STORED / f"{name}.{form}.mlir").read_text()
    return bytecode_of(ir.Module.parse(text, make_context()))


def partitioned(name: str, form: str) -> Partitioned:
    """Returns the output of the front end, from the stored form."""
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
        argument_numbers=sorted(known["kept_var_idx"]),
        constants=(),
        out_tree=lowered.out_tree,
        out_avals=out_avals,
        callbacks=known["host_callbacks"],
    )
