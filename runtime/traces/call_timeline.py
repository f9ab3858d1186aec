"""Timelines of calls of programs, from the recorded times of their steps."""

from __future__ import annotations

from collections.abc import Mapping

from pathways.passes.analysis.quantities import SECONDS
from pathways.runtime.plan.plan import Launch, Plan, Release, Send, Slot
from pathways.runtime.traces.recorder import ObservedTimes
from pathways.runtime.traces.timeline import StepSpan, Timeline, timeline_of

_NANOSECOND = 1e-9


def timeline_of_call(
    plan: Plan,
    observed: Mapping[int, ObservedTimes],
    executed: Mapping[int, tuple[int, int]],
    title: str,
    hosts: Mapping[str, int] | None = None,
) -> tuple[int, Timeline]:
    """Returns the start of the first event, in nanoseconds, and the timeline in seconds since then.

    A launch that is not in `executed` is estimated: it starts when it was dispatched, the launch before it on
    its slice was complete, and its operands had arrived, whichever was last, and ends when it was observed to
    be complete.

    Args:
      observed: the observed times of each launch and transfer, by the number of its step. A step that is
        missing, because its host was lost, is left out.
      executed: the measured start and end of launches, by the number of the step, on the same clock.
      hosts: the host of each slice, if the program runs on multiple hosts.
    """
    done = _latest_ends(plan, observed, executed)
    steps: dict[int, tuple[int, int, int | None]] = {}
    ready: dict[Slot, tuple[int, int | None]] = {}
    on_slice: dict[str, tuple[int, int | None]] = {}
    for n, step in enumerate(plan.steps):
        if n not in observed or isinstance(step, Send | Release):
            continue
        waits: list[tuple[int, int | None]] = [(observed[n].dispatched, None)]
        waits += [ready[slot] for slot in step.operands if slot in ready]
        if isinstance(step, Launch):
            # The first launch on its slice waits for the previous call.
            waits.append(on_slice.get(step.slice, (min(observed[n].before, done[n]), None)))
        start, after = max(waits, key=lambda wait: wait[0])
        end = start if observed[n].done is None else max(start, done[n])
        if isinstance(step, Launch):
            if n in executed:
                start, end = executed[n]
            elif step.slice in on_slice:
                # Measured and observed times differ by microseconds; launches of a slice must not overlap.
                start = max(on_slice[step.slice][0], min(start, done[n]))
                end = max(start, done[n])
            on_slice[step.slice] = end, n
        steps[n] = start, end, after
        ready.update(dict.fromkeys(step.results, (end, n)))
    origin = min((start for start, _, _ in steps.values()), default=0)
    spans = {
        n: StepSpan(
            (start - origin) * _NANOSECOND,
            (end - origin) * _NANOSECOND,
            after,
            estimated=isinstance(plan.steps[n], Launch) and n not in executed,
        )
        for n, (start, end, after) in steps.items()
    }
    return origin, timeline_of(plan, spans, SECONDS, title, hosts)


def _latest_ends(
    plan: Plan, observed: Mapping[int, ObservedTimes], executed: Mapping[int, tuple[int, int]]
) -> dict[int, int]:
    """Returns an upper bound of the end of each step.

    The bound is the time at which its end was observed, or the start or end of a step that waited for it.
    """
    done: dict[int, int] = {}
    limits: dict[Slot | str, int] = {}
    for n, step in reversed(list(enumerate(plan.steps))):
        if n not in observed or isinstance(step, Send | Release):
            continue
        within: list[Slot | str] = [step.slice] if isinstance(step, Launch) else []
        moments = [limits[key] for key in (*step.results, *within) if key in limits]
        if (end := observed[n].done) is not None:
            moments.append(end)
        done[n] = min(moments, default=observed[n].dispatched)
        # What this step waited for ended before its start. Where that was not measured, the end of the step
        # is the earliest time that is known to be later.
        limit = executed[n][0] if n in executed else done[n]
        for key in (*step.operands, *within):
            limits[key] = min(limit, limits.get(key, limit))
    return done
