"""Durations as users write them."""

from __future__ import annotations

import json

import pytest
from pipelines import gpipe, pipeline

from pathways.runtime.plan.lower import plan_of
from pathways.runtime.simulate.quantities import TimesError
from pathways.runtime.simulate.replay import simulate
from pathways.runtime.simulate.times import measured_times, read_times


@pytest.fixture(scope="module")
def plan():
    return plan_of(pipeline(gpipe, 2, 2), "step")


def test_the_most_specific_entry_counts(plan):
    given = {
        "phases": {"fwd": "1ms", "bwd": "2ms"},
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
        ([], "times: expected an object, got list"),
        ({"phase": {}}, "there is no section 'phase'; did you mean 'phases'?"),
        ({"phases": 3}, "phases: expected an object, got int"),
        ({"phases": {"forward": 1}}, "phases: there is no phase 'forward'"),
        (
            {"computations": {"fornt": 1}},
            "computations: there is no computation 'fornt'; did you mean 'front'?",
        ),
        ({"launches": {"front[9]": 1}}, "launches: there is no launch 'front[9]'"),
        ({"stages": {"7": {"fwd": 1}}}, "stages: there is no stage '7'"),
        ({"stages": {"1": {"fvd": 1}}}, "stages, 1: there is no phase 'fvd'; did you mean 'fwd'?"),
        ({"phases": {"fwd": -1}}, "phases, fwd: must be a number from 0 up, got -1"),
        ({"phases": {"fwd": float("nan")}}, "phases, fwd: must be a number from 0 up, got nan"),
        ({"phases": {"fwd": 10**400}}, "phases, fwd: must be a number from 0 up"),
        ({"phases": {"fwd": True}}, 'phases, fwd: expected a number or a string such as "5us", got True'),
        ({"phases": {"fwd": "fast"}}, "phases, fwd: expected a number"),
        ({"phases": {"fwd": "3 days"}}, "phases, fwd: unknown suffix 'days'; known are s, ms, us"),
        (
            {"phases": {"fwd": 1, "bwd": "2ms"}},
            "phases, bwd: is in seconds, but 'phases, fwd' is in time units",
        ),
    ],
)
def test_what_cannot_be_used_is_named(given, message, plan):
    with pytest.raises(TimesError) as error:
        read_times(given, plan)
    assert str(error.value).startswith(message)


def test_seconds_are_not_guessed(plan):
    with pytest.raises(TimesError, match=r"no time for launch front_bwd\[0\] \(bwd at stage 1\)"):
        simulate(plan, read_times({"phases": {"fwd": "1ms"}}, plan))


def test_measured_durations_are_medians(plan):
    runs = [
        simulate(plan, read_times({"phases": {"fwd": f"{fwd}ms", "bwd": "2ms"}}, plan)) for fwd in (1, 3, 9)
    ]
    times = measured_times(runs, plan)
    assert times.unit == "s"
    assert times.launches["front[0]"] == pytest.approx(3e-3)
    assert times.computations == pytest.approx({"front": 3e-3, "front_bwd": 2e-3})


def test_json_of_the_documentation_is_valid():
    from pathways.runtime.simulate import times

    text = times.__doc__.partition("{")[2].rpartition("}")[0]
    assert set(json.loads(f"{{{text}}}")) == set(times.SECTIONS)
