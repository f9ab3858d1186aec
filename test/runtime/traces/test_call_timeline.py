"""Timeline of a call, with measured and with estimated times of launches."""

from __future__ import annotations

import pytest

from pathways.runtime.plan import plan
from pathways.runtime.traces.call_timeline import timeline_of_call
from pathways.runtime.traces.recorder import ObservedTimes

TYPE = plan.ArrayType((), "float32")
MS = 1_000_000


@pytest.fixture
def chain():
    """Returns a plan of two launches on s0, a transfer of the last result, and a launch on s1."""
    slices = {name: plan.SliceSpec(name, ("x",), (1,)) for name in ("s0", "s1")}
    return plan.Plan(
        name="chain",
        slices=slices,
        computations={name: plan.Computation(name, b"", (TYPE,), (TYPE,)) for name in "fg"},
        arguments=(plan.Argument(TYPE, {"s0": 0}),),
        results=(plan.Result(TYPE, {"s1": 4}),),
        steps=(
            plan.Launch("f", "s0", (0,), (1,), "f"),
            plan.Launch("f", "s0", (1,), (2,), "f"),
            plan.Transfer((2,), (3,), "s0", "s1"),
            plan.Launch("g", "s1", (3,), (4,), "g"),
        ),
        slot_types=(TYPE,) * 5,
    )


def observed(**done: float | None) -> dict[int, ObservedTimes]:
    """Returns times of steps dispatched in the first microseconds, and observed to end at these ms."""
    moments = [done.get(name) for name in ("first", "second", "transfer", "last")]
    return {
        n: ObservedTimes(n * 1000, None if t is None else round(t * MS), 0) for n, t in enumerate(moments)
    }


def spans(timeline):
    return [(round(e.start * 1e3, 3), round(e.end * 1e3, 3)) for e in timeline.events]


def test_call_trace_draws_launches_as_they_ran(chain):
    # The waiting threads woke up a millisecond late.
    late = observed(first=3, second=6, transfer=8, last=11)
    ran = {0: (1 * MS, 2 * MS), 1: (3 * MS, 5 * MS), 3: (7 * MS, 10 * MS)}
    origin, timeline = timeline_of_call(chain, late, ran, "measured")
    assert origin == 1 * MS
    assert not any(event.estimated for event in timeline.events)
    # The transfer was complete, at the latest, when its reader started.
    assert spans(timeline) == [(0, 1), (2, 4), (4, 6), (6, 9)]
    assert timeline.critical_path == (0, 1, 2, 3)


def test_call_trace_estimates_a_missing_launch_between_its_neighbours(chain):
    late = observed(first=3, second=9, transfer=8, last=11)
    ran = {0: (1 * MS, 2 * MS), 3: (7 * MS, 10 * MS)}
    _, timeline = timeline_of_call(chain, late, ran, "measured")
    assert [event.estimated for event in timeline.events] == [False, True, False, False]
    # It started at the end of the launch before it, and ended at the start of its reader.
    assert spans(timeline) == [(0, 1), (1, 6), (6, 6), (6, 9)]


def test_call_trace_estimates_all_launches_without_a_profile(chain):
    _, timeline = timeline_of_call(chain, observed(first=2, second=5, transfer=6, last=9), {}, "measured")
    assert [event.estimated for event in timeline.events] == [True, True, False, True]
    assert spans(timeline) == [(0, 2), (2, 5), (5, 6), (6, 9)]


def test_call_trace_has_no_overlap_where_clocks_differ(chain):
    # By the other clock, the first launch ended after the second was observed to end.
    ran = {0: (1 * MS, 4 * MS), 3: (7 * MS, 10 * MS)}
    _, timeline = timeline_of_call(chain, observed(first=3, second=3.9, transfer=6, last=9), ran, "measured")
    first, second, _, _ = timeline.events
    assert first.end <= second.start <= second.end
