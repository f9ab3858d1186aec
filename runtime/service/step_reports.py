"""Issued steps of a service, and their reports to clients."""

from __future__ import annotations

import collections
from collections.abc import Callable

from pathways.runtime.control.core import ClusterCore
from pathways.runtime.control.held_failures import HeldFailure
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.protocol.messages import Done, Message
from pathways.runtime.service.protocol.service_messages import (
    FromHost,
    HostsDone,
    Indeterminate,
    RemoteError,
    StepCutOff,
)
from pathways.runtime.service.served.served_client import ServedClient, ServedStep
from pathways.runtime.service.sharing.scheduler_events import IslandStepDone

BATCH_SECONDS = 0.001
"""Delay for batching the completion messages of one step, in seconds: its hosts finish at about one time."""


class StepReports:
    """Issued steps of all clients, with their outcomes that the clients do not know yet.

    All its methods run in the dispatch thread.

    Args:
      pool: the workers.
      send: sends a client messages that have an order.
      add_event: adds an event that the scheduler handles in this iteration of the dispatch thread.
    """

    def __init__(
        self,
        core: ClusterCore,
        pool: WorkerPool,
        send: Callable[[ServedClient, *tuple[Message, ...]], None],
        add_event: Callable[[IslandStepDone], None],
    ) -> None:
        self._core = core
        self._pool = pool
        self._send = send
        self._add_event = add_event
        self._issued: dict[int, ServedStep] = {}
        # Steps on multi-host islands that are done, and whose results an earlier step may still spoil.
        self._unsettled: list[ServedStep] = []
        # Steps with hosts that are done, as their clients do not know yet, and since when.
        self._unreported: collections.deque[tuple[float, ServedStep]] = collections.deque()

    def has_unreported(self) -> bool:
        """Returns whether completions wait for others of the same step."""
        return bool(self._unreported)

    def add(self, step: ServedStep) -> None:
        """Adds a step that is issued."""
        self._issued[step.number] = step

    def on_done(self, host: WorkerHandle, done: Done) -> None:
        """Handles that a host completed a step without failures."""
        step = self._issued.get(done.run)
        if step is None:
            return
        step.unreported.append(host.index)
        self._handle_end(step, host.gang, done.took)
        if len(step.unreported) == 1 and not self._core.has_multi_host_islands:
            self._unreported.append((host.pulse.heard, step))

    def on_failed(self, failure: HeldFailure) -> None:
        """Handles the failure of a step on a host."""
        # Not looked up in `_issued`: a loss may have ended the step, and its client waits for this host, too.
        step = failure.step
        assert isinstance(step, ServedStep)
        done = Done(step.number, failure.error, dict(failure.wrong), failure.took)
        step.failed.append(FromHost(failure.host, failure.gang.start, done))
        step.failed_islands |= {failure.gang.island}
        self._handle_end(step, self._pool.gangs[failure.gang.island], failure.took)

    def _handle_end(self, step: ServedStep, gang: HostGang, seconds: float) -> None:
        """Handles that a host of an island is done with a step, or that the step failed there."""
        has_multi_host_islands = self._core.has_multi_host_islands
        # The hosts of an island run a step together: the slowest one has the time that counts.
        took = step.durations[gang.number] = max(step.durations.get(gang.number, 0.0), seconds)
        is_done = step.is_done()
        if is_done or len(gang.hosts) == 1 or step.is_done(gang.life.hosts):
            has_failed = gang.number in step.failed_islands
            self._add_event(IslandStepDone(step, gang.number, took, has_failed))
        if is_done and self._issued.pop(step.number, None) is not None and has_multi_host_islands:
            self._unsettled.append(step)
        # With multi-host islands a result is reported when it is settled, see `report_settled`.
        if not has_multi_host_islands and (is_done or step.failed):
            self._report(step)

    def remove_ended(self) -> None:
        """Removes steps that ended with lost hosts; reports steps of hosts that are cut off."""
        for number, step in [*self._issued.items()]:
            if step.has_cut_hosts() and not step.is_cut:
                step.is_cut = True
                for host, why in step.cut_hosts().items():
                    self._send(step.owner, StepCutOff(number, (host,), RemoteError.of(why)))
            if step.is_done():
                del self._issued[number]
                if self._core.has_multi_host_islands and step not in self._unsettled:
                    self._unsettled.append(step)

    def report_due(self, now: float) -> None:
        """Reports completions that have waited for long enough, or with which a step is done."""
        while self._unreported:
            since, step = self._unreported[0]
            if step.unreported and now - since < BATCH_SECONDS:
                break
            self._unreported.popleft()
            self._report(step)

    def report_settled(self) -> None:
        """Reports the steps whose results cannot be spoiled any more, and the steps with spoiled results."""
        if not self._unsettled:
            return
        unsettled = []
        for step in self._unsettled:
            if not step.is_settled():
                unsettled.append(step)
                continue
            try:
                step.check_spoiled()
            except HostError as error:
                spoiled = error.record()
                text = spoiled.text.removeprefix(f"{step.subject}: ")
                self._send(step.owner, Indeterminate(step.number, RemoteError(spoiled.kind.__name__, text)))
                continue
            self._report(step)
        self._unsettled = unsettled

    def _report(self, step: ServedStep) -> None:
        """Reports the failures and the completions of a step that its client does not know yet."""
        if step.failed:
            self._send(step.owner, *step.failed)
            step.failed.clear()
        if step.unreported:
            self._send(step.owner, HostsDone(step.number, tuple(step.unreported)))
            step.unreported.clear()
