"""Explanations of errors while steps are issued: the step, the cause, and the arrays that were live."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence

import jax

from pathways.runtime.local.checks import check_alive
from pathways.runtime.local.codegen import Line
from pathways.runtime.local.devices import live_arrays
from pathways.runtime.plan.plan import Launch, Plan, Receive, Send, Slot, Transfer
from pathways.runtime.resources.tables import size
from pathways.runtime.xla import nans

# Texts in the errors of XLA and of JAX about a deleted array.
_DELETED = ("INVALID_ARGUMENT", "has been deleted")

_MAX_LISTED = 5
"""Number of live arrays that a message lists."""


def explain(
    plan: Plan,
    arguments: Sequence[tuple[Slot, str]],
    devices: Mapping[str, Sequence[jax.Device]],
    lines: Mapping[int, Line],
    error: Exception,
    arrays: Sequence[jax.Array],
) -> None:
    """Adds the failed step of the program to an error, or raises an error that is more specific.

    Args:
      arguments: the slot and the name of each array that it was called with.
      lines: the lines of the generated function.
    """
    trace = error.__traceback__
    # The generated function itself calls this, so that the first frame is its own.
    line = lines.get(trace.tb_lineno) if trace else None
    if line is None or trace is None:
        return
    if any(text in str(error) for text in _DELETED):
        # Other arguments may be deleted correctly: an earlier step has consumed them.
        for (slot, name), array in zip(arguments, arrays, strict=True):
            if slot in line.reads:
                check_alive(plan.name, name, array)
    if isinstance(error, FloatingPointError) and isinstance(line.step, Launch):
        operands = [_value(trace.tb_frame, place) for place in line.places]
        cause = nans.find(plan.computations[line.step.computation], devices[line.step.slice], operands)
        raise FloatingPointError(f"program '{plan.name}', {_describe(line)}: {cause or error}") from None
    error.add_note(f"in program {plan.name}, {_describe(line)}")
    if "RESOURCE_EXHAUSTED" in str(error) and line.step is not None:
        slice = _slice_of(line.step)
        names = {id(array): name for (_, name), array in zip(arguments, arrays, strict=True)}
        error.add_note("\n".join(_live_arrays(trace.tb_frame, slice, set(devices[slice]), names)))


def _slice_of(step: Launch | Transfer | Send | Receive) -> str:
    """Returns the slice on which a step allocates memory."""
    match step:
        case Launch():
            return step.slice
        case Send():
            return step.src
        case Transfer() | Receive():
            return step.dst


def _describe(line: Line) -> str:
    match line.step:
        case Launch() as launch:
            return describe_launch(launch)
        case Transfer() | Send() | Receive():
            return f"transfer {line.label}"
    return line.label


def describe_launch(launch: Launch) -> str:
    """Returns the words of messages for a launch: its label, its slice and its microbatch."""
    microbatch = "" if launch.microbatch is None else f", microbatch {launch.microbatch}"
    return f"step {' '.join(launch.label.split())} on slice {launch.slice}{microbatch}"


def _value(frame: types.FrameType, place: str) -> jax.Array:
    return frame.f_locals[place] if place in frame.f_locals else frame.f_globals[place]


def _live_arrays(
    frame: types.FrameType, slice: str, devices: set[jax.Device], names: Mapping[int, str]
) -> Iterator[str]:
    """Yields lines about memory of a slice: the largest arrays of the call, and the bytes of others."""
    held: dict[int, tuple[int, str]] = {}
    for value in frame.f_locals.values():
        for array in value if isinstance(value, list) else [value]:
            if isinstance(array, jax.Array) and (nbytes := _bytes_on(array, devices)):
                name = names.get(id(array), "an intermediate value")
                held[id(array)] = nbytes, f"{name} of type {array.aval.str_short(short_dtypes=True)}"
    call_bytes = sum(nbytes for nbytes, _ in held.values())
    other_bytes = sum(_bytes_on(array, devices) for array in live_arrays() if id(array) not in held)
    yield (
        f"live on slice {slice}: {size(call_bytes)} of this call, and {size(other_bytes)} of other arrays, "
        "including arrays that the caller keeps"
    )
    ranked = sorted(held.values(), reverse=True)
    yield from (f"  {size(nbytes)}: {text}" for nbytes, text in ranked[:_MAX_LISTED])
    if len(ranked) > _MAX_LISTED:
        yield f"  and {len(ranked) - _MAX_LISTED} smaller ones"


def _bytes_on(array: jax.Array, devices: set[jax.Device]) -> int:
    """Returns the bytes of an array on some devices."""
    if array.is_deleted() or not array.sharding.device_set & devices:
        return 0
    return sum(shard.data.nbytes for shard in array.addressable_shards if shard.device in devices)
