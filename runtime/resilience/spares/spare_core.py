"""State machine of spare workers: decides when one starts, which one is used, and when to give up.

A spare is *warming* until it has imported JAX, then *ready*. It is removed when it is taken, exits or is
killed. The rules:

- No spare starts while workers of an island start, nor until `QUIET_SECONDS` later: the workers need the
  cores.
- Spares start one after the other, for the same reason.
- The oldest ready spare is taken first, otherwise one that is warming, which is ahead of a new worker.
- After a spare that exited, or was not ready within `WARM_SECONDS`, comes a pause, longer after each such
  failure in a row. After `MAX_FAILURES` in a row no spare starts any more. A row ends with a spare that is
  used, or that lived for `STEADY_SECONDS`.

Time is an argument, and nothing here knows a process: the pool sends events and carries out effects.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

QUIET_SECONDS = 2.0
WARM_SECONDS = 120.0
STEADY_SECONDS = 300.0
MAX_FAILURES = 5
PAUSES = (1.0, 5.0, 20.0, 60.0)
"""Seconds until the next start after failures in a row."""


@dataclasses.dataclass(frozen=True, slots=True)
class StartBegan:
    """Event: workers of an island are about to start."""


@dataclasses.dataclass(frozen=True, slots=True)
class StartEnded:
    """Event: workers of an island are ready, or did not start."""


@dataclasses.dataclass(frozen=True, slots=True)
class SpareReady:
    """Event: a spare has imported JAX."""

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class SpareFailed:
    """Event: a spare has exited, or did not start; `why` is a sentence about the cause."""

    number: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class SpareUnfit:
    """Event: a spare was taken but is not used; `why` names its difference from a new worker."""

    number: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class SpareTick:
    """Event: time has passed. Spares start at this event only."""


@dataclasses.dataclass(frozen=True, slots=True)
class PoolClosed:
    """Event: no spare is needed any more."""


SpareEvent = StartBegan | StartEnded | SpareReady | SpareFailed | SpareUnfit | SpareTick | PoolClosed


@dataclasses.dataclass(frozen=True, slots=True)
class StartSpare:
    """Effect: start a spare."""

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class KillSpare:
    """Effect: kill a spare."""

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class LogSpares:
    """Effect: log a line; `level` is one of `logging`."""

    level: int
    text: str


SpareEffect = StartSpare | KillSpare | LogSpares


class SpareCore:
    """State of the spares of a cluster.

    Args:
      count: the target number of spares.

    Attributes:
      problem: the reason why no spare starts any more; None while spares start.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.problem: str | None = None
        # The start time of each spare by its number, oldest first.
        self._warming: dict[int, float] = {}
        self._ready: dict[int, float] = {}
        self._next = 0
        self._starts = 0
        self._failures = 0
        # None until the first start, in which all islands start.
        self._start_after: float | None = None
        self._is_closed = False

    @property
    def ready(self) -> int:
        """Number of ready spares."""
        return len(self._ready)

    def take(self) -> int | None:
        """Removes the spare to use next and returns it; None if there is none."""
        spares = self._ready or self._warming
        if not spares:
            return None
        number = next(iter(spares))
        del spares[number]
        self._failures, self.problem = 0, None
        return number

    def handle(self, event: SpareEvent, now: float) -> Sequence[SpareEffect]:
        """Handles an event; returns the effects."""
        effects: list[SpareEffect] = []
        match event:
            case StartBegan():
                self._starts += 1
            case StartEnded():
                self._starts -= 1
                self._delay(now + QUIET_SECONDS)
            case SpareReady(number) if number in self._warming:
                self._ready[number] = self._warming.pop(number)
            case SpareFailed(number, why) if (since := self._remove(number)) is not None:
                effects += self._fail(now - since, now, why)
            case SpareUnfit(number, why):
                effects += [
                    KillSpare(number),
                    LogSpares(logging.WARNING, f"a spare worker is not used: {why}; a new worker starts"),
                ]
            case SpareTick():
                effects += [*self._check_warming(now), *self._refill(now)]
            case PoolClosed():
                self._is_closed = True
                effects += [KillSpare(number) for number in (*self._warming, *self._ready)]
                self._warming, self._ready = {}, {}
        return effects

    def _remove(self, number: int) -> float | None:
        return (self._warming if number in self._warming else self._ready).pop(number, None)

    def _delay(self, until: float) -> None:
        self._start_after = until if self._start_after is None else max(self._start_after, until)

    def _check_warming(self, now: float) -> list[SpareEffect]:
        effects: list[SpareEffect] = []
        for number, since in [*self._warming.items()]:
            if now - since > WARM_SECONDS:
                del self._warming[number]
                reason = f"a spare worker was not ready within {WARM_SECONDS:.0f} seconds"
                effects += [KillSpare(number), *self._fail(0.0, now, reason)]
        return effects

    def _fail(self, lived: float, now: float, reason: str) -> list[SpareEffect]:
        self._failures = 1 if lived >= STEADY_SECONDS else self._failures + 1
        if self._failures < MAX_FAILURES:
            pause = PAUSES[self._failures - 1]
            self._delay(now + pause)
            return [LogSpares(logging.WARNING, f"{reason}; another one starts after {pause:.0f} s")]
        self.problem = f"{reason}, the last of {MAX_FAILURES} that failed in a row; no more are started"
        return [LogSpares(logging.ERROR, self.problem)]

    def _refill(self, now: float) -> list[SpareEffect]:
        is_due = self._start_after is not None and now >= self._start_after and not self._starts
        is_complete = self._warming or len(self._ready) >= self.count
        if not is_due or is_complete or self._is_closed or self.problem is not None:
            return []
        self._next += 1
        self._warming[self._next] = now
        return [StartSpare(self._next)]
