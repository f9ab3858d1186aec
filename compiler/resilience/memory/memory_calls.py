"""Calls of `snapshots.worker_snapshots` on hosts, with their replies and errors."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pathways.compiler.data.on_hosts import kept_array, values_of
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.step import FunctionCall
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.calls import call_of, lanes
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import HostGang, Location
from pathways.runtime.hosts.protocol import plain
from pathways.runtime.resilience.events import ResilienceEvent
from pathways.runtime.resilience.snapshots import worker_snapshots as snapshots

MODULE = snapshots.__name__

_NAME = "pw.resilient"
"""Name of the calls in messages."""


@dataclasses.dataclass(frozen=True)
class _PendingCall:
    """Call in flight; `on_end` returns events when it has ended."""

    call: FunctionCall
    on_end: Callable[[], list[ResilienceEvent]]


class MemoryCalls:
    """Calls about the memory of hosts, in the order of steps.

    Args:
      client: the session with the hosts.
      run: the name of the run; workers name folders of versions by it.

    Attributes:
      client, run: see above.
      memory_lane: the lane of calls that change memory; streams and restores do not wait for it.
      events: events outside of calls.
    """

    def __init__(self, client: HostSession, run: str) -> None:
        self.client = client
        self.run = run
        self.memory_lane = next(lanes)
        self.events: collections.deque[ResilienceEvent] = collections.deque()
        self._pending: list[_PendingCall] = []

    def expect(self, call: FunctionCall, on_end: Callable[[], list[ResilienceEvent]]) -> None:
        """Registers the function that returns the events of a call when it has ended."""
        self._pending.append(_PendingCall(call, on_end))

    def receive(self) -> None:
        """Reads the replies of calls; other threads notice losses."""
        if self._pending:
            self.client.poll()

    def poll(self) -> list[ResilienceEvent]:
        """Returns the events of calls that have ended."""
        events = []
        for pending in [*self._pending]:
            if pending.call.is_done():
                self._pending.remove(pending)
                events += pending.on_end()
        return events

    def take_events(self) -> list[ResilienceEvent]:
        """Returns the events outside of calls."""
        events = [*self.events]
        self.events.clear()
        return events

    def wait(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Waits at most some seconds until a condition holds."""
        deadline = time.monotonic() + seconds
        self.client.wait(lambda: is_done() or time.monotonic() >= deadline, seconds)

    def has_news(self) -> bool:
        """Returns whether there are events."""
        return bool(self.events) or any(pending.call.is_done() for pending in self._pending)

    def call_gangs(
        self, gangs: Iterable[HostGang], function: str, named: dict[str, Any]
    ) -> list[FunctionCall]:
        """Calls a function on all hosts of some islands; ignores errors."""
        calls = []
        for gang in gangs:
            hosts = [host.index for host in gang.hosts]
            with contextlib.suppress(HostError):
                calls.append(self.call(function, gang, hosts, self.memory_lane, named))
        return calls

    def call(
        self,
        function: str,
        gang: HostGang,
        hosts: Sequence[int],
        lane: int,
        named: Mapping[str, Any],
        sources: Sequence[tuple[Array, Location]] = (),
        tree: Any = None,
        outputs: tuple[Any, ...] | None = None,
    ) -> FunctionCall:
        """Calls a function of `snapshots` on hosts of an island, in the order of steps.

        Raises:
          HostError: the island is lost.
          RuntimeError, KeyError: an array was deleted or does not exist.
        """
        arguments = plain.encode([[], tree or {"t": []}, {"run": self.run, **named}], _NAME)
        structure = plain.encode({"l": [*range(len(outputs or ()))]}, _NAME)
        with self.client.order:
            arrays = [kept_array(array.number_at(location), array.aval) for array, location in sources]
            message = call_of(f"{MODULE}:{function}", 0, lane, arrays, arguments, outputs, structure)
            workers = [host for host in gang.hosts if host.index in hosts]
            producers = [array.step_at(location) for array, location in sources]
            return self.client.call(f"{_NAME}: {function}", gang, workers, message, producers)

    def values(self, call: FunctionCall) -> list[Any]:
        """Waits for a call and returns its value on each of its hosts.

        Raises:
          Exception: the call failed on a host.
        """
        return values_of(self.client, call)

    def failure_of(self, call: FunctionCall, host: int) -> str | None:
        """Returns the reason why a call failed on a host; None if it succeeded."""
        answer = call.answers.get(host)
        if answer is not None and answer.failure is not None:
            error = answer.failure
            return (
                error.text
                if error.kind == snapshots.SNAPSHOT_FAILURE
                else f"{error.type or error.kind}: {error.text}"
            )
        failure = call.failures().get(host)
        return None if failure is None else failure.text
