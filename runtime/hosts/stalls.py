"""Steps that do not end: reported with what each host is at, and ended at a deadline.

A slow step, and one that waits for what never comes, look the same from outside. So the report says what
hosts wait for, and since when, and nothing is ended unless the user has said after how long.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from pathways.runtime.hosts.host import HostProcess
from pathways.runtime.hosts.messages import Ask, Report, Underway, Waiting
from pathways.runtime.hosts.step import Step
from pathways.runtime.hosts.wire import ConnectionEnded

_PATIENCE = 2.0
"""Seconds that a host may take to say what it is at."""

log = logging.getLogger("pathways")


class Reports:
    """Asks workers what they are at.

    Args:
      hosts: the workers.
    """

    def __init__(self, hosts: Sequence[HostProcess]) -> None:
        self._hosts = hosts
        self._changed = threading.Condition()
        self._reports: dict[int, Report] = {}
        self._asking = threading.Lock()

    def hear(self, host: int, report: Report) -> None:
        """Takes the answer of a worker."""
        with self._changed:
            self._reports[host] = report
            self._changed.notify_all()

    def ask(self, hosts: Iterable[int]) -> dict[int, Report]:
        """The reports of some workers; those that are lost, or do not answer in time, are left out."""
        with self._asking:
            with self._changed:
                self._reports.clear()
            asked = [host for host in hosts if self._hosts[host].error is None]
            for host in asked:
                with contextlib.suppress(ConnectionEnded):
                    self._hosts[host].watch.send(Ask())
            with self._changed:
                self._changed.wait_for(lambda: all(host in self._reports for host in asked), _PATIENCE)
                return dict(self._reports)


class Stalls:
    """Watches the steps of a cluster.

    Args:
      hosts: the workers.
      reports: asks them what they are at.
      steps: the steps that are not done, in the order in which they were issued.
      lose: ends a worker, and says why.
      report: seconds without progress after which a step is reported, and again whenever they have doubled;
        None for never.
      deadline: seconds without progress after which a step is ended; None for never.
    """

    def __init__(
        self,
        hosts: Sequence[HostProcess],
        reports: Reports,
        steps: Callable[[], list[Step]],
        lose: Callable[[HostProcess, str], None],
        report: float | None,
        deadline: float | None,
    ) -> None:
        self._hosts = hosts
        self._reports = reports
        self._steps = steps
        self._lose = lose
        self._report = report
        self._deadline = deadline
        self._next: dict[int, float] = {}

    def look(self) -> None:
        """Reports and ends what has made no progress for too long."""
        stalled: dict[int, tuple[Step, float]] = {}
        seen: set[int] = set()
        for step in self._steps():
            pending = set(step.pending())
            # A step that stands behind another one on its hosts waits for that.
            first = pending - seen
            seen |= pending
            if first:
                since = max([step.began, *(self._hosts[host].progressed for host in first)])
                stalled[step.number] = step, time.monotonic() - since
        self._next = {number: after for number, after in self._next.items() if number in stalled}
        for number, (step, seconds) in stalled.items():
            if self._deadline is not None and seconds >= self._deadline:
                self._end(step, seconds)
            elif self._report is not None and seconds >= self._next.get(number, self._report):
                self._next[number] = 2 * seconds
                log.warning("%s", described(step, seconds, self._reports.ask(step.pending())))

    def _end(self, step: Step, seconds: float) -> None:
        """Ends the hosts that a step waits for; what others wait for from them becomes an error."""
        reports = self._reports.ask(step.pending())
        log.error("%s", described(step, seconds, reports))
        for host in causes(step, reports):
            self._lose(
                self._hosts[host],
                f"step {step.number} of program {step.program} made no progress in {seconds:.0f} seconds",
            )


def causes(step: Step, reports: Mapping[int, Report]) -> list[int]:
    """The hosts that others wait for and that wait for nobody; all that are not done when there is none."""
    pending = step.pending()
    for is_sure in (False, True):
        waiting = {
            host
            for host in pending
            for one in _waiting(reports.get(host), step)
            if one.host in pending and (one.is_sure or not is_sure)
        }
        if found := [host for host in pending if host not in waiting]:
            return found
    return list(pending)


def described(step: Step, seconds: float, reports: Mapping[int, Report]) -> str:
    """What each host is at that is not done with a step."""
    lines = [f"step {step.number} of program {step.program} has made no progress for {seconds:.0f} seconds"]
    lines += [f"  host {host}: {_state(reports.get(host), step)}" for host in step.pending()]
    return "\n".join(lines)


def _state(report: Report | None, step: Step) -> str:
    if report is None:
        return "does not say what it is at"
    own = _own(report, step)
    if own is None:
        before = [f"step {other.run} of program {other.program}" for other in report.steps]
        return f"has not begun it; it is at {before[0]}" if before else "has not begun it"
    waiting = list(own.waiting)
    sure = [one for one in waiting if one.is_sure]
    if sure:
        return "waits for " + "; ".join(map(_shown, sure[:3])) + (", ..." if len(sure) > 3 else "")
    doing = "computes" if own.is_issued else f"issues it since {own.seconds:.0f} s"
    if not waiting:
        return doing
    return f"{doing}, or waits for " + "; ".join(map(_shown, waiting[:3])) + (", ..." if waiting[3:] else "")


def _shown(one: Waiting) -> str:
    return (
        f"host {one.host} on channel {one.channel} ({one.src} -> {one.dst}, transfer {one.index}) "
        f"since {one.seconds:.0f} s"
    )


def _own(report: Report | None, step: Step) -> Underway | None:
    steps = () if report is None else report.steps
    return next((other for other in steps if other.run == step.number), None)


def _waiting(report: Report | None, step: Step) -> tuple[Waiting, ...]:
    own = _own(report, step)
    return () if own is None else own.waiting
