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
        self._changed = threading.Condition()
        # Whoever waits is woken only for what it waits for: each needless turn costs a switch of threads.
        self._awaited: set[int] = set()

    def done(self, host: int, error: str | None) -> bool:
        """Notes that a host is done; True when it was the last one."""
        with self._changed:
            self._pending.discard(host)
            if error is not None:
                self._errors.setdefault(host, error)
            if not self._pending or host in self._awaited:
                self._changed.notify_all()
            return not self._pending

    def lose(self, host: int, error: str) -> bool:
        """Notes that a host is gone; True when it was the last one.

        Whatever else fails does so because of it.
        """
        with self._changed:
            if host not in self._pending:
                return not self._pending
            self._lost = self._lost or error
        return self.done(host, error)

    def is_done(self, host: int | None = None) -> bool:
        """Whether a host, or every host, is done."""
        return not self._pending if host is None else host not in self._pending

    def pending(self) -> tuple[int, ...]:
        """The hosts that are not done."""
        with self._changed:
            return tuple(sorted(self._pending))

    def wait(self, host: int | None = None) -> None:
        """Waits until a host, or every host, is done: the death of a host ends its part too.

        Raises:
          HostError: it failed.
        """
        if not self.is_done(host):
            with self._changed:
                if host is not None:
                    self._awaited.add(host)
                while not self.is_done(host):
                    self._changed.wait()
        with self._changed:
            errors = list(self._errors.values()) if host is None else [self._errors.get(host)]
            failed = next(iter(errors), None)
            lost = self._lost
        if failed is not None:
            raise HostError(f"program {self.program}: {lost or failed}")
