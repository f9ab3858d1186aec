"""One step: which hosts are done with it, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pathways.runtime.control.records.errors import Failure, HostError
from pathways.runtime.resources.status import StepStatus

SESSION_BITS = 40
"""Numbers of steps, arrays and programs are unique in a cluster: the bits above these name the session."""

_NOTHING: Mapping[int, Failure] = {}
_GOOD = Failure(HostError, "")
"""The verdict on what nothing can spoil any more."""


class Step:
    """A run of a program.

    Whoever waits for it may look at it from other threads: each call that changes it ends with the one
    assignment that shows.

    Args:
      program: the name of the program.
      number: its number, which no other step of the cluster has; see `SESSION_BITS`.
      hosts: the hosts that have a part of it.
      loaded: the number of the program.
      began: when it was issued, in seconds.
      share: for how many steps under way it counts: one of a program of which few may be, for more.

    Attributes:
      hosts: the hosts that have a part of it.
      is_beside: whether steps that are issued later need not wait for it.
    """

    is_beside = False

    __slots__ = (
        "_before",
        "_cut",
        "_errors",
        "_failed",
        "_lost",
        "_pending",
        "_reads",
        "_spoiled",
        "began",
        "hosts",
        "loaded",
        "number",
        "program",
        "share",
    )

    def __init__(
        self,
        program: str,
        number: int,
        hosts: Iterable[int],
        loaded: int = 0,
        began: float = 0.0,
        share: int = 1,
    ) -> None:
        self.program = program
        self.number = number
        self.loaded = loaded
        self.began = began
        self.share = share
        self.hosts = frozenset(hosts)
        self._pending = set(self.hosts)
        self._errors: dict[int, Failure] = {}
        # Of single results, by their hosts and positions there.
        self._failed: dict[tuple[int, int], Failure] = {}
        # Of hosts that may be at it for ever.
        self._cut: Mapping[int, Failure] = _NOTHING
        self._lost: Failure | None = None
        self._spoiled: Failure | None = None
        self._before: Iterable[Step] = ()
        self._reads: Iterable[Step] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.number})"

    def __str__(self) -> str:
        return f"step {serial(self.number)} of {self.subject}"

    @property
    def subject(self) -> str:
        """What it is a run of."""
        return f"program {self.program}"

    def follow(self, before: Iterable[Step]) -> None:
        """Notes the steps that its hosts had last: what they made, it may read."""
        self._before = list(before)

    def read(self, made: Iterable[Step | None]) -> None:
        """Notes the steps that made what it reads: what fails there fails here."""
        self._reads = [step for step in dict.fromkeys(made) if step is not None and not step._is_good()]

    def _is_good(self) -> bool:
        """Whether all hosts are done, and nothing went wrong."""
        return not self._pending and not self._errors and not self._failed and not self._cut

    def done(self, host: int, failure: Failure | None, failed: Mapping[int, Failure] = _NOTHING) -> bool:
        """Notes that a host is done; True when it was the last one. Twice changes nothing.

        Args:
          host: the host.
          failure: why its whole part failed.
          failed: what is wrong with single results, by their positions.
        """
        if failure is not None:
            self._errors.setdefault(host, failure)
        for position, what in failed.items():
            self._failed.setdefault((host, position), what)
        # Only now: who sees that it is done reads the errors.
        self._pending.discard(host)
        if self._is_good():
            self._reads = ()
        return not self._pending

    def lose(self, host: int, failure: Failure) -> bool:
        """Notes that a host is gone; True when it was the last one.

        Whatever else fails does so because of it, also when it was done: others may wait for what it sent.
        """
        if not self._pending:
            return True
        self._lost = self._lost or failure
        return self.done(host, failure) if host in self._pending else False

    def cut(self, hosts: Iterable[int], failure: Failure) -> None:
        """Notes that what some hosts make is an error, whether they are done with it some time or not."""
        self._cut = {**dict.fromkeys(hosts, failure), **self._cut}

    def has_cut_hosts(self, hosts: Iterable[int] | None = None) -> bool:
        """Says if what one of some hosts, or of all, makes is an error, so that nothing waits for it."""
        return bool(self._cut) and (hosts is None or not self._cut.keys().isdisjoint(hosts))

    def cut_hosts(self) -> Mapping[int, Failure]:
        """Returns the hosts of which what they make is an error, and why."""
        return self._cut

    def is_lost(self) -> bool:
        """Whether a host is gone that others waited for."""
        return self._lost is not None

    def spoil(self, failure: Failure) -> None:
        """Notes that it is unknown what any host has made of it."""
        self._spoiled = self._spoiled or failure

    def is_done(self, hosts: Iterable[int] | None = None) -> bool:
        """Whether some hosts, or all, are done."""
        return not self._pending if hosts is None else self._pending.isdisjoint(hosts)

    def is_settled(self) -> bool:
        """Whether nothing can spoil it any more: all hosts are done with it and with all before it."""
        return self._verdict() is not None

    def _verdict(self) -> Failure | None:
        """What spoils it, `_GOOD` when nothing can any more; None while something may."""
        if self._spoiled is not None:
            return self._spoiled
        if self._pending:
            return None
        for step in self._before:
            verdict = step._verdict()
            if verdict is None:
                return None
            if verdict is not _GOOD:
                self.spoil(verdict)
                return verdict
        self._before = ()
        return _GOOD

    def pending(self) -> tuple[int, ...]:
        """The hosts that are not done."""
        return tuple(sorted(self._pending))

    def status(self, now: float) -> StepStatus:
        """What is known of it."""
        return StepStatus(self.program, self.number, now - self.began, self.pending())

    def check_spoiled(self) -> None:
        """Checks that what it made is what it should be.

        Raises:
          HostError: it is unknown.
        """
        verdict = self._verdict()
        if verdict is not None and verdict is not _GOOD:
            # What did not come from a host may be missed before it is known that the host is gone.
            raise (self._loss() or verdict).error(self.subject)

    def check(self, hosts: Iterable[int] | None = None, number: int | None = None) -> None:
        """Checks that what some hosts, or all, have done went well.

        Args:
          hosts: the hosts; None for all.
          number: the number of an array that their parts make; None for all.

        Raises:
          HostError: it failed.
        """
        self.check_spoiled()
        if not self._errors and not self._failed and not self._cut:
            return
        which = self.hosts if hosts is None else frozenset(hosts)
        position = None if number is None else number - self.number - 1
        # Copies: answers of other hosts may come in between.
        found = [failure for of, failure in [*self._errors.items()] if of in which]
        failed = [*self._failed.items()]
        found += [failure for of, failure in [*self._cut.items()] if of in which]
        found += [what for (of, at), what in failed if of in which and position in (None, at)]
        if found:
            raise (self._loss() or found[0]).error(self.subject)

    def _loss(self) -> Failure | None:
        """The loss of a host because of which it fails, if there is one."""
        return self._lost or next((loss for step in self._reads if (loss := step._loss())), None)


class FunctionCall(Step):
    """A call of a function on hosts: in the order of steps, and beside those that follow.

    Who follows does not wait for it, and one that fails leaves its host as it was: nothing of other hosts was
    to meet it.

    Attributes:
      answers: what each host has said of it; without those that have not ended it.
    """

    is_beside = True

    __slots__ = ("answers",)

    def __init__(self, function: str, number: int, hosts: Iterable[int], began: float) -> None:
        super().__init__(function, number, hosts, began=began, share=0)
        self.answers: dict[int, Any] = {}

    def __str__(self) -> str:
        return f"call {serial(self.number)} of {self.program}"

    @property
    def subject(self) -> str:
        """What it is a run of."""
        return self.program

    def failures(self) -> dict[int, Failure]:
        """What went wrong, by hosts."""
        return {**self._cut, **self._errors}


def serial(number: int) -> int:
    """Returns the number that a session gives what has this number in the cluster, for messages."""
    return number & ((1 << SESSION_BITS) - 1)
