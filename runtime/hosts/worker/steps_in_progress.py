"""What a worker is at: which steps it has begun, and for whose arrays they may wait."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import weakref
from collections.abc import Sequence
from typing import Any

from pathways.runtime.control.records.reports import StepReport, WaitReport
from pathways.runtime.plan.plan import Receive


class PendingReceive:
    """Arrays that another host was asked for.

    They are not held: what a step has read is freed when the step says so.

    Args:
      receive: the step that asked.
      host: the host that it asked, or the first of them.
      address: its data address, see `WorkerHandle.data_address`.
      arrays: what it got, which may be pending.
    """

    __slots__ = ("_address", "_arrays", "_began", "_host", "_receive")

    def __init__(self, receive: Receive, host: int, address: str, arrays: Sequence[Any]) -> None:
        self._receive = receive
        self._host = host
        self._address = address
        self._began = time.monotonic()
        self._arrays = [weakref.ref(array) for array in arrays]

    def waiting(self) -> WaitReport | None:
        """What is known of it; None when all is there."""
        known = [_is_there(reference()) for reference in self._arrays]
        if all(known):
            return None
        receive = self._receive
        return WaitReport(
            self._host,
            self._address.partition("#")[0],
            receive.channel,
            receive.src,
            receive.dst,
            receive.index,
            time.monotonic() - self._began,
            False in known,
        )


def _is_there(array: Any) -> bool | None:
    """Whether an array is there; None when it is no longer known."""
    if array is None:
        return None
    # Another thread may donate it in between.
    with contextlib.suppress(RuntimeError):
        return bool(array.is_ready())
    return None


@dataclasses.dataclass
class _StartedStep:
    program: str
    began: float
    asked: list[PendingReceive]
    is_issued: bool = False


class StepsInProgress:
    """The steps that a worker has begun and that are not done."""

    def __init__(self) -> None:
        self._steps: dict[int, _StartedStep] = {}
        self._ended = 0.0

    def begin(self, program: str, run: int) -> list[PendingReceive]:
        """Notes that a step begins; returns the list for what it asks for."""
        asked: list[PendingReceive] = []
        self._steps[run] = _StartedStep(program, time.monotonic(), asked)
        return asked

    def issued(self, run: int) -> None:
        """Notes that all of a step is issued."""
        self._steps[run].is_issued = True

    def done(self, run: int) -> float:
        """Notes that a step is done; the seconds since it began, or since the one before it was done."""
        # Two threads note ends: each may see the end that the other replaces, never half of one.
        now, before = time.monotonic(), self._ended
        self._ended = now
        return now - max(before, self._steps.pop(run).began)

    def awaited(self) -> list[str]:
        """The arrays of other hosts that steps wait for, or may wait for, in words."""
        return [
            f"{'waits' if one.is_sure else 'may wait'} for {one}"
            for step in self.report()
            for one in step.waiting
        ]

    def report(self) -> tuple[StepReport, ...]:
        """All steps that are not done, in the order in which they began."""
        now = time.monotonic()
        reports = []
        for run, step in [*self._steps.items()]:
            found = [asked.waiting() for asked in [*step.asked]]
            waiting = tuple(one for one in found if one is not None)
            reports.append(StepReport(step.program, run, now - step.began, step.is_issued, waiting))
        return tuple(reports)
