"""What hosts were asked, and have not answered yet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from pathways.runtime.control.records.errors import Failure


class HostRequest:
    """Something that some hosts are asked at the same time.

    Args:
      number: its number, which the answers carry.
      hosts: who is asked.
      deadline: when who has not answered is not waited for any more; None for never.
      sink: for the shell: where the answer goes.

    Attributes:
      hosts: who is asked.
      answers: what each host has said, in pieces; without those of whom nothing came.
      failures: why others do not answer.
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
        """Whether nothing more comes."""
        return not self._pending

    def first_failure(self) -> list[tuple[int, Failure]]:
        """The host that comes first of those that do not answer, and why it does not; empty if all do."""
        return [*self.failures.items()][:1]

    def _take(self, host: int, value: Any, is_last: bool) -> bool:
        """Takes a piece of an answer; whether all is there with it."""
        if host not in self._pending:
            return False
        if isinstance(value, Failure):
            self.failures[host] = value
        else:
            self.answers.setdefault(host, []).append(value)
        if is_last:
            # Only now: who sees that it is done reads the answers.
            self._pending.discard(host)
        return not self._pending


class PendingReplies:
    """All requests that are not done.

    What is late, or comes twice, or was not asked for, changes nothing: an answer carries the number of the
    request, and numbers are not used again.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._requests: dict[int, HostRequest] = {}

    def ask(self, hosts: Iterable[int], deadline: float | None = None, sink: Any = None) -> HostRequest:
        """A new request; of no hosts it is done at once."""
        request = HostRequest(next(self._numbers), hosts, deadline, sink)
        if not request.is_done():
            self._requests[request.number] = request
        return request

    def get(self, number: int) -> HostRequest | None:
        """A request that is not done."""
        return self._requests.get(number)

    def answer(self, host: int, number: int, value: Any, *, is_last: bool = True) -> HostRequest | None:
        """Takes an answer, or a piece of one; the request, if it is done with it."""
        request = self._requests.get(number)
        if request is None or not request._take(host, value, is_last):
            return None
        return self._requests.pop(number)

    def lose(self, hosts: Iterable[int], failure: Failure) -> list[HostRequest]:
        """Some hosts answer no more; the requests that are done with that."""
        hosts = tuple(hosts)
        done = [
            request
            for request in self._requests.values()
            if any(request._take(host, failure, True) for host in hosts)
        ]
        return self._drop(done)

    def expire(self, now: float) -> list[HostRequest]:
        """The requests that have had their time, done with what has come."""
        done = [r for r in self._requests.values() if r.deadline is not None and r.deadline <= now]
        for request in done:
            request._pending.clear()
        return self._drop(done)

    def drop(self, request: HostRequest) -> None:
        """Forgets a request whose answer is no longer wanted."""
        self._drop([request])

    def _drop(self, requests: list[HostRequest]) -> list[HostRequest]:
        for request in requests:
            self._requests.pop(request.number, None)
        return requests

    def __len__(self) -> int:
        return len(self._requests)
