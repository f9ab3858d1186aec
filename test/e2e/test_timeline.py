"""Timelines of compiled programs: the bubbles of the pipeline schedules are those of theory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from models import apply, gradients_of, place_on

import pathways as pw
from pathways.passes.analysis.quantities import TimesError


def compiled(schedule: str, slices: int, folds: int, count: int):
    """Compiles a pipeline of `slices * folds` stages, `folds` of them on each slice."""
    devices = pw.make_virtual_device_set()
    places = [devices.add_slice((1,), ("x",)) for _ in range(slices)]
    stages = place_on(places[n % slices] for n in range(slices * folds - 1))
    head = pw.jit(lambda w, x: (x @ w).sum(), devices=places[-1])

    def loss(params, x):
        return head(params[-1], apply(stages, params[:-1], x))

    step = pw.program(gradients_of(loss, count), schedule=schedule)
    params = [jax.ShapeDtypeStruct((4, 4), jnp.float32)] * (slices * folds)
    return step.lower(params, jax.ShapeDtypeStruct((count * 2, 4), jnp.float32)).compile()


@pytest.mark.feature("timelines", "values")
@pytest.mark.parametrize(
    ("schedule", "slices", "folds", "count"),
    [("gpipe", 3, 1, 6), ("1f1b", 3, 1, 6), ("1f1b", 4, 1, 8), ("interleaved-1f1b", 2, 2, 4)],
)
def test_timeline_bubble_agrees_with_theory(schedule, slices, folds, count, tmp_path):
    timeline = compiled(schedule, slices, folds, count).timeline()
    expected = (slices - 1) / (folds * count + slices - 1)
    assert timeline.mean_bubble == pytest.approx(expected)
    timeline.save_html(tmp_path / "page.html")
    timeline.save_trace(tmp_path / "trace.json")
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_timeline_prints_its_figures():
    timeline = compiled("1f1b", 2, 1, 2).timeline()
    lines = str(timeline).splitlines()
    assert lines[0] == f"program {timeline.program}, planned, times=units"
    assert lines[1].split() == ["step", "time", "6", "units"]
    assert "events" not in repr(timeline)


def test_timeline_replays_by_times_of_schedule():
    """A head that does little: by operations a search is no slower than a policy, by units it may be."""
    programs = {schedule: compiled(schedule, 3, 1, 6) for schedule in ("1f1b", "zb-h1", "search")}
    by_default = {schedule: program.timeline() for schedule, program in programs.items()}
    assert {schedule: timeline.unit for schedule, timeline in by_default.items()} == {
        "1f1b": "units",
        "zb-h1": "units",
        "search": "flops",
    }
    assert "times=flops" in repr(by_default["search"])
    assert "times=units" in repr(by_default["zb-h1"])
    assert " FLOPs" in str(by_default["search"])
    by_flops = {schedule: program.timeline("flops") for schedule, program in programs.items()}
    assert by_flops["search"] == by_default["search"]
    assert by_flops["search"].step_time == min(timeline.step_time for timeline in by_flops.values())
    by_units = {schedule: program.timeline("units") for schedule, program in programs.items()}
    assert by_units["zb-h1"] == by_default["zb-h1"]
    assert by_units["1f1b"].step_time == 3 * 6 - 2


def test_timeline_counts_operations_of_launches():
    """A forward is a product of 2x4 with 4x4 elements and a tanh of 2x4; a backward has a product more."""
    timeline = compiled("1f1b", 2, 1, 2).timeline("flops")
    forward, *_ = [event for event in timeline.launches if event.name == "F0"]
    backward, *_ = [event for event in timeline.launches if event.name == "B0"]
    assert 2 * 2 * 4 * 4 + 2 * 4 <= forward.duration < 2 * (2 * 2 * 4 * 4)
    assert backward.duration > 2 * 2 * 4 * 4


def test_timeline_replays_by_file_of_schedule(tmp_path):
    times = tmp_path / "times.json"
    times.write_text('{"kinds": {"fwd": "1ms", "bwd": "3ms"}}')
    program = compiled(f"1f1b(times={times})", 2, 1, 2)
    times.unlink()
    timeline = program.timeline()
    assert timeline.unit == "s"
    # Backwards follow each other, since none reads the loss: 1 + 3 + 3 + 3 ms.
    assert timeline.step_time == pytest.approx(10e-3)


def test_timeline_counts_operations_without_loop():
    first, last = (pw.make_virtual_device_set().add_slice((1,), ("x",)) for _ in range(2))
    front = pw.jit(lambda x: x @ x, devices=first)
    back = pw.jit(lambda x: x + 1, devices=last)
    matrix = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    timeline = pw.program(lambda x: back(front(x))).lower(matrix).compile().timeline("flops")
    assert [event.duration for event in timeline.launches] == [2 * 4**3, 4**2]


@pytest.mark.feature("timelines", "error")
def test_timeline_refuses_latency_in_operations():
    program = compiled("search", 2, 1, 2)
    with pytest.raises(TimesError, match="latency: needs times to go with it"):
        program.timeline(latency="5us")
    assert program.timeline("units", latency=1).title == "simulated, times=units"


def test_timeline_of_bundle(tmp_path):
    program = compiled("search", 2, 1, 2)
    program.save(tmp_path / "step.pwb")
    loaded = pw.load(tmp_path / "step.pwb", trust=True)
    assert loaded.timeline().step_time == program.timeline("flops").step_time


def test_timeline_accepts_times_of_user():
    program = compiled("1f1b", 2, 1, 2)
    slow = program.timeline({"kinds": {"fwd": "1ms", "bwd": "2ms"}}, latency="1ms")
    assert slow.unit == "s"
    # The last stage runs both in one: 1 + 1 + 3 + 3 + 1 + 2 ms, with two transfers that nothing hides.
    assert slow.step_time == pytest.approx(11e-3)
    with pytest.raises(TimesError, match="there is no kind 'forward'"):
        program.timeline({"kinds": {"forward": 1}})
