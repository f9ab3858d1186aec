"""Host callbacks of partitioned programs."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from pathways.dialect import nested_ops, ops_named
from pathways.dialect.attributes.names import SHARDING
from pathways.passes.analysis.functions import unique_name
from pathways.passes.import_.mpmd.slices import Home

_TARGETS = ("_python_cpu_callback", "_python_gpu_callback", "_python_callback")


def keep_callbacks_together(
    module: ir.Module, function: ir.OpView, home: Home, symbols: dict[str, ir.OpView]
) -> None:
    """Lets host callbacks run once, on the first device of a slice, as JAX lowers them.

    Shardy drops the sharding that states this, and each device would call.
    """
    if home.mesh.mesh.size == 1:
        return
    for op in nested_ops(function):
        if op.operation.name != "stablehlo.custom_call" or SHARDING in op.attributes:
            continue
        if not op.attributes["call_target_name"].value.endswith(_TARGETS) or _is_manual(op):
            continue
        mesh = _maximal_mesh(module, symbols)
        # The sharding of one device has no dimensions, and one without results has one all the same.
        alone = sdy.TensorShardingAttr.get(mesh, [])
        each = [alone] * max(1, len(op.results))
        op.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get(each)


def _is_manual(op: ir.OpView) -> bool:
    """Returns whether an operation is in a `shard_map`, where each device has its own."""
    parent = op.operation.parent
    while parent is not None:
        if parent.name == "sdy.manual_computation":
            return True
        parent = parent.operation.parent
    return False


def _maximal_mesh(module: ir.Module, symbols: dict[str, ir.OpView]) -> str:
    """Returns the name of the mesh that is the first device alone."""
    first = sdy.MeshAttr.get([], device_ids=[0])
    for op in ops_named(module, ["sdy.mesh"]):
        if op.attributes["mesh"] == first:
            return op.attributes["sym_name"].value
    name = unique_name("maximal_mesh_0", symbols)
    attributes = {"sym_name": ir.StringAttr.get(name), "mesh": first}
    ip = ir.InsertionPoint.at_block_begin(module.body)
    symbols[name] = ir.Operation.create(
        "sdy.mesh", attributes=attributes, loc=ir.Location.unknown(), ip=ip
    ).opview
    return name
