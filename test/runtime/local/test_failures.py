"""Errors while steps are issued name program, step and slice, and the cause as far as it is known."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_plans import double, increment

from pathways.runtime.resources.virtual import make_virtual_device_set
from pathways.runtime.xla import compile_cache


class OutOfMemory:
    """Executable without memory for its results."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def execute_sharded(self, *arguments: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes.")


@pytest.fixture
def exhausted(monkeypatch):
    """Has each `increment` run out of memory."""

    def load_all(requests: Any, *arguments: Any) -> list[compile_cache.Loaded]:
        found = compile_cache.load_all(requests, *arguments)
        return [
            compile_cache.Loaded(OutOfMemory(loaded.executable), copied=loaded)
            if "increment" in request.computation.name
            else loaded
            for request, loaded in zip(requests, found, strict=True)
        ]

    monkeypatch.setattr("pathways.runtime.local.load.load_all", load_all)


@pytest.mark.parametrize("size", [1, 2])
def test_failures_out_of_memory_list_live_arrays(plan_builder, runner, exhausted, size):
    s0, s1 = (make_virtual_device_set().add_slice(size, "x", name=name) for name in ("first", "second"))
    build = plan_builder(s0, s1, name="step")
    x, y = build.argument((256,), s0), build.argument((512,), s1)
    moved = build.transfer(build.launch(double, s0, x), s1)
    result = build.launch(increment, s1, y)
    loaded = runner.load(build, result, moved, argument_names=["params['w']", "batch"])
    arrays = runner.place(loaded, np.ones(256, np.float32), np.ones(512, np.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED") as raised:
        loaded.run(arrays)
    where, alive = raised.value.__notes__
    assert where == f"in program step, step increment on {s1.name} on slice {s1.name}"
    total, *largest = alive.splitlines()
    # Bytes of each device of the slice; arrays on the other slice do not count.
    assert total.startswith(f"live on slice {s1.name}: {3 * size} KiB of this call, and ")
    assert largest == [
        f"  {2 * size} KiB: batch of type f32[512]",
        f"  {size} KiB: an intermediate value of type f32[256]",
    ]


def test_failures_name_their_step(plan_builder, runner):
    s0 = make_virtual_device_set().add_slice(1, "x")
    build = plan_builder(s0, name="f")
    loaded = runner.load(build, build.launch(double, s0, build.argument((2,), s0)))
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        loaded.run([jnp.ones(3)])
    assert raised.value.__notes__ == [f"in program f, step double on {s0.name} on slice {s0.name}"]
