"""Steps in flight and done: the hosts that have finished each, and their failures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pathways.runtime.control.records.errors import Failure, HostError
from pathways.runtime.resources.status import StepStatus

SESSION_BITS = 40
"""Numbers of steps, arrays and programs are unique in a cluster: the bits above these name the session."""

_NOTHING: Mapping[int, Failure] = {}
_NO_RESULTS: Mapping[tuple[int, int], Failure] = {}
_GOOD = Failure(HostError, "")
"""The verdict on a step that nothing can spoil any more."""


class Step:
    """Run of a program.

    Threads that wait for it may read it at any time: each call that changes it ends with the one assignment
    that readers can see. Mappings of failures are replaced, and never changed.

    Args:
      number: its number, unique in the cluster; see `SESSION_BITS`.
      loaded: the number of the program.
      began: when it was issued, in seconds.
      share: its weight in the limit of steps in flight; larger for programs with a smaller limit.

    Attributes:
      is_unordered: whether later steps do not wait for it.
      pending_hosts: the hosts that are not done. Each call of a program reads it for earlier steps.
    """

    is_unordered = False

    __slots__ = (
        "_before",
        "_cut",
        "_errors",
        "_failed",
        "_lost",
        "_reads",
        "_spoiled",
        "began",
        "hosts",
        "loaded",
        "number",
        "pending_hosts",
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
        self.pending_hosts = set(self.hosts)
        self._errors: Mapping[int, Failure] = _NOTHING
        # The failures of single results, by their hosts and positions there.
        self._failed: Mapping[tuple[int, int], Failure] = _NO_RESULTS
        # The failures of hosts that may never be done with it.
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
        """The program, for messages."""
        return f"program {self.program}"

    def follow(self, before: Iterable[Step]) -> None:
        """Notes the steps in flight on its hosts: it may read their results."""
        self._before = list(before)

    def read(self, producers: Iterable[Step | None]) -> None:
        """Notes the steps that computed its arguments: their failures are its own."""
        if producers:
            self._reads = [
                step for step in dict.fromkeys(producers) if step is not None and not step._is_good()
            ]

    def _is_good(self) -> bool:
        """Returns whether all hosts are done, without failures."""
        return not self.pending_hosts and not self._errors and not self._failed and not self._cut

    def done(self, host: int, failure: Failure | None, failed: Mapping[int, Failure] = _NOTHING) -> bool:
        """Notes that a host is done; returns whether it was the last one. A repetition changes nothing.

        Args:
          failure: why all results of the host failed.
          failed: the failures of single results, by their positions.
        """
        if failure is not None and host not in self._errors:
            self._errors = {**self._errors, host: failure}
        if failed:
            of_host = {(host, position): result_failure for position, result_failure in failed.items()}
            self._failed = {**self._failed, **of_host, **self._failed}
        # Only now: a thread that sees the step done reads the errors.
        self.pending_hosts.discard(host)
        if self._is_good():
            self._reads = ()
        return not self.pending_hosts

    def lose(self, host: int, failure: Failure) -> bool:
        """Notes that a host is lost; returns whether it was the last one.

        Other failures are reported as consequences of it, also if the host was done: others may wait for its
        messages.
        """
        if not self.pending_hosts:
            return True
        self._lost = self._lost or failure
        return self.done(host, failure) if host in self.pending_hosts else False

    def cut(self, hosts: Iterable[int], failure: Failure) -> None:
        """Notes that the results of some hosts are errors, whether they ever are done with it or not."""
        self._cut = {**dict.fromkeys(hosts, failure), **self._cut}

    def has_cut_hosts(self, hosts: Iterable[int] | None = None) -> bool:
        """Returns whether results of some hosts, or of any, are errors early: no thread waits for them."""
        return bool(self._cut) and (hosts is None or not self._cut.keys().isdisjoint(hosts))

    def cut_hosts(self) -> Mapping[int, Failure]:
        """Returns the hosts whose results are errors early, and why."""
        return self._cut

    def is_lost(self) -> bool:
        """Returns whether a host is lost that others waited for."""
        return self._lost is not None

    def spoil(self, failure: Failure) -> None:
        """Notes that the results of all hosts are unknown."""
        self._spoiled = self._spoiled or failure

    def is_done(self, hosts: Iterable[int] | None = None) -> bool:
        """Returns whether some hosts, or all, are done."""
        return not self.pending_hosts if hosts is None else self.pending_hosts.isdisjoint(hosts)

    def is_settled(self) -> bool:
        """Returns whether nothing can spoil it any more: all hosts are done with it and all before it."""
        return self._verdict() is not None

    def _verdict(self) -> Failure | None:
        """Returns the failure that spoils it; `_GOOD` if nothing can any more, None while something may."""
        if self._spoiled is not None:
            return self._spoiled
        if self.pending_hosts:
            return None
        # The steps before a finished one are finished. Thousands may be unfinished: too many for recursion.
        pending: dict[Step, None] = {}
        spoiled: dict[Step, None] = {}
        seen = {*self._before}
        stack = [*self._before]
        while stack:
            step = stack.pop()
            if step._spoiled is not None:
                spoiled[step] = None
            elif step.pending_hosts:
                pending[step] = None
            else:
                stack += [earlier for earlier in step._before if earlier not in seen]
                seen.update(step._before)
        if pending:
            self._before = [*spoiled, *pending]
            return None
        self._before = ()
        self._spoiled = next((step._spoiled for step in spoiled), None)
        return self._spoiled or _GOOD

    def pending(self) -> tuple[int, ...]:
        """Returns the hosts that are not done."""
        return tuple(sorted(self.pending_hosts))

    def status(self, now: float) -> StepStatus:
        """Returns its status."""
        return StepStatus(self.program, self.number, now - self.began, self.pending())

    def check_spoiled(self) -> None:
        """Checks that its results are not spoiled.

        Raises:
          HostError: they are unknown.
        """
        verdict = self._verdict()
        if verdict is not None and verdict is not _GOOD:
            # A missing value may be noticed before the loss of the host that was to send it.
            raise (self._loss() or verdict).error(self.subject)

    def check(self, hosts: Iterable[int] | None = None, number: int | None = None) -> None:
        """Checks that some hosts, or all, have not failed.

        Args:
          hosts: the hosts; None for all.
          number: the number of one of their arrays; None for all.

        Raises:
          HostError: it failed.
        """
        self.check_spoiled()
        if not self._errors and not self._failed and not self._cut:
            return
        selected = self.hosts if hosts is None else frozenset(hosts)
        position = None if number is None else number - self.number - 1
        failures = [failure for of, failure in self._errors.items() if of in selected]
        failures += [failure for of, failure in self._cut.items() if of in selected]
        failures += [
            failure for (of, at), failure in self._failed.items() if of in selected and position in (None, at)
        ]
        if failures:
            raise (self._loss() or failures[0]).error(self.subject)

    def _loss(self) -> Failure | None:
        """Returns the loss of a host that caused its failure, if there is one."""
        return self._lost or next((loss for step in self._reads if (loss := step._loss())), None)


class FunctionCall(Step):
    """Call of a function on hosts: ordered after earlier steps, but later steps do not wait for it.

    When it fails, its host is as before, since it exchanges nothing with other hosts.

    Attributes:
      answers: the returned value of each host; without hosts that have not finished it.
    """

    is_unordered = True

    __slots__ = ("answers",)

    def __init__(self, function: str, number: int, hosts: Iterable[int], began: float) -> None:
        super().__init__(function, number, hosts, began=began, share=0)
        self.answers: dict[int, Any] = {}

    def __str__(self) -> str:
        return f"call {serial(self.number)} of {self.program}"

    @property
    def subject(self) -> str:
        """The function, for messages."""
        return self.program

    def failures(self) -> dict[int, Failure]:
        """Returns the failures, by hosts."""
        return {**self._cut, **self._errors}


def serial(number: int) -> int:
    """Returns the number within its session, for messages."""
    return number & ((1 << SESSION_BITS) - 1)
