"""Recording of programs: `pw.trace` and PW_TRACE."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import pathways as pw
from pathways.passes.analysis.measured.trace_file import read_trace
from pathways.runtime.plan.plan import Launch, Transfer
from pathways.runtime.traces import recorder
from pathways.runtime.traces.file_trace import FileSink
from pathways.runtime.traces.recorder import Recorder

COUNT = 4


@pytest.fixture(scope="module")
def step():
    """Compiles a pipeline of two stages, whose parameters are donated; returns it and its arguments."""
    devices = pw.make_virtual_device_set()
    front = pw.jit(lambda w, x: jnp.tanh(x @ w), devices=devices.add_slice((1,), ("x",)))
    back = pw.jit(lambda w, h: ((h @ w) ** 2).mean(), devices=devices.add_slice((1,), ("x",)))

    @pw.program(schedule="gpipe", donate_argnums=0)
    def train(params, x):
        loss = lambda params, x: back(params[1], front(params[0], x))  # noqa: E731
        value, grads = pw.accumulate(jax.value_and_grad(loss), COUNT)(params, x)
        return value, [p - 0.1 * g for p, g in zip(params, grads, strict=True)]

    x = np.ones((COUNT * 8, 128), np.float32)
    return train.lower(params(), x).compile(), x


def params():
    return [jnp.full((128, 128), 0.01, jnp.float32) for _ in range(2)]


def test_trace_records_launches_and_transfers_in_order_of_data(step, tmp_path):
    compiled, x = step
    state = params()
    with pw.trace(tmp_path / "run.json"):
        for _ in range(3):
            _, state = compiled(state, x)
    timelines = read_trace((tmp_path / "run.json").read_bytes())
    assert len(timelines) == 3
    steps = [s for s in compiled.plan.steps if isinstance(s, (Launch, Transfer))]
    for timeline in timelines:
        for event, planned in zip(timeline.events, steps, strict=True):
            if isinstance(planned, Launch):
                assert (event.label, event.slice) == (planned.label, planned.slice)
                assert (event.microbatch, event.origins) == (planned.microbatch, planned.origins)
            else:
                assert (event.slice, event.dst) == (planned.src, planned.dst)
            # Times are rounded when they are written.
            assert all(timeline.events[n].end <= event.start + 1e-9 for n in event.reads)
            assert event.start <= event.end
        for name in timeline.slices:
            on_slice = [e for e in timeline.launches if e.slice == name]
            assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(on_slice))
            assert timeline.peak_bytes(name) > 0
        assert min(e.start for e in timeline.events) == pytest.approx(0, abs=1e-9)


def test_trace_gives_times_for_schedules_and_timelines(step, tmp_path):
    """Steps of other programs in it do not count."""
    compiled, x = step
    state = params()
    other = pw.jit(lambda x: jnp.sin(x), devices=pw.make_virtual_device_set().add_slice((1,), ("x",)))
    path = tmp_path / "run.json"
    with pw.trace(path):
        for _ in range(3):
            _, state = compiled(state, x)
            other(x)
    devices = pw.make_virtual_device_set()
    front = pw.jit(lambda w, x: jnp.tanh(x @ w), devices=devices.add_slice((1,), ("x",)))
    back = pw.jit(lambda w, h: ((h @ w) ** 2).mean(), devices=devices.add_slice((1,), ("x",)))

    @pw.program(schedule=f"search(times={path})")
    def train(params, x):
        loss = lambda params, x: back(params[1], front(params[0], x))  # noqa: E731
        return pw.accumulate(jax.grad(loss), COUNT)(params, x)

    lowered = train.lower(params(), x)
    assert any("is ordered by a search" in remark.message for remark in lowered.remarks)
    measured = compiled.timeline(path)
    assert measured.unit == "s"
    steps = [run.step_time for run in read_trace(path.read_bytes()) if run.program == "train"]
    assert len(steps) == 3
    assert min(steps) / 2 < measured.step_time < max(steps) * 2


def test_trace_draws_launches_as_xla_ran_them(step, tmp_path):
    compiled, x = step
    state = params()
    with pw.trace(tmp_path / "run.json"):
        for _ in range(3):
            _, state = compiled(state, x)
    timelines = read_trace((tmp_path / "run.json").read_bytes())
    assert not any(event.estimated for timeline in timelines for event in timeline.launches)


def test_trace_sees_launches_on_several_devices_and_without_operations(tmp_path):
    devices = pw.make_virtual_device_set()
    wide, narrow = devices.add_slice((2,), ("x",)), devices.add_slice((1,), ("x",))
    spread = pw.jit(lambda x: jax.lax.with_sharding_constraint(x, P("x")).sum() + x, devices=wide)
    same = pw.jit(lambda x: x, devices=narrow)
    program = pw.program(lambda x: same(spread(x)))
    with pw.trace(tmp_path / "run.json"):
        program(jnp.ones(8))
    (timeline,) = read_trace((tmp_path / "run.json").read_bytes())
    assert {event.slice for event in timeline.launches} == {wide.name, narrow.name}
    assert not any(event.estimated for event in timeline.launches)


def profiled_names(folder):
    """Returns the names of this process's events in a profile that `jax.profiler.trace` wrote."""
    (path,) = folder.rglob("*.xplane.pb")
    with warnings.catch_warnings():
        # jaxlib creates types without a module.
        warnings.simplefilter("ignore")
        planes = jax.profiler.ProfileData.from_file(str(path)).planes
        return {event.name for plane in planes for line in plane.lines for event in line.events}


def test_trace_names_launches_in_profiles_of_jax(step, tmp_path):
    compiled, x = step
    untraced = compiled(params(), x)
    with jax.profiler.trace(tmp_path):
        profiled = compiled(params(), x)
    jax.tree.map(np.testing.assert_array_equal, untraced, profiled)
    names = profiled_names(tmp_path)
    first, second = compiled.plan.slices
    front = next(s.computation for s in compiled.plan.steps if isinstance(s, Launch) and s.slice == first)
    assert {f"{first} F{n} {front}" for n in range(COUNT)} <= names
    assert f"{first} -> {second}" in names


def test_trace_estimates_times_within_profile_of_jax(step, tmp_path):
    compiled, x = step
    with jax.profiler.trace(tmp_path), pw.trace(tmp_path / "run.json"):
        compiled(params(), x)
    (timeline,) = read_trace((tmp_path / "run.json").read_bytes())
    assert all(event.estimated for event in timeline.launches)
    first, second = compiled.plan.slices
    assert f"{first} -> {second}" in profiled_names(tmp_path)


def test_trace_reads_profile_in_pieces(step, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "_WRITE_INTERVAL_S", 0.02)
    compiled, x = step
    state = params()
    with pw.trace(tmp_path / "run.json"):
        for _ in range(100):
            _, state = compiled(state, x)
    timelines = read_trace((tmp_path / "run.json").read_bytes())
    assert [timeline.title for timeline in timelines] == [f"measured, step {n}" for n in range(100)]
    assert not any(event.estimated for timeline in timelines for event in timeline.launches)


def test_trace_estimates_calls_in_flight_when_piece_ends(step, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "_WRITE_INTERVAL_S", 0.02)
    monkeypatch.setattr(recorder, "_MAX_PIECE_S", 0)
    compiled, x = step
    slow = pw.jit(
        lambda x: jax.lax.fori_loop(0, 600, lambda _, y: jnp.tanh(y @ x), x),
        devices=pw.make_virtual_device_set().add_slice((1,), ("x",)),
    )
    with pw.trace(tmp_path / "run.json"):
        result = slow(jnp.full((256, 256), 0.01))
        jax.block_until_ready(result)
        compiled(params(), x)
    under_way, _ = read_trace((tmp_path / "run.json").read_bytes())
    assert all(event.estimated for event in under_way.launches)


def test_trace_keeps_results_and_leaves_nothing(step, tmp_path):
    compiled, x = step
    untraced = compiled.executable.loaded.run
    expected = compiled(params(), x)
    with pw.trace(tmp_path / "run.json"):
        assert compiled.executable.loaded.run is not untraced
        traced = compiled(params(), x)
    assert compiled.executable.loaded.run is untraced
    assert "note(" not in compiled.executable.loaded.source
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(traced), strict=True):
        np.testing.assert_array_equal(a, b)


def test_trace_records_programs_compiled_meanwhile(tmp_path):
    devices = pw.make_virtual_device_set()
    double = pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), ("x",)))
    with pw.trace(tmp_path / "run.json"):
        double(jnp.ones(3))
    (timeline,) = read_trace((tmp_path / "run.json").read_bytes())
    assert [event.label for event in timeline.events] == [timeline.program]


def test_trace_leaves_out_failed_call(step, tmp_path):
    compiled, x = step
    state = params()
    with pw.trace(tmp_path / "run.json"):
        _, new = compiled(state, x)
        with pytest.raises((RuntimeError, ValueError), match="deleted"):
            compiled(state, x)
        compiled(new, x)
    assert len(read_trace((tmp_path / "run.json").read_bytes())) == 2


def test_trace_records_callbacks(tmp_path):
    devices = pw.make_virtual_device_set()
    seen = []

    def call_back(x):
        jax.debug.callback(lambda v: seen.append(v.tolist()), x)
        return x + 1

    program = pw.jit(call_back, devices=devices.add_slice((1,), ("x",)))
    with pw.trace(tmp_path / "run.json"):
        program(jnp.array([1.0]))
        jax.effects_barrier()
        assert seen == [[1.0]]
    assert len(read_trace((tmp_path / "run.json").read_bytes())) == 1


def test_trace_ends_while_other_thread_runs(tmp_path):
    recording = Recorder(FileSink(tmp_path / "run.json"))
    ending = threading.Event()

    class Late:
        """Array that is ready just before the trace ends, and then adds a place to the recorder."""

        def block_until_ready(self):
            ending.wait()
            recording.queue_of(("s2",)).put((call, []))

    call = types.SimpleNamespace(observed={}, program=types.SimpleNamespace(places=[0, 1]))
    for place in ("s0", "s1"):
        recording.queue_of((place,)).put((call, [(0, 0, (Late(),))]))
    threading.Timer(0.1, ending.set).start()
    recording.close()
    assert not any(thread.name.startswith("pathways trace") for thread in threading.enumerate())


def test_trace_refuses_second_trace(tmp_path):
    with (
        pw.trace(tmp_path / "a.json"),
        pytest.raises(RuntimeError, match=r"recorded to .*a\.json already"),
        pw.trace(tmp_path / "b.json"),
    ):
        pass
    with pytest.raises(FileNotFoundError), pw.trace(tmp_path / "missing" / "run.json"):
        pass
    with pw.trace(tmp_path / "c.json"):
        pass


PROGRAM = """
import time
import jax.numpy as jnp
import pathways as pw
pw.connect(cpu_devices=1)
double = pw.jit(lambda x: x * 2, devices=pw.make_virtual_device_set().add_slice((1,), ("x",)))
print(double(double(jnp.ones(3))), flush=True)
"""


def start(tmp_path, text):
    environment = {**os.environ, "PW_TRACE": str(tmp_path / "run.json")}
    return subprocess.Popen([sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE)


@pytest.mark.process
def test_trace_from_environment(tmp_path):
    with start(tmp_path, PROGRAM) as process:
        assert process.wait(timeout=60) == 0
    text = (tmp_path / "run.json").read_bytes()
    assert text.endswith(b"]\n")
    assert len(read_trace(text)) == 2


@pytest.mark.process
def test_trace_of_killed_process(tmp_path):
    with start(tmp_path, PROGRAM + "time.sleep(60)") as process:
        process.stdout.readline()
        deadline = time.monotonic() + 30
        while b"live bytes" not in (tmp_path / "run.json").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    assert read_trace((tmp_path / "run.json").read_bytes())


@pytest.mark.process
def test_trace_names_path_that_cannot_be_written(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PW_TRACE": str(tmp_path)},
            check=True,
            capture_output=True,
            text=True,
        )
    assert "PW_TRACE names no file to write: Is a directory" in failed.value.stderr
    assert str(tmp_path) in failed.value.stderr
