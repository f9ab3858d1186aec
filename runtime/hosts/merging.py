"""What a call did on all hosts, from what each host says of its part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pathways.runtime.hosts.messages import StepTimes
from pathways.runtime.local.call_trace import RecordedCall, Seen
from pathways.runtime.plan.plan import Launch, Plan, Release, Slot, Transfer


class PlanOnHosts:
    """A whole program, and which of its steps each host has a part of.

    Args:
      plan: the whole program.
      hosts: the host of each of its slices.

    Attributes:
      steps: for each host the numbers of the launches and transfers that it has a part of, in order: those of
        the launches, transfers, sends and receipts of its own plan.
    """

    def __init__(self, plan: Plan, hosts: Mapping[str, int]) -> None:
        self.plan = plan
        self.hosts = dict(hosts)
        steps: dict[int, list[int]] = {}
        for n in range(len(plan.steps)):
            for host in self.parties(n):
                steps.setdefault(host, []).append(n)
        self.steps: Mapping[int, Sequence[int]] = steps

    def parties(self, n: int) -> tuple[int, ...]:
        """The hosts that have a part of a step; of a transfer between hosts the source is the first."""
        step = self.plan.steps[n]
        match step:
            case Release():
                return ()
            case Launch():
                return (self.hosts[step.slice],)
            case _:
                return tuple(dict.fromkeys((self.hosts[step.src], self.hosts[step.dst])))

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
        seen: dict[int, Seen] = {}
        ran: dict[int, tuple[int, int]] = {}
        dispatched: dict[int, int] = {}
        for host, times in parts.items():
            now = here[host]
            for time in times:
                n = self.steps[host][time.step]
                source, *others = self.parties(n)
                if others and host == source:
                    dispatched[n] = now(time.dispatched)
                    continue
                done = None if time.done is None else now(time.done)
                before = now(time.before) if time.before else 0
                seen[n] = Seen(now(time.dispatched), done, before)
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
