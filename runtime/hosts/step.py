"""A run of a program on hosts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping

from pathways.runtime.hosts.host import HostError
from pathways.runtime.resources.status import StepStatus

_NOTHING: Mapping[int, str] = {}


class Step:
    """A run of a program.

    Args:
      program: the name of the program.
      number: the number of the run.
      hosts: the hosts that have a part of it.

    Attributes:
      began: when it was issued, by `time.monotonic`.
    """

    def __init__(self, program: str, number: int, hosts: Iterable[int]) -> None:
        self.program = program
        self.number = number
        self.began = time.monotonic()
        self._pending = set(hosts)
        self._errors: dict[int, str] = {}
        # Of single results, by their hosts and positions there.
        self._failed: dict[tuple[int, int], str] = {}
        self._lost: str | None = None
        self._lock = threading.Lock()

    def done(self, host: int, error: str | None, failed: Mapping[int, str] = _NOTHING) -> bool:
        """Notes that a host is done; True when it was the last one.

        Args:
          host: the host.
          error: why its whole part failed.
          failed: what is wrong with single results, by their positions.
        """
        with self._lock:
            if error is not None:
                self._errors.setdefault(host, error)
            for position, what in failed.items():
                self._failed[host, position] = what
            # Only now: who sees that it is done reads the error without a lock.
            self._pending.discard(host)
            return not self._pending

    def lose(self, host: int, error: str) -> bool:
        """Notes that a host is gone; True when it was the last one.

        Whatever else fails does so because of it.
        """
        with self._lock:
            if host not in self._pending:
                return not self._pending
            self._lost = self._lost or error
        return self.done(host, error)

    def forget_threads(self) -> None:
        """Makes its lock anew in a forked process, where nobody would release it."""
        self._lock = threading.Lock()

    def is_done(self, host: int | None = None) -> bool:
        """Whether a host, or every host, is done."""
        return not self._pending if host is None else host not in self._pending

    def pending(self) -> tuple[int, ...]:
        """The hosts that are not done."""
        with self._lock:
            return tuple(sorted(self._pending))

    def status(self) -> StepStatus:
        """What is known of it."""
        return StepStatus(self.program, self.number, time.monotonic() - self.began, self.pending())

    def check(self, host: int | None = None, number: int | None = None) -> None:
        """Checks that what a host, or every host, has done went well.

        Args:
          host: the host; None for all.
          number: the number of an array that its part makes; None for all.

        Raises:
          HostError: it failed.
        """
        if not self._errors and not self._failed:
            return
        position = None if number is None else number - self.number - 1
        found = [error for of, error in self._errors.items() if host in (None, of)]
        found += [
            error for (of, at), error in self._failed.items() if host in (None, of) and position in (None, at)
        ]
        if found:
            raise HostError(f"program {self.program}: {self._lost or found[0]}")
