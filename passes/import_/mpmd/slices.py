"""The slices of a program that Shardy partitioned: one for each mesh of its topology."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from pathways.dialect import SliceOp, ops_named, symbol_table
from pathways.dialect.attributes.meshes import Mesh
from pathways.dialect.attributes.shardings import SliceMesh, make_mesh, read_mesh
from pathways.passes.analysis.functions import unique_name

_NO_LETTERS = re.compile(r"[^A-Za-z0-9_]+")


@dataclasses.dataclass(frozen=True)
class Home:
    """The slice that a mesh of the topology becomes.

    Attributes:
      slice: its name in the module.
    """

    slice: str
    mesh: SliceMesh


def symbol_of(name: str) -> str:
    """Returns a name as a symbol: letters, digits and `_`, no digit first."""
    symbol = _NO_LETTERS.sub("_", name).strip("_") or "mesh"
    return f"_{symbol}" if symbol[0].isdigit() else symbol


def declare_slices(
    module: ir.Module, topology: Mapping[str, Mesh], overlapping: Collection[str]
) -> dict[str, Home]:
    """Declares a slice for each mesh of a topology; equal meshes share an `sdy.mesh`.

    Args:
      topology: the meshes by name.
      overlapping: the slices with common devices.
    """
    used_names = set(symbol_table(module))
    mesh_names: dict[Mesh, str] = {}
    for op in ops_named(module, ["sdy.mesh"]):
        # Shardy's note to other compilers; the mesh states it already.
        if "stablehlo.mesh" in op.attributes:
            del op.attributes["stablehlo.mesh"]
        if not list(sdy.MeshAttr(op.attributes["mesh"]).device_ids):
            mesh_names.setdefault(read_mesh(op), op.attributes["sym_name"].value)
    ip = ir.InsertionPoint.at_block_begin(module.body)
    homes: dict[str, Home] = {}
    for mesh in dict.fromkeys(topology.values()):
        if mesh not in mesh_names:
            mesh_names[mesh] = unique_name("mesh", used_names)
            used_names.add(mesh_names[mesh])
            make_mesh(mesh_names[mesh], mesh.axes, ip)
    for name, mesh in topology.items():
        slice = unique_name(symbol_of(name), used_names)
        used_names.add(slice)
        overlap = True if name in overlapping else None
        SliceOp.build(sym_name=slice, mesh=mesh_names[mesh], overlap=overlap, ip=ip)
        homes[name] = Home(slice, SliceMesh(mesh_names[mesh], mesh))
    return homes
