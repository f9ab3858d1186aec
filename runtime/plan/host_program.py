"""Host programs: the plan of an island, cut for each of its hosts.

All hosts run the same launches in the same order, each on the shards of its own devices; a host skips the
launches on slices that have none of its devices. A transfer whose shards stay on their hosts is one transfer
on each host; any other becomes a send and a receive, as between islands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from pathways.runtime.plan.plan import Launch, Plan, Receive, Release, Send, Slot, Step, Transfer

Owners = Mapping[str, Sequence[int]]
"""The host of each device of each slice."""


@dataclasses.dataclass(frozen=True)
class HostProgram:
    """Program of one host of an island.

    Attributes:
      plan: the plan; arguments and results that are on no device of the host have no slots in it.
      inputs: the positions of the host's inputs among the input arrays of the island.
      outputs: the positions of the host's outputs among the output arrays of the island.
    """

    plan: Plan
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def cut_host_program(plan: Plan, owners: Owners, host: int, first: int) -> HostProgram:
    """Cuts the program of a host out of the plan of its island.

    Args:
      owners: the hosts of the devices of all slices of the program.
      first: the index of the first transfer that crosses from host to host within the island.
    """
    host_slices = {name for name in plan.slices if host in owners[name]}

    def on_host(slots: Mapping[str, Slot]) -> dict[str, Slot]:
        return {name: slot for name, slot in slots.items() if name in host_slices}

    passed = [argument for argument in plan.arguments if argument.constant is None]
    steps = tuple(_steps_of_host(plan, owners, host, first, host_slices))
    launched = {step.computation for step in steps if isinstance(step, Launch)}
    return HostProgram(
        dataclasses.replace(
            plan,
            slices={name: spec for name, spec in plan.slices.items() if name in host_slices},
            computations={name: c for name, c in plan.computations.items() if name in launched},
            arguments=tuple(dataclasses.replace(a, slots=on_host(a.slots)) for a in plan.arguments),
            results=tuple(dataclasses.replace(r, slots=on_host(r.slots)) for r in plan.results),
            steps=steps,
        ),
        _positions([name for argument in passed for name in argument.slots], host_slices),
        _positions([name for result in plan.results for name in result.slots], host_slices),
    )


def _positions(slices: Sequence[str], host_slices: set[str]) -> tuple[int, ...]:
    return tuple(n for n, name in enumerate(slices) if name in host_slices)


def _steps_of_host(
    plan: Plan, owners: Owners, host: int, index: int, host_slices: set[str]
) -> Iterator[Step]:
    for step in plan.steps:
        match step:
            case Launch() if step.slice in host_slices:
                yield step
            case Send() if step.src in host_slices:
                yield step
            case Receive() if step.dst in host_slices:
                yield step
            case Release():
                slots, delete = (
                    tuple(slot for slot in some if plan.slot_slices[slot] in host_slices)
                    for some in (step.slots, step.delete)
                )
                if slots or delete:
                    yield Release(slots, delete)
            case Transfer():
                if not crosses(step, owners):
                    if step.dst in host_slices:
                        yield _local_transfer(step, owners, host)
                    continue
                channel = step.channel or ""
                if step.src in host_slices:
                    yield Send(
                        step.operands, step.src, step.dst, channel, host, index, step.routes, copy=True
                    )
                if step.dst in host_slices:
                    yield Receive(step.results, step.src, step.dst, channel, host, index, step.routes)
                # Every host counts every crossing transfer, also of others: both ends must use one index.
                index += 1
            case _:
                pass


def crosses(transfer: Transfer, owners: Owners) -> bool:
    """Returns whether a transfer moves any shard from one host to another."""
    return any(
        owners[transfer.src][source] != owners[transfer.dst][target]
        for target, _, source in routes_of(transfer, len(owners[transfer.dst]))
    )


def routes_of(step: Transfer | Send | Receive, devices: int) -> Iterator[tuple[int, int, int]]:
    """Yields, for each shard that a step fills, its device, and the operand and the device of its source.

    Args:
      devices: the number of devices of the destination.
    """
    routes = step.routes or (tuple((0, device) for device in range(devices)),)
    for result in routes:
        for target, (operand, source) in enumerate(result):
            yield target, operand, source


def _local_transfer(transfer: Transfer, owners: Owners, host: int) -> Transfer:
    """Returns a transfer within a host, whose routes number the devices of this host alone."""
    if transfer.routes is None:
        return transfer
    positions = [n for n, owner in enumerate(owners[transfer.src]) if owner == host]
    return dataclasses.replace(
        transfer,
        routes=tuple(
            tuple(
                (operand, positions.index(source))
                for target, (operand, source) in enumerate(result)
                if owners[transfer.dst][target] == host
            )
            for result in transfer.routes
        ),
    )
