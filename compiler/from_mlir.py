"""Programs that start as MLIR, in any form of the IR, instead of as a Python function."""

from __future__ import annotations

import jax
from jaxlib.mlir import ir

from pathways.compiler.arguments import Signature
from pathways.compiler.interface import Interface
from pathways.compiler.lowering import ProgramError, run_phases
from pathways.compiler.stages import Lowered
from pathways.dialect import argument_attrs, ops_named, symbol_table
from pathways.dialect.names import ARGUMENT_INFO, CONSTANT
from pathways.passes.pipeline import Options
from pathways.runtime.local.devices import cluster
from pathways.runtime.plan.lower import array_type, mesh_axes
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
    symbols = symbol_table(module)
    main = symbols.get("main")
    if main is None or main.operation.name != "func.func" or not main.regions[0].blocks:
        raise ProgramError(f"program '{name}' has no function @main with a body")
    attributes = argument_attrs(main)
    passed = [n for n, attrs in enumerate(attributes) if CONSTANT not in attrs]
    in_avals = tuple(_aval(main.type.inputs[n]) for n in passed)
    out_avals = tuple(map(_aval, main.type.results))
    interface = Interface(
        slices=_slices(module, symbols),
        argument_paths=tuple(
            attributes[n][ARGUMENT_INFO].value if ARGUMENT_INFO in attributes[n] else f"args[{n}]"
            for n in passed
        ),
        in_avals=in_avals,
        out_avals=out_avals,
        out_tree=jax.tree.structure(0 if len(out_avals) == 1 else (0,) * len(out_avals)),
        platform=cluster().platform,
    )
    signature = Signature(jax.tree.structure(((0,) * len(passed), {})), in_avals, (), None)
    return Lowered(run_phases(module, name, options), interface, signature)


def _aval(type_: ir.Type) -> jax.core.ShapedArray:
    plain = array_type(type_)
    return jax.core.ShapedArray(plain.shape, jax.numpy.dtype(plain.dtype))


def _slices(module: ir.Module, symbols: dict[str, ir.OpView]) -> dict[str, VirtualSlice]:
    devices = make_virtual_device_set()
    slices = {}
    for op in ops_named(module, ["pw.slice"]):
        names, sizes = mesh_axes(symbols[op.mesh])
        slices[op.sym_name] = devices.add_slice(
            sizes, names, name=op.sym_name, island=op.island, overlap=bool(op.overlap)
        )
    return slices
