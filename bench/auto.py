"""Gains of `pw.auto` over an even split of layers, in simulated and real steps, and the time of its searches.

  python bench/auto.py [--json PATH] [--only TEXT] [--runs N]

Simulated steps are in millions of floating point operations, of eight microbatches. `even` is the even split
by layers under 1f1b, `closest` the ratio to it that was to reach. Real steps are medians of paired runs, even
and cut in turn, on two devices.
"""

from __future__ import annotations

import os

from _parts import Row, parser_of, run_parts

# One device to a core, so that slices overlap.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import pathways as pw
from pathways.compiler.auto.flat_loss import flatten_loss
from pathways.compiler.auto.partition import Machine, best_partitions
from pathways.compiler.auto.units import units_of
from pathways.runtime.local.devices import connect

MICROBATCHES = 8
LAYERS = 12

Model = tuple[Callable[..., Any], Callable[..., Any], Any]
"""Loss, a function from a key to its parameters, and the types of a microbatch."""


def slices(count: int) -> list[pw.VirtualSlice]:
    """Returns slices of one device each."""
    devices = pw.make_virtual_device_set()
    return [devices.add_slice((1,), ("x",)) for _ in range(count)]


def mlp(width: int = 128, rows: int = 64) -> Model:
    """Returns eight residual layers; the last three are four times as wide as the others."""
    widths = [width] * 5 + [4 * width] * 3

    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key, len(widths))
        return [
            (
                jax.random.normal(key, (width, wide)) / width**0.5,
                jax.random.normal(key, (wide, width)) / wide**0.5,
            )
            for key, wide in zip(keys, widths, strict=True)
        ]

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        for up, down in params:
            x = x + jnp.tanh(x @ up) @ down
        return jnp.mean((x - y) ** 2)

    rows_of = jax.ShapeDtypeStruct((rows, width), jnp.float32)
    return loss, init, (rows_of, rows_of)


def lm(
    vocabulary: int,
    width: int = 64,
    *,
    layers: int = LAYERS,
    rows: int = 2,
    length: int = 32,
    heads: int = 4,
    scan: bool = True,
) -> Model:
    """Returns a language model with tied embeddings, its layers under `jax.lax.scan` or one by one."""

    def init(key: jax.Array) -> Any:
        keys = iter(jax.random.split(key, 8))

        def weights(*shape: int) -> jax.Array:
            return jax.random.normal(next(keys), shape) / shape[-2] ** 0.5

        return {
            "embed": weights(vocabulary, width) / 8,
            "layers": {
                "qkv": weights(layers, width, 3 * width),
                "out": weights(layers, width, width),
                "up": weights(layers, width, 4 * width),
                "down": weights(layers, 4 * width, width),
            },
        }

    def norm(x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        heads_of = jnp.split(norm(x) @ w["qkv"], 3, -1)
        q, k, v = (each.reshape(*x.shape[:2], heads, -1) for each in heads_of)
        scores = jnp.einsum("bthd,bshd->bhts", q, k)
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(jnp.where(mask, scores, -1e9)), v)
        x = x + mixed.reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"], None

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["embed"][tokens[:, :-1]]
        if scan:
            x, _ = jax.lax.scan(layer, x, params["layers"])
        else:
            for n in range(layers):
                x, _ = layer(x, jax.tree.map(lambda leaf, n=n: leaf[n], params["layers"]))
        logits = jax.nn.log_softmax(norm(x) @ params["embed"].T)
        return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()

    return loss, init, jax.ShapeDtypeStruct((rows, length + 1), jnp.int32)


def unet(rows: int = 2, size: int = 32, channels: int = 8) -> Model:
    """Returns two levels down, two up, with a skip at each."""
    levels = [channels, 2 * channels, 4 * channels]

    def init(key: jax.Array) -> Any:
        keys = iter(jax.random.split(key, 16))

        def kernel(a: int, b: int) -> jax.Array:
            return jax.random.normal(next(keys), (3, 3, a, b)) / (9 * a) ** 0.5

        inputs = [channels, *levels]
        down = [(kernel(a, b), kernel(b, b)) for a, b in zip(inputs, levels, strict=False)]
        up = [(kernel(a + b, b), kernel(b, b)) for a, b in zip(levels[:0:-1], levels[-2::-1], strict=True)]
        return {"first": kernel(3, channels), "down": down, "up": up, "last": kernel(channels, 3)}

    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        x, skips = convolve(x, params["first"]), []
        for n, (a, b) in enumerate(params["down"]):
            x = jax.nn.relu(convolve(jax.nn.relu(convolve(x, a)), b))
            if n < len(params["down"]) - 1:
                skips.append(x)
                x = x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1).mean((2, 4))
        for a, b in params["up"]:
            x = jnp.concatenate([jnp.repeat(jnp.repeat(x, 2, 1), 2, 2), skips.pop()], -1)
            x = jax.nn.relu(convolve(jax.nn.relu(convolve(x, a)), b))
        return jnp.mean((convolve(x, params["last"]) - y) ** 2)

    image = jax.ShapeDtypeStruct((rows, size, size, 3), jnp.float32)
    return loss, init, (image, image)


def crossing(plan: pw.AutoPlan) -> float:
    """Returns the megabytes that cross between slices in a step."""
    return sum(event.nbytes for event in plan.timeline().transfers) / 1e6


def planned(model: Model, count: int, **options: Any) -> pw.AutoPlan:
    """Returns the plan of a model."""
    loss, init, batch = model
    params = jax.eval_shape(init, jax.random.key(0))
    return pw.auto(loss, slices=slices(count), num_microbatches=MICROBATCHES, args=(params, batch), **options)


def simulated() -> Iterator[Row]:
    """Compares simulated steps with those of the even split."""
    cases: list[tuple[str, Model, int, dict[str, Any], float]] = [
        ("MLP, S=2", mlp(), 2, {}, 10_679 / 16_120),
        ("MLP, S=4", mlp(), 4, {}, 7_590 / 9_063),
        ("LM, V=1,024, S=4", lm(1024), 4, {}, 808 / 901),
        ("LM, V=4,096, S=4", lm(4096), 4, {}, 1_076 / 1_517),
        ("LM, V=8,192, S=4", lm(8192), 4, {}, 1_904 / 2_341),
        ("LM, V=4,096, slices 2:1:1", lm(4096), 3, {"speeds": (2, 1, 1)}, 982 / 1_622),
    ]
    for name, model, count, options, closest in cases:
        began = time.perf_counter()
        plan = planned(model, count, **options)
        seconds = time.perf_counter() - began
        usual = planned(model, count, **options, schedules=("1f1b",))
        even = next(cut.step for cut in usual.tried if cut.kind == "even")
        yield {
            "case": name,
            "even": even / 1e6,
            "step": plan.tried[0].step / 1e6,
            "ratio": plan.tried[0].step / even,
            "closest": closest,
            "MB crossing": crossing(plan),
            "schedule": plan.schedule,
            "seconds": seconds,
        }


def skips() -> Iterator[Row]:
    """Compares a row of stages with a V, for a U-Net on two slices."""
    row = planned(unet(), 2, schedules=("1f1b", "zb-h1", "search"))
    v = planned(unet(), 2, schedules=("zb-v",))
    yield {
        "case": "U-Net, S=2, V against row",
        "row": row.tried[0].step / 1e6,
        "step": v.tried[0].step / 1e6,
        "ratio": v.tried[0].step / row.tried[0].step,
        "closest": 2_316 / 2_567,
        "MB of row": crossing(row),
        "MB crossing": crossing(v),
    }


def real(runs: int) -> Iterator[Row]:
    """Compares real steps with those of the even split."""
    model = mlp(256)
    plan = planned(model, 2)
    yield real_row("MLP, S=2, real", model, even_of(model, plan), plan, runs) | {"to reach": 0.95}
    model = lm(4096, 128, rows=4, length=64)
    plan = planned(model, 2)
    even = even_of(model, plan)
    with tempfile.TemporaryDirectory() as folder:
        traces = [recorded(model, each, Path(folder) / f"{n}.json") for n, each in enumerate((even, plan))]
        timed = planned(model, 2, times=traces)
    yield real_row("LM, V=4,096, S=2, real, by FLOPs", model, even, plan, runs)
    yield real_row("LM, V=4,096, S=2, real, times measured", model, even, timed, runs) | {"to reach": 1.0}


def even_of(model: Model, plan: pw.AutoPlan) -> pw.AutoPlan:
    """Returns the even split among the cuts that a plan has tried."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        plan.save(file)
        document = json.loads(file.read_text())
        document["cuts"].sort(key=lambda cut: cut["kind"] != "even")
        file.write_text(json.dumps(document))
        args = plan.args
        return pw.auto(model[0], slices=plan.slices, num_microbatches=MICROBATCHES, args=args, plan=file)


def step_of(model: Model, plan: pw.AutoPlan) -> tuple[Callable[[], Any], str]:
    """Returns a function that runs a step and waits for it."""
    _, init, batch = model

    @pw.program(schedule=plan.schedule)
    def step(params: Any, batch: Any) -> Any:
        value, grads = pw.accumulate(jax.value_and_grad(plan.loss), MICROBATCHES)(params, batch)
        return value, jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)

    params = plan.init(init, jax.random.key(0))
    whole = jax.tree.map(
        lambda leaf: jnp.ones((MICROBATCHES * leaf.shape[0], *leaf.shape[1:]), leaf.dtype), batch
    )
    params, whole = step.place(params, whole)
    return (lambda: jax.block_until_ready(step(params, whole))), plan.schedule


def recorded(model: Model, plan: pw.AutoPlan, path: Path) -> Path:
    """Records a trace of a few steps."""
    run, _ = step_of(model, plan)
    run()
    with pw.trace(path):
        for _ in range(5):
            run()
    return path


def real_row(name: str, model: Model, even: pw.AutoPlan, plan: pw.AutoPlan, runs: int) -> Row:
    """Measures real steps of two plans in turn."""
    sides = [step_of(model, each)[0] for each in (even, plan)]
    for _ in range(3):
        for run in sides:
            run()
    taken: list[list[float]] = [[], []]
    for n in range(runs):
        for side in (0, 1) if n % 2 else (1, 0):
            began = time.perf_counter()
            sides[side]()
            taken[side].append(time.perf_counter() - began)
    ratios = [b / a for a, b in zip(*taken, strict=True)]
    return {
        "case": name,
        "even ms": 1e3 * statistics.median(taken[0]),
        "ms": 1e3 * statistics.median(taken[1]),
        "ratio": statistics.median(ratios),
        "least to least": min(taken[1]) / min(taken[0]),
        "simulated": plan.tried[0].step / next(c.step for c in plan.tried if c.kind == "even"),
        "cut": " ".join(map(str, plan.tried[0].positions)),
        "even cut": " ".join(map(str, even.tried[0].positions)),
    }


def searches() -> Iterator[Row]:
    """Measures the time of a search for a language model layer by layer."""
    model = lm(4096, layers=17, scan=False)
    loss, init, batch = model
    args = jax.eval_shape(init, jax.random.key(0)), batch
    flat, _ = flatten_loss(loss, args, "loss")
    began = time.perf_counter()
    units = units_of(flat)
    machine = Machine((1.0,) * 4, MICROBATCHES)
    best_partitions(units, units.candidates(4), machine, v=False, limit=3)
    best_partitions(units, units.candidates(8), machine, v=True, limit=2)
    search = time.perf_counter() - began
    began = time.perf_counter()
    planned(model, 4)
    yield {
        "case": "search",
        "operations": units.count,
        "seconds": search,
        "to reach": 2.0,
        "with simulations": time.perf_counter() - began,
        "to reach then": 20.0,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the command line, measures, and prints."""
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=21, help="paired runs of real steps")
    options = parser.parse_args(argv)
    connect(cpu_devices=4)
    parts = {"simulated": simulated, "skips": skips, "real": lambda: real(options.runs), "search": searches}
    run_parts(options, parts)


if __name__ == "__main__":
    main()
