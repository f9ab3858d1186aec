"""Failures of steps that are held until it is known whether the loss of another host is their cause.

A host that waits for another one fails as soon as their connection ends, which may be before the loss is
known otherwise. Users should see the loss as the cause, not the failure that followed from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pathways.runtime.control.records.events import GangKey
from pathways.runtime.control.records.step import Step

HOLD_SECONDS = 0.1
"""Time for which a failure is held."""

EXIT_SECONDS = 2.0
"""Time for which failures are held once another host has closed its connections: it is about to exit."""


@dataclasses.dataclass(frozen=True, slots=True)
class HeldFailure:
    """Failure of a step on one host.

    Attributes:
      gang: the workers of the host.
      host: its number.
      error: the reason if all results failed; None if only some did.
      wrong: the reasons for single results, by their positions.
      took: the time for which the step had the devices, in seconds.
      until: when it is no longer held.
    """

    step: Step
    gang: GangKey
    host: int
    error: str | None
    wrong: Mapping[int, str]
    took: float = 0.0
    until: float = 0.0


class HeldFailures:
    """The failures that are held, in their order.

    Args:
      hosts: the number of hosts of the cluster. Any of them may be the cause: arguments of a step may come
        from hosts that have no share in it.

    Attributes:
      hosts: see above; it grows.
    """

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
        self._held: list[HeldFailure] = []
        # The hosts that have closed their connections, and until when their exits are awaited.
        self._exiting: dict[tuple[GangKey, int], float] = {}

    def hold(self, failure: HeldFailure, now: float) -> bool:
        """Holds a failure if another host may be its cause; returns whether it does."""
        if self.hosts < 2 or failure.step.is_lost():
            return False
        self._held.append(dataclasses.replace(failure, until=now + HOLD_SECONDS))
        return True

    def note_exit(self, gang: GangKey, host: int, now: float) -> None:
        """Notes that a host has closed its connections: failures are held until it exits."""
        self._exiting[gang, host] = now + EXIT_SECONDS

    def release(self, now: float) -> list[HeldFailure]:
        """Returns the failures that are no longer held: their time is over, or their cause is known."""
        if not self._held:
            return []
        # The exit of a host does not explain its own failure.
        exiting = {key for key, until in self._exiting.items() if now < until}
        released = [
            held
            for held in self._held
            if held.step.is_lost() or (now >= held.until and not exiting - {(held.gang, held.host)})
        ]
        if released:
            self._held = [held for held in self._held if held not in released]
        return released

    def note_loss(self, gang: GangKey) -> None:
        """Notes that a gang is lost: its exits are no longer awaited, and it may be the cause of all."""
        self._held = [dataclasses.replace(held, until=0.0) for held in self._held]
        self._exiting = {key: until for key, until in self._exiting.items() if key[0] != gang}
