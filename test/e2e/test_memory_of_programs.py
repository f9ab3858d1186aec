"""Planned memory of programs against the memory of their arrays on devices, step by step."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax
import numpy as np
import preloaded
import pytest
from jax.sharding import PartitionSpec as P
from models import apply, layer, place_on, sgd

import pathways as pw
from pathways.runtime.local import memory
from pathways.runtime.local.devices import devices_of, process_cluster


class Sampler:
    """Tracer of the function that runs a program, which adds up the sizes of its arrays line by line.

    Its local variables, its constants and what it returns are all that the program holds. A line that makes
    arrays has finished when the next one is about to run, so that operands and results are seen together.
    """

    def __init__(self, compiled: pw.Compiled) -> None:
        self.executable = compiled.executable.loaded
        self.slices = {
            device: slice.name
            for slice, binding in process_cluster.manager().holders().items()
            if slice.name in compiled.plan.slices
            for device in devices_of(binding)
        }
        self.most: Counter[str] = Counter()

    def __call__(self, compiled: pw.Compiled, *args: Any) -> Any:
        before = sys.gettrace()
        sys.settrace(self.enter)
        try:
            return compiled(*args)
        finally:
            sys.settrace(before)

    def enter(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        return self.sample if frame.f_code is self.executable.run.__code__ else None

    def sample(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        returned = argument if event == "return" else []
        values = [*frame.f_locals.values(), *frame.f_globals.values(), *returned]
        buffers = {}
        # A local variable may be a list, of the shards of an array.
        for array in jax.tree.leaves([v for v in values if isinstance(v, (jax.Array, list, tuple))]):
            if isinstance(array, jax.Array) and not array.is_deleted():
                for shard in array.addressable_shards:
                    pointer = shard.data.unsafe_buffer_pointer()
                    buffers[shard.device, pointer] = shard.data.nbytes
        now: Counter[str] = Counter()
        for (device, _), count in buffers.items():
            now[self.slices[device]] += count
        self.most |= now
        return self.sample


def check(program: pw.Program, *args: Any) -> pw.Compiled:
    """Compares the planned peaks of a program, without temporaries, with the most bytes that it ever held."""
    compiled = program.lower(*args).compile()
    results = compiled(*args)  # Moves arguments to their slices, where the second call finds them.
    args = (results[0], *args[1:]) if program.name == "step" else args
    sampler = Sampler(compiled)
    jax.block_until_ready(sampler(compiled, *args))
    planned = compiled.plan.peak_bytes
    assert dict(sampler.most) == dict(planned)
    without = memory.analyze(compiled.plan, {})
    assert {name: found.peak_memory_in_bytes for name, found in without.items()} == planned
    for name, found in compiled.memory_analysis().items():
        assert planned[name] <= found.peak_memory_in_bytes <= planned[name] + found.temp_size_in_bytes
    return compiled


def pipeline(stages: int, schedule: str, shape: tuple[int, ...] = (1,)) -> pw.Program:
    """Returns a training step of a chain of layers, one on each slice, with four microbatches."""
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice(shape, ("data", "model")[: len(shape)]) for _ in range(stages)]
    spec = P("data", "model") if len(shape) > 1 else P("data")
    layers = place_on(slices, layer, out_shardings=spec)

    def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
        return (apply(layers, params, x) ** 2).mean()

    @pw.program(schedule=schedule, donate_argnums=0)
    def step(params: list[jax.Array], x: jax.Array) -> Any:
        value, grads = pw.accumulate(jax.value_and_grad(loss), 4)(params, x)
        return sgd(params, grads), value

    return step


def arguments(stages: int, width: int = 16) -> tuple[list[np.ndarray], np.ndarray]:
    values = np.random.default_rng(0)
    weights = [values.normal(size=(width, width)).astype(np.float32) for _ in range(stages)]
    return weights, values.normal(size=(32, width)).astype(np.float32)


@pytest.mark.parametrize("schedule", ["program", "gpipe", "1f1b", "eager"])
def test_memory_plan_of_a_pipeline(schedule):
    check(pipeline(3, schedule), *arguments(3))


def test_memory_plan_of_a_pipeline_with_large_buffers():
    check(pipeline(2, "1f1b"), *arguments(2, width=160))


def test_memory_plan_of_a_pipeline_on_meshes():
    check(pipeline(2, "1f1b", shape=(2, 2)), *arguments(2))


def test_memory_plan_of_1f1b_is_less_than_of_gpipe():
    peaks = {
        schedule: list(pipeline(3, schedule).lower(*arguments(3)).compile().memory_analysis().values())
        for schedule in ("gpipe", "1f1b")
    }
    (_, *gpipe), (_, *one) = ([s.peak_memory_in_bytes for s in peaks[name]] for name in ("gpipe", "1f1b"))
    assert all(less < more for less, more in zip(one, gpipe, strict=True))


def test_memory_plan_has_resharded_values_and_copied_results():
    """Pieces between meshes of two shapes; results that are arguments, constants and each other."""
    devices = pw.make_virtual_device_set()
    a, b = devices.add_slice((2, 2), ("data", "model")), devices.add_slice(3, "data")
    table = np.arange(24.0 * 1024).reshape(24, 1024).astype(np.float32)
    first = pw.jit(lambda x: x * 2, devices=a, out_shardings=P("data", "model"))
    second = pw.jit(lambda x: x + table, devices=b, out_shardings=P("data"))

    @pw.program
    def program(x: jax.Array, unread: jax.Array) -> Any:
        y = first(x)
        z = second(y)
        return x, y, z, y, first(y + 1), z.sum()

    check(program, np.ones((24, 1024), np.float32), np.ones(5, np.float32))


def test_memory_plan_has_mirrored_values_on_every_slice():
    devices = pw.make_virtual_device_set()
    a, b = devices.add_slice(1, "x"), devices.add_slice(1, "x")
    first, second = (pw.jit(lambda x, n: x * n, devices=s) for s in (a, b))

    @pw.program(donate_argnums=1)
    def program(x: jax.Array, n: jax.Array) -> Any:
        y = second(first(x, n), n)
        return y, n + 1

    check(program, np.ones((24, 8), np.float32), np.float32(3))


REFUSED = """
import jax.numpy as jnp
import pathways as pw
pw.connect(cpu_devices=2, device_memory=1 << 20)
devices = pw.make_virtual_device_set()
first, second = (pw.jit(jnp.sin, devices=devices.add_slice(1, "x", name=n)) for n in ("first", "second"))
f = pw.program(lambda x: second(jnp.concatenate([first(x)] * 8)).sum())
print(f(jnp.ones(1000)))
"""


@pytest.mark.process
def test_memory_table_for_a_program_that_does_not_fit(tmp_path):
    good = preloaded.run("-c", REFUSED)
    assert good.returncode == 0, good.stderr
    text = REFUSED.replace("ones(1000)", "ones(100_000)")
    bad = preloaded.run("-c", text)
    lines = bad.stderr.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("pathways.ResourceError: "))
    error, header, first, second = lines[start : start + 4]
    assert error.startswith("pathways.ResourceError: program lambda: slice ")
    assert error.endswith("a device has 1 MiB (1,048,576 bytes)")
    assert [line.split()[0] for line in (header, first, second)] == ["slice", "first", "second"]
    file = tmp_path / "large.py"
    file.write_text(REFUSED.rpartition("print")[0])
    flags = ["--args", "f32[100000]", "--explain"]
    tool = preloaded.run("-m", "pathways.tools.pw_compile", f"{file}:f", *flags)
    assert tool.returncode == 1
    note, error, *_ = tool.stderr.splitlines()
    assert note.startswith("pw-compile: note: importing ")
    assert error.startswith("pw-compile: error: program lambda: slice ")
    assert "Traceback" not in tool.stderr


def test_memory_of_a_device_is_a_positive_number():
    with pytest.raises(TypeError, match="device_memory='16GB': expected a number of bytes"):
        pw.connect(device_memory="16GB")
    with pytest.raises(ValueError, match="device_memory=0: expected at least 1 byte"):
        pw.connect(device_memory=0)
