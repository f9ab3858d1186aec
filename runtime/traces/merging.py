"""Merging of the times of a run on all hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pathways.runtime.hosts.protocol.messages import StepTimes
from pathways.runtime.plan.host_program import Owners, crosses, routes_of
from pathways.runtime.plan.plan import Launch, Plan, Release, SliceSpec, Slot, Step, Transfer
from pathways.runtime.traces.recorder import ObservedTimes, RecordedCall


@dataclasses.dataclass(frozen=True)
class HostStep:
    """Step of the plan of a host, and the steps of the merged plan that it belongs to.

    Attributes:
      events: the numbers of these steps.
      sends: whether it is the sending side of transfers.
    """

    events: tuple[int, ...]
    sends: bool = False


class PlanOnHosts:
    """Plan of a whole program, with a slice for each host, and the steps of each host.

    A slice on several hosts becomes one slice for each of them, with its devices there. So a launch on it
    becomes one launch on each host, and a transfer one transfer to each host, from the first host that sends
    to it.

    Args:
      plan: the plan of the whole program.
      owners: for each of its slices the host of each device.

    Attributes:
      host_steps: for each host the launches, transfers, sends and receives of its own plan, in order.
    """

    def __init__(self, plan: Plan, owners: Owners) -> None:
        self._program_plan = plan
        self._owners = owners
        self._slots: dict[tuple[Slot, int], Slot] = {}
        self.hosts = {
            self._track(name, host): host for name, hosts in owners.items() for host in dict.fromkeys(hosts)
        }
        host_steps: dict[int, list[HostStep]] = {}
        steps: list[Step] = []
        for step in plan.steps:
            for host, step_of_host in self._spread(step, steps):
                host_steps.setdefault(host, []).append(step_of_host)
        self.host_steps: Mapping[int, Sequence[HostStep]] = host_steps
        self.plan = self._plan(steps)

    def _track(self, slice: str, host: int) -> str:
        """Returns the name of the slice that represents a slice on one of its hosts."""
        hosts = list(dict.fromkeys(self._owners[slice]))
        return slice if len(hosts) == 1 else f"{slice}/{hosts.index(host)}"

    def _at(self, slots: Sequence[Slot], host: int) -> tuple[Slot, ...]:
        """Returns the slots that represent slots on a host of their slice."""
        return tuple(self._slots.setdefault((slot, host), len(self._slots)) for slot in slots)

    def _spread(self, step: Step, steps: list[Step]) -> Iterator[tuple[int, HostStep]]:
        """Appends the steps that represent a step to `steps`; yields the step of each host."""
        match step:
            case Launch():
                for host in dict.fromkeys(self._owners[step.slice]):
                    yield host, HostStep((len(steps),))
                    operands, results = self._at(step.operands, host), self._at(step.results, host)
                    slice = self._track(step.slice, host)
                    steps.append(dataclasses.replace(step, slice=slice, operands=operands, results=results))
            case Transfer():
                senders = dict.fromkeys(self._owners[step.src])
                first: dict[int, int] = {}
                for target, _, source in routes_of(step, len(self._owners[step.dst])):
                    first.setdefault(self._owners[step.dst][target], self._owners[step.src][source])
                numbers = {host: len(steps) + n for n, host in enumerate(first)}
                if crosses(step, self._owners):
                    for sender in senders:
                        events = tuple(n for host, n in numbers.items() if first[host] == sender)
                        yield sender, HostStep(events, sends=True)
                for host, n in numbers.items():
                    yield host, HostStep((n,))
                    src, dst = self._track(step.src, first[host]), self._track(step.dst, host)
                    operands, results = self._at(step.operands, first[host]), self._at(step.results, host)
                    steps.append(Transfer(operands, results, src, dst, channel=step.channel))
            case Release():
                slots, delete = (
                    tuple(new for (old, _), new in self._slots.items() if old in some)
                    for some in (step.slots, step.delete)
                )
                steps.append(Release(slots, delete))
            case _:
                pass

    def _plan(self, steps: Sequence[Step]) -> Plan:
        """Returns the plan with a slice for each host."""
        plan, owners = self._program_plan, self._owners
        slices = {}
        for name, spec in plan.slices.items():
            hosts = list(dict.fromkeys(owners[name]))
            for host in hosts:
                track = self._track(name, host)
                count = owners[name].count(host)
                slices[track] = SliceSpec(track, ("device",), (count,)) if len(hosts) > 1 else spec
        places = plan.slot_slices

        def slots(by_slice: Mapping[str, Slot]) -> dict[str, Slot]:
            return {
                self._track(name, host): self._at((slot,), host)[0]
                for name, slot in by_slice.items()
                for host in dict.fromkeys(owners[name])
            }

        arguments = tuple(dataclasses.replace(a, slots=slots(a.slots)) for a in plan.arguments)
        results = tuple(dataclasses.replace(r, slots=slots(r.slots)) for r in plan.results)
        local_slots = [slot if len(set(owners[places[slot]])) == 1 else None for slot, _ in self._slots]
        return dataclasses.replace(
            plan,
            slices=slices,
            arguments=arguments,
            results=results,
            steps=tuple(steps),
            # The slice of one of several hosts holds that host's shards.
            slot_types=tuple(
                plan.slot_types[slot] if local_slot is not None else plan.shard_type(slot)
                for (slot, _), local_slot in zip(self._slots, local_slots, strict=True)
            ),
            slot_shardings=tuple(
                () if local_slot is None else plan.sharding(local_slot) for local_slot in local_slots
            ),
            peak_bytes={},
        )

    def merged(
        self,
        name: Any,
        times: Mapping[int, Sequence[StepTimes]],
        to_local: Mapping[int, Callable[[int], int]],
    ) -> RecordedCall:
        """Merges the times of a run on all hosts.

        A transfer between hosts was dispatched when it was sent, and done when it was received. Without the
        times of the receiver it is missing; without the times of the sender it starts with the receive. One
        that cannot be awaited, because its reader donates it, was done when its reader began at the latest.

        Args:
          name: the name of the call in the sink.
          times: the times of hosts; some hosts may be missing.
          to_local: for each host the translation of its times to the local clock.
        """
        seen: dict[int, ObservedTimes] = {}
        ran: dict[int, tuple[int, int]] = {}
        dispatched: dict[int, int] = {}
        for host, own_times in times.items():
            local = to_local[host]
            for time in own_times:
                step = self.host_steps[host][time.step]
                if step.sends:
                    dispatched.update(dict.fromkeys(step.events, local(time.dispatched)))
                    continue
                (n,) = step.events
                done = None if time.done is None else local(time.done)
                before = local(time.before) if time.before else 0
                seen[n] = ObservedTimes(local(time.dispatched), done, before)
                if time.ran is not None:
                    ran[n] = local(time.ran[0]), local(time.ran[1])
        arrived = self._arrived_before(ran)
        for n, at in dispatched.items():
            if n in seen:
                done = arrived.get(n) if seen[n].done is None else seen[n].done
                seen[n] = dataclasses.replace(seen[n], dispatched=at, done=done)
        return RecordedCall(name, self.plan, seen, ran, self.hosts)

    def _arrived_before(self, ran: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Returns for each transfer when a launch with a known time first read its results."""
        transfers: dict[Slot, int] = {}
        arrived: dict[int, int] = {}
        for n, step in enumerate(self.plan.steps):
            match step:
                case Transfer():
                    transfers.update(dict.fromkeys(step.results, n))
                case Launch() if n in ran:
                    for transfer in {transfers[slot] for slot in step.operands if slot in transfers}:
                        arrived[transfer] = min(ran[n][0], arrived.get(transfer, ran[n][0]))
                case _:
                    pass
        return arrived
