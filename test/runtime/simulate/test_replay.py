"""Replay of plans: pipelines in theory, and each rule of the model."""

from __future__ import annotations

import dataclasses
import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import gpipe, interleaved, one_f_one_b, pipeline

from pathways.dialect.attributes.origins import Origin
from pathways.passes.analysis.links import Link
from pathways.passes.analysis.times import Times
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Launch, Transfer
from pathways.runtime.simulate.replay import simulate


@pytest.mark.parametrize(
    ("policy", "slices", "count"), [(gpipe, 2, 2), (one_f_one_b, 2, 5), (one_f_one_b, 4, 8), (gpipe, 5, 11)]
)
def test_replay_has_the_bubble_of_theory(policy, slices, count):
    timeline = simulate(plan_of(pipeline(policy, slices, count), "step"))
    assert timeline.step_time == 2 * (count + slices - 1)
    for name in timeline.slices:
        assert timeline.bubble(name) == pytest.approx((slices - 1) / (count + slices - 1))


@pytest.mark.parametrize(("slices", "count", "folds"), [(2, 4, 2), (4, 8, 2), (2, 4, 3), (3, 6, 4)])
def test_replay_of_interleaving_divides_the_bubble(slices, count, folds):
    timeline = simulate(plan_of(pipeline(interleaved, slices, count, folds), "step"))
    assert timeline.mean_bubble == pytest.approx((slices - 1) / (folds * count + slices - 1))


def test_replay_of_1f1b_has_a_peak_independent_of_microbatches():
    peaks = {
        (policy, count): simulate(plan_of(pipeline(policy, 4, count), "step")).peak_bytes("s0")
        for policy, count in itertools.product((gpipe, one_f_one_b), (8, 16))
    }
    assert peaks[one_f_one_b, 8] == peaks[one_f_one_b, 16] < peaks[gpipe, 8] < peaks[gpipe, 16]


def test_replay_has_the_peak_of_the_plan_on_one_slice():
    plan = plan_of(pipeline(one_f_one_b, 1, 6), "step")
    assert simulate(plan).peak_bytes("s0") == plan.peak_bytes["s0"]


@settings(max_examples=30, deadline=None)
@given(
    policy=st.sampled_from([gpipe, one_f_one_b]),
    slices=st.integers(1, 4),
    count=st.integers(1, 6),
    latency=st.sampled_from([0, 0.5, 3]),
    bandwidth=st.sampled_from([float("inf"), 16, 8]),
    data=st.data(),
)
def test_replay_meets_every_constraint(policy, slices, count, latency, bandwidth, data):
    plan = plan_of(pipeline(policy, slices, count), "step")
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    durations = data.draw(
        st.lists(st.integers(0, 5), min_size=len(launches), max_size=len(launches)), label="durations"
    )
    # Labels are not unique over stages, so each launch gets its own.
    steps = iter(range(len(launches)))
    plan = dataclasses.replace(
        plan,
        steps=tuple(
            dataclasses.replace(s, label=f"{next(steps)}") if isinstance(s, Launch) else s for s in plan.steps
        ),
    )
    times = Times(launches={str(n): float(time) for n, time in enumerate(durations)})
    timeline = simulate(plan, times, Link(latency, bandwidth))

    assert [e.duration for e in timeline.launches] == durations
    for event in timeline.events:
        assert all(timeline.events[n].end <= event.start for n in event.reads)
    for name in timeline.slices:
        on_slice = [e for e in timeline.launches if e.slice == name]
        assert all(a.end <= b.start for a, b in itertools.pairwise(on_slice))
    sent = [s for s in plan.steps if isinstance(s, Transfer)]
    by_link, by_channel = {}, {}
    for step, event in zip(sent, timeline.transfers, strict=True):
        by_link.setdefault((step.src, step.dst), []).append(event)
        by_channel.setdefault(step.channel, []).append(timeline.events.index(event))
    for events in by_link.values():
        assert all(a.start + 16 / bandwidth <= b.start for a, b in itertools.pairwise(events))
    first_reader = {read: n for n, e in reversed([*enumerate(timeline.events)]) for read in e.reads}
    # Links with a latency connect hosts, whose channels have room for all sends.
    for channel, members in () if latency else by_channel.items():
        for early, late in zip(members, members[plan.channels[channel] :], strict=False):
            if early in first_reader:
                assert timeline.events[first_reader[early]].start <= timeline.events[late].start
    # No step waits without a reason: the critical path has no gap except latency.
    path = [timeline.events[n] for n in timeline.critical_path]
    assert path[0].start == 0
    for before, after in itertools.pairwise(path):
        assert after.start in (before.end, before.end - latency)
    assert path[-1].end == timeline.step_time


def test_replay_delays_the_sender_of_a_full_channel():
    plan = plan_of(pipeline(gpipe, 2, 4), "step")
    slow = Times(stages={1: {"fwd": 3.0}}, kinds={"fwd": 1.0})
    free = simulate(dataclasses.replace(plan, channels=dict.fromkeys(plan.channels, 4)), slow)
    tight = simulate(dataclasses.replace(plan, channels=dict.fromkeys(plan.channels, 1)), slow)
    starts = [[e.start for e in t.launches if e.slice == "s0" and e.name[0] == "F"] for t in (free, tight)]
    assert starts == [[0, 1, 2, 3], [0, 1, 2, 4]]


def test_replay_runs_one_of_overlapping_slices_at_a_time():
    plan = plan_of(pipeline(gpipe, 2, 3), "step")
    shared = {name: msgspec.structs.replace(spec, overlap=True) for name, spec in plan.slices.items()}
    assert simulate(dataclasses.replace(plan, slices=shared)).step_time == 12


def test_times_of_a_fused_launch_are_added():
    launch = Launch("f", "s0", (), (), "f[0]", tuple(Origin(kind, 1, 0) for kind in ("fwd", "bwd")), 0)
    assert Times().of(launch) == 2
    assert Times(kinds={"bwd": 2.0}, stages={1: {"fwd": 5.0}}).of(launch) == 7
    assert Times(kinds={"bwd": 2.0}, computations={"f": 4.0}).of(launch) == 4
    assert Times(computations={"f": 4.0}, launches={"f[0]": 3.0}).of(launch) == 3


def test_times_of_halves_add_up_to_the_backward():
    half = Launch("f", "s0", (), (), "f[0]", (Origin("bwd", part="weight"),))
    assert Times().of(half) == 0.5
    assert Times(kinds={"bwd": 3.0}).of(half) == 1.5
    assert Times(kinds={"bwd": 3.0, "bwd.weight": 1.0}).of(half) == 1


def test_replay_gives_transfers_the_microbatch_of_their_value():
    timeline = simulate(plan_of(pipeline(one_f_one_b, 2, 3), "step"))
    for event in timeline.transfers:
        assert event.microbatch == timeline.events[event.reads[0]].microbatch is not None
