"""Resharding of values whose producers and readers decided on different shardings."""

from __future__ import annotations

from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.dialect.attributes.meshes import Sharding
from pathways.dialect.attributes.names import SHARDING
from pathways.dialect.attributes.shardings import SliceMesh, make_sharding, read_sharding
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.layouts import Layouts
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block
from pathways.passes.manager.base import remark


def settle(module: ir.Module, main: ir.OpView) -> None:
    """Reshards values on their slice where their readers expect another sharding."""
    layouts = Layouts(module)
    computations = Computations(module, layouts.symbols)
    resharded: dict[tuple[ir.Value, str, Sharding], ir.Value] = {}
    slices = dialect.argument_slices(main)
    expected_results = list(zip(dialect.result_attrs(main), dialect.result_slices(main), strict=True))
    for op in list(body_block(main).operations):
        expected: list[tuple[dict[str, ir.Attribute], dialect.Slices | None]]
        if isinstance(op, dialect.LaunchOp):
            expected = [(attrs, (op.slice,)) for attrs in dialect.argument_attrs(layouts.symbols[op.callee])]
        elif isinstance(op, (dialect.CarryOp, dialect.NextOp)):
            carried = op.carry.sharding if isinstance(op, dialect.NextOp) else op.sharding
            attrs = {} if carried is None else {SHARDING: carried}
            expected = [(attrs, (op.slice,)) for _ in op.operands]
        elif isinstance(op, dialect.AllToAllOp):
            expected = [
                (_without_leading(layouts.of(value, place), layouts.meshes[place]), (place,))
                for value, place in zip(op.operands, op.slices, strict=True)
            ]
        elif op.operation.name == "func.return":
            expected = expected_results
        else:
            # Transfers, splits and reductions accept any sharding: `pw-lower-transfers` and
            # `pw-unroll-microbatches` launch reshards if needed.
            continue
        for number, (value, (attrs, places)) in enumerate(zip(list(op.operands), expected, strict=True)):
            home = dialect.slices_of(value, slices) or ()
            read_on = [place for place in places or home if place in home]
            if SHARDING not in attrs:
                continue
            target = read_sharding(attrs[SHARDING])
            if all(layouts.of(value, place) == target for place in read_on):
                continue
            for place in read_on:
                key = (value, place, target)
                # In block order: a launch in front of the first reader is in front of all later ones.
                if key not in resharded:
                    resharded[key] = _reshard(op, value, place, target, layouts, computations)
            copies = [resharded[value, place, target] for place in read_on]
            op.operands[number] = copies[0] if len(copies) == 1 else _mirror(op, copies)


def _without_leading(sharding: Sharding, home: SliceMesh) -> dict[str, ir.Attribute]:
    """Returns a sharding that leaves the leading dimension whole; nothing for a slice of one device."""
    if home.mesh.size == 1:
        return {}
    return {SHARDING: make_sharding(home.symbol, Sharding(((), *sharding.dims[1:])))}


def _mirror(reader: ir.OpView, copies: list[ir.Value]) -> ir.Value:
    """Returns a value of its copies, one for each slice that the reader wants it on."""
    ip = ir.InsertionPoint(reader)
    return dialect.MirrorOp.build(copies, [copies[0].type], loc=reader.location, ip=ip).results[0]


def _reshard(
    reader: ir.OpView,
    value: ir.Value,
    place: str,
    target: Sharding,
    layouts: Layouts,
    computations: Computations,
) -> ir.Value:
    """Launches, in front of the first reader, a computation that changes the sharding of a value."""
    location = reader.operation.location if isinstance(value, ir.BlockArgument) else value.owner.location
    mesh = layouts.meshes[place].symbol
    source, target_attr = make_sharding(mesh, layouts.of(value, place)), make_sharding(mesh, target)
    launch = dialect.LaunchOp.build(
        [_copy_on(place, value)],
        [value.type],
        callee=computations.make(
            "reshard", [value.type], list, location, arguments=[source], results=[target_attr]
        ),
        slice=place,
        loop=dialect.loop_of(value),
        loc=location,
        ip=ir.InsertionPoint(reader),
    )
    remark(launch, f"two shardings meet: {_show(source)} is resharded to {_show(target_attr)} on @{place}")
    return launch.results[0]


def _copy_on(place: str, value: ir.Value) -> ir.Value:
    """Returns the copy of a joined value on a slice: the others are none of its business."""
    if isinstance(value, ir.BlockArgument) or not dialect.op_has(value.owner.opview, Trait.ALIASES):
        return value
    return next(copy for copy in value.owner.operands if place in (dialect.slices_of(copy) or ()))


def _show(attribute: ir.Attribute) -> str:
    return str(attribute).removeprefix("#sdy.sharding")
