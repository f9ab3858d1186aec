"""A run of a program on hosts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from pathways.runtime.hosts.host import HostError


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
        self._lost: str | None = None
        self._lock = threading.Lock()

    def done(self, host: int, error: str | None) -> bool:
        """Notes that a host is done; True when it was the last one."""
        with self._lock:
            if error is not None:
                self._errors.setdefault(host, error)
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

    def check(self, host: int | None = None) -> None:
        """Checks that what a host, or every host, has done went well.

        Raises:
          HostError: it failed.
        """
        if self._errors:
            failed = next(iter(self._errors.values())) if host is None else self._errors.get(host)
            if failed is not None:
                raise HostError(f"program {self.program}: {self._lost or failed}")
