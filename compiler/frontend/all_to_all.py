"""`pw.all_to_all`: exchanges blocks between slices, such as tokens with the experts that serve them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
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
from pathways.compiler.frontend.trace_state import active_trace
from pathways.dialect.attributes.origins import CallKind
from pathways.dialect.operations.metadata import CallMetadata


def all_to_all(blocks: Sequence[Any]) -> list[Any]:
    """Exchanges blocks between slices: each slice receives one block from every slice.

    Inside a program `blocks[s]` is computed from results of placed functions on the s-th slice, or from an
    argument that lives there, and `received[t]` is on the t-th slice: `received[t][s]` is `blocks[s][t]`. In
    JAX's terms the result is `jnp.stack(blocks).swapaxes(0, 1)`, with each row on its own slice. It may be
    differentiated, and is its own transpose. All blocks are moved whole, whatever they hold.

    Outside of a program, and inside of a placed function, it is that expression.

    Args:
      blocks: an array of shape `(S, rows, ...)` for each of `S` slices, all of one shape and dtype.

    Returns:
      An array for each slice, of the shape of a block.

    Raises:
      TypeError: the blocks are not arrays of one dtype.
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
    caller = "pw.all_to_all"
    if not isinstance(blocks, list | tuple) or not blocks:
        raise TypeError(f"{caller} expects a list of arrays, one for each slice, got {type(blocks).__name__}")
    in_program = active_trace.program is not None and not active_trace.placed
    if in_program:
        blocks = without_handles(tuple(blocks), caller)
        refuse_mesh(caller, blocks)
    else:
        _check_together(blocks)
    arrays = [jnp.asarray(block) for block in blocks]
    _check_alike(arrays)
    if len(arrays) == 1:
        return arrays
    if not in_program:
        return _exchanged(*arrays)
    number = str(active_trace.calls)
    active_trace.calls += 1
    return list(all_to_all_p.bind(*arrays, number=number, derived=False))


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
                f"{_call()}: {_named(number, block)} has dtype {block.dtype}, but blocks[0] "
                f"{first.dtype}: convert them to one dtype"
            )
        if block.shape != first.shape:
            raise ValueError(
                f"{_call()}: {_named(number, block)} has shape {block.shape}, but blocks[0] "
                f"{first.shape}: pad them to one capacity"
            )
    if first.ndim == 0 or first.shape[0] != count:
        raise ValueError(
            f"{_call()}: blocks of shape {first.shape} for {count} slices: the leading axis holds a block "
            f"for each slice, so it must be {count}"
        )


def _call() -> str:
    """Returns the call of the user, for a message."""
    return f"pw.all_to_all at {line_of_user()}"


def _named(number: int, block: Any) -> str:
    """Returns the name of a block, with its slice if the trace has it."""
    slices = slices_behind(block)
    return f"blocks[{number}]" + (f" on {' and '.join(f'@{s}' for s in sorted(slices))}" if slices else "")


def _exchanged(*blocks: Any) -> list[Any]:
    return list(jnp.stack(blocks).swapaxes(0, 1))


all_to_all_p = Primitive("pw_all_to_all")
"""Exchange of blocks in a program, with the number of the call of `all_to_all` that it stems from."""
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
