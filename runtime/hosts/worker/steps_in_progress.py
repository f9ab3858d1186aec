"""Steps in progress on a worker, and the arrays of other hosts that they wait for."""

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
    """Arrays that another host sends, which may be pending.

    The arrays are only referred to weakly, so that the step still frees and donates them in time.

    Args:
      host: the host that sends, or the first of several.
      address: its data address, see `WorkerHandle.data_address`.
      arrays: the results of the receive.
    """

    __slots__ = ("_address", "_arrays", "_began", "_host", "_receive")

    def __init__(self, receive: Receive, host: int, address: str, arrays: Sequence[Any]) -> None:
        self._receive = receive
        self._host = host
        self._address = address
        self._began = time.monotonic()
        self._arrays = [weakref.ref(array) for array in arrays]

    def waiting(self) -> WaitReport | None:
        """Returns a report of the pending arrays; None when all have arrived."""
        arrived = [_has_arrived(reference()) for reference in self._arrays]
        if all(arrived):
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
            False in arrived,
        )


def _has_arrived(array: Any) -> bool | None:
    """Returns whether an array has arrived; None when it was freed or donated, so that nobody knows."""
    if array is None:
        return None
    # Another thread may donate it in the meantime.
    with contextlib.suppress(RuntimeError):
        return bool(array.is_ready())
    return None


@dataclasses.dataclass
class _StartedStep:
    program: str
    began: float
    receives: list[PendingReceive]
    is_issued: bool = False


class StepsInProgress:
    """Steps that a worker has begun and that are not done."""

    def __init__(self) -> None:
        self._steps: dict[int, _StartedStep] = {}
        self._ended = 0.0

    def begin(self, program: str, run: int) -> list[PendingReceive]:
        """Registers a step; returns the list to which its receives are appended."""
        receives: list[PendingReceive] = []
        self._steps[run] = _StartedStep(program, time.monotonic(), receives)
        return receives

    def issued(self, run: int) -> None:
        """Marks a step as completely issued."""
        self._steps[run].is_issued = True

    def done(self, run: int) -> float:
        """Removes a step that is done.

        Returns:
          The seconds since it began, or since the step before it was done if that was later.
        """
        # Two threads call this without a lock: one may read `_ended` just before the other replaces it, which
        # makes a figure slightly larger and breaks nothing.
        now, before = time.monotonic(), self._ended
        self._ended = now
        return now - max(before, self._steps.pop(run).began)

    def awaited(self) -> list[str]:
        """Returns a line for each array of another host that a step waits for, or may wait for."""
        return [
            f"{'waits' if wait.is_sure else 'may wait'} for {wait}"
            for step in self.report()
            for wait in step.waiting
        ]

    def report(self) -> tuple[StepReport, ...]:
        """Returns all steps that are not done, in the order in which they began."""
        now = time.monotonic()
        reports = []
        for run, step in [*self._steps.items()]:
            waits = [receive.waiting() for receive in [*step.receives]]
            waiting = tuple(wait for wait in waits if wait is not None)
            reports.append(StepReport(step.program, run, now - step.began, step.is_issued, waiting))
        return tuple(reports)
