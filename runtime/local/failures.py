"""What stopped a program while its steps were issued: which step, what was wrong, and what was alive."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence

import jax

from pathways.runtime.local.checks import check_alive
from pathways.runtime.local.codegen import Line
from pathways.runtime.local.devices import live_arrays
from pathways.runtime.plan.plan import Launch, Plan, Receive, Send, Slot, Transfer
from pathways.runtime.timelines.tables import size
from pathways.runtime.xla import nans

# What XLA and JAX say of a deleted array, each in its own way.
_DELETED = ("INVALID_ARGUMENT", "has been deleted")

_LISTED = 5
"""How many of the arrays that are alive are named."""


def explain(
    plan: Plan,
    arguments: Sequence[tuple[Slot, str]],
    devices: Mapping[str, Sequence[jax.Device]],
    lines: Mapping[int, Line],
    error: Exception,
    arrays: Sequence[jax.Array],
) -> None:
    """Adds to an error which step of the program failed, or raises one that says more.

    Args:
      plan: the program.
      arguments: the slot and the name of each array that it was called with.
      devices: the devices of each slice.
      lines: what the generated function does in its lines.
      error: what stopped it.
      arrays: what it was called with.
    """
    trace = error.__traceback__
    line = lines.get(trace.tb_lineno) if trace else None
    if line is None or trace is None:
        return
    if any(text in str(error) for text in _DELETED):
        # Only what the step reads: steps before it may have used up other arguments, which were donated.
        for (slot, name), array in zip(arguments, arrays, strict=True):
            if slot in line.reads:
                check_alive(plan.name, name, array)
    if isinstance(error, FloatingPointError) and isinstance(line.step, Launch):
        operands = [_value(trace.tb_frame, place) for place in line.places]
        found = nans.find(plan.computations[line.step.computation], devices[line.step.slice], operands)
        raise FloatingPointError(f"program '{plan.name}', {_described(line)}: {found or error}") from None
    error.add_note(f"in program {plan.name}, {_described(line)}")
    if "RESOURCE_EXHAUSTED" in str(error) and line.step is not None:
        slice = _slice_of(line.step)
        names = {id(array): name for (_, name), array in zip(arguments, arrays, strict=True)}
        error.add_note("\n".join(_alive(trace.tb_frame, slice, set(devices[slice]), names)))


def _slice_of(step: Launch | Transfer | Send | Receive) -> str:
    """Where a step takes memory."""
    match step:
        case Launch():
            return step.slice
        case Send():
            return step.src
        case Transfer() | Receive():
            return step.dst


def _described(line: Line) -> str:
    match line.step:
        case Launch(slice=slice, microbatch=None):
            return f"step {line.label} on slice {slice}"
        case Launch(slice=slice, microbatch=microbatch):
            return f"step {line.label} on slice {slice}, microbatch {microbatch}"
        case Transfer() | Send() | Receive():
            return f"transfer {line.label}"
    return line.label


def _value(frame: types.FrameType, place: str) -> jax.Array:
    return frame.f_locals[place] if place in frame.f_locals else frame.f_globals[place]


def _alive(
    frame: types.FrameType, slice: str, devices: set[jax.Device], names: Mapping[int, str]
) -> Iterator[str]:
    """Yields the largest arrays that the call holds on a slice, and the size of all others there."""
    held: dict[int, tuple[int, str]] = {}
    for value in frame.f_locals.values():
        for array in value if isinstance(value, list) else [value]:
            if isinstance(array, jax.Array) and (taken := _bytes_on(array, devices)):
                name = names.get(id(array), "an intermediate value")
                held[id(array)] = taken, f"{name} of type {array.aval.str_short(short_dtypes=True)}"
    ours = sum(taken for taken, _ in held.values())
    others = sum(_bytes_on(array, devices) for array in live_arrays() if id(array) not in held)
    yield (
        f"on slice {slice} were alive: {size(ours)} of this call, and {size(others)} of other arrays, among "
        "them those that the caller keeps"
    )
    ranked = sorted(held.values(), reverse=True)
    yield from (f"  {size(taken)}: {text}" for taken, text in ranked[:_LISTED])
    if len(ranked) > _LISTED:
        yield f"  and {len(ranked) - _LISTED} smaller ones"


def _bytes_on(array: jax.Array, devices: set[jax.Device]) -> int:
    """Returns the bytes of an array on some devices."""
    if array.is_deleted() or not array.sharding.device_set & devices:
        return 0
    return sum(shard.data.nbytes for shard in array.addressable_shards if shard.device in devices)
