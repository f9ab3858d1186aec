"""Requests to hosts that are not answered yet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from pathways.runtime.control.records.errors import Failure


class HostRequest:
    """Request to some hosts at the same time.

    Args:
      number: its number, which the replies carry.
      deadline: when missing replies are no longer awaited; None for never.
      sink: for the shell: where the reply goes.

    Attributes:
      answers: the replies of each host, in pieces; without hosts that have not replied.
      failures: the failures of hosts that cannot reply.
    """

    __slots__ = ("_pending", "answers", "deadline", "failures", "hosts", "number", "sink")

    def __init__(self, number: int, hosts: Iterable[int], deadline: float | None, sink: Any) -> None:
        self.number = number
        self.hosts = tuple(hosts)
        self.deadline = deadline
        self.sink = sink
        self.answers: dict[int, list[Any]] = {}
        self.failures: dict[int, Failure] = {}
        self._pending = set(self.hosts)

    def is_done(self) -> bool:
        """Returns whether no further reply is awaited."""
        return not self._pending

    def first_failure(self) -> list[tuple[int, Failure]]:
        """Returns the first host that cannot reply, with its failure; empty if all can."""
        return [*self.failures.items()][:1]

    def _accept(self, host: int, value: Any, is_last: bool) -> bool:
        """Accepts a piece of a reply; returns whether the request is done with it."""
        if host not in self._pending:
            return False
        if isinstance(value, Failure):
            self.failures[host] = value
        else:
            self.answers.setdefault(host, []).append(value)
        if is_last:
            # Only now: a thread that sees the request done reads the answers.
            self._pending.discard(host)
        return not self._pending


class PendingReplies:
    """Requests that are not done.

    Replies that are late, duplicate or unexpected change nothing: they carry the number of the request, and
    numbers are not used again.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._requests: dict[int, HostRequest] = {}

    def create_request(
        self, hosts: Iterable[int], deadline: float | None = None, sink: Any = None
    ) -> HostRequest:
        """Returns a new request; without hosts it is done at once."""
        request = HostRequest(next(self._numbers), hosts, deadline, sink)
        if not request.is_done():
            self._requests[request.number] = request
        return request

    def get(self, number: int) -> HostRequest | None:
        """Returns a request that is not done."""
        return self._requests.get(number)

    def receive(self, host: int, number: int, value: Any, *, is_last: bool = True) -> HostRequest | None:
        """Accepts a reply, or a piece of one; returns the request if it is done with it."""
        request = self._requests.get(number)
        if request is None or not request._accept(host, value, is_last):
            return None
        return self._requests.pop(number)

    def lose(self, hosts: Iterable[int], failure: Failure) -> list[HostRequest]:
        """Fails the requests to lost hosts; returns the requests that are done with that."""
        hosts = tuple(hosts)
        done = [
            request
            for request in self._requests.values()
            if any(request._accept(host, failure, True) for host in hosts)
        ]
        return self._drop(done)

    def expire(self, now: float) -> list[HostRequest]:
        """Ends the requests whose deadline has passed, with the replies so far; returns them."""
        done = [r for r in self._requests.values() if r.deadline is not None and r.deadline <= now]
        for request in done:
            # Hosts without a reply are neither in the answers nor in the failures.
            request._pending.clear()
        return self._drop(done)

    def drop(self, request: HostRequest) -> None:
        """Removes a request whose reply is no longer wanted."""
        self._drop([request])

    def _drop(self, requests: list[HostRequest]) -> list[HostRequest]:
        for request in requests:
            self._requests.pop(request.number, None)
        return requests

    def __len__(self) -> int:
        return len(self._requests)
