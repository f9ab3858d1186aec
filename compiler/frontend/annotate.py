"""Annotations of a traced module that StableHLO lacks: slices, loops, and the user's shardings and names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from jax.sharding import PartitionSpec
from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.compiler.frontend.arguments import ArgumentHome
from pathways.compiler.frontend.specs import Spec, dims_of
from pathways.dialect.attributes.names import (
    ARGUMENT_INFO,
    DONOR,
    FRONTEND_ATTRIBUTES,
    KEYS,
    MAIN,
    SLICE,
    SPEC,
)
from pathways.dialect.attributes.shardings import make_mesh, read_mesh
from pathways.dialect.operations.metadata import CallMetadata
from pathways.passes.analysis.functions import unique_name
from pathways.runtime.resources.virtual import VirtualSlice


def calls_with_metadata(module: ir.Module) -> list[tuple[ir.Operation, CallMetadata]]:
    """Returns the operations of a module that have metadata, each with its metadata."""
    return [
        (op.operation, CallMetadata.read(op.operation))
        for function in module.body.operations
        for op in (function, *dialect.nested_ops(function))
        if FRONTEND_ATTRIBUTES in op.attributes
    ]


def declare_slices(module: ir.Module, slices: Iterable[VirtualSlice]) -> dict[str, VirtualSlice]:
    """Adds a `pw.slice` for every slice of a program, and a mesh for every shape.

    Args:
      slices: the slices of its placed calls, in any order. The module may lack some of these calls, which JAX
        drops if nothing needs their results, but glue may have to run there.

    Returns:
      The slices by name, in the order in which they were created.
    """
    ip = ir.InsertionPoint.at_block_begin(module.body)
    # Constraints inside placed functions have declared meshes, too. Of equal ones Shardy keeps the first.
    meshes: dict[tuple[tuple[str, int], ...], str] = {}
    for op in dialect.ops_named(module, ["sdy.mesh"]):
        meshes.setdefault(read_mesh(op).axes, op.attributes["sym_name"].value)
    ordered = {virtual.name: virtual for virtual in sorted(slices, key=lambda virtual: virtual.number)}
    for virtual in ordered.values():
        axes = tuple(zip(virtual.axis_names, virtual.shape, strict=True))
        if axes not in meshes:
            base = "mesh_" + "x".join(map(str, virtual.shape))
            symbols = dialect.symbol_table(module)
            meshes[axes] = base if base not in symbols else f"{base}_{'_'.join(virtual.axis_names)}"
            make_mesh(meshes[axes], axes, ip)
    for symbol, virtual in ordered.items():
        mesh = meshes[tuple(zip(virtual.axis_names, virtual.shape, strict=True))]
        overlap = True if virtual.overlap else None
        count = len(virtual.running)
        dialect.SliceOp.build(
            sym_name=symbol,
            mesh=mesh,
            island=virtual.island,
            overlap=overlap,
            replicas=count if count > 1 else None,
            ip=ip,
        )
    return ordered


def declare_loops(
    module: ir.Module, calls: Iterable[tuple[ir.Operation, CallMetadata]], schedule: str | None
) -> None:
    """Adds a `pw.loop`, named after its function, for every loop that a call with metadata names.

    A loop has the schedule that it requests, else the program's.

    While tracing, loops have numbers that are unique in the process: JAX may reuse the trace of a function.
    """
    names: dict[str, str] = {}
    symbols = set(dialect.symbol_table(module))
    ip = ir.InsertionPoint.at_block_begin(module.body)
    for op, metadata in calls:
        if metadata.loop is None:
            continue
        if metadata.loop not in names:
            name = names[metadata.loop] = unique_name(metadata.name, symbols)
            symbols.add(name)
            policy = metadata.schedule or schedule
            dialect.LoopOp.build(sym_name=name, count=metadata.count, schedule=policy, loc=op.location, ip=ip)
        dataclasses.replace(metadata, loop=names[metadata.loop], schedule=None).write(op)


def describe_arguments(
    module: ir.Module,
    paths: Sequence[str],
    donated: Sequence[bool],
    specs: Sequence[Spec],
    homes: Sequence[ArgumentHome | None],
) -> None:
    """Annotates each argument of `@main` with its name, donation and sharding.

    Args:
      module: the program.
      paths: the name of each argument for callers.
      donated: whether each is donated.
      specs: the sharding of each; empty if the user gives none.
      homes: the slice of each, where it stays; empty if placed calls determine the slices of the program.
    """
    main = dialect.symbol_table(module)[MAIN]
    attrs = dialect.argument_attrs(main)
    # Operands of JAX, such as tokens of ordered effects, precede the arguments.
    offset = len(attrs) - len(paths)
    places = homes or [None] * len(paths)
    requested = specs or [None if home is None else home.spec for home in places]
    for argument, path, is_donated, spec, home in zip(
        attrs[offset:], paths, donated, requested, places, strict=True
    ):
        argument[ARGUMENT_INFO] = ir.StringAttr.get(path)
        if is_donated:
            argument[DONOR] = ir.BoolAttr.get(True)
        if spec is not None:
            argument[SPEC] = _spec_attribute(spec)
        if home is not None:
            argument[SLICE] = dialect.make_slices([home.slice.name])
    dialect.set_argument_attrs(main, attrs)


def describe_keys(module: ir.Module, arguments: Sequence[bool], results: Sequence[bool]) -> None:
    """Marks the arguments and results of `@main` that are typed PRNG keys, whose last axis are words."""
    main = dialect.symbol_table(module)[MAIN]
    inputs, outputs = dialect.argument_attrs(main), dialect.result_attrs(main)
    # Tokens of ordered effects precede the results.
    values = [*inputs[len(inputs) - len(arguments) :], *outputs[len(outputs) - len(results) :]]
    for attrs, is_keys in zip(values, [*arguments, *results], strict=True):
        if is_keys:
            attrs[KEYS] = ir.UnitAttr.get()
    dialect.set_argument_attrs(main, inputs)
    dialect.set_result_attrs(main, outputs)


def describe_results(module: ir.Module, specs: Sequence[Spec]) -> None:
    """Annotates each result of `@main` with the sharding that the user requests."""
    main = dialect.symbol_table(module)[MAIN]
    attrs = dialect.result_attrs(main)
    for result, spec in zip(attrs, specs, strict=True):
        if spec is not None:
            result[SPEC] = _spec_attribute(spec)
    dialect.set_result_attrs(main, attrs)


def _spec_attribute(spec: PartitionSpec) -> ir.Attribute:
    return ir.ArrayAttr.get(
        [ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in dim]) for dim in dims_of(spec).dims]
    )
