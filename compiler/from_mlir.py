"""Programs that start as MLIR, in any form of the IR, instead of as a Python function."""

from __future__ import annotations

import jax
from jaxlib.mlir import ir

from pathways.compiler.arguments import Signature
from pathways.compiler.interface import Interface
from pathways.compiler.lowering import ProgramError, run_phases
from pathways.compiler.stages import Lowered
from pathways.dialect.names import ARGUMENT_INFO, CONSTANT
from pathways.dialect.program import Attributes, ProgramView, read_program
from pathways.passes.pipeline import Options
from pathways.runtime.local.devices import cluster
from pathways.runtime.plan.lower import array_type
from pathways.runtime.resources.virtual import VirtualSlice, make_virtual_device_set


def lower_module(module: ir.Module, name: str, options: Options) -> Lowered:
    """Takes a module through the phases that follow its form.

    Its arguments are positional; one result is returned as it is, several as a tuple.

    Args:
      module: a module that the verifier of the dialect accepts: StableHLO with the metadata of placed calls,
        or one in any of its forms.
      name: what to call the program if the module has no name.
      options: of the compiler.

    Raises:
      ProgramError: it has no function `@main` with a body, or a pass refuses it.
    """
    if "sym_name" in module.operation.attributes:
        name = module.operation.attributes["sym_name"].value
    program = read_program(module)
    if program is None:
        raise ProgramError(f"program '{name}' has no function @main with a body")
    passed = [n for n, attrs in enumerate(program.arguments) if CONSTANT not in attrs]
    types = program.main.type
    in_avals = tuple(_aval(types.inputs[n]) for n in passed)
    out_avals = tuple(map(_aval, types.results))
    interface = Interface(
        slices=_slices(program),
        argument_paths=tuple(_path(program.arguments[n], n) for n in passed),
        in_avals=in_avals,
        out_avals=out_avals,
        out_tree=jax.tree.structure(0 if len(out_avals) == 1 else (0,) * len(out_avals)),
        platform=cluster().platform,
    )
    signature = Signature(jax.tree.structure(((0,) * len(passed), {})), in_avals, (), None)
    return Lowered(run_phases(module, name, options), interface, signature)


def _path(attributes: Attributes, n: int) -> str:
    return attributes[ARGUMENT_INFO].value if ARGUMENT_INFO in attributes else f"args[{n}]"


def _aval(type_: ir.Type) -> jax.core.ShapedArray:
    plain = array_type(type_)
    return jax.core.ShapedArray(plain.shape, jax.numpy.dtype(plain.dtype))


def _slices(program: ProgramView) -> dict[str, VirtualSlice]:
    devices = make_virtual_device_set()
    slices = {}
    for name, mesh in program.meshes.items():
        op = program.symbols[name]
        axes = dict(mesh.axes)
        slices[name] = devices.add_slice(
            tuple(axes.values()), tuple(axes), name=name, island=op.island, overlap=bool(op.overlap)
        )
    return slices
