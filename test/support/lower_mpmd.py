"""Writer of the output of Shardy's MPMD front end for `mpmd_programs`: `python lower_mpmd.py FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import mpmd_programs
from jaxlib.mlir import ir

import pathways.mpmd  # noqa: F401 (makes the front end importable)
from pathways.compiler.mpmd.front_end import read_front_end
from pathways.dialect import make_context


def jitted(program: mpmd_programs.MpmdProgram) -> Any:
    """Returns the function of a program, under the front end's `jit`."""
    import shardy.integrations.python.jax.mpmd as front
    from shardy.integrations.python.jax.mpmd.pipeline_registry import get_pipeline_schedule

    config = front.make_config(
        program.topology(),
        {name: f"mesh{stage % len(program.meshes)}" for name, stage in program.assignment.items()},
        name_to_stage_assignment=program.assignment if program.staged else {},
        pipeline_schedule=program.schedule and get_pipeline_schedule(program.schedule),
    )
    return front.jit(program.make(front), config, donate_argnums=program.donate)


def arguments(program: mpmd_programs.MpmdProgram) -> list[Any]:
    """Returns the types of the arguments, with shardings."""
    mesh = next(iter(program.topology().values()))
    leaves, structure = jax.tree.flatten(tuple(program.args))
    types = [
        jax.ShapeDtypeStruct(
            leaf.shape,
            leaf.dtype,
            sharding=jax.sharding.NamedSharding(mesh, program.specs[n]) if n in program.specs else None,
        )
        for n, leaf in enumerate(leaves)
    ]
    return list(structure.unflatten(types))


def main(folder: Path) -> None:
    for name, program in mpmd_programs.PROGRAMS.items():
        traced = jitted(program).trace(*arguments(program))
        for form, output in (("call", traced.lower()), ("fragment", traced)):
            if form not in program.forms and form != "call":
                continue
            text = str(ir.Module.parse(read_front_end(output).bytecode, make_context()))
            (folder / f"{name}.{form}.mlir").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
