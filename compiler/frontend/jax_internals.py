"""Private parts of JAX that the compiler uses, in this module alone, each with its reason."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import checkify, config, core, debugging, dispatch, dtypes, source_info_util, tree_util, util
from jax._src import mesh as mesh_lib
from jax._src import xla_metadata as _metadata
from jax._src.export._export import call_exported_p
from jax._src.interpreters import ad, mlir, pxla, remat
from jax._src.interpreters import partial_eval as pe
from jax._src.lib.mlir import ir
from jax._src.state import AbstractRef, discharge
from jax._src.state.types import AccumEffect, WriteEffect
from jax._src.util import merge_lists, split_list, subs_list
from jax.experimental.xla_metadata import xla_metadata_call2

from pathways.compiler.frontend.meshes import retype_p
from pathways.dialect.operations.metadata import CallMetadata

# Hides this package's frames, so that locations in the IR, and with them messages, name lines of the user.
for _folder in ("compiler", "runtime"):
    source_info_util.register_exclusion(str(Path(__file__).parents[2] / _folder))

flatten = tree_util.default_registry.flatten
"""`jax.tree.flatten` without its Python wrapper, for the path of every call."""

structure_errors = tree_util.equality_errors_pytreedef
"""Differences of two structures: a path, the types at it in both, and why they differ."""

unflatten = tree_util.tree_unflatten


def is_handle(leaf: Any) -> bool:
    """Returns whether a leaf is an array on hosts."""
    return getattr(leaf, "is_on_hosts", False)


def abstractify(leaf: Any) -> Any:
    """Returns the abstract value of any valid argument of a program; JAX's public function accepts its arrays
    only.

    Raises:
      TypeError: it is not a valid argument.
      OverflowError: it is a number that does not fit its dtype.
    """
    if is_handle(leaf):
        return leaf.aval
    aval = core.shaped_abstractify(leaf)
    if isinstance(leaf, np.generic):
        # JAX looks at the dtypes of arrays only.
        dtypes.check_valid_dtype(leaf.dtype)
    return aval


def is_known(leaf: Any) -> bool:
    """Returns whether JAX knows the class, as of arrays and numbers; other objects it duck-types."""
    return any(kind in core.pytype_aval_mappings for kind in type(leaf).__mro__)


Tracer = jax.core.Tracer


_CONTEXT_MESHES = (
    (mesh_lib.abstract_mesh_context_manager, mesh_lib.empty_abstract_mesh),
    (mesh_lib.device_context, mesh_lib.empty_concrete_mesh),
)
"""The mesh contexts without `jax.set_mesh` and `jax.sharding.use_abstract_mesh`."""


def trace_context() -> Hashable:
    """Returns all settings that change a program: JAX's own cache key (x64, matmul precision), and debug
    checks.

    The mesh of the caller is not among them, see `outside_meshes`.
    """
    # On the path of every call, so without a context manager, which would run Python code.
    mesh = mesh_lib.abstract_mesh_context_manager.swap_local(mesh_lib.empty_abstract_mesh)
    try:
        return config.trace_context(), config.debug_nans.value, config.debug_infs.value
    finally:
        mesh_lib.abstract_mesh_context_manager.set_local(mesh)


@contextlib.contextmanager
def outside_meshes() -> Iterator[None]:
    """Clears the mesh context of the caller, which does not apply to the slices of a program.

    `jax.set_mesh(None)` does the same, but not during a trace.
    """
    outer = [setting.swap_local(empty) for setting, empty in _CONTEXT_MESHES]
    try:
        yield
    finally:
        for (setting, _), value in zip(_CONTEXT_MESHES, outer, strict=True):
            setting.set_local(value)


class _ClearedCache:
    """Cache in the eyes of `jax.clear_caches`: calls a function when JAX clears it."""

    def __init__(self, clear: Callable[[], None]) -> None:
        self.cache_clear = clear


_cleared: list[_ClearedCache] = []
"""The caches of `on_clear_caches`, to which JAX has weak references."""


def on_clear_caches(clear: Callable[[], None]) -> None:
    """Calls a function in each `jax.clear_caches()`."""
    _cleared.append(_ClearedCache(clear))
    util.register_cache(_cleared[-1], "pathways")


def key_data(array: Any) -> Any:
    """Returns the raw buffers of an array of typed PRNG keys, which `jax.random.key_data` copies."""
    return array._base_array


def key_kind(dtype: Any) -> str:
    """Returns the name of the implementation of a typed PRNG key, such as `threefry2x32`; public only for
    arrays."""
    return dtype._impl.name


def placed_call(fun: Callable[..., Any], metadata: CallMetadata) -> Callable[..., Any]:
    """Wraps a function so that it lowers to a call with metadata, and so do its derivatives.

    Args:
      fun: the function; the same object reuses the same computation.
    """
    register_rules()
    _, backward = metadata.halves()
    return xla_metadata_call2(fun, metadata.strings(), ad_metadata=backward.strings())


def metadata_call(fun: Callable[..., Any], metadata: dict[str, Any]) -> Callable[..., Any]:
    """Wraps a function so that it lowers to a call with metadata."""
    register_rules()
    return xla_metadata_call2(fun, metadata, ad_metadata="same")


def _lower_device_put(ctx: Any, *operands: Any, devices: Any, **_: Any) -> list[Any]:
    """Lowers `jax.device_put` on every platform to the custom call that marks a move to another memory.

    JAX's own rule for CPUs drops these moves, so that values between computations would be in device memory.
    """
    moved = []
    for operand, place, source, target in zip(operands, devices, ctx.avals_in, ctx.avals_out, strict=True):
        is_moved = source.memory_space != target.memory_space
        if is_moved or (place is not None and kind_of_space(target) is not None):
            kind = core.mem_space_to_kind(target.memory_space)
            operand = mlir.wrap_with_memory_kind(ctx.module_context, operand, kind, target)
            # Passes neither drop nor merge operations with effects; XLA gets the attribute back.
            operand.owner.attributes["has_side_effect"] = ir.BoolAttr.get(False)
        moved.append(operand)
    return moved


_PARAMETERS = mlir.LoweringParameters(override_lowering_rules=((dispatch.device_put_p, _lower_device_put),))


def lower(traced: Any, platform: str) -> jax.stages.Lowered:
    """Lowers a traced function for a platform, and drops the trace that JAX keeps of it.

    If unused arguments stay, a cache of JAX holds its own weak key as a value, so that the function and its
    closure would live until 2,048 others were lowered.
    """
    jaxpr = traced.lojax.jaxpr
    try:
        return traced.lower(lowering_platforms=(platform,), _private_parameters=_PARAMETERS)
    finally:
        pxla._dce_jaxpr.evict_weakref(jaxpr)


def without_unused(traced: Any) -> jax.stages.Traced:
    """Returns a traced function without equations that no result needs; all arguments stay.

    `jax.jit` drops such equations before it lowers a function, but not if it must keep unused arguments. They
    may be impossible to lower, such as the tangent of a `jax.custom_vjp` function.
    """
    jaxpr = traced.jaxpr
    keep = [False] * len(jaxpr.constvars) + [True] * len(jaxpr.invars)
    needed, _, _ = pe.dce_jaxpr_consts(jaxpr, [True] * len(jaxpr.outvars), keep)
    return jax.stages.Traced(
        traced._meta_tys_flat,
        {**traced._params, "jaxpr": needed},
        traced._in_tree,
        traced.out_tree,
        traced._consts,
        traced._fun_sourceinfo,
    )


def take_lowering(lowered: jax.stages.Lowered) -> tuple[Any, Sequence[Any], Sequence[Any]]:
    """Returns the module of a lowering, its host callbacks, and objects that must live as long as its
    executables.

    `compiler_ir` is public; the callbacks are only in the arguments of the compilation.
    """
    inner = lowered._lowering
    arguments = inner.compile_args
    return (
        lowered.compiler_ir(),
        list(arguments.get("host_callbacks") or ()),
        list(arguments.get("keepalive") or ()),
    )


def argument_names(jaxpr: Any, count: int) -> list[str]:
    """Returns the paths of a traced function's arguments, such as `params['w']`, from JAX's debug info."""
    names = list(jaxpr.debug_info.arg_names or ())
    return [names[n] if n < len(names) and names[n] else f"args[{n}]" for n in range(count)]


def metadata_of_calls(jaxpr: Any) -> Iterator[dict[str, str]]:
    """Yields the metadata of the calls in a traced function, including calls whose results nothing needs."""
    for inner in _jaxprs(jaxpr):
        for equation in inner.eqns:
            if equation.primitive is _metadata.xla_metadata_call_p:
                yield dict(equation.params["xla_metadata"])


def named_shardings(jaxpr: Any) -> Iterator[tuple[jax.NamedSharding, str]]:
    """Yields the shardings that a traced function mentions, each with its line."""
    for inner in _jaxprs(jaxpr):
        for equation in inner.eqns:
            for value in equation.params.values():
                for item in value if isinstance(value, (tuple, list)) else (value,):
                    if isinstance(item, jax.NamedSharding):
                        yield item, _line(equation)


def exported_functions(jaxpr: Any) -> Iterator[tuple[jax.export.Exported, str]]:
    """Yields the functions of `jax.export` that a traced function calls, each with the line of the call."""
    for inner in _jaxprs(jaxpr):
        for equation in inner.eqns:
            if equation.primitive is call_exported_p:
                yield equation.params["exported"], _line(equation)


def values_between_calls(jaxpr: Any) -> Iterator[tuple[Any, str]]:
    """Yields the abstract values that a function computes outside of placed calls, with their lines."""
    for inner in _jaxprs(jaxpr, into_calls=False):
        for equation in inner.eqns:
            if equation.primitive is not _metadata.xla_metadata_call_p:
                for variable in equation.outvars:
                    yield variable.aval, _line(equation)


DEVICE_MEMORY = "device"
"""The memory kind of `jax.memory.Space.Device`."""


def kind_of_space(aval: Any) -> str | None:
    """Returns the memory kind of an abstract value or type; None for the default memory of devices."""
    space = getattr(aval, "memory_space", None) or getattr(aval, "_memory_space", None)
    return core.mem_space_to_kind(space) if space is core.MemorySpace.Host else None


def values_in_memory(jaxpr: Any) -> Iterator[tuple[str, str]]:
    """Yields the memory kinds besides the default into which a function puts values, with the lines."""
    for inner in _jaxprs(jaxpr):
        # Of a value there, the equation is meant that puts it there, not one that passes it on.
        passed = set(inner.invars)
        lines: dict[Any, str] = {}
        for equation in inner.eqns:
            operands = [operand for operand in equation.invars if isinstance(operand, core.Var)]
            # The policy of a `jax.checkpoint` adds copies without a line, of values that have one.
            line = _line(equation) or next((lines[v] for v in operands if v in lines), "")
            lines.update(dict.fromkeys(equation.outvars, line))
            places = equation.params["devices"] if equation.primitive is dispatch.device_put_p else ()
            kinds = [getattr(place, "memory_kind", None) for place in places]
            from_inside = [v for within in jaxprs_within(equation) for v in within.outvars]
            if not any(kind_of_space(v.aval) for v in [*from_inside, *(v for v in operands if v in passed)]):
                kinds += [kind_of_space(variable.aval) for variable in equation.outvars]
            for kind in kinds:
                if kind not in (None, DEVICE_MEMORY):
                    yield kind, line
            passed.update(equation.outvars)


def references_from_outside(jaxpr: Any) -> Iterator[str]:
    """Yields the lines where a traced function uses a reference (`jax.new_ref`) that it closes over."""
    for inner in _jaxprs(jaxpr):
        pairs = zip(inner.constvars, inner.consts, strict=True)
        outside = {variable for variable, value in pairs if isinstance(value, jax.Ref)}
        for equation in inner.eqns:
            if any(isinstance(operand, core.Var) and operand in outside for operand in equation.invars):
                yield _line(equation)


def references_of_loops(jaxpr: Any) -> Iterator[tuple[str, str]]:
    """Yields the loops over microbatches that write references from outside of them, with the lines."""
    for inner in _jaxprs(jaxpr):
        defined = {*inner.constvars, *inner.invars}
        outside: frozenset[Any] = frozenset()
        loop = ""
        for equation in inner.eqns:
            call = CallMetadata()
            if equation.primitive is _metadata.xla_metadata_call_p:
                call = CallMetadata.of_strings(dict(equation.params["xla_metadata"]))
            if call.mark in ("carry", "split") and not loop:
                loop, outside = call.name, frozenset(defined)
            elif call.loop is not None and call.mark is None:
                loop = ""
            if loop and any(reference in outside for reference in _written(equation)):
                yield loop, _line(equation)
            defined.update(equation.outvars)


def _written(equation: Any) -> Iterator[Any]:
    """Yields the references that an equation writes."""
    for effect in equation.effects:
        if isinstance(effect, WriteEffect | AccumEffect):
            # JAX 0.12 has the variable, in place of its position.
            variable = getattr(effect, "input", None)
            yield equation.invars[getattr(effect, "input_index")] if variable is None else variable  # noqa: B009


def without_dead_equations(closed: Any) -> Any:
    """Returns a traced function without equations that no result needs; its arguments stay."""
    keep = [False] * len(closed.jaxpr.constvars) + [True] * len(closed.jaxpr.invars)
    needed, _, _ = pe.dce_jaxpr_consts(closed.jaxpr, [True] * len(closed.jaxpr.outvars), keep)
    return needed


def fresh_variable(aval: Any) -> Any:
    """Returns a variable of a traced function that is equal to no other."""
    return core.Var(aval)


def scan_operands(equation: Any) -> tuple[int, int, int]:
    """Returns which operands of a `jax.lax.scan` are constants, carried, and cut along axis 0."""
    if "num_consts" in equation.params:
        constants, carried = equation.params["num_consts"], equation.params["num_carry"]
        return constants, carried, len(equation.invars) - constants - carried
    # JAX 0.12 has the three groups as a tree, in place of their numbers.
    constants, carried, cut = (len(list(group)) for group in equation.params["ft_in"].unpack())
    return constants, carried, cut


def bind(equation: Any, operands: Sequence[Any], params: dict[str, Any] | None = None) -> list[Any]:
    """Returns the results of an equation for operands, traced if these are; `params` replace its parameters.

    It binds like `core.eval_jaxpr`, with the line that the equation is from.
    """
    bound = equation.primitive.get_bind_params(equation.params if params is None else params)
    functions, bound = bound if isinstance(bound, tuple) else ((), bound)
    names = source_info_util.current_name_stack() + equation.source_info.name_stack
    with (
        source_info_util.user_context(equation.source_info.traceback, name_stack=names),
        equation.ctx.manager,
    ):
        results = equation.primitive.bind(*functions, *operands, **bound)
    return list(results) if equation.primitive.multiple_results else [results]


def jaxprs_within(equation: Any) -> list[Any]:
    """Returns the traced functions that an equation holds."""
    return [getattr(inner, "jaxpr", inner) for inner in core.jaxprs_in_params(equation.params)]


def line_of(equation: Any) -> str:
    """Returns the user's line of an equation, with its function."""
    return _line(equation)


def layer_of(equation: Any, scope: str = "") -> str:
    """Returns the layer of an equation: its place in the name stack, or else the line of the user.

    Args:
      scope: the name stack around the traced function of the equation.
    """
    if layer := "/".join(filter(None, (scope, str(equation.source_info.name_stack)))):
        return layer
    frames = list(source_info_util.user_frames(equation.source_info.traceback))
    # Innermost first: layers of a library are called by a line of the user.
    outside = (frame for frame in frames if "site-packages" not in Path(frame.file_name).parts)
    frame = next(outside, next(iter(frames), None))
    if frame is None:
        return ""
    function = frame.function_name.rpartition("<locals>.")[2]
    return f"{Path(frame.file_name).name}:{frame.start_line} ({function})"


def line_of_user() -> str:
    """Returns the line of the user that is running, with its function."""
    return source_info_util.summarize(source_info_util.current())


def slices_behind(value: Any) -> set[str]:
    """Returns the slices of the placed calls that a traced value is computed from, as far as JAX keeps its
    trace."""
    slices: set[str] = set()
    pending, seen = [value], set[int]()
    while pending:
        tracer = pending.pop()
        # Differentiation and `vmap` wrap the tracers that have equations.
        while isinstance(tracer, Tracer) and not isinstance(tracer, pe.DynamicJaxprTracer):
            tracer = getattr(tracer, "primal", getattr(tracer, "val", None))
        equation = getattr(tracer, "parent", None)
        if equation is None or id(equation) in seen:
            continue
        seen.add(id(equation))
        metadata = CallMetadata.of_strings(dict(equation.params.get("xla_metadata", ())))
        if metadata.slice is None:
            pending += equation.in_tracers
        else:
            slices.add(metadata.slice)
    return slices


def _line(equation: Any) -> str:
    return source_info_util.summarize(equation.source_info)


def _jaxprs(jaxpr: Any, into_calls: bool = True) -> Iterator[Any]:
    """Yields a traced function and its inner functions, each once."""
    # By identity: functions share inner ones, so that the paths to them may be exponentially many.
    seen: set[int] = set()

    def visit(jaxpr: Any) -> Iterator[Any]:
        if id(jaxpr) in seen:
            return
        seen.add(id(jaxpr))
        yield jaxpr
        for equation in jaxpr.eqns:
            if into_calls or equation.primitive is not _metadata.xla_metadata_call_p:
                for inner in core.jaxprs_in_params(equation.params):
                    yield from visit(inner)

    return visit(jaxpr)


def _partial_eval_placed_call(
    trace: pe.JaxprTrace,
    *tracers: pe.JaxprTracer,
    jaxpr: Any,
    xla_metadata: tuple[tuple[str, str], ...],
    ad_metadata: Any,
) -> list[Any]:
    """Splits a placed call into a call that can run now and one that waits for a tangent.

    Without such a rule JAX stages the whole call, with its non-linear equations, into the function that it
    transposes then, and `jax.checkpoint` around a placed call fails.
    """
    are_known = [t.is_known() for t in tracers]
    first, linear = _metadata_of_halves(xla_metadata, ad_metadata)
    unknown = [not k for k in are_known]
    known_jaxpr, unknown_jaxpr, unknown_outs, residual_avals, forwarded = pe.partial_eval_jaxpr_nounits_fwd(
        jaxpr, tuple(unknown), instantiate=False
    )
    call = _metadata.xla_metadata_call_p
    known_values = [t.pval.get_known() for t in tracers if t.is_known()]
    outs = call.bind(*known_values, jaxpr=known_jaxpr, xla_metadata=first, ad_metadata=ad_metadata)
    known_outs, residuals = split_list(outs, [len(outs) - len(residual_avals)])
    # A residual that is an operand of the call is passed on as it is, not returned as another array.
    residuals = subs_list(forwarded, [*jaxpr.consts, *known_values], residuals)
    residual_tracers = [trace.new_instantiated_const(r) for r in residuals]
    unknown_tracers = [trace.instantiate_const(t) for t, k in zip(tracers, are_known, strict=True) if not k]
    out_tracers = [
        pe.JaxprTracer(trace, pe.PartialVal.unknown(aval), None) for aval in unknown_jaxpr.out_avals
    ]
    equation = pe.new_eqn_recipe(
        trace,
        (*residual_tracers, *unknown_tracers),
        out_tracers,
        call,
        {"jaxpr": unknown_jaxpr, "xla_metadata": linear, "ad_metadata": "same"},
        unknown_jaxpr.effects,
        source_info_util.current(),
    )
    for tracer in out_tracers:
        tracer.recipe = equation
    return merge_lists(unknown_outs, known_outs, out_tracers)


# A rule of JAX itself, in a later release, keeps its place.
pe.custom_partial_eval_rules.setdefault(_metadata.xla_metadata_call_p, _partial_eval_placed_call)


type _Strings = tuple[tuple[str, str], ...]
"""Metadata in JAX's representation."""


def _metadata_of_halves(xla_metadata: _Strings, ad_metadata: Any) -> tuple[_Strings, Any]:
    """Returns the metadata of the primal and of the linear half of a call.

    For a call without a slice, which may be a user's own, it is JAX's.
    """
    metadata = CallMetadata.of_strings(dict(xla_metadata))
    if metadata.slice is None:
        return xla_metadata, xla_metadata if ad_metadata == "same" else ad_metadata
    first, linear = (tuple(sorted(half.strings().items())) for half in metadata.halves())
    return first, linear


_linearize = ad.primitive_linearizations[_metadata.xla_metadata_call_p]


def _linearize_placed_call(
    is_vjp: bool,
    nonzero: Sequence[bool],
    *primals: Any,
    xla_metadata: _Strings,
    ad_metadata: Any,
    **params: Any,
) -> Any:
    """Applies JAX's own rule, which records only whether differentiation created a call, with the whole
    lineage.

    Gradients of gradients need the lineage, to distinguish the calls of the backward from the calls of its
    derivative.
    """
    first, linear = _metadata_of_halves(xla_metadata, ad_metadata)
    return _linearize(is_vjp, nonzero, *primals, xla_metadata=first, ad_metadata=linear, **params)


ad.primitive_linearizations[_metadata.xla_metadata_call_p] = _linearize_placed_call


def _discharge_placed_call(
    ctx: discharge.DischargeContext, *args: Any, jaxpr: Any, **params: Any
) -> tuple[list[Any], list[Any]]:
    """Replaces the references (`jax.new_ref`) that a placed call creates, reads or writes by values.

    Without such a rule JAX lowers no module with a reference in a placed call. As in its other calls, the
    final value of a reference from outside becomes an additional result.
    """
    pure = discharge.discharge_state(
        jaxpr, should_discharge=ctx.should_discharge, strip_memory_space=ctx.strip_memory_space
    )
    results = _metadata.xla_metadata_call_p.bind(*args, jaxpr=pure, **params)
    outs, written = split_list(results, [len(jaxpr.out_avals)])
    values = iter(written)
    pairs = zip(ctx.in_avals, ctx.should_discharge, strict=True)
    return [next(values) if due and isinstance(aval, AbstractRef) else None for aval, due in pairs], outs


discharge.register_discharge_rule(_metadata.xla_metadata_call_p)(_discharge_placed_call)


def _drop_unused_of_call(used_results: list[bool], *live_and_call: Any) -> tuple[list[bool], Any]:
    """Drops unused work and operands of a placed call, or a whole call that marks microbatches.

    JAX's own rule looks at results only, but more depends on these calls: one that passes on a carry is
    needed by the next microbatch, and one with effects runs once for each microbatch if it reads a value of
    one, even if only its shape.
    """
    # JAX 0.11 does not tell which operands are live.
    *live_operands, call = live_and_call
    metadata = CallMetadata.of_strings(dict(call.params["xla_metadata"]))
    if metadata.mark == "next":
        return [True] * len(call.invars), call
    if metadata.mark is not None or pe.has_effects(call, *live_operands):
        return pe._default_dce_rule(used_results, *live_and_call)
    return _metadata.dce_jaxpr_xla_metadata_rule(used_results, *live_and_call)


pe.dce_rules[_metadata.xla_metadata_call_p] = _drop_unused_of_call


def _remat_call(trace: Any, *operands: Any, jaxpr: Any, **params: Any) -> tuple[list[Any], list[Any], Any]:
    """Splits a placed call into the call that runs and its repetition, under `jax_remat3`, by the user's
    policy.

    Without such a rule JAX repeats the whole call, even values that the policy of `jax.checkpoint` saves.
    """
    call = _metadata.xla_metadata_call_p
    first, again, forwarded = remat.remat_jaxpr(jaxpr, trace.policy, trace.custom_vjp_rules, allow_fwds=True)
    results = call.bind(*operands, jaxpr=first, **params)
    results, extra = split_list(results, [len(jaxpr.out_avals)])
    # A residual that is a result of the call is not returned a second time.
    residuals = subs_list(forwarded, results, extra)

    def repeat(residuals: Sequence[Any], *operands: Any) -> list[Any]:
        return call.bind(*residuals, *operands, jaxpr=again, **params)

    return results, residuals, repeat


if jax.__version_info__ >= (0, 12):
    # JAX 0.11 has other rules, and repeats whole calls.
    remat.rules[_metadata.xla_metadata_call_p] = _remat_call


def _check_call(
    ctx: Any,
    error: checkify.Error,
    enabled: frozenset[Any],
    *operands: Any,
    jaxpr: Any,
    xla_metadata: _Strings,
    ad_metadata: Any,
) -> tuple[checkify.Error, list[Any]]:
    """Checks the computation of a placed call, under `checkify.checkify`; JAX's default does not look inside.

    The call returns its errors and reads none: independent calls can still run at the same time, and equal
    calls share one computation. The first error in the order of the program remains.
    """
    call, metadata = _metadata.xla_metadata_call_p, CallMetadata.of_strings(dict(xla_metadata))
    params = {"xla_metadata": xla_metadata, "ad_metadata": ad_metadata}
    # The calls of `pw.accumulate` compute nothing to check; the one without a mark ends a microbatch.
    if metadata.mark is None and metadata.loop is None:
        none = jax.tree.structure(checkify.init_error)
        avals = map(core.typeof, operands)
        own_ctx = checkify.CheckifyContext()
        checked, tree, _ = checkify.jaxpr_to_checkify_jaxpr(own_ctx, jaxpr, enabled, none, *avals)
        errors, results = jax.tree.unflatten(tree, call.bind(*operands, jaxpr=checked, **params))
        leaves, tree = jax.tree.flatten(errors)
        # As if the errors had been found outside: with numbers that no other check has.
        error, _ = checkify.check_discharge_rule(ctx, error, enabled, *leaves, err_tree=tree, debug=False)
        return error, results
    if metadata.mark is None:
        error = _first_of_microbatches(error, metadata)
    return error, call.bind(*operands, jaxpr=jaxpr, **params)


checkify.error_checks[_metadata.xla_metadata_call_p] = _check_call


def _first_of_microbatches(error: checkify.Error, loop: CallMetadata) -> checkify.Error:
    """Returns the error of the first microbatch that has one, where a loop over microbatches ends."""
    mark = dataclasses.replace(loop, mark="concat").strings()
    # The function only gives the shape: unrolling concatenates the values of all microbatches.
    stack = metadata_call(lambda v: jnp.concatenate([v] * (loop.count or 1)), mark)
    stacked = jax.tree.map(lambda leaf: stack(jnp.asarray(leaf)[None]), error)
    for effect, wrong in stacked._pred.items():
        of_effect = wrong, stacked._code[effect], stacked._payload[effect]
        first = jnp.argmax(wrong)
        pred, code, payload = jax.tree.map(lambda leaf, first=first: leaf[first], of_effect)
        error = error._update(effect, pred, code, {}, payload)
    return error


def comparable_errors(tree: Any) -> Any:
    """Returns a tree of results whose errors of `checkify.checkify` have the codes of all their kinds on one
    slice.

    `Error.get` compares the codes with each other, which JAX rejects for arrays on different devices.
    """

    def of_error(error: Any) -> Any:
        if not is_error(error) or len(error._code) < 2:
            return error
        codes = jnp.stack(list(error._code.values()), axis=-1)
        together = {effect: codes[..., n] for n, effect in enumerate(error._code)}
        return error._replace(_code=together)

    def is_error(node: Any) -> bool:
        return isinstance(node, checkify.Error)

    return jax.tree.map(of_error, tree, is_leaf=is_error)


def _refuse_mark(transformation: str, xla_metadata: _Strings) -> None:
    """Raises an error for a transformation of the calls with which `pw.accumulate` marks microbatches."""
    metadata = CallMetadata.of_strings(dict(xla_metadata))
    if metadata.loop is not None:
        raise TypeError(
            f"pw.accumulate of '{metadata.name}' cannot be under {transformation}: apply {transformation} "
            f"inside the function '{metadata.name}' that it is given"
        )


def _register_jet(jet: Any) -> None:
    """Registers the rule for Taylor series through placed calls, the one of calls of `jax.jit`."""

    def of_call(primals: Any, series: Any, *, jaxpr: Any, **params: Any) -> Any:
        _refuse_mark("jax.experimental.jet", params["xla_metadata"])
        leaves, tree = jax.tree.flatten((primals, series))
        avals = tuple(map(core.shaped_abstractify, leaves))
        jaxpr, out_tree = jet._jet_jaxpr(jaxpr, len(series[0]), avals, tree)
        results = _metadata.xla_metadata_call_p.bind(*leaves, jaxpr=jaxpr, **params)
        return out_tree().unflatten(results)

    jet.jet_rules[_metadata.xla_metadata_call_p] = of_call
    jet.deflinear(retype_p)


def _register_sparsify(sparse: Any) -> None:
    """Registers the rule for sparse arrays in placed calls: the call reads and returns their buffers."""

    def of_call(environment: Any, *values: Any, jaxpr: Any, **params: Any) -> Any:
        _refuse_mark("jax.experimental.sparse.sparsify", params["xla_metadata"])
        jaxpr, out_tree = sparse._sparsify_jaxpr(environment, jaxpr, *values)
        buffers = jax.tree.leaves(sparse.spvalues_to_arrays(environment, values))
        results = _metadata.xla_metadata_call_p.bind(*buffers, jaxpr=jaxpr, **params)
        return sparse.arrays_to_spvalues(environment, out_tree.unflatten(results))

    for rules in (sparse.sparse_rules_bcoo, sparse.sparse_rules_bcsr):
        rules[_metadata.xla_metadata_call_p] = of_call
        # Sparse arrays name no mesh.
        rules[retype_p] = lambda environment, value, *, sharding: [value]


JET, SPARSIFY = "jax.experimental.jet", "jax.experimental.sparse.transform"
"""Modules of transformations that JAX does not import by itself; the second takes half a second."""

_unregistered: list[tuple[str, Callable[[Any], None]]] = [
    (JET, _register_jet),
    (SPARSIFY, _register_sparsify),
    # Its own rule for calls suffices.
    ("jax.experimental.roofline.roofline", lambda roofline: roofline.register_standard_roofline(retype_p)),
]


def register_rule(module: str, register: Callable[[Any], None]) -> None:
    """Calls `register` with a module of a transformation when `register_rules` first finds it imported."""
    _unregistered.append((module, register))


def register_rules() -> None:
    """Registers the rules of transformations that have been imported, before one of them is traced.

    A caller that uses such a transformation has imported its module before.
    """
    for module, register in [entry for entry in _unregistered if entry[0] in sys.modules]:
        _unregistered.remove((module, register))
        register(sys.modules[module])


def printed_by(callback: Any) -> dict[str, Any] | None:
    """Returns the format of a host callback of `jax.debug.print`; None for other callbacks."""
    inner = _enclosed(_enclosed(callback, "callback"), "callback")
    printer = _enclosed(inner, "callback")
    if not isinstance(printer, functools.partial) or printer.func is not getattr(
        debugging, "_format_print_callback", None
    ):
        return None
    text, options, fields, _ = printer.args
    return {
        "text": text,
        "options": dict(options),
        "fields": fields,
        "tree": _enclosed(inner, "in_tree"),
        "values": dict(_enclosed(inner, "static_args")),
    }


def _enclosed(function: Any, name: str) -> Any:
    """Returns a variable that a function encloses; None if it encloses none of the name."""
    code = getattr(function, "__code__", None)
    if code is None or name not in code.co_freevars:
        return None
    return function.__closure__[code.co_freevars.index(name)].cell_contents
