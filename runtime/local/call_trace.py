"""The timeline of one call of a program, from what was seen of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pathways.passes.analysis.quantities import SECONDS
from pathways.runtime.plan.plan import Launch, Plan, Release, Send, Slot
from pathways.runtime.timelines.from_plan import StepSpan, timeline_of
from pathways.runtime.timelines.timeline import Timeline

_NANOSECOND = 1e-9


@dataclasses.dataclass
class Seen:
    """What was seen of one launch or transfer, in nanoseconds of one clock.

    Attributes:
      dispatched: when it was passed to XLA.
      done: when it was seen to be done, maybe late; None for what could not be waited for.
      before: when the launch or transfer was done that the same thread watched before.
    """

    dispatched: int
    done: int | None
    before: int


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """What was recorded of one call; the arguments of `timeline_of_call`.

    Attributes:
      name: what the sink of the recorder calls it.
    """

    name: Any
    plan: Plan
    seen: Mapping[int, Seen]
    ran: Mapping[int, tuple[int, int]]
    hosts: Mapping[str, int] = dataclasses.field(default_factory=dict)


def timeline_of_call(
    plan: Plan,
    seen: Mapping[int, Seen],
    ran: Mapping[int, tuple[int, int]],
    title: str,
    hosts: Mapping[str, int] | None = None,
) -> tuple[int, Timeline]:
    """When the first event began, in nanoseconds, and the timeline in seconds from there on.

    A launch that is not in `ran` is estimated: it begins when it was dispatched, the launch before it on its
    slice was done, and what it reads had arrived, whichever came last, and ends when it was seen to be done.

    Args:
      plan: the plan of the program.
      seen: what was seen of each launch and transfer, by the number of its step; one that is missing, as
        its host was lost, is left out.
      ran: when launches really ran, by the number of the step, on the same clock.
      title: the title of the timeline.
      hosts: the host of each slice, where the program runs on several.
    """
    done = _done(plan, seen, ran)
    steps: dict[int, tuple[int, int, int | None]] = {}
    ready: dict[Slot, tuple[int, int | None]] = {}
    on_slice: dict[str, tuple[int, int | None]] = {}
    for n, step in enumerate(plan.steps):
        if n not in seen or isinstance(step, Send | Release):
            continue
        waits: list[tuple[int, int | None]] = [(seen[n].dispatched, None)]
        waits += [ready[slot] for slot in step.operands if slot in ready]
        if isinstance(step, Launch):
            # The first on its slice waits for the call before.
            waits.append(on_slice.get(step.slice, (min(seen[n].before, done[n]), None)))
        start, after = max(waits, key=lambda wait: wait[0])
        end = start if seen[n].done is None else max(start, done[n])
        if isinstance(step, Launch):
            if n in ran:
                start, end = ran[n]
            elif step.slice in on_slice:
                # The clocks differ by microseconds; bars of a slice do not overlap for that.
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
            estimated=isinstance(plan.steps[n], Launch) and n not in ran,
        )
        for n, (start, end, after) in steps.items()
    }
    return origin, timeline_of(plan, spans, SECONDS, title, hosts)


def _done(plan: Plan, seen: Mapping[int, Seen], ran: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """When each step was done at the latest: when that was seen, or what waited for it began or was done."""
    done: dict[int, int] = {}
    limits: dict[Slot | str, int] = {}
    for n, step in reversed(list(enumerate(plan.steps))):
        if n not in seen or isinstance(step, Send | Release):
            continue
        within: list[Slot | str] = [step.slice] if isinstance(step, Launch) else []
        moments = [limits[key] for key in (*step.results, *within) if key in limits]
        if (observed := seen[n].done) is not None:
            moments.append(observed)
        done[n] = min(moments, default=seen[n].dispatched)
        limit = ran[n][0] if n in ran else done[n]
        for key in (*step.operands, *within):
            limits[key] = min(limit, limits.get(key, limit))
    return done
