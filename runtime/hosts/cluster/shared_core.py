"""Core of a cluster, shared by the threads of its controller."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pathways.runtime.control.cluster_view import ClusterView
from pathways.runtime.control.effects import Effect
from pathways.runtime.control.gang import GangView
from pathways.runtime.control.records.errors import Failure
from pathways.runtime.control.records.replies import HostRequest
from pathways.runtime.control.records.step import Step
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.resources.threads import Condition


def ignore(effect: Effect) -> None:
    """Ignores an effect."""


class SharedCore:
    """Core with the lock that protects it.

    Effects are carried out after the lock is released, since they may block and cause further events, and in
    the order in which the core returned them: by one thread at a time, either the one that handles the event
    or one that carries out earlier effects.

    Attributes:
      core: the core; reading it needs no lock.
      run_effect: carries out an effect.
      defer: makes another thread call `carry_out`; None if the thread that handles an event calls it.
    """

    def __init__(self, core: ClusterView[Any]) -> None:
        self.core = core
        self.run_effect: Callable[[Effect], None] = ignore
        self.defer: Callable[[], None] | None = None
        self._pending: collections.deque[Effect] = collections.deque()
        self.reset_locks()

    def reset_locks(self) -> None:
        """Creates new locks in a forked process, where no thread would release the old ones."""
        self._lock = threading.Lock()
        self._acting = threading.Lock()
        self._changed = Condition()

    def handle(self, *events: Any) -> None:
        """Passes events to the core, and carries out their effects."""
        self.change(lambda now: [effect for event in events for effect in self.core.handle(event, now)])

    def run(self, program: HostedProgram, producers: Iterable[Step | None]) -> Step:
        """Notes a step of a program that is about to be sent to its hosts, and returns it.

        Raises:
          HostError: an island is lost or leaves, or an argument of the step is spoiled.
        """
        now = time.monotonic()
        with self._lock:
            number = self.core.take_numbers(1 + program.max_outputs)
            hosts = program.host_numbers
            step = Step(program.name, number, hosts, program.number, now, program.share)
            self.core.steps.issue(step, program.lives, producers)
        return step

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
        self.change(lambda now: self.core.fail(gang, host, run, error, wrong, now, took))

    def called(self, host: int, call: int, answer: Any, failure: Failure | None) -> None:
        """See `ClusterCore.called`."""
        with self._lock:
            self.core.end_call(host, call, answer, failure)

    def take_numbers(self, count: int = 1) -> int:
        """See `ClusterCore.take_numbers`."""
        with self._lock:
            return self.core.take_numbers(count)

    def request(self, hosts: Iterable[int], sink: Any = None) -> HostRequest:
        """Creates a request to hosts."""
        with self._lock:
            return self.core.replies.create_request(hosts, sink=sink)

    def request_reports(self, hosts: Iterable[int]) -> HostRequest:
        """See `ClusterCore.request_reports`."""
        requests: list[HostRequest] = []

        def request_now(now: float) -> Sequence[Effect]:
            request, effects = self.core.request_reports(hosts, now)
            requests.append(request)
            return effects

        self.change(request_now)
        return requests[0]

    def wait_for(self, request: HostRequest, seconds: float | None = None) -> None:
        """Waits until a request is complete, or for some seconds; later replies are dropped."""
        try:
            with self._changed:
                self._changed.wait_for(request.is_done, seconds)
        finally:
            if not request.is_done():
                self.drop(request)

    def drop(self, request: HostRequest) -> None:
        """Drops a request whose reply is no longer needed."""
        with self._lock:
            self.core.replies.drop(request)

    def queue(self, change: Callable[[float], Sequence[Effect]]) -> None:
        """Changes the core by a function of the time, whose effects `carry_out` carries out."""
        with self._lock:
            self._pending.extend(change(time.monotonic()))

    def change(self, change: Callable[[float], Sequence[Effect]]) -> None:
        """Changes the core by a function of the time, and carries out the effects that it returns."""
        # Ctrl-C in between would lose effects, which the core returns only once.
        with uninterrupted():
            with self._lock:
                self._pending.extend(change(time.monotonic()))
            self._carry_out_or_defer()
        with self._changed:
            self._changed.notify_all()

    def _carry_out_or_defer(self) -> None:
        if self.defer is None:
            self.carry_out()
        elif self._pending:
            self.defer()

    def carry_out(self) -> None:
        """Carries out pending effects; if another thread is doing so, that thread does these, too."""
        # Checked again after the release: an effect may be queued after the inner loop found none.
        while self._pending and self._acting.acquire(blocking=False):
            try:
                while self._pending:
                    self.run_effect(self._pending.popleft())
            finally:
                self._acting.release()
