"""How many steps of a program may be under way: the window of an island, and the share of a step in it."""

from __future__ import annotations

from collections.abc import Mapping

from jaxlib.mlir import ir

from pathways.dialect import op_has
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.program_view import read_hosts
from pathways.passes.schedule.memory.host_memory import step_bytes
from pathways.runtime.hosts.launch.options import AUTO, MOST_AHEAD
from pathways.runtime.hosts.protocol.programs import SlicePlace
from pathways.runtime.plan.plan import Plan

_MOST_THAT_SEND = 16
_USUAL = 4

_UNKNOWN = 256 << 20
"""Bytes that all further steps together may take of devices that do not say how much memory they have."""


def steps_ahead(
    ahead: int | str, module: ir.Module, plan: Plan, places: Mapping[str, SlicePlace], *, together: bool
) -> int:
    """How many steps of a program may be issued and not done.

    Args:
      ahead: what the user says.
      module: the program in the form `host`, with room for one step.
      plan: the whole program.
      places: the devices of its slices.
      together: whether an island of it has several hosts, which wait for each other in its computations.
    """
    if ahead != AUTO:
        return int(ahead)
    hosts = read_hosts(module)
    if not together and not any(op_has(op, Trait.SENDS) for host in hosts for op in host.ops):
        return _that_fit(_call_bytes(plan), None, 0, MOST_AHEAD)
    return min(
        (
            _that_fit(further, _memory(places[name]), peak, _MOST_THAT_SEND)
            for name, (peak, further) in step_bytes(hosts).items()
        ),
        default=_USUAL,
    )


def share(ahead: int | str, steps: int) -> int:
    """For how many steps one counts in the window of an island, of a program of which `steps` fit it."""
    return MOST_AHEAD // steps if ahead == AUTO else 1


def _that_fit(further: int, memory: int | None, peak: int, most: int) -> int:
    if not further:
        return most
    if memory is None:
        return max(_USUAL, min(most, 1 + _UNKNOWN // further))
    return max(1, min(most, 1 + (memory - peak) // further))


def _memory(place: SlicePlace) -> int | None:
    """The memory of all devices of a slice."""
    return None if place.memory is None else place.memory * len(place.devices)


def _call_bytes(plan: Plan) -> int:
    """What the arguments and results of one more call take, at most."""
    passed = [argument.type for argument in plan.arguments if argument.constant is None]
    return sum(type_.nbytes for type_ in [*passed, *(result.type for result in plan.results)])
