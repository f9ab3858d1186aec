"""Tracing of a Python function to a module of the compiler's own context: JAX's StableHLO plus slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jaxlib.mlir import ir

from pathways.compiler.frontend import annotate, jax_internals
from pathways.compiler.frontend.arguments import ArgumentHome, Interface
from pathways.compiler.frontend.exported import refine_exported
from pathways.compiler.frontend.memory_kinds import check_values, describe_memory
from pathways.compiler.frontend.meshes import NO_MESH, is_of_types
from pathways.compiler.frontend.specs import Spec, flat_specs, is_spec
from pathways.compiler.frontend.trace_state import slice_named, tracing
from pathways.compiler.frontend.trees import name_of, unsealed
from pathways.dialect import make_context
from pathways.dialect.operations.metadata import CallMetadata
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.resources.virtual import VirtualSlice


@dataclasses.dataclass(frozen=True)
class Traced:
    """Program traced for one signature.

    Attributes:
      module: StableHLO with metadata calls and the `pw.slice` ops that they name.
      interface: its arguments, results and slices.
      callbacks: host callbacks that the computations refer to by position.
      keepalive: objects that must live as long as the executables.
    """

    module: ir.Module
    interface: Interface
    callbacks: Sequence[Any]
    keepalive: Sequence[Any]


@dataclasses.dataclass(frozen=True)
class ProgramOptions:
    """Options of a program besides its function.

    Attributes:
      donated: for each flat argument that is not static, whether the program consumes it.
      in_specs: the sharding of each flat argument over its slice; empty if the user gives none.
      out_shardings: the shardings of the results, as a tree or a prefix of one.
      schedule: the pipeline schedule of its loops over microbatches.
      homes: the slice of each flat argument; a program without placed calls runs there.
      kinds: the memory kind of each flat argument; empty if all are in the default memory of devices.
    """

    donated: Sequence[bool]
    in_specs: Sequence[Spec] = ()
    out_shardings: Any = None
    schedule: str | None = None
    homes: tuple[ArgumentHome | None, ...] = ()
    kinds: Sequence[str | None] = ()


def trace(
    jitted: Any,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    platform: str,
    options: ProgramOptions,
) -> Traced:
    """Traces a program and brings its StableHLO into a context of ours.

    Args:
      jitted: the function `of_sealed` under `jax.jit`, which keeps arguments that are not used.
      args: its arguments, static ones as they are, others sealed.
      kwargs: likewise.
      platform: the platform to lower for, such as `cpu`.

    Raises:
      UnexpectedTracerError: the function closes over a tracer of another trace.
      TypeError: the function returns a value that is not an array.
      ValueError: the function mentions a sharding over a mesh that is not a slice's.
      Exceptions of the function itself pass through.
    """
    with tracing(name):
        traced = jitted.trace(*args, **kwargs)
        jaxpr = traced.jaxpr
        _check_closed(name, jaxpr, len(options.donated))
        _check_exported(name, jaxpr)
        _check_results(name, traced)
        try:
            needed, lowered = _lower(traced, platform)
        except ValueError:
            _explain_types(name, jaxpr)
            raise
    foreign, callbacks, keepalive = jax_internals.take_lowering(lowered)
    module = _copied(foreign)
    paths = tuple(jax_internals.argument_names(jaxpr, len(jaxpr.in_avals)))
    with module.context, ir.Location.unknown():
        refine_exported(module)
        module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        calls = annotate.calls_with_metadata(module)
        named = _named_slices(jaxpr, (call for _, call in calls))
        homes = () if named else options.homes
        slices = annotate.declare_slices(module, named or {home.slice for home in homes if home is not None})
        annotate.declare_loops(module, calls, options.schedule)
        # Only the lowering has the expansions of the user's own primitives.
        _check_shardings(name, needed.lojax.jaxpr, slices.values())
        check_values(name, needed.lojax.jaxpr)
        annotate.describe_arguments(module, paths, options.donated, options.in_specs, homes)
        annotate.describe_keys(module, _keys(jaxpr.in_avals), _keys(jaxpr.out_avals))
        describe_memory(module, options.kinds or [None] * len(jaxpr.in_avals), jaxpr.out_avals)
        out_tree, out_keys = unsealed(lowered.out_tree)
        if options.out_shardings is not None:
            # A single spec for all results needs no tree: a registered node may not accept one of numbers.
            numbers = range(out_tree.num_leaves)
            results = list(numbers) if is_spec(options.out_shardings) else out_tree.unflatten(numbers)
            subject = f"out_shardings of program '{name}'"
            annotate.describe_results(module, flat_specs(options.out_shardings, results, subject))
    interface = Interface(
        slices=slices,
        argument_paths=paths,
        in_avals=tuple(jaxpr.in_avals),
        out_avals=tuple(jaxpr.out_avals),
        out_tree=out_tree,
        out_keys=out_keys,
        platform=platform,
        homes=homes,
    )
    return Traced(module, interface, callbacks, keepalive)


def _check_closed(program: str, jaxpr: Any, arguments: int) -> None:
    """Checks that a program closes over no tracer and no reference, and that its loops write none."""
    if len(jaxpr.in_avals) > arguments:
        raise jax.errors.UnexpectedTracerError(
            f"program '{program}' closes over a JAX tracer, which leaked out of another trace or belongs to "
            "a transformation around the program: pass the value as an argument, and put "
            "transformations inside the program"
        )
    for line in jax_internals.references_from_outside(jaxpr):
        raise ValueError(
            f"program '{program}': a reference (jax.new_ref) from outside of the program is used at {line}, "
            "but a program has no state: pass its value as an argument and return the new one"
        )
    for loop, line in jax_internals.references_of_loops(jaxpr):
        raise ValueError(
            f"program '{program}': pw.accumulate of '{loop}' writes a reference (jax.new_ref) at {line}, but "
            "microbatches run at the same time and share no state: pass its value on from each to the next "
            "(carry_argnums), or return it as a result"
        )


def _check_exported(program: str, jaxpr: Any) -> None:
    """Rejects functions that were exported for more than one device, in an order that no slice has yet."""
    for exported, line in jax_internals.exported_functions(jaxpr):
        if exported.nr_devices > 1:
            place = f", called at {line}," if line else ""
            raise ValueError(
                f"program '{program}': the function '{exported.fun_name}'{place} was exported for "
                f"{exported.nr_devices} devices, but a slice gets its devices only when the program is "
                "loaded: export it for one device, from arguments without shardings and with no mesh inside, "
                "and shard it by in_shardings and out_shardings of pw.jit"
            )


def _check_results(program: str, traced: Any) -> None:
    """Checks that a program returns arrays, and no value of a user's type."""
    _, paths = unsealed(traced.out_tree)
    for path, aval in zip(paths, traced.jaxpr.out_avals, strict=True):
        if not isinstance(aval, jax.core.ShapedArray):
            raise TypeError(
                f"program '{program}': result{name_of(path)} is of type {aval}, but programs return arrays: "
                "return those that it consists of"
            )


def _lower(traced: Any, platform: str) -> tuple[Any, Any]:
    """Lowers a traced function, without equations that no result needs if JAX cannot lower them.

    Only then: forward calls that only a gradient needs determine the stages.

    Returns:
      The lowered function, and its lowering.
    """
    try:
        return traced, jax_internals.lower(traced, platform)
    except Exception:
        needed = jax_internals.without_unused(traced)
    return needed, jax_internals.lower(needed, platform)


def _named_slices(jaxpr: Any, lowered: Iterable[CallMetadata]) -> set[VirtualSlice]:
    """Returns the slices of placed calls, including calls whose results nothing needs.

    Args:
      jaxpr: the traced function, which also has the calls whose results nothing needs.
      lowered: the metadata of its module, which also has the calls that only lowering traces, such as calls
        in the expansion of a primitive of `jax.experimental.hijax`.

    Raises:
      ValueError: one of them no longer exists.
    """
    calls = (*map(CallMetadata.of_strings, jax_internals.metadata_of_calls(jaxpr)), *lowered)
    return {slice_named(call.slice) for call in calls if call.slice is not None}


def _copied(foreign: ir.Module) -> ir.Module:
    """Returns a module of JAX's in a context of ours."""
    return ir.Module.parse(bytecode_of(foreign), make_context())


def _explain_types(program: str, jaxpr: Any) -> None:
    """Raises an error about values between placed functions with explicit sharding, which have no mesh."""
    for aval, line in jax_internals.values_between_calls(jaxpr):
        mesh = aval.sharding.mesh if isinstance(aval, jax.core.ShapedArray) else NO_MESH
        if is_of_types(mesh):
            raise ValueError(
                f"program '{program}': the value computed at {line} has the type {aval.str_short(True)}, "
                f"sharded over {mesh}, which is not a slice of the program: shard inside placed functions, "
                "and pass arrays with such a sharding as arguments"
            )


def _keys(avals: Iterable[Any]) -> list[bool]:
    """Returns whether each value is a typed PRNG key."""
    return [jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key) for aval in avals]


def _check_shardings(program: str, jaxpr: Any, slices: Iterable[VirtualSlice]) -> None:
    """Rejects shardings over physical devices, and over meshes that no slice has."""
    meshes = {(virtual.axis_names, virtual.shape) for virtual in slices}
    for sharding, line in jax_internals.named_shardings(jaxpr):
        mesh, place = sharding.mesh, f" at {line}" if line else ""
        if isinstance(mesh, jax.sharding.Mesh):
            raise ValueError(
                f"program '{program}': {sharding}{place} names physical devices, but a slice gets them "
                "only when the program is loaded; inside a placed function give the PartitionSpec alone"
            )
        if not mesh.empty and (mesh.axis_names, mesh.axis_sizes) not in meshes:
            raise ValueError(
                f"program '{program}': {sharding}{place} is over a mesh that no slice of the program has; "
                "inside a placed function give the PartitionSpec alone"
            )
