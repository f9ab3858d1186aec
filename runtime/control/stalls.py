"""Steps without progress: reported with the state of each host, and terminated at a deadline.

From outside, a slow step looks like one that waits for a value that never comes. So the report lists the
waits of hosts, with their times, and no step is terminated unless the user has set a deadline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from pathways.runtime.control.gang import GangView
from pathways.runtime.control.records.reports import HostReport, StepReport, WaitReport
from pathways.runtime.control.records.step import Step

_PAUSE = 0.5
"""Seconds between two checks."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stall:
    """Step that has made no progress for too long.

    Attributes:
      since: when it made progress last.
      seconds: for how long it has made none.
      is_over: whether it is to be terminated; otherwise it is reported.
    """

    step: Step
    since: float
    seconds: float
    is_over: bool


class Stalls:
    """Watch over the steps of a cluster.

    Args:
      report: seconds without progress after which a step is reported, and again whenever they have doubled;
        None for never.
      deadline: seconds without progress after which a step is terminated; None for never. It does not apply
        to calls of functions: their authors know how long they may take.
    """

    def __init__(self, report: float | None, deadline: float | None) -> None:
        self._report = report
        self._deadline = deadline
        # When the next report is due, by the step and its last progress.
        self._next: dict[tuple[int, float], float] = {}
        self._due = 0.0

    def check(self, steps: Iterable[Step], gangs: Iterable[GangView], now: float) -> list[Stall]:
        """Returns the steps that have made no progress for too long.

        Args:
          steps: the steps that are not done, in the order in which they were issued.
          now: the time.
        """
        if now < self._due:
            return []
        self._due = now + _PAUSE
        progressed = {h: pulse.progressed for gang in gangs for h, pulse in gang.pulses.items()}
        stalled: dict[tuple[int, float], Stall] = {}
        seen: set[int] = set()
        for step in steps:
            pending = set(step.pending())
            if step.is_unordered:
                # Other steps continue meanwhile, and its host does not report its progress.
                since = step.began
                stalled[step.number, since] = Stall(step, since, now - since, False)
                continue
            # A step after another one on the same hosts waits for that one.
            first = pending - seen
            seen |= pending
            if first:
                since = max([step.began, *(progressed[host] for host in first)])
                stalled[step.number, since] = Stall(step, since, now - since, False)
        self._next = {key: after for key, after in self._next.items() if key in stalled}
        judged = (self._judge(stall) for stall in stalled.values())
        return [stall for stall in judged if stall is not None]

    def _judge(self, stall: Stall) -> Stall | None:
        key, seconds = (stall.step.number, stall.since), stall.seconds
        deadline = None if stall.step.is_unordered else self._deadline
        if deadline is not None and seconds >= deadline:
            return dataclasses.replace(stall, is_over=True)
        if self._report is None or seconds < self._next.get(key, self._report):
            return None
        self._next[key] = 2 * seconds
        return stall


def describe_stall(stall: Stall, gangs: Iterable[GangView], reports: Mapping[int, HostReport]) -> str | None:
    """Returns the report of a step without progress; None if it has progressed since the request.

    Args:
      stall: the step.
    """
    step = stall.step
    if step.is_done():
        return None
    pulses = {host: pulse for gang in gangs for host, pulse in gang.pulses.items()}
    if not step.is_unordered and any(pulses[host].progressed > stall.since for host in step.pending()):
        return None
    return describe_step(step, stall.seconds, reports)


def causes(step: Step, reports: Mapping[int, HostReport]) -> list[int]:
    """Returns the hosts that others wait for and that wait for none; if there is none, all pending ones."""
    pending = step.pending()
    # When all possible waits leave no cause, some of them are not real: then only certain ones count.
    for is_sure in (False, True):
        waiting = {
            host
            for host in pending
            for wait in _waiting(reports.get(host), step)
            if wait.host in pending and (wait.is_sure or not is_sure)
        }
        if first_hosts := [host for host in pending if host not in waiting]:
            return first_hosts
    return list(pending)


def describe_step(step: Step, seconds: float, reports: Mapping[int, HostReport]) -> str:
    """Returns the state of each host that is not done with a step, as text."""
    if step.is_unordered:
        lines = [f"{step} has been running for {seconds:.0f} seconds"]
        lines += [f"  host {host}: {_place(reports.get(host), step)}" for host in step.pending()]
        return "\n".join(lines)
    lines = [f"{step} has made no progress for {seconds:.0f} seconds"]
    lines += [f"  host {host}: {_state(reports.get(host), step)}" for host in step.pending()]
    return "\n".join(lines)


def _state(report: HostReport | None, step: Step) -> str:
    if report is None:
        return "did not report"
    step_report = _report_of(step, report)
    if step_report is None:
        before = [f"step {other.run} of program {other.program}" for other in report.steps]
        return f"not started; running {before[0]}" if before else "not started"
    waiting = list(step_report.waiting)
    sure = [wait for wait in waiting if wait.is_sure]
    if sure:
        return "has waited for " + "; ".join(map(str, sure[:3])) + (", ..." if len(sure) > 3 else "")
    doing = "computes" if step_report.is_issued else f"has been issuing it for {step_report.seconds:.0f} s"
    if not waiting:
        return doing
    more = ", ..." if waiting[3:] else ""
    return f"{doing}, or has waited for " + "; ".join(map(str, waiting[:3])) + more


def _place(report: HostReport | None, step: Step) -> str:
    """Returns the state of a call on a host."""
    if report is None:
        return "did not report"
    call_report = next((call for call in report.calls if call.number == step.number), None)
    if call_report is None:
        return "not started"
    return f"has been running for {call_report.seconds:.0f} s{call_report.about}, in {call_report.place}"


def _report_of(step: Step, report: HostReport | None) -> StepReport | None:
    steps = () if report is None else report.steps
    return next((other for other in steps if other.run == step.number), None)


def _waiting(report: HostReport | None, step: Step) -> tuple[WaitReport, ...]:
    step_report = _report_of(step, report)
    return () if step_report is None else step_report.waiting
