"""Random pipelines under every policy, with options: the gradients of `jax.jit`, and limits that hold."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close
from dual_pipe import dual_pipe_v
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import gradients_of, squared_error

import pathways as pw
from pathways.passes.schedule.policies.registry import POLICIES

OPTIONS = ("", "max-live=2", "max-pending=1", "times=flops", "times=units, max-live=3", "recompute=true")
STEPS = "iterations=40"


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return x + jnp.tanh(x @ w)


def owners_of(shape: str, width: int) -> list[int]:
    """Returns the slice of each stage: one stage on each, two in a V, or two in round-robin order."""
    down = [*range(width)]
    return {"line": down, "V": [*down, *reversed(down)], "looped": [*down, *down]}[shape]


def program_of(owners: list[int], microbatches: int, schedule: str) -> Any:
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((1,), ("x",)) for _ in range(max(owners) + 1)]
    stages = [pw.jit(layer, devices=slices[owner], stage=n) for n, owner in enumerate(owners)]
    return pw.program(gradients_of(squared_error(stages), microbatches), schedule=schedule)


def arguments(stages: int, microbatches: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    random = np.random.default_rng(stages * 100 + microbatches)
    params = [random.normal(size=(4, 4)).astype(dtype) * 0.5 for _ in range(stages)]
    return params, tuple(random.normal(size=(2, 2 * microbatches, 4)).astype(dtype))


def most_live(timeline: Any, stage: int) -> int:
    """Returns on how many microbatches a stage works at once, as its launches run."""
    spans: dict[int, list[float]] = {}
    for event in timeline.launches:
        for origin in event.origins:
            if origin.stage == stage and origin.kind != "recompute":
                spans.setdefault(event.microbatch, []).extend((event.start, event.end))
    lives = [(min(times), max(times)) for times in spans.values()]
    return max(sum(begin <= start < end for begin, end in lives) for start, _ in lives)


@functools.cache
def expected(stages: int, microbatches: int) -> Any:
    step = gradients_of(squared_error([layer] * stages), microbatches)
    return jax.jit(step)(*arguments(stages, microbatches))


@pytest.mark.parametrize("policy", [*POLICIES, "search"])
@settings(deadline=None, max_examples=3, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["line", "V", "looped"]), st.integers(2, 3), st.integers(1, 3), st.sampled_from(OPTIONS)
)
def test_policy_gradients_agree_with_jit_and_limits_hold(
    policy: str, shape: str, width: int, times: int, options: str
):
    owners, microbatches = owners_of(shape, width), width * times
    options = ", ".join(filter(None, (options, STEPS if policy == "search" else "")))
    step = program_of(owners, microbatches, f"{policy}({options})")
    arrays = arguments(len(owners), microbatches)
    try:
        compiled = step.lower(*arrays).compile()
    except pw.ProgramError as refused:
        # Reported before anything runs, with the remedy.
        words = ("needs", "more than", "may have")
        if any(word in str(refused) for word in words):
            return
        raise
    assert_close(compiled(*arrays), expected(len(owners), microbatches))
    if "max-live" in options:
        limit = int(options.partition("max-live=")[2][0])
        timeline = compiled.timeline({"kinds": {"fwd": 1, "bwd": 2}})
        assert all(most_live(timeline, stage) <= limit for stage in range(len(owners)))


@pytest.mark.parametrize("policy", ["zb-v", "search(max-live=3, iterations=40)"])
def test_policy_in_double_precision_in_v(policy: str):
    with jax.enable_x64(True):
        arrays = arguments(4, 4, np.float64)
        got = program_of([0, 1, 1, 0], 4, policy)(*arrays)
        assert_close(got, jax.jit(gradients_of(squared_error([layer] * 4), 4))(*arrays), 1e-10)


def test_policy_search_keeps_peak_under_max_bytes():
    """Slices hold the residuals of each microbatch in flight, the later slices most."""
    arrays = arguments(3, 6)
    peaks = []
    for limit in (256, 192, 128):
        step = program_of([0, 1, 2], 6, f"search(max-bytes={limit}, iterations=40)")
        compiled = step.lower(*arrays).compile()
        assert_close(compiled(*arrays), expected(3, 6))
        timeline = compiled.timeline()
        peaks.append(sum(map(timeline.peak_bytes, timeline.slices)))
    assert peaks[0] > peaks[1] > peaks[2]
    with pytest.raises(pw.ProgramError, match=r"needs at least \d+ bytes of microbatches on @.*may have 8"):
        program_of([0, 1, 2], 6, "search(max-bytes=8)").lower(*arrays)


def test_policy_from_file_of_dual_pipe_v(tmp_path: Path):
    """A schedule file of torch: stages in a V, full and split backwards, and actions that may overlap."""
    file = tmp_path / "dualpipev.csv"
    file.write_text(dual_pipe_v(2, 4))
    arrays = arguments(4, 4)
    assert_close(program_of([0, 1, 1, 0], 4, str(file))(*arrays), expected(4, 4))


def test_policy_search_remarks_on_its_result():
    remarks = program_of([0, 1, 2], 6, "search(iterations=40)").lower(*arguments(3, 6)).remarks
    assert any("above the lower bound" in remark.message for remark in remarks)


def test_policy_refuses_unknown_options():
    with pytest.raises(ValueError, match="option 'max-lives' is unknown; did you mean 'max-live'"):
        program_of([0, 1], 4, "zb-h1(max-lives=3)")
    with pytest.raises(pw.ProgramError, match=r"nowhere\.json': No such file or directory"):
        program_of([0, 1], 4, "1f1b(times=nowhere.json)").lower(*arguments(2, 4))
