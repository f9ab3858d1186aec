"""Number of steps of a program that may be in flight, and the share of a step in the window of an island."""

from __future__ import annotations

from collections.abc import Mapping

from jaxlib.mlir import ir

from pathways.dialect import op_has
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.program_view import read_hosts
from pathways.passes.schedule.memory.host_memory import step_bytes
from pathways.runtime.hosts.launch.options import AUTO, MAX_AHEAD
from pathways.runtime.hosts.protocol.programs import SlicePlace
from pathways.runtime.plan.plan import Plan

_MAX_THAT_SEND = 16
"""Limit for programs that send between hosts or run collectives, for which memory is reserved."""

_MIN_IF_UNKNOWN = 4
"""Minimum number of steps where memory sizes are unknown."""

_UNKNOWN = 256 << 20
"""Bytes that all further steps together may take on devices whose memory size is unknown."""


def steps_ahead(
    ahead: int | str, module: ir.Module, plan: Plan, places: Mapping[str, SlicePlace], *, multi_host: bool
) -> int:
    """Returns how many steps of a program may be in flight.

    Args:
      ahead: the setting of the user.
      module: the program in the form `host`, with room for one step.
      plan: the plan of the whole program.
      places: the devices of its slices.
      multi_host: whether an island of it has several hosts, which run collectives in its computations.
    """
    if ahead != AUTO:
        return int(ahead)
    hosts = read_hosts(module)
    if not multi_host and not any(op_has(op, Trait.SENDS) for host in hosts for op in host.ops):
        return _that_fit(_call_bytes(plan), None, 0, MAX_AHEAD)
    return min(
        (
            _that_fit(further, _memory(places[name]), peak, _MAX_THAT_SEND)
            for name, (peak, further) in step_bytes(hosts).items()
        ),
        default=_MIN_IF_UNKNOWN,
    )


def share(ahead: int | str, steps: int) -> int:
    """Returns how much of the window of an island a step takes, if `steps` steps of its program fit."""
    return MAX_AHEAD // steps if ahead == AUTO else 1


def _that_fit(further: int, memory: int | None, peak: int, limit: int) -> int:
    """Returns how many steps fit: the first needs `peak` bytes, each other one `further` bytes more."""
    if not further:
        return limit
    if memory is None:
        return max(_MIN_IF_UNKNOWN, min(limit, 1 + _UNKNOWN // further))
    return max(1, min(limit, 1 + (memory - peak) // further))


def _memory(place: SlicePlace) -> int | None:
    """Returns the memory of all devices of a slice; None if unknown."""
    return None if place.memory is None else place.memory * len(place.devices)


def _call_bytes(plan: Plan) -> int:
    """Returns the maximum bytes of the arguments and results of one more call."""
    passed = [argument.type for argument in plan.arguments if argument.constant is None]
    return sum(type_.nbytes for type_ in [*passed, *(result.type for result in plan.results)])
