"""What a call did on all hosts, from what each host says of its part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pathways.runtime.hosts.protocol.messages import StepTimes
from pathways.runtime.local.call_trace import ObservedTimes, RecordedCall
from pathways.runtime.plan.host_program import Owners, crosses, routes_of
from pathways.runtime.plan.plan import Launch, Plan, Release, SliceSpec, Slot, Step, Transfer


@dataclasses.dataclass(frozen=True)
class HostStep:
    """A step of the plan of a host, among the events of the program.

    Attributes:
      events: the numbers of those that the host has a part of with this step.
      sends: whether it only gives what others get.
    """

    events: tuple[int, ...]
    sends: bool = False


class PlanOnHosts:
    """A whole program, and which of its steps each host has a part of.

    A slice on several hosts is one slice for each of them, with the devices there. So a launch on it is one
    on each, and a transfer one to each, from the first host that sends to it.

    Args:
      plan: the whole program.
      owners: for each of its slices the host of each device.

    Attributes:
      plan: the program with a slice for each host.
      hosts: the host of each of these.
      parts: for each host the launches, transfers, sends and receipts of its own plan, in order.
    """

    def __init__(self, plan: Plan, owners: Owners) -> None:
        self._whole = plan
        self._owners = owners
        self._slots: dict[tuple[Slot, int], Slot] = {}
        self.hosts = {
            self._track(name, host): host for name, own in owners.items() for host in dict.fromkeys(own)
        }
        parts: dict[int, list[HostStep]] = {}
        steps: list[Step] = []
        for step in plan.steps:
            for host, part in self._spread(step, steps):
                parts.setdefault(host, []).append(part)
        self.parts: Mapping[int, Sequence[HostStep]] = parts
        self.plan = self._plan(steps)

    def _track(self, slice: str, host: int) -> str:
        """What stands for a slice on one of its hosts."""
        hosts = list(dict.fromkeys(self._owners[slice]))
        return slice if len(hosts) == 1 else f"{slice}/{hosts.index(host)}"

    def _at(self, slots: Sequence[Slot], host: int) -> tuple[Slot, ...]:
        """What stands for slots on a host of their slice."""
        return tuple(self._slots.setdefault((slot, host), len(self._slots)) for slot in slots)

    def _spread(self, step: Step, steps: list[Step]) -> Iterator[tuple[int, HostStep]]:
        """Appends what stands for a step; gives the part of each host."""
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
        """The program with a slice for each host."""
        plan, owners = self._whole, self._owners
        slices = {}
        for name, spec in plan.slices.items():
            hosts = list(dict.fromkeys(owners[name]))
            for host in hosts:
                track = self._track(name, host)
                count = owners[name].count(host)
                slices[track] = SliceSpec(track, ("device",), (count,)) if len(hosts) > 1 else spec
        places = plan.slot_slices

        def slots(given: Mapping[str, Slot]) -> dict[str, Slot]:
            return {
                self._track(name, host): self._at((slot,), host)[0]
                for name, slot in given.items()
                for host in dict.fromkeys(owners[name])
            }

        arguments = tuple(dataclasses.replace(a, slots=slots(a.slots)) for a in plan.arguments)
        results = tuple(dataclasses.replace(r, slots=slots(r.slots)) for r in plan.results)
        whole = [slot if len(set(owners[places[slot]])) == 1 else None for slot, _ in self._slots]
        return dataclasses.replace(
            plan,
            slices=slices,
            arguments=arguments,
            results=results,
            steps=tuple(steps),
            # Each host has a slice for itself with what lies on its devices.
            slot_types=tuple(
                plan.slot_types[slot] if kept is not None else plan.shard_type(slot)
                for (slot, _), kept in zip(self._slots, whole, strict=True)
            ),
            slot_shardings=tuple(() if kept is None else plan.sharding(kept) for kept in whole),
            peak_bytes={},
        )

    def merged(
        self,
        name: Any,
        parts: Mapping[int, Sequence[StepTimes]],
        here: Mapping[int, Callable[[int], int]],
    ) -> RecordedCall:
        """One call on all hosts.

        A transfer between hosts was dispatched when it was sent, and done when what was received was there.
        Without the receiver it is missing, without the sender it begins when it was asked for. One that
        cannot be waited for, because its reader donates it, was done when its reader began at the latest.

        Args:
          name: what the sink calls it.
          parts: what hosts said; not all need have.
          here: for each host translates its times to those of the clock here.
        """
        seen: dict[int, ObservedTimes] = {}
        ran: dict[int, tuple[int, int]] = {}
        dispatched: dict[int, int] = {}
        for host, times in parts.items():
            now = here[host]
            for time in times:
                part = self.parts[host][time.step]
                if part.sends:
                    dispatched.update(dict.fromkeys(part.events, now(time.dispatched)))
                    continue
                (n,) = part.events
                done = None if time.done is None else now(time.done)
                before = now(time.before) if time.before else 0
                seen[n] = ObservedTimes(now(time.dispatched), done, before)
                if time.ran is not None:
                    ran[n] = now(time.ran[0]), now(time.ran[1])
        arrived = self._arrived_before(ran)
        for n, at in dispatched.items():
            if n in seen:
                done = arrived.get(n) if seen[n].done is None else seen[n].done
                seen[n] = dataclasses.replace(seen[n], dispatched=at, done=done)
        return RecordedCall(name, self.plan, seen, ran, self.hosts)

    def _arrived_before(self, ran: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """When what a transfer brought was first read by a launch that was seen to run."""
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
