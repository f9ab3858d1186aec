"""From a Python function to a module of the `pw` compiler's own context: JAX's StableHLO plus slices."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from pathways.compiler import jax_internals
from pathways.compiler.interface import Interface
from pathways.compiler.specs import Spec, dims_of, flat_specs
from pathways.compiler.trace_state import slice_named, tracing
from pathways.dialect import (
    LoopOp,
    SliceOp,
    argument_attrs,
    make_context,
    ops_named,
    result_attrs,
    set_argument_attrs,
    set_result_attrs,
    symbol_table,
)
from pathways.dialect.metadata import CallMetadata
from pathways.dialect.names import ARGUMENT_INFO, DONOR, MAIN, SPEC
from pathways.dialect.shardings import read_mesh
from pathways.passes.util.functions import unique_name
from pathways.runtime.resources.virtual import VirtualSlice


@dataclasses.dataclass(frozen=True)
class Traced:
    """A program traced for one signature.

    Attributes:
      module: StableHLO with metadata calls and the `pw.slice` ops that they name.
      interface: what it takes, returns and runs on.
      callbacks: host callbacks that the computations refer to by position.
      keepalive: what must live as long as the executables.
    """

    module: ir.Module
    interface: Interface
    callbacks: Sequence[Any]
    keepalive: Sequence[Any]


def trace(
    fun: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    donated: Sequence[bool],
    platform: str,
    static_argnums: tuple[int, ...] = (),
    static_argnames: tuple[str, ...] = (),
    in_specs: Sequence[Spec] = (),
    out_shardings: Any = None,
    schedule: str | None = None,
) -> Traced:
    """Traces a program and brings its StableHLO into a context of ours.

    Args:
      fun: the function.
      name: the name of the program.
      args: its arguments, static ones as they are, others as abstract values.
      kwargs: likewise.
      donated: for each flat argument that is not static, whether the program consumes it.
      platform: the platform to lower for, such as `cpu`.
      static_argnums: positions of static arguments.
      static_argnames: names of static arguments.
      in_specs: how the user wants each flat argument to lie over its slice; empty for no wishes.
      out_shardings: how the user wants the results to lie, as a tree or a prefix of one.
      schedule: the pipeline schedule of its loops over microbatches.

    Raises:
      UnexpectedTracerError: when the function closes over a tracer of another trace.
      ValueError: when the function mentions a sharding over a mesh that is not a slice's.
      Whatever the function raises while it is traced.
    """
    jitted = jax.jit(
        fun,
        static_argnums=static_argnums or None,
        static_argnames=static_argnames or None,
        keep_unused=True,
    )
    with tracing(name):
        traced = jitted.trace(*args, **kwargs)
        if len(traced.jaxpr.in_avals) > len(donated):
            raise jax.errors.UnexpectedTracerError(
                f"program '{name}' closes over a JAX tracer, which leaked out of another trace or belongs to "
                "a transformation around the program: pass the value as an argument, and put "
                "transformations inside the program"
            )
        lowered = traced.lower(lowering_platforms=(platform,))
    foreign, callbacks, keepalive = jax_internals.lowered_parts(lowered)
    buffer = io.BytesIO()
    foreign.operation.write_bytecode(buffer)
    module = ir.Module.parse(buffer.getvalue(), make_context())
    paths = tuple(jax_internals.argument_names(traced.jaxpr, len(traced.jaxpr.in_avals)))
    with module.context, ir.Location.unknown():
        module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        slices = _declare_slices(module)
        _declare_loops(module, schedule)
        _check_shardings(name, traced.jaxpr.jaxpr, slices.values())
        _describe_arguments(module, paths, donated, in_specs)
        if out_shardings is not None:
            results = jax.tree.unflatten(lowered.out_tree, range(lowered.out_tree.num_leaves))
            _describe_results(
                module, flat_specs(out_shardings, results, f"out_shardings of program '{name}'")
            )
    interface = Interface(
        slices=slices,
        argument_paths=paths,
        in_avals=tuple(traced.jaxpr.in_avals),
        out_avals=tuple(traced.jaxpr.out_avals),
        out_tree=lowered.out_tree,
        platform=platform,
    )
    return Traced(module, interface, callbacks, keepalive)


def _check_shardings(program: str, jaxpr: Any, slices: Iterable[VirtualSlice]) -> None:
    """Refuses shardings over physical devices, and over meshes like no slice's."""
    meshes = {(virtual.axis_names, virtual.shape) for virtual in slices}
    for sharding, line in jax_internals.named_shardings(jaxpr):
        mesh, where = sharding.mesh, f" at {line}" if line else ""
        if isinstance(mesh, jax.sharding.Mesh):
            raise ValueError(
                f"program '{program}': {sharding}{where} names physical devices, but a slice gets them "
                "only when the program is loaded; inside a placed function give the PartitionSpec alone"
            )
        if not mesh.empty and (mesh.axis_names, mesh.axis_sizes) not in meshes:
            raise ValueError(
                f"program '{program}': {sharding}{where} is over a mesh that no slice of the program has; "
                "inside a placed function give the PartitionSpec alone"
            )


def _declare_slices(module: ir.Module) -> dict[str, VirtualSlice]:
    """Adds a `pw.slice` for every slice that a metadata call names, and a mesh for every shape."""
    slices: dict[str, VirtualSlice] = {}

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = CallMetadata.read(op).slice
        if name is not None:
            slices.setdefault(name, slice_named(name))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    ip = ir.InsertionPoint.at_block_begin(module.body)
    # Constraints inside placed functions have brought meshes along. Of equal ones Shardy keeps the first.
    meshes: dict[tuple[tuple[str, int], ...], str] = {}
    for op in ops_named(module, ["sdy.mesh"]):
        meshes.setdefault(read_mesh(op).axes, op.attributes["sym_name"].value)
    ordered = dict(sorted(slices.items(), key=lambda item: item[1].number))
    for virtual in ordered.values():
        axes = tuple(zip(virtual.axis_names, virtual.shape, strict=True))
        if axes not in meshes:
            base = "mesh_" + "x".join(map(str, virtual.shape))
            taken = symbol_table(module)
            meshes[axes] = base if base not in taken else f"{base}_{'_'.join(virtual.axis_names)}"
            attributes = {
                "sym_name": ir.StringAttr.get(meshes[axes]),
                "mesh": sdy.MeshAttr.get([sdy.MeshAxisAttr.get(n, s) for n, s in axes]),
            }
            ip.insert(ir.Operation.create("sdy.mesh", attributes=attributes))
    for symbol, virtual in ordered.items():
        mesh = meshes[tuple(zip(virtual.axis_names, virtual.shape, strict=True))]
        overlap = True if virtual.overlap else None
        SliceOp.build(sym_name=symbol, mesh=mesh, island=virtual.island, overlap=overlap, ip=ip)
    return ordered


def _declare_loops(module: ir.Module, schedule: str | None) -> None:
    """Adds a `pw.loop` for every loop that a metadata call names, and calls it after its function.

    While tracing, loops have numbers that are unique in the process: JAX may reuse the trace of a function.
    """
    names: dict[str, str] = {}
    taken = set(symbol_table(module))
    ip = ir.InsertionPoint.at_block_begin(module.body)

    def visit(op: ir.Operation) -> ir.WalkResult:
        metadata = CallMetadata.read(op)
        if metadata.loop is None:
            return ir.WalkResult.ADVANCE
        if metadata.loop not in names:
            name = names[metadata.loop] = unique_name(metadata.name, taken)
            taken.add(name)
            LoopOp.build(sym_name=name, count=metadata.count, schedule=schedule, loc=op.location, ip=ip)
        dataclasses.replace(metadata, loop=names[metadata.loop]).write(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _describe_arguments(
    module: ir.Module, paths: Sequence[str], donated: Sequence[bool], specs: Sequence[Spec]
) -> None:
    """Notes on each argument of `@main` what the caller calls it, whether it is donated, and how it lies."""
    main = symbol_table(module)[MAIN]
    attrs = argument_attrs(main)
    offset = len(attrs) - len(paths)
    wishes = specs or [None] * len(paths)
    for argument, path, is_donated, spec in zip(attrs[offset:], paths, donated, wishes, strict=True):
        argument[ARGUMENT_INFO] = ir.StringAttr.get(path)
        if is_donated:
            argument[DONOR] = ir.BoolAttr.get(True)
        if spec is not None:
            argument[SPEC] = _spec_attribute(spec)
    set_argument_attrs(main, attrs)


def _describe_results(module: ir.Module, specs: Sequence[Spec]) -> None:
    """Notes on each result of `@main` how the user wants it to lie over its slice."""
    main = symbol_table(module)[MAIN]
    attrs = result_attrs(main)
    for result, spec in zip(attrs, specs, strict=True):
        if spec is not None:
            result[SPEC] = _spec_attribute(spec)
    set_result_attrs(main, attrs)


def _spec_attribute(spec: PartitionSpec) -> ir.Attribute:
    return ir.ArrayAttr.get(
        [ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in dim]) for dim in dims_of(spec).dims]
    )
