"""What one of several hosts of an island does of what its island does.

All of them run the same launches in the same order, each with the shards that are on its devices; a launch
on a slice that has no device of a host is none of its business. A transfer whose shards stay on their hosts
is one on each of them; any other is a send and a receive, as between islands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from pathways.runtime.plan.plan import Launch, Plan, Receive, Release, Send, Slot, Step, Transfer

Owners = Mapping[str, Sequence[int]]
"""The host of each device of each slice."""


@dataclasses.dataclass(frozen=True)
class OwnPart:
    """What a host does.

    Attributes:
      plan: the plan; what is nowhere on the host has no slots there.
      inputs: which of the arrays that the island takes the host takes.
      outputs: which of those that the island makes the host makes.
    """

    plan: Plan
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def own_part(plan: Plan, owners: Owners, host: int, first: int) -> OwnPart:
    """Cuts what a host does out of the plan of its island.

    Args:
      plan: the plan of the island.
      owners: the hosts of the devices of all slices of the program.
      host: the host.
      first: the index of the first transfer that crosses from host to host within the island.
    """
    here = {name for name in plan.slices if host in owners[name]}

    def own(slots: Mapping[str, Slot]) -> dict[str, Slot]:
        return {name: slot for name, slot in slots.items() if name in here}

    passed = [argument for argument in plan.arguments if argument.constant is None]
    steps = tuple(_own_steps(plan, owners, host, first, here))
    launched = {step.computation for step in steps if isinstance(step, Launch)}
    return OwnPart(
        dataclasses.replace(
            plan,
            slices={name: spec for name, spec in plan.slices.items() if name in here},
            computations={name: c for name, c in plan.computations.items() if name in launched},
            arguments=tuple(dataclasses.replace(a, slots=own(a.slots)) for a in plan.arguments),
            results=tuple(dataclasses.replace(r, slots=own(r.slots)) for r in plan.results),
            steps=steps,
        ),
        _numbers([name for argument in passed for name in argument.slots], here),
        _numbers([name for result in plan.results for name in result.slots], here),
    )


def _numbers(slices: Sequence[str], here: set[str]) -> tuple[int, ...]:
    return tuple(n for n, name in enumerate(slices) if name in here)


def _own_steps(plan: Plan, owners: Owners, host: int, index: int, here: set[str]) -> Iterator[Step]:
    for step in plan.steps:
        match step:
            case Launch() if step.slice in here:
                yield step
            case Send() if step.src in here:
                yield step
            case Receive() if step.dst in here:
                yield step
            case Release():
                slots, delete = (
                    tuple(slot for slot in some if plan.slot_slices[slot] in here)
                    for some in (step.slots, step.delete)
                )
                if slots or delete:
                    yield Release(slots, delete)
            case Transfer():
                if not crosses(step, owners):
                    if step.dst in here:
                        yield _within(step, owners, host)
                    continue
                channel = step.channel or ""
                if step.src in here:
                    yield Send(
                        step.operands, step.src, step.dst, channel, host, index, step.routes, copy=True
                    )
                if step.dst in here:
                    yield Receive(step.results, step.src, step.dst, channel, host, index, step.routes)
                index += 1
            case _:
                pass


def crosses(transfer: Transfer, owners: Owners) -> bool:
    """Whether any shard goes from one host to another."""
    return any(
        owners[transfer.src][source] != owners[transfer.dst][target]
        for target, _, source in routes_of(transfer, len(owners[transfer.dst]))
    )


def routes_of(step: Transfer | Send | Receive, devices: int) -> Iterator[tuple[int, int, int]]:
    """For each shard that is filled, in order: its device, and the operand and device that have it.

    Args:
      step: what moves shards.
      devices: how many the destination has.
    """
    routes = step.routes or (tuple((0, device) for device in range(devices)),)
    for result in routes:
        for target, (operand, source) in enumerate(result):
            yield target, operand, source


def _within(transfer: Transfer, owners: Owners, host: int) -> Transfer:
    """A transfer in which each host knows its own devices alone."""
    if transfer.routes is None:
        return transfer
    own = [n for n, owner in enumerate(owners[transfer.src]) if owner == host]
    return dataclasses.replace(
        transfer,
        routes=tuple(
            tuple(
                (operand, own.index(source))
                for target, (operand, source) in enumerate(result)
                if owners[transfer.dst][target] == host
            )
            for result in transfer.routes
        ),
    )
