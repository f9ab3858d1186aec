"""Durations as users write them."""

from __future__ import annotations

import dataclasses
import json

import pytest
from pipelines import gpipe, pipeline

from pathways.dialect.attributes.origins import Origin
from pathways.passes.analysis.links import Link, read_link
from pathways.passes.analysis.measured.durations import measured_durations
from pathways.passes.analysis.measured.events import EventLog, TimelineEvent
from pathways.passes.analysis.quantities import TimesError
from pathways.passes.analysis.times import Times
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Launch
from pathways.runtime.simulate.replay import simulate, steady_step_time
from pathways.runtime.simulate.times import measured_times, read_times


@pytest.fixture(scope="module")
def plan():
    return plan_of(pipeline(gpipe, 2, 2), "step")


def test_read_times_prefers_the_most_specific_entry(plan):
    given = {
        "kinds": {"fwd": "1ms", "bwd": "2ms"},
        "stages": {"1": {"fwd": "3ms"}},
        "launches": {"front[1]": "5 ms"},
    }
    times = read_times(given, plan)
    found = {(e.label, e.stage): e.duration for e in simulate(plan, times).launches}
    assert found["front[0]", 0] == pytest.approx(1e-3)
    assert found["front[0]", 1] == pytest.approx(3e-3)
    assert found["front[1]", 1] == pytest.approx(5e-3)
    assert found["front_bwd[0]", 1] == pytest.approx(2e-3)
    assert times.unit == "s"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "times: expected an object, got []"),
        ({"kind": {}}, "there is no section 'kind'; did you mean 'kinds'?"),
        ({"kinds": 3}, "kinds: expected an object, got 3"),
        ({"kinds": {"forward": 1}}, "kinds: there is no kind 'forward'"),
        (
            {"computations": {"fornt": 1}},
            "computations: there is no computation 'fornt'; did you mean 'front'?",
        ),
        ({"launches": {"front[9]": 1}}, "launches: there is no launch 'front[9]'"),
        ({"stages": {"7": {"fwd": 1}}}, "stages: there is no stage '7'"),
        ({"stages": {"1": {"fvd": 1}}}, "stages, 1: there is no kind 'fvd'; did you mean 'fwd'?"),
        ({"kinds": {"fwd": -1}}, "kinds, fwd: must be a number from 0 up, got -1"),
        ({"kinds": {"fwd": float("nan")}}, "kinds, fwd: must be a number from 0 up, got nan"),
        ({"kinds": {"fwd": 10**400}}, "kinds, fwd: must be a number from 0 up"),
        ({"kinds": {"fwd": True}}, 'kinds, fwd: expected a number or a string such as "5us", got True'),
        ({"kinds": {"fwd": "fast"}}, "kinds, fwd: expected a number"),
        ({"kinds": {"fwd": "3 days"}}, "kinds, fwd: unknown suffix 'days'; known are s, ms, us"),
        ({"kinds": {"fwd": 1, "bwd": "2ms"}}, "kinds, bwd: is in seconds, but 'kinds, fwd' is in time units"),
    ],
)
def test_read_times_names_mistakes(given, message, plan):
    with pytest.raises(TimesError) as error:
        read_times(given, plan)
    assert str(error.value).startswith(message)


def test_times_in_seconds_are_not_guessed(plan):
    with pytest.raises(TimesError, match=r"no time for launch front_bwd\[0\] \(bwd at stage 1\)"):
        simulate(plan, read_times({"kinds": {"fwd": "1ms"}}, plan))


def test_measured_times_are_medians(plan):
    runs = [
        simulate(plan, read_times({"kinds": {"fwd": f"{fwd}ms", "bwd": "2ms"}}, plan)) for fwd in (1, 3, 9)
    ]
    times = measured_times(runs, plan)
    assert times.unit == "s"
    assert times.launches["front[0]"] == pytest.approx(3e-3)
    assert times.computations == pytest.approx({"front": 3e-3, "front_bwd": 2e-3})


def test_measured_times_include_unneeded_waits(plan):
    """A step whose launches start late, as real ones do, has the same duration in the replay."""
    times = read_times({"kinds": {"fwd": "1ms", "bwd": "2ms"}}, plan)
    late = simulate(plan, times, read_link("1ms", None, "s"))
    assert late.step_time > simulate(plan, times).step_time
    assert simulate(plan, measured_times([late], plan)).step_time == pytest.approx(late.step_time)


def test_measured_times_include_estimates_only_without_measurements(plan):
    def run(fwd, estimated):
        timeline = simulate(plan, read_times({"kinds": {"fwd": fwd, "bwd": "2ms"}}, plan))
        events = [dataclasses.replace(event, estimated=estimated) for event in timeline.events]
        return dataclasses.replace(timeline, events=tuple(events))

    seen, unseen = run("1ms", estimated=False), run("9ms", estimated=True)
    assert measured_times([seen, unseen, unseen], plan).computations["front"] == pytest.approx(1e-3)
    assert measured_times([unseen], plan).computations["front"] == pytest.approx(9e-3)


def test_measured_times_add_pieces_of_a_call(plan):
    """A forward that was cut in two is one unit; its measured time is the sum of both computations."""
    piece = Origin("fwd", stage=0, microbatch=0, pieces=2)
    cut = [Launch(name, "s0", (), (), f"{name}[0]", (piece,), 0) for name in ("part", "loop")]
    assert [Times().of(launch) for launch in cut] == [0.5, 0.5]
    events = [
        TimelineEvent("launch", "s0", launch.label, start=n, end=n + seconds, origins=launch.origins)
        for n, (launch, seconds) in enumerate(zip(cut, (1.0, 2.0), strict=True))
    ]
    measured = measured_times([EventLog("step", "measured", "s", ("s0",), tuple(events))], plan)
    assert measured.stages[0]["fwd"] == pytest.approx(1 + 2)


def test_times_documentation_is_valid_json():
    from pathways.passes.analysis import times

    text = times.__doc__.partition("{")[2].rpartition("}")[0]
    assert set(json.loads(f"{{{text}}}")) == set(times.SECTIONS)


def test_measured_durations_of_halves_are_read_back(plan):
    """Durations of a run may be read for the same program and for others."""
    run = simulate(plan, read_times({"kinds": {"fwd": "1ms", "bwd": "2ms"}}, plan))
    halves = [
        dataclasses.replace(
            event,
            origins=tuple(
                dataclasses.replace(origin, part="input") if origin.kind == "bwd" else origin
                for origin in event.origins
            ),
        )
        for event in run.events
    ]
    whole = measured_durations([run])
    assert whole == {"stages": {str(n): {"fwd": "0.001s", "bwd": "0.002s"} for n in range(2)}}
    assert simulate(plan, read_times(whole, plan)).step_time == pytest.approx(run.step_time)
    # A backward that is measured in halves takes the sum of both.
    split = measured_durations([dataclasses.replace(run, events=tuple(halves))])
    assert split["stages"]["1"] == {"fwd": "0.001s", "bwd.input": "0.002s", "bwd": "0.002s"}


def test_steady_step_time_is_between_the_busiest_slice_and_a_step_alone(plan):
    """A slice starts the next step when it has finished the current one, independently of other slices."""
    times = read_times({"kinds": {"fwd": 1, "bwd": 2}}, plan)
    alone = simulate(plan, times).step_time
    busiest = max(simulate(plan, times).busy(name) for name in simulate(plan, times).slices)
    assert busiest <= steady_step_time(plan, times, Link(), 5) <= alone
