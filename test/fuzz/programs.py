"""Small programs whose forms are seeds: `python programs.py FOLDER` writes each form of each to a file.

Runs in a separate process, since it imports JAX, which the processes that run cases must not do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import pathways as pw
from pathways.compiler.lower.phases import PHASES

Slices = list[pw.VirtualSlice]


def slices(*shapes: tuple[int, ...], overlap: bool = False, replicas: int = 1) -> Slices:
    devices = pw.make_virtual_device_set(replicas=replicas)
    axes = ("data", "model")
    return [devices.add_slice(shape, axes[: len(shape)], overlap=overlap) for shape in shapes]


def abstract(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def figure2() -> Any:
    on_a, on_b, on_c = slices((1,), (1,), (1,))
    a = pw.jit(lambda x: x * 2, devices=on_a)
    b = pw.jit(lambda x: x + 1, devices=on_b)
    c = pw.jit(lambda x: x / 2, devices=on_c)
    return pw.program(lambda v: (b(a(v)), a(c(a(v))))).lower(abstract(2))


def gradient() -> Any:
    """Returns a program with glue in both directions between stages, donation, and a mirrored counter."""
    on_first, on_second = slices((1,), (1,))
    first = pw.jit(layer, devices=on_first)
    second = pw.jit(lambda w, h: h @ w, devices=on_second)

    @pw.program(donate_argnums=0)
    def step(state: Any, x: Any) -> Any:
        params, count = state
        loss = lambda w: jnp.mean(second(w[1], jax.nn.gelu(first(w[0], x))))  # noqa: E731
        rate = 0.1 / (1 + count)
        updated = jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params))
        return updated, count + 1

    return step.lower(([abstract(4, 8), abstract(8, 2)], abstract(dtype="int32")), abstract(16, 4))


def pipeline(count: int, schedule: str, places: Callable[[], Slices], microbatches: int = 2) -> Any:
    stages = [pw.jit(layer, devices=place) for place in places()]

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        for stage, w in zip(stages, params, strict=True):
            x = stage(w, x)
        return jnp.mean((x - y) ** 2)

    @pw.program(schedule=schedule, donate_argnums=0)
    def step(params: Any, batch: Any) -> Any:
        value, gradients = pw.accumulate(jax.value_and_grad(loss), microbatches)(params, batch)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    rows = 4 * microbatches
    return step.lower([abstract(4, 4)] * count, (abstract(rows, 4), abstract(rows, 4)))


def one_forward_one_backward() -> Any:
    return pipeline(2, "1f1b", lambda: slices((1,), (1,)))


def interleaved() -> Any:
    return pipeline(4, "interleaved-1f1b", lambda: slices((1,), (1,)) * 2)


def eager_on_two_devices() -> Any:
    return pipeline(2, "eager", lambda: slices((2,), (1,)))


def replicated() -> Any:
    """Returns a program on three replicas of two stages, whose gradients are exchanged in pieces."""
    return pipeline(2, "1f1b", lambda: slices((1,), (2,), replicas=3), microbatches=6)


def overlapping() -> Any:
    return pipeline(2, "gpipe", lambda: slices((1,), (1,), overlap=True))


def outputs_of_microbatches() -> Any:
    """Returns all kinds of reduction, and glue inside of the loop."""
    first, second = (pw.jit(lambda x: x * 2, devices=place) for place in slices((1,), (1,)))

    def outputs(x: Any) -> Any:
        y = second(jnp.sin(first(x)))
        return {"mean": y.mean(), "sum": y.sum(), "rows": y}

    kinds = {"mean": "mean", "sum": "sum", "rows": "concat"}
    accumulated = pw.accumulate(outputs, 4, reduce=kinds, batch_argnums=0)
    return pw.program(lambda x: accumulated(x)).lower(abstract(8, 2))


def sharded() -> Any:
    """Returns a gradient over two slices of 2x2 devices, whose transfers are cut into pieces."""
    on_first, on_second = slices((2, 2), (2, 2))
    first = pw.jit(layer, devices=on_first, in_shardings=(P(None, "model"), P("data")))
    second = pw.jit(layer, devices=on_second, in_shardings=(P("model"), None), out_shardings=P("data"))

    @pw.program
    def step(params: Any, x: Any) -> Any:
        return jax.value_and_grad(lambda w: jnp.sum(second(w[1], first(w[0], x))))(params)

    return step.lower([abstract(8, 8), abstract(8, 4)], abstract(4, 8))


def resharded() -> Any:
    """Returns a program with one value on meshes of different shapes and axes."""
    on_row, on_square, on_one = slices((4,), (2, 2), (1,))
    row = pw.jit(lambda x: x + 1, devices=on_row, out_shardings=P("data"))
    square = pw.jit(lambda x: x * 2, devices=on_square, in_shardings=P("model", "data"))
    one = pw.jit(jnp.sum, devices=on_one)
    return pw.program(lambda x: one(square(row(x)))).lower(abstract(8, 8))


def control_flow() -> Any:
    """Returns a program with regions in computations, other dtypes, a closed-over constant and a key."""
    table = np.arange(512, dtype=np.float32)
    on_first, on_second = slices((1,), (1,))

    @pw.jit(devices=on_first)
    def scan(x: Any, n: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]

    @pw.jit(devices=on_second)
    def add_noise(x: Any, key: Any) -> Any:
        noise = jax.random.normal(key, x.shape)
        return jax.lax.cond(x.sum() > 0, lambda: x + noise, lambda: x * table[: x.size])

    program = pw.program(lambda x, n, key: add_noise(scan(x, n).astype("float32"), key))
    return program.lower(abstract(8, dtype="bfloat16"), abstract(dtype="int32"), jax.random.key(0))


PROGRAMS = (
    figure2,
    gradient,
    one_forward_one_backward,
    interleaved,
    eager_on_two_devices,
    replicated,
    overlapping,
    outputs_of_microbatches,
    sharded,
    resharded,
    control_flow,
)


def main(folder: Path) -> None:
    for program in PROGRAMS:
        lowered = program()
        for phase in PHASES:
            (folder / f"{program.__name__}.{phase}.mlir").write_text(lowered.as_text(phase) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
