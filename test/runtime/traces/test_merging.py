"""Merging of the times of a call on its hosts, each by its own clock."""

from __future__ import annotations

import pytest

from pathways.runtime.hosts.protocol.messages import StepTimes
from pathways.runtime.plan import plan
from pathways.runtime.traces.call_timeline import timeline_of_call
from pathways.runtime.traces.merging import HostStep, PlanOnHosts
from pathways.runtime.traces.recorder import ObservedTimes

TYPE = plan.ArrayType((), "float32")
MS = 1_000_000
AHEAD = 7_000 * MS
HERE = {0: lambda time: time, 1: lambda time: time - AHEAD}


@pytest.fixture
def program() -> PlanOnHosts:
    """`f` on s0, a transfer to s1 on the same host, another to s2 on another host, and `g` there."""
    return PlanOnHosts(
        plan.Plan(
            name="program",
            slices={name: plan.SliceSpec(name, ("x",), (1,)) for name in ("s0", "s1", "s2")},
            computations={name: plan.Computation(name, b"", (TYPE,), (TYPE,)) for name in "fg"},
            arguments=(plan.Argument(TYPE, {"s0": 0}),),
            results=(plan.Result(TYPE, {"s1": 2}), plan.Result(TYPE, {"s2": 4})),
            steps=(
                plan.Launch("f", "s0", (0,), (1,), "f"),
                plan.Transfer((1,), (2,), "s0", "s1"),
                plan.Transfer((1,), (3,), "s0", "s2"),
                plan.Release((1,)),
                plan.Launch("g", "s2", (3,), (4,), "g"),
                plan.Release((3,)),
            ),
            slot_types=(TYPE,) * 5,
        ),
        {"s0": (0,), "s1": (0,), "s2": (1,)},
    )


SOURCE = (
    StepTimes(0, 1 * MS, 4 * MS, 0, (2 * MS, 3 * MS)),
    StepTimes(1, 2 * MS, 5 * MS, 0, None),
    StepTimes(2, 2 * MS, None, 0, None),
)
READER = (
    StepTimes(0, AHEAD, AHEAD + 6 * MS, 0, None),
    StepTimes(1, AHEAD, AHEAD + 9 * MS, 0, (AHEAD + 7 * MS, AHEAD + 8 * MS)),
)


def drawn(program, times):
    """Returns the timeline of a call, and start and end of its events, in milliseconds of the local clock."""
    call = program.merged(3, times, HERE)
    origin, timeline = timeline_of_call(call.plan, call.observed, call.executed, "measured", call.hosts)
    at = origin * 1e-6
    return timeline, [(at + event.start * 1e3, at + event.end * 1e3) for event in timeline.events]


def test_merging_gives_each_host_its_steps(program):
    sent = HostStep((2,), sends=True)
    assert program.host_steps == {
        0: [HostStep((0,)), HostStep((1,)), sent],
        1: [HostStep((2,)), HostStep((4,))],
    }


def test_merging_times_a_transfer_from_send_to_receive(program):
    call = program.merged(3, {0: SOURCE, 1: READER}, HERE)
    assert call.name == 3
    assert call.observed[2] == ObservedTimes(2 * MS, 6 * MS, 0)
    timeline, spans = drawn(program, {0: SOURCE, 1: READER})
    assert spans == [pytest.approx(span) for span in [(2, 3), (3, 5), (3, 6), (7, 8)]]
    assert timeline.hosts == {"s0": 0, "s1": 0, "s2": 1}
    assert timeline.critical_path == (0, 2, 3)


def test_merging_bounds_arrival_by_the_first_read(program):
    unseen = (StepTimes(0, AHEAD, None, 0, None), READER[1])
    _, spans = drawn(program, {0: SOURCE, 1: unseen})
    assert spans[2] == pytest.approx((3, 7))


def test_merging_drops_a_transfer_without_receiver(program):
    timeline, _ = drawn(program, {0: SOURCE})
    assert [event.label for event in timeline.events] == ["f", "s0 -> s1"]
    # The memory on s2 depends on the times that are missing.
    assert timeline.memory.keys() == {"s0", "s1"}


def test_merging_begins_a_transfer_without_sender_at_its_request(program):
    timeline, spans = drawn(program, {1: READER})
    assert [event.label for event in timeline.events] == ["s0 -> s2", "g"]
    assert spans == [pytest.approx(span) for span in [(0, 6), (7, 8)]]
