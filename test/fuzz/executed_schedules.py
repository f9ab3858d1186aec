"""Programs of JAX under a random schedule file: accepted or rejected as its order requires, and right.

Imported by the processes that run cases alone: their parent must not import JAX.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from schedules import Line, ScheduleCase

import pathways as pw

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


def _step(line: Line, place: list[Any]) -> Any:
    """Returns a step of the pipeline of a line; `place[n]` is the function of stage n."""

    def loss(trained: Any, frozen: Any, x: Any) -> Any:
        weights, outputs = [*frozen, *trained], list[Any]()
        for n, read in enumerate(line.reads):
            outputs.append(place[n](weights[n], *([outputs[k] for k in read] or [x])))
        return jnp.sum(outputs[-1] ** 2), outputs[-1]

    def of_microbatch(parameters: Any, x: Any) -> Any:
        frozen, trained = parameters[: line.trained], parameters[line.trained :]
        if not trained:
            return loss(trained, frozen, x)
        return jax.value_and_grad(loss, has_aux=True)(trained, frozen, x)

    kinds: Any = ("sum", "concat") if line.trained == len(line.owners) else (("sum", "concat"), "sum")
    return pw.accumulate(of_microbatch, line.count, reduce=kinds)


def _layer(w: Any, *values: Any) -> Any:
    return jnp.tanh(sum(values[1:], start=values[0]) @ w)


def verdict(case: ScheduleCase, path: Path) -> str:
    """Returns the failure of a program under a file; empty if there is none."""
    line = case.line
    rng = np.random.default_rng(0)
    arguments = (
        [rng.normal(size=(4, 4)).astype(np.float32) for _ in line.owners],
        rng.normal(size=(2 * line.count, 4)).astype(np.float32),
    )
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((1,), ("x",)) for _ in range(line.width)]
    stages = [pw.jit(_layer, devices=slices[place], stage=n) for n, place in enumerate(line.owners)]
    try:
        results = pw.program(_step(line, stages), schedule=path)(*arguments)
    except pw.ProgramError as error:
        return "" if case.faults else f"the program is refused, although it can be run: {error}"
    if case.faults:
        return f"the program is taken, although it has faults: {', '.join(case.faults)}"
    expected = jax.jit(_step(line, [_layer] * len(stages)))(*arguments)
    for a, b in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        if not np.allclose(a, b, rtol=1e-4, atol=1e-5):
            return f"other values: {a} for {b}"
    return ""
