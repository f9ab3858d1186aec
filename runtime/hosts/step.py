"""Steps: which hosts are done, and what went wrong."""

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
      loaded: the number of the program.

    Attributes:
      began: when it was issued, by `time.monotonic`.
      hosts: the hosts that have a part of it.
    """

    def __init__(self, program: str, number: int, hosts: Iterable[int], loaded: int = 0) -> None:
        self.program = program
        self.number = number
        self.loaded = loaded
        self.began = time.monotonic()
        self.hosts = frozenset(hosts)
        self._pending = set(self.hosts)
        self._errors: dict[int, str] = {}
        # Of single results, by their hosts and positions there.
        self._failed: dict[tuple[int, int], str] = {}
        self._lost: str | None = None
        self._spoiled: str | None = None
        self._before: list[Step] = []
        self._reads: list[Step] = []
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"step {self.number} of program {self.program}"

    def follow(self, before: Iterable[Step]) -> None:
        """Notes the steps that its hosts had last: what they made, it may read."""
        self._before = list(before)

    def read(self, made: Iterable[Step | None]) -> None:
        """Notes the steps that made what it reads: what fails there fails here."""
        self._reads = [step for step in dict.fromkeys(made) if step is not None and not step._is_good()]

    def _is_good(self) -> bool:
        """Whether all hosts are done, and nothing went wrong."""
        return not self._pending and not self._errors and not self._failed

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
            if self._is_good():
                self._reads = []
            return not self._pending

    def lose(self, host: int, error: str) -> bool:
        """Notes that a host is gone; True when it was the last one.

        Whatever else fails does so because of it, also when it was done: others may wait for what it sent.
        """
        with self._lock:
            if not self._pending:
                return True
            self._lost = self._lost or error
            if host not in self._pending:
                return False
        return self.done(host, error)

    def is_lost(self) -> bool:
        """Whether a host is gone that others waited for."""
        return self._lost is not None

    def spoil(self, error: str) -> None:
        """Notes that nobody can say what any host has made of it."""
        with self._lock:
            self._spoiled = self._spoiled or error

    def forget_threads(self) -> None:
        """Makes its lock anew in a forked process, where nobody would release it."""
        self._lock = threading.Lock()

    def is_done(self, hosts: Iterable[int] | None = None) -> bool:
        """Whether some hosts, or all, are done."""
        return not self._pending if hosts is None else self._pending.isdisjoint(hosts)

    def is_settled(self) -> bool:
        """Whether nothing can spoil it any more: all hosts are done with it and with all before it."""
        return self._verdict() is not None

    def _verdict(self) -> str | None:
        """What spoils it, nothing when nothing can any more; None while something may."""
        if self._spoiled is not None:
            return self._spoiled
        if self._pending:
            return None
        for step in self._before:
            said = step._verdict()
            if said is None:
                return None
            if said:
                self.spoil(said)
                return said
        self._before = []
        return ""

    def pending(self) -> tuple[int, ...]:
        """The hosts that are not done."""
        with self._lock:
            return tuple(sorted(self._pending))

    def status(self) -> StepStatus:
        """What is known of it."""
        return StepStatus(self.program, self.number, time.monotonic() - self.began, self.pending())

    def check_spoiled(self) -> None:
        """Checks that what it made is what it should be.

        Raises:
          HostError: nobody can say.
        """
        if why := self._verdict():
            raise HostError(f"program {self.program}: {why}")

    def check(self, hosts: Iterable[int] | None = None, number: int | None = None) -> None:
        """Checks that what some hosts, or all, have done went well.

        Args:
          hosts: the hosts; None for all.
          number: the number of an array that their parts make; None for all.

        Raises:
          HostError: it failed.
        """
        self.check_spoiled()
        if not self._errors and not self._failed:
            return
        which = self.hosts if hosts is None else frozenset(hosts)
        position = None if number is None else number - self.number - 1
        found = [error for of, error in self._errors.items() if of in which]
        found += [error for (of, at), error in self._failed.items() if of in which and position in (None, at)]
        if found:
            raise HostError(f"program {self.program}: {self._loss() or found[0]}")

    def _loss(self) -> str | None:
        """The host that is gone because of which it fails, if one is."""
        return self._lost or next((loss for step in self._reads if (loss := step._loss())), None)
