"""Timelines of compiled programs: the bubbles of the pipeline schedules, as theory has them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import pathways as pw
from pathways.passes.util.quantities import TimesError


def compiled(schedule: str, slices: int, folds: int, count: int):
    """A pipeline of `slices * folds` stages, `folds` of them on each slice."""
    devices = pw.make_virtual_device_set()
    places = [devices.add_slice((1,), ("x",)) for _ in range(slices)]
    stages = [
        pw.jit(lambda w, x: jnp.tanh(x @ w), devices=places[n % slices]) for n in range(slices * folds - 1)
    ]
    head = pw.jit(lambda w, x: (x @ w).sum(), devices=places[-1])

    def loss(params, x):
        for stage, w in zip(stages, params, strict=False):
            x = stage(w, x)
        return head(params[-1], x)

    @pw.program(schedule=schedule)
    def step(params, x):
        return pw.accumulate(jax.value_and_grad(loss), count)(params, x)

    params = [jax.ShapeDtypeStruct((4, 4), jnp.float32)] * (slices * folds)
    return step.lower(params, jax.ShapeDtypeStruct((count * 2, 4), jnp.float32)).compile()


@pytest.mark.parametrize(
    ("schedule", "slices", "folds", "count"),
    [("gpipe", 3, 1, 6), ("1f1b", 3, 1, 6), ("1f1b", 4, 1, 8), ("interleaved-1f1b", 2, 2, 4)],
)
def test_the_bubble_is_what_theory_says(schedule, slices, folds, count, tmp_path):
    timeline = compiled(schedule, slices, folds, count).timeline()
    expected = (slices - 1) / (folds * count + slices - 1)
    assert timeline.mean_bubble == pytest.approx(expected)
    timeline.save_html(tmp_path / "page.html")
    timeline.save_trace(tmp_path / "trace.json")
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_a_timeline_is_printed_by_its_figures():
    timeline = compiled("1f1b", 2, 1, 2).timeline()
    lines = str(timeline).splitlines()
    assert lines[0] == f"program {timeline.program}, planned"
    assert lines[1].split() == ["step", "time", "6", "units"]
    assert "events" not in repr(timeline)


def test_a_timeline_takes_times_of_ones_own():
    program = compiled("1f1b", 2, 1, 2)
    slow = program.timeline({"kinds": {"fwd": "1ms", "bwd": "2ms"}}, latency="1ms")
    assert slow.unit == "s"
    # The last stage is both in one: 1 + 1 + 3 + 3 + 1 + 2 ms, with two transfers that nothing hides.
    assert slow.step_time == pytest.approx(11e-3)
    with pytest.raises(TimesError, match="there is no kind 'forward'"):
        program.timeline({"kinds": {"forward": 1}})
