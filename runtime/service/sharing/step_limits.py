"""Limits of the time for which the steps of clients may run."""

from __future__ import annotations

from collections.abc import Iterable

from pathways.runtime.control.records.step import Step
from pathways.runtime.service.sharing.scheduler_events import QueuedStep


class StepLimits:
    """Steps in flight with a limit of the time for which they may run, in seconds.

    A step runs from when it is first among the steps in flight on all its islands; until then it waits.
    """

    def __init__(self) -> None:
        # Beyond the time of its client: the steps of a client that has left still run.
        self._limits: dict[QueuedStep, float] = {}
        self._since: dict[QueuedStep, float] = {}

    def add(self, step: QueuedStep, limit: float) -> None:
        """Adds a step that is issued."""
        self._limits[step] = limit

    def find_overdue(self, steps: Iterable[Step], now: float) -> list[tuple[QueuedStep, float]]:
        """Returns the steps that have run for longer than their limits, and these.

        Args:
          steps: all steps that are not done, in the order in which they were issued.
        """
        self._limits = {step: limit for step, limit in self._limits.items() if not step.is_done()}
        if not self._limits:
            self._since.clear()
            return []
        busy: set[int] = set()
        running: dict[QueuedStep, float] = {}
        for step in steps:
            # Calls run beside steps.
            if step.is_unordered:
                continue
            pending = set(step.pending_hosts)
            if isinstance(step, QueuedStep) and step in self._limits and busy.isdisjoint(pending):
                running[step] = self._since.get(step, now)
            busy |= pending
        self._since = running
        return [
            (step, limit) for step, since in running.items() if now - since > (limit := self._limits[step])
        ]
