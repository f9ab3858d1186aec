"""Reshards values where what makes them and what reads them decided on different shardings."""

from __future__ import annotations

from jaxlib.mlir import ir

from pathways.dialect import (
    LaunchOp,
    Slices,
    argument_attrs,
    argument_slices,
    loop_of,
    result_attrs,
    result_slices,
    slices_of,
)
from pathways.dialect.layouts import Layouts
from pathways.dialect.meshes import Sharding
from pathways.dialect.names import SHARDING
from pathways.dialect.shardings import make_sharding, read_sharding
from pathways.passes.base import remark
from pathways.passes.util.computations import Computations
from pathways.passes.util.functions import body_block


def settle(module: ir.Module, main: ir.OpView) -> None:
    """Reshards values on their slice where what reads them wants them to lie in another way."""
    layouts = Layouts(module)
    computations = Computations(module, layouts.symbols)
    resharded: dict[tuple[ir.Value, str, Sharding], ir.Value] = {}
    slices = argument_slices(main)
    wanted_results = list(zip(result_attrs(main), result_slices(main), strict=True))
    for op in list(body_block(main).operations):
        wanted: list[tuple[dict[str, ir.Attribute], Slices | None]]
        if isinstance(op, LaunchOp):
            wanted = [(attrs, (op.slice,)) for attrs in argument_attrs(layouts.symbols[op.callee])]
        elif op.operation.name == "func.return":
            wanted = wanted_results
        else:
            continue
        for number, (value, (attrs, places)) in enumerate(zip(list(op.operands), wanted, strict=True)):
            home = slices_of(value, slices) or ()
            place = next(p for p in places or home if p in home)
            if SHARDING not in attrs or layouts.of(value, place) == read_sharding(attrs[SHARDING]):
                continue
            key = (value, place, read_sharding(attrs[SHARDING]))
            if key not in resharded:
                resharded[key] = _reshard(op, value, place, attrs[SHARDING], layouts, computations)
            op.operands[number] = resharded[key]


def _reshard(
    reader: ir.OpView,
    value: ir.Value,
    place: str,
    target: ir.Attribute,
    layouts: Layouts,
    computations: Computations,
) -> ir.Value:
    """A launch, in front of the first reader, of a computation that changes the sharding of a value."""
    location = reader.operation.location if isinstance(value, ir.BlockArgument) else value.owner.location
    source = make_sharding(layouts.meshes[place].symbol, layouts.of(value, place))
    launch = LaunchOp.build(
        [value],
        [value.type],
        callee=computations.make(
            "reshard", [value.type], list, location, arguments=[source], results=[target]
        ),
        slice=place,
        loop=loop_of(value),
        loc=location,
        ip=ir.InsertionPoint(reader),
    )
    remark(launch, f"two shardings meet: {_show(source)} is resharded to {_show(target)} on @{place}")
    return launch.results[0]


def _show(attribute: ir.Attribute) -> str:
    return str(attribute).removeprefix("#sdy.sharding")
