"""`pw.all_to_all`: exchanges blocks between slices, such as tokens with the experts that serve them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from pathways.compiler.frontend.arguments import without_handles
from pathways.compiler.frontend.jax_internals import (
    JET,
    Tracer,
    is_handle,
    line_of_user,
    metadata_call,
    register_rule,
    slices_behind,
)
from pathways.compiler.frontend.meshes import refuse_mesh
from pathways.compiler.frontend.trace_state import active_trace, counts_are_checked
from pathways.dialect.attributes.origins import CallKind
from pathways.dialect.operations.metadata import CallMetadata


@overload
def all_to_all(blocks: Sequence[Any], *, counts: None = None) -> list[Any]: ...
@overload
def all_to_all(blocks: Sequence[Any], *, counts: Sequence[Any]) -> tuple[list[Any], list[Any]]: ...
def all_to_all(
    blocks: Sequence[Any], *, counts: Sequence[Any] | None = None
) -> list[Any] | tuple[list[Any], list[Any]]:
    """Exchanges blocks between slices: each slice receives one block from every slice.

    Inside a program `blocks[s]` is computed from results of placed functions on the s-th slice, or from an
    argument that lives there, and `received[t]` is on the t-th slice: `received[t][s]` is `blocks[s][t]`. In
    JAX's terms the result is `jnp.stack(blocks).swapaxes(0, 1)`, with each row on its own slice. It may be
    differentiated, and is its own transpose. Blocks are always moved in full.

    With `counts`, only the first `counts[s][t]` rows of `blocks[s][t]` are valid: all rows after them arrive
    as zeros, and their gradients are zero. Counts are clamped to the rows of a block. If the environment has
    `PW_CHECK_COUNTS=1` when the program is traced, a count out of range is an error that names the slice and
    the microbatch; only programs in this process can be checked.

    Outside of a program, and inside of a placed function, it is that expression.

    Args:
      blocks: an array of shape `(S, rows, ...)` for each of `S` slices, all of one shape and dtype.
      counts: an int32 array of shape `(S,)` for each slice, on that slice: the valid rows of its blocks. None
        if all rows are valid.

    Returns:
      An array for each slice, of the shape of a block. With `counts` a tuple of these and of the counts that
      each slice receives: `received_counts[t][s]` is `counts[s][t]`.

    Raises:
      TypeError: the blocks are not arrays of one dtype, or the counts not of int32.
      ValueError: their shapes differ, or their leading axis is not as long as there are slices; outside of a
        program, arrays are on different devices. From the program: a block that is not placed, or two blocks
        on one slice.

    Example:
      ```python
      @pw.program
      def layer(params, x):
          routed = [dispatch[s](params[s], x[s]) for s in range(4)]
          received = pw.all_to_all(routed)
          returned = pw.all_to_all([expert[s](params[s], received[s]) for s in range(4)])
          return [combine[s](x[s], returned[s]) for s in range(4)]
      ```
    """
    in_program = active_trace.program is not None and not active_trace.placed
    arrays = _arrays_of("pw.all_to_all", blocks, in_program)
    _check_alike(arrays)
    if counts is None:
        (received,) = _received(in_program, arrays)
        return received
    limits = _arrays_of("pw.all_to_all: counts", counts, in_program)
    _check_counts(limits, arrays)
    if counts_are_checked():
        limits = _checked_counts(limits, arrays)
    limits = [jnp.clip(some, 0, arrays[0].shape[1]) for some in limits]
    valid = [_valid_rows(block, some) for block, some in zip(arrays, limits, strict=True)]
    received, received_counts = _received(in_program, valid, limits)
    return received, received_counts


def _arrays_of(argument: str, values: Sequence[Any], in_program: bool) -> list[jax.Array]:
    """Returns the array of each slice."""
    if not isinstance(values, list | tuple) or not values:
        raise TypeError(
            f"{argument} expects a list of arrays, one for each slice, got {type(values).__name__}"
        )
    if in_program:
        values = without_handles(tuple(values), argument)
        refuse_mesh(argument, values)
    else:
        _check_together(values)
    return [jnp.asarray(value) for value in values]


def _received(in_program: bool, *sent: Sequence[Any]) -> list[list[Any]]:
    """Returns the results of exchanges between the same slices."""
    if len(sent[0]) == 1:
        return [list(values) for values in sent]
    if not in_program:
        return [_exchanged(*values) for values in sent]
    number = str(active_trace.calls)
    active_trace.calls += 1
    return [list(all_to_all_p.bind(*values, number=number, derived=n > 0)) for n, values in enumerate(sent)]


def _valid_rows(block: Any, counts: Any) -> Any:
    """Returns a block for each slice with zeros in place of the rows after its count."""
    rows = jax.lax.broadcasted_iota(jnp.int32, block.shape[:2], 1)
    is_valid = (rows < counts[:, None]).reshape(*block.shape[:2], *[1] * (block.ndim - 2))
    return jnp.where(is_valid, block, jnp.zeros_like(block))


def _check_together(blocks: Sequence[Any]) -> None:
    """Checks that arrays outside of a program are on the same devices."""
    arrays = [a for a in blocks if isinstance(a, jax.Array) and not isinstance(a, Tracer)]
    if len({frozenset(a.devices()) for a in arrays}) > 1 or any(map(is_handle, blocks)):
        raise ValueError(
            "pw.all_to_all: the blocks are on different slices: call it in a function under @pw.program, "
            "which moves them"
        )


def _check_alike(blocks: Sequence[Any]) -> None:
    """Checks the types of blocks, which are as many as there are slices."""
    first, count = blocks[0], len(blocks)
    for number, block in enumerate(blocks):
        if block.dtype != first.dtype:
            raise TypeError(
                f"{_call()}: {_named('blocks', number, block)} has dtype {block.dtype}, but blocks[0] "
                f"{first.dtype}: convert them to one dtype"
            )
        if block.shape != first.shape:
            raise ValueError(
                f"{_call()}: {_named('blocks', number, block)} has shape {block.shape}, but blocks[0] "
                f"{first.shape}: pad them to one capacity"
            )
    if first.ndim == 0 or first.shape[0] != count:
        raise ValueError(
            f"{_call()}: blocks of shape {first.shape} for {count} slices: the leading axis holds a block "
            f"for each slice, so it must be {count}"
        )


def _check_counts(counts: Sequence[Any], blocks: Sequence[Any]) -> None:
    """Checks the types of counts, one array for each of the blocks."""
    size = len(blocks)
    if blocks[0].ndim < 2:
        raise ValueError(
            f"{_call()}: counts of rows for blocks of shape {blocks[0].shape}, which have no rows: give the "
            f"blocks the shape ({size}, rows, ...)"
        )
    if len(counts) != size:
        raise ValueError(f"{_call()}: {len(counts)} counts for {size} slices: pass an array for each slice")
    for number, (some, block) in enumerate(zip(counts, blocks, strict=True)):
        name = _named("counts", number, block)
        if some.dtype != jnp.int32:
            raise TypeError(f"{_call()}: {name} has dtype {some.dtype}: convert it to int32")
        if some.shape != (size,):
            raise ValueError(
                f"{_call()}: {name} has shape {some.shape}, but there is a count for each block: ({size},)"
            )


def _checked_counts(counts: Sequence[Any], blocks: Sequence[Any]) -> list[Any]:
    """Returns the counts from a callback, which raises an error where one is out of range."""
    rows, call = blocks[0].shape[1], _call()

    def check(some: Any, microbatch: Any = None, *, name: str) -> Any:
        some = np.asarray(some)
        if ((some < 0) | (some > rows)).any():
            place = "" if microbatch is None else f" in microbatch {np.ravel(microbatch)[0]}"
            raise ValueError(f"{call}: {name} is {some.tolist()}{place}, but a block has 0 to {rows} rows")
        return some

    checked = []
    for number, (some, block) in enumerate(zip(counts, blocks, strict=True)):
        passed = [some] if active_trace.microbatch is None else [some, active_trace.microbatch]
        function = functools.partial(check, name=_named("counts", number, block))
        result = jax.ShapeDtypeStruct(some.shape, some.dtype)
        checked.append(jax.pure_callback(function, result, *passed, vmap_method="broadcast_all"))
    return checked


def _call() -> str:
    """Returns the call of the user, for a message."""
    return f"pw.all_to_all at {line_of_user()}"


def _named(argument: str, number: int, block: Any) -> str:
    """Returns the name of an array of an argument, with the slice of its block if the trace has it."""
    slices = slices_behind(block)
    return f"{argument}[{number}]" + (
        f" on {' and '.join(f'@{s}' for s in sorted(slices))}" if slices else ""
    )


def _exchanged(*blocks: Any) -> list[Any]:
    return list(jnp.stack(blocks).swapaxes(0, 1))


all_to_all_p = Primitive("pw_all_to_all")
"""Exchange of blocks in a program, with the number of the call of `all_to_all` that it stems from.

One that is `derived`, such as of cotangents and of counts, is on the slices of the blocks of that call.
"""
all_to_all_p.multiple_results = True


def _derived(values: Sequence[Any], number: str) -> list[Any]:
    """Returns the exchange of tangents or cotangents, on the slices of the blocks."""
    return list(all_to_all_p.bind(*map(ad.instantiate_zeros, values), number=number, derived=True))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, number: str, derived: bool) -> tuple[Any, Any]:
    results = all_to_all_p.bind(*primals, number=number, derived=derived)
    if all(isinstance(tangent, ad.Zero) for tangent in tangents):
        return results, [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    return results, _derived(tangents, number)


def _jet(primals: Sequence[Any], series: Sequence[Any], *, number: str, derived: bool) -> tuple[Any, Any]:
    results = all_to_all_p.bind(*primals, number=number, derived=derived)
    # First the terms of one order of all blocks, then the terms of all orders of one result.
    terms = [_derived(of_order, number) for of_order in zip(*series, strict=True)]
    return results, list(map(list, zip(*terms, strict=True)))


def _transpose(cotangents: Sequence[Any], *blocks: Any, number: str, derived: bool) -> list[Any]:
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return [ad.Zero(block.aval) for block in blocks]
    return _derived(cotangents, number)


def _batched(values: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[list[Any], list[int]]:
    size = next(v.shape[d] for v, d in zip(values, dims, strict=True) if d is not None)
    # Behind the axis of the slices, so that a block holds the rows of all examples.
    moved = [batching.bdim_at_front(v, d, size).swapaxes(0, 1) for v, d in zip(values, dims, strict=True)]
    return all_to_all_p.bind(*moved, **params), [1] * len(moved)


def _marked(*blocks: Any, number: str, derived: bool) -> list[Any]:
    kind: CallKind = "bwd" if derived else "fwd"
    return metadata_call(_exchanged, CallMetadata(exchange=number, kind=kind).strings())(*blocks)


all_to_all_p.def_impl(lambda *blocks, **_: _exchanged(*blocks))
all_to_all_p.def_abstract_eval(lambda *blocks, **_: [block.update(weak_type=False) for block in blocks])
ad.primitive_jvps[all_to_all_p] = _jvp
ad.primitive_transposes[all_to_all_p] = _transpose
batching.primitive_batchers[all_to_all_p] = _batched
register_rule(JET, lambda jet: jet.jet_rules.update({all_to_all_p: _jet}))
mlir.register_lowering(all_to_all_p, mlir.lower_fun(_marked, multiple_results=True))
