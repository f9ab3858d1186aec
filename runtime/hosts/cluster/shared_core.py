"""The core of a cluster, for the threads of its controller: one after the other."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from pathways.runtime.control.effects import Effect
from pathways.runtime.control.errors import Failure
from pathways.runtime.control.gang import GangView
from pathways.runtime.control.replies import HostRequest, PendingReplies
from pathways.runtime.control.step import Step
from pathways.runtime.control.steps import IssuedSteps
from pathways.runtime.hosts.protocol.interrupts import uninterrupted

_NOTHING: Mapping[int, str] = {}


def ignore(effects: Sequence[Effect]) -> None:
    """Does nothing of it."""


class Core(Protocol):
    """What decides: a `ClusterCore`, or the `AttachedCore` of a client; see there."""

    is_several: bool
    steps: IssuedSteps
    replies: PendingReplies

    @property
    def gangs(self) -> Sequence[GangView]:
        """The current gang of each island."""

    def take_numbers(self, count: int = 1) -> int:
        """See `ClusterCore.take_numbers`."""

    def issue(self, step: Step, gangs: Sequence[Any], made: Iterable[Step | None]) -> None:
        """See `ClusterCore.issue`."""

    def done(
        self, gang: Any, host: int, run: int, error: str | None, wrong: Mapping[int, str], now: float
    ) -> Sequence[Effect]:
        """See `ClusterCore.done`."""

    def called(self, host: int, call: int, answer: Any, failure: Failure | None) -> None:
        """See `ClusterCore.called`."""

    def handle(self, event: Any, now: float) -> list[Effect]:
        """See `ClusterCore.handle`."""

    def ask_reports(self, hosts: Iterable[int], now: float) -> tuple[HostRequest, list[Effect]]:
        """See `ClusterCore.ask_reports`."""


class SharedCore:
    """A core, and the lock round it.

    What a core wants to be done is done by the thread that told it, when the lock is free again: acts may
    wait, and tell it more.

    Args:
      core: the core.

    Attributes:
      core: the core; what only looks at it needs no lock.
      act: does what the core wants.
      changes: how often it was told something that may change what becomes of workers.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.changes = 0
        self.act: Callable[[Sequence[Effect]], None] = ignore
        self.forget_threads()

    def forget_threads(self) -> None:
        """Makes locks anew in a forked process, where no thread would release them."""
        self._lock = threading.Lock()
        self._changed = threading.Condition()

    def unchanged(self) -> contextlib.AbstractContextManager[object]:
        """Nothing becomes of any worker in the meantime; who is here may call `core`, and nothing of this."""
        return self._lock

    def tell(self, *events: Any) -> None:
        """Tells the core what was seen."""
        self._change(lambda now: [effect for event in events for effect in self.core.handle(event, now)])

    def issue(self, step: Step, gangs: Sequence[GangView], made: Iterable[Step | None]) -> None:
        """See `ClusterCore.issue`."""
        with self._lock:
            self.core.issue(step, gangs, made)

    def done(self, gang: GangView, host: int, run: int, now: float) -> None:
        """A host is done with its part of a step, and nothing went wrong."""
        with self._lock:
            self.core.done(gang, host, run, None, _NOTHING, now)

    def failed(
        self, gang: GangView, host: int, run: int, error: str | None, wrong: Mapping[int, str]
    ) -> None:
        """A host is done with its part of a step, and something went wrong; see `ClusterCore.done`."""
        self._change(lambda now: self.core.done(gang, host, run, error, wrong, now))

    def called(self, host: int, call: int, answer: Any, failure: Failure | None) -> None:
        """See `ClusterCore.called`."""
        with self._lock:
            self.core.called(host, call, answer, failure)

    def take_numbers(self, count: int = 1) -> int:
        """See `ClusterCore.take_numbers`."""
        with self._lock:
            return self.core.take_numbers(count)

    def ask(self, hosts: Iterable[int], sink: Any = None) -> HostRequest:
        """A new request to hosts."""
        with self._lock:
            return self.core.replies.ask(hosts, sink=sink)

    def ask_reports(self, hosts: Iterable[int]) -> HostRequest:
        """See `ClusterCore.ask_reports`."""
        requests: list[HostRequest] = []

        def asked(now: float) -> Sequence[Effect]:
            request, effects = self.core.ask_reports(hosts, now)
            requests.append(request)
            return effects

        self._change(asked)
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

    def _change(self, change: Callable[[float], Sequence[Effect]]) -> None:
        # Ctrl-C in between would leave undone what is not asked for again.
        with uninterrupted():
            with self._lock:
                effects = change(time.monotonic())
                self.changes += 1
            self.act(effects)
        with self._changed:
            self._changed.notify_all()
