"""Traces of programs on hosts."""

from __future__ import annotations

import json
import os
import signal
import time

import jax
import numpy as np
import pytest
from check import assert_close
from jax.sharding import PartitionSpec as P
from on_hosts import W, X, back, front, run

import pathways as pw
from pathways.passes.analysis.measured.trace_file import read_trace
from pathways.runtime.clusters.connect import controller

PROGRAM = """
a, b = (pw.jit(f, devices=devices.add_slice((1,), ("x",))) for f in (front, back))


@pw.program(schedule="gpipe")
def step(w, x):
    loss = lambda w, x: (b(w[1], a(w[0], x)) ** 2).mean()
    return pw.accumulate(jax.value_and_grad(loss), 4)(w, x)


"""


def backwards(timeline) -> float:
    """Returns by how many seconds an event begins before its operands were computed, at most."""
    return max(timeline.events[n].end - event.start for event in timeline.events for n in event.reads)


@pytest.mark.feature("timelines", "hosts")
def test_trace_has_all_hosts_on_one_clock(devices, shared_workers, tmp_path):
    pw.connect(hosts=2)
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
    a, b = (pw.jit(f, devices=slice) for f, slice in zip((front, back), slices, strict=True))

    @pw.program(schedule="gpipe")
    def step(w, x):
        return pw.accumulate(jax.value_and_grad(lambda w, x: (b(w[1], a(w[0], x)) ** 2).mean()), 4)(w, x)

    before = step((W, W), X)
    for name in ("first", "second"):
        with pw.trace(tmp_path / f"{name}.json"):
            for _ in range(3):
                traced = step((W, W), X)
    assert_close(traced, jax.tree.map(np.asarray, before))
    step.lower((W, W), X).compile().timeline().save_trace(tmp_path / "planned.json")
    (planned,) = read_trace((tmp_path / "planned.json").read_bytes())
    for name in ("first", "second"):
        text = (tmp_path / f"{name}.json").read_text()
        timelines = read_trace(text)
        assert [timeline.title for timeline in timelines] == [f"measured, step {n}" for n in range(3)]
        for timeline in timelines:
            assert timeline.hosts == {slice.name: host for host, slice in enumerate(slices)}
            assert [e.label for e in timeline.events] == [e.label for e in planned.events]
            assert not any(event.estimated for event in timeline.launches)
            # Maximal difference of clocks here.
            assert backwards(timeline) < 1e-3
            assert all(timeline.peak_bytes(slice) > 0 for slice in timeline.slices)
        events = json.loads(text)
        named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        assert list(named.values()) == [f"{slice.name} (host {host})" for host, slice in enumerate(slices)]
        bars: dict[int, float] = {}
        for event in sorted((e for e in events if e.get("cat") == "launch"), key=lambda e: e["ts"]):
            # Also for steps that follow each other; times are rounded to nanoseconds.
            assert bars.get(event["pid"], 0) <= event["ts"] + 1e-2
            bars[event["pid"]] = event["ts"] + event["dur"]
        arrows = [e for e in events if e["ph"] in "stf"]
        assert {e["pid"] for e in arrows if e["ph"] == "s"} == {e["pid"] for e in arrows if e["ph"] == "f"}


@pytest.mark.process
def test_trace_of_the_environment_is_of_the_controller_alone(tmp_path):
    """Workers do not write to the controller's file. A lost worker's launches alone are missing."""
    output = run(f"""
import logging
logging.basicConfig(stream=__import__("sys").stdout)
os.environ["PW_TRACE"] = "{tmp_path}/run.json"
pw.connect(hosts=2)
{PROGRAM}
for _ in range(2):
    jax.block_until_ready(step((W, W), X))
time.sleep(1.5)
only = pw.program(lambda x: a(x, x))
jax.block_until_ready(only(W))
os.kill(controller().hosts[1].process.pid, signal.SIGKILL)
""")
    timelines = read_trace((tmp_path / "run.json").read_bytes())
    assert [{event.slice for event in t.launches} for t in timelines] == [{"s0", "s1"}] * 2 + [{"s0"}]
    (warning,) = [line for line in output.splitlines() if line.startswith("WARNING")]
    assert "host 1 (island1) is lost" in warning


def test_trace_has_workers_that_were_started_anew(devices, own_workers, tmp_path, caplog):
    """The trace has all steps of the new workers; the last steps of the lost ones are missing."""
    pw.connect(islands=[pw.Island(hosts=2), pw.Island()])
    wide, single = (devices.add_slice((n,), ("x",), island=f"island{k}") for k, n in enumerate((2, 1)))
    a = pw.jit(lambda x: x + x.sum(), devices=wide, in_shardings=P("x"))
    b = pw.jit(lambda x: x * 2, devices=single)
    step = pw.program(lambda x: b(a(x)))
    value = np.arange(4, dtype=np.float32)
    with pw.trace(tmp_path / "run.json"):
        assert_close(step(value), 2 * value + 12)
        for victim in (2, 0):
            time.sleep(1.5)
            before = controller().hosts[victim].process
            os.kill(before.pid, signal.SIGKILL)
            while controller().hosts[victim].process is before:
                time.sleep(0.05)
            assert_close(step(value), 2 * value + 12)
    assert_close(step(value), 2 * value + 12)
    timelines = read_trace((tmp_path / "run.json").read_bytes())
    tracks = {f"{wide.name}/0", f"{wide.name}/1", single.name}
    assert [{event.slice for event in t.launches} for t in timelines] == [tracks] * 3
    assert all(backwards(timeline) < 0.05 for timeline in timelines)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert all("the trace lacks the last steps of a host" in line for line in warnings), warnings
    assert len(warnings) == 3


def test_trace_may_begin_before_a_cluster_and_end_after_it(devices, own_workers, tmp_path):
    slice = devices.add_slice((1,), ("x",))
    double = pw.jit(lambda x: x * 2, devices=slice)
    with pw.trace(tmp_path / "run.json"):
        for hosts in (2, 1, None):
            pw.connect(hosts=hosts)
            double(np.float32(1))
            pw.release(slice)
    timelines = read_trace((tmp_path / "run.json").read_bytes())
    assert [(len(t.launches), t.hosts) for t in timelines] == [(1, {slice.name: 0})] * 2 + [(1, {})]


def test_trace_has_a_track_for_each_host_of_an_island(devices, shared_workers, tmp_path):
    """Each host records its own computations and the values that it receives, also from its own island."""
    pw.connect(islands=[pw.Island(hosts=2, devices_per_host=2), pw.Island(devices_per_host=2)])
    wide, narrow = (devices.add_slice((n,), ("x",), island=f"island{k}") for k, n in enumerate((4, 2)))
    a = pw.jit(front, devices=wide, in_shardings=(None, P("x")), out_shardings=P("x"))
    b = pw.jit(back, devices=narrow, in_shardings=(None, P("x")), out_shardings=P("x"))
    step = pw.program(lambda w, x: a(w, b(w, a(w, x))))
    expected = front(W, back(W, front(W, X)))
    assert_close(step(W, X), expected)
    with pw.trace(tmp_path / "run.json"):
        for _ in range(3):
            traced = step(W, X)
    assert_close(traced, expected)
    first, second, third = tracks = [f"{wide.name}/0", f"{wide.name}/1", narrow.name]
    text = (tmp_path / "run.json").read_text()
    timelines = read_trace(text)
    assert [timeline.title for timeline in timelines] == [f"measured, step {n}" for n in range(3)]
    for timeline in timelines:
        assert timeline.hosts == {track: host for host, track in enumerate(tracks)}
        on = {track: [e for e in timeline.launches if e.slice == track] for track in timeline.slices}
        assert len(on[first]) == len(on[second]) > 0
        assert [e.label for e in on[first]] == [e.label for e in on[second]]
        assert not any(event.estimated for event in timeline.launches)
        assert {(e.slice, e.dst) for e in timeline.transfers} >= {(third, first), (third, second)}
        # A device may be delayed at the end of a launch whose shards another host has received already.
        assert backwards(timeline) < 0.05
        # Each has half of the slice's bytes.
        assert timeline.peak_bytes(first) == timeline.peak_bytes(second) > 0
    named = [e["args"]["name"] for e in json.loads(text) if e["name"] == "process_name"]
    assert named == [f"{track} (host {host})" for host, track in enumerate(tracks)]
