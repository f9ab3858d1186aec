"""The core of a cluster, for the threads of its controller: one after the other."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pathways.runtime.control.cluster_view import ClusterView
from pathways.runtime.control.core import ClusterCore
from pathways.runtime.control.effects import Effect
from pathways.runtime.control.gang import GangView
from pathways.runtime.control.records.errors import Failure
from pathways.runtime.control.records.replies import HostRequest
from pathways.runtime.control.records.step import Step
from pathways.runtime.control.sharing.scheduler_events import SchedulerEvent
from pathways.runtime.hosts.protocol.interrupts import uninterrupted


def ignore(effect: Effect) -> None:
    """Does nothing of it."""


class SharedCore:
    """A core, and the lock round it.

    What a core wants to be done is done when the lock is free again, since acts may wait and tell it more,
    and in the order in which it says so: by one thread at a time, the one that told it or one that is at it.

    Args:
      core: the core.

    Attributes:
      core: the core; what only looks at it needs no lock.
      act: does what the core wants.
      defer: has another thread call `carry_out`; None where the thread that told the core does.
    """

    def __init__(self, core: ClusterView[Any]) -> None:
        self.core = core
        self.act: Callable[[Effect], None] = ignore
        self.defer: Callable[[], None] | None = None
        self._wanted: collections.deque[Effect] = collections.deque()
        self.reset_locks()

    def reset_locks(self) -> None:
        """Makes locks anew in a forked process, where no thread would release them."""
        self._lock = threading.Lock()
        self._acting = threading.Lock()
        self._changed = threading.Condition()

    def handle(self, *events: Any) -> None:
        """Tells the core what was seen."""
        self._change(lambda now: [effect for event in events for effect in self.core.handle(event, now)])

    def issue(self, step: Step, gangs: Sequence[GangView], producers: Iterable[Step | None]) -> None:
        """See `ClusterCore.issue`."""
        with self._lock:
            self.core.issue(step, gangs, producers)

    def done(self, gang: GangView, host: int, run: int, now: float) -> None:
        """See `ClusterCore.done`."""
        with self._lock:
            self.core.done(gang, host, run, now)

    def fail(
        self, gang: GangView, host: int, run: int, error: str | None, wrong: Mapping[int, str], took: float
    ) -> None:
        """See `ClusterCore.fail`."""
        self._change(lambda now: self.core.fail(gang, host, run, error, wrong, now, took))

    def called(self, host: int, call: int, answer: Any, failure: Failure | None) -> None:
        """See `ClusterCore.called`."""
        with self._lock:
            self.core.end_call(host, call, answer, failure)

    def take_numbers(self, count: int = 1) -> int:
        """See `ClusterCore.take_numbers`."""
        with self._lock:
            return self.core.take_numbers(count)

    def request(self, hosts: Iterable[int], sink: Any = None) -> HostRequest:
        """A new request to hosts."""
        with self._lock:
            return self.core.replies.create_request(hosts, sink=sink)

    def request_reports(self, hosts: Iterable[int]) -> HostRequest:
        """See `ClusterCore.request_reports`."""
        requests: list[HostRequest] = []

        def request_now(now: float) -> Sequence[Effect]:
            request, effects = self.core.request_reports(hosts, now)
            requests.append(request)
            return effects

        self._change(request_now)
        return requests[0]

    def wait_for(self, request: HostRequest, seconds: float | None = None) -> None:
        """Waits until nothing more comes of a request, or for some seconds; what comes later is dropped."""
        try:
            with self._changed:
                self._changed.wait_for(request.is_done, seconds)
        finally:
            if not request.is_done():
                self.drop(request)

    def drop(self, request: HostRequest) -> None:
        """Forgets a request whose answer is no longer wanted."""
        with self._lock:
            self.core.replies.drop(request)

    def schedule(self, events: Sequence[SchedulerEvent]) -> None:
        """See `ClusterCore.schedule`; `carry_out` does what it wants."""
        assert isinstance(self.core, ClusterCore)
        with self._lock:
            self._wanted.extend(self.core.schedule(events, time.monotonic()))

    def _change(self, change: Callable[[float], Sequence[Effect]]) -> None:
        # Ctrl-C in between would leave undone what is not asked for again.
        with uninterrupted():
            with self._lock:
                self._wanted.extend(change(time.monotonic()))
            self._carry_out_or_defer()
        with self._changed:
            self._changed.notify_all()

    def _carry_out_or_defer(self) -> None:
        if self.defer is None:
            self.carry_out()
        elif self._wanted:
            self.defer()

    def carry_out(self) -> None:
        """Does what the core wants, unless another thread is at it, which then does this, too."""
        while self._wanted and self._acting.acquire(blocking=False):
            try:
                while self._wanted:
                    self.act(self._wanted.popleft())
            finally:
                self._acting.release()
