"""From a Python function to a module of the `pw` compiler's own context: JAX's StableHLO plus slices."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jaxlib.mlir import ir

from pathways.compiler import jax_internals
from pathways.compiler.annotate import (
    declare_loops,
    declare_slices,
    describe_arguments,
    describe_keys,
    describe_results,
)
from pathways.compiler.interface import Interface
from pathways.compiler.meshes import NO_MESH, is_of_types
from pathways.compiler.specs import Spec, flat_specs
from pathways.compiler.trace_state import tracing
from pathways.dialect import make_context
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
        for line in jax_internals.references_from_outside(traced.jaxpr):
            raise ValueError(
                f"program '{name}': a reference (jax.new_ref) from outside of the program is used at {line}, "
                "but a program has no state: pass its value as an argument and return the new one"
            )
        try:
            lowered = traced.lower(lowering_platforms=(platform,))
        except ValueError:
            _explain_types(name, traced.jaxpr.jaxpr)
            raise
    foreign, callbacks, keepalive = jax_internals.lowered_parts(lowered)
    buffer = io.BytesIO()
    foreign.operation.write_bytecode(buffer)
    module = ir.Module.parse(buffer.getvalue(), make_context())
    paths = tuple(jax_internals.argument_names(traced.jaxpr, len(traced.jaxpr.in_avals)))
    with module.context, ir.Location.unknown():
        module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        slices = declare_slices(module)
        declare_loops(module, schedule)
        _check_shardings(name, traced.jaxpr.jaxpr, slices.values())
        describe_arguments(module, paths, donated, in_specs)
        describe_keys(module, *(_keys(avals) for avals in (traced.jaxpr.in_avals, traced.jaxpr.out_avals)))
        if out_shardings is not None:
            results = jax.tree.unflatten(lowered.out_tree, range(lowered.out_tree.num_leaves))
            describe_results(module, flat_specs(out_shardings, results, f"out_shardings of program '{name}'"))
    interface = Interface(
        slices=slices,
        argument_paths=paths,
        in_avals=tuple(traced.jaxpr.in_avals),
        out_avals=tuple(traced.jaxpr.out_avals),
        out_tree=lowered.out_tree,
        platform=platform,
    )
    return Traced(module, interface, callbacks, keepalive)


def _explain_types(program: str, jaxpr: Any) -> None:
    """Says where values between placed functions have explicit sharding, for which there is no mesh."""
    for aval, line in jax_internals.values_between_calls(jaxpr):
        mesh = aval.sharding.mesh if isinstance(aval, jax.core.ShapedArray) else NO_MESH
        if is_of_types(mesh):
            raise ValueError(
                f"program '{program}': the value computed at {line} has the type {aval.str_short(True)}, "
                f"sharded over {mesh}, which is no slice of the program: shard inside placed functions, and "
                "pass arrays with such a sharding as arguments"
            )


def _keys(avals: Iterable[Any]) -> list[bool]:
    """Which values are typed PRNG keys."""
    return [jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key) for aval in avals]


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
