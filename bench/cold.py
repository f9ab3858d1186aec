"""Time to compile a pipelined step in a fresh process, against one `jax.jit` of the same step.

  python bench/cold.py [--json PATH] [--rounds N] [--only TEXT] [--microbatches M]

The models are a small transformer in two or four stages, whose layers are unrolled or a `lax.scan`, and those
of `_cold_models.py` in two: an encoder and its decoder, a U-Net, a recurrent network with a placed cell, and
Adam over many leaves. Each side traces, lowers and compiles a step in a process of its own, without a cache;
figures are medians of CPU seconds over all threads, and of wall seconds. The ratio is of CPU seconds from
tracing to the end of compilation.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _cold_models import MODELS
from _parts import print_header

import pathways
from pathways.compiler import program
from pathways.runtime.local.devices import connect

TARGET = 1.6
WIDTH, HEADS, LENGTH, ROWS, VOCABULARY = 128, 4, 64, 8, 256
RATE = 0.01
PHASES = ("trace", "passes", "xla")

Params = Any


@dataclasses.dataclass(frozen=True)
class Size:
    """Transformer of `layers` layers in `stages` stages; `scan` if a stage loops over its layers."""

    stages: int
    layers: int
    scan: bool
    microbatches: int

    def __str__(self) -> str:
        form = "scan" if self.scan else "unrolled"
        return f"{self.stages} stages, {self.layers} layers, {form}, M={self.microbatches}"


def parameters(size: Size) -> list[Params]:
    """Returns the parameters of each stage; those of its layers are stacked."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * shape[-2] ** -0.5).astype(np.float32)

    per_stage = size.layers // size.stages
    stages = [
        {
            "qkv": normal(per_stage, WIDTH, 3 * WIDTH),
            "out": normal(per_stage, WIDTH, WIDTH),
            "up": normal(per_stage, WIDTH, 4 * WIDTH),
            "down": normal(per_stage, 4 * WIDTH, WIDTH),
        }
        for _ in range(size.stages)
    ]
    stages[0]["embedding"] = normal(VOCABULARY, WIDTH)
    stages[-1]["head"] = normal(WIDTH, VOCABULARY)
    return stages


def layer(x: jax.Array, params: Params) -> jax.Array:
    """Applies attention and a feed-forward network, each after a normalisation."""

    def norm(v: jax.Array) -> jax.Array:
        return (v - v.mean(-1, keepdims=True)) * jax.lax.rsqrt(v.var(-1, keepdims=True) + 1e-6)

    rows, length, width = x.shape
    q, k, v = jnp.moveaxis((norm(x) @ params["qkv"]).reshape(rows, length, 3, HEADS, width // HEADS), 2, 0)
    scores = jnp.einsum("blhd,bmhd->bhlm", q, k) * (width // HEADS) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(scores), v).reshape(rows, length, width)
    x = x + mixed @ params["out"]
    return x + jax.nn.gelu(norm(x) @ params["up"]) @ params["down"]


def stack(params: Params, x: jax.Array, scan: bool) -> jax.Array:
    """Applies the layers of a stage."""
    layers = {name: params[name] for name in ("qkv", "out", "up", "down")}
    if scan:
        return jax.lax.scan(lambda carry, of_layer: (layer(carry, of_layer), None), x, layers)[0]
    for n in range(len(layers["qkv"])):
        x = layer(x, {name: value[n] for name, value in layers.items()})
    return x


def front(params: Params, tokens: jax.Array, scan: bool) -> jax.Array:
    """Runs the first stage."""
    return stack(params, params["embedding"][tokens], scan)


def loss_of(params: Params, x: jax.Array, targets: jax.Array, scan: bool) -> jax.Array:
    """Runs the last stage, and returns the loss."""
    logits = stack(params, x, scan) @ params["head"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()


def step_of(size: Size, place: Callable[[Callable, int], Callable]) -> Callable[..., Any]:
    """Returns a training step by gradient descent; `place` puts the function of a stage somewhere."""
    stages = [place(lambda p, x: front(p, x, size.scan), 0)]
    stages += [place(lambda p, x: stack(p, x, size.scan), n) for n in range(1, size.stages - 1)]
    last = place(lambda p, x, y: loss_of(p, x, y, size.scan), size.stages - 1)

    def loss(params: list[Params], batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, y = batch
        for stage, of_stage in zip(stages, params, strict=False):
            x = stage(of_stage, x)
        return last(params[-1], x, y)

    def step(params: list[Params], batch: tuple[jax.Array, jax.Array]) -> Any:
        value, grads = pathways.accumulate(jax.value_and_grad(loss), size.microbatches)(params, batch)
        return value, jax.tree.map(lambda p, g: p - RATE * g, params, grads)

    return step


@dataclasses.dataclass(frozen=True)
class OtherModel:
    """Model of `_cold_models.py`, by its name."""

    model: str
    microbatches: int
    stages: int = 2

    def __str__(self) -> str:
        return f"{self.model}, M={self.microbatches}"


Case = Size | OtherModel
Place = Callable[[Callable, int], Callable]


def step_and_arguments(case: Case) -> tuple[Callable[[Place], Callable[..., Any]], tuple[Any, ...]]:
    """Returns the function that creates the step of a case, and its arguments."""
    if isinstance(case, OtherModel):
        return MODELS[case.model](case.microbatches)
    tokens = np.zeros((ROWS * case.microbatches, LENGTH), np.int32)
    return lambda place: step_of(case, place), (parameters(case), (tokens, tokens))


def measure(case: Case, side: str) -> dict[str, list[float]]:
    """Measures the CPU and wall seconds of each phase of a compilation, in this process."""
    connect(cpu_devices=case.stages)
    make, arguments = step_and_arguments(case)
    if side == "ours":
        devices = pathways.make_virtual_device_set()
        slices = [devices.add_slice(1, "x") for _ in range(case.stages)]
        step = make(lambda fun, n: pathways.jit(fun, devices=slices[n]))
        function: Any = pathways.program(step, schedule="1f1b", donate_argnums=0)
    else:
        function = jax.jit(make(lambda fun, _: fun), donate_argnums=0)
    # The costs of a process, not of a program.
    jax.jit(lambda x: x + 1).lower(np.float32(0)).compile()
    seconds: dict[str, list[float]] = {}

    def timed(part: str, work: Callable[[], Any]) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        result = work()
        seconds[part] = [time.process_time() - cpu, time.perf_counter() - wall]
        return result

    if side == "ours":
        run_phases = program.run_phases
        program.run_phases = lambda *given: timed("passes", lambda: run_phases(*given))
    lowered = timed("trace", lambda: function.lower(*arguments))
    timed("xla", lowered.compile)
    # The passes run while the program is lowered.
    inner = seconds.setdefault("passes", [0.0, 0.0])
    seconds["trace"] = [whole - part for whole, part in zip(seconds["trace"], inner, strict=True)]
    return seconds


def cases(microbatches: int) -> Iterator[Case]:
    """Yields the cases."""
    for stages in (2, 4):
        for scan in (True, False):
            yield Size(stages, 8, scan, microbatches)
    for model in MODELS:
        yield OtherModel(model, microbatches)


def in_process(case: Case, side: str) -> dict[str, list[float]]:
    """Runs `measure` in a process of its own."""
    arguments = json.dumps([dataclasses.asdict(case), side])
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0", "PW_CACHE_DIR": ""}
    command = [sys.executable, __file__, "--measure", arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints the table, and writes it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each side; the median counts")
    parser.add_argument("--only", default="", help="only cases with this text in their names")
    parser.add_argument("--microbatches", type=int, default=4, help="of the step")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        fields, side = json.loads(options.measure)
        case = OtherModel(**fields) if "model" in fields else Size(**fields)
        print(json.dumps(measure(case, side)))
        return
    print_header()
    parts = "".join(f"{part:>9}" for part in PHASES)
    print(f"{'case':<36}{'side':<9}{parts}{'CPU s':>9}{'wall s':>9}{'ratio':>8}   (CPU seconds of the parts)")
    rows = []
    for case in cases(options.microbatches):
        if options.only not in str(case):
            continue
        # In turn, so that both sides meet the same machine.
        runs = [(in_process(case, "ours"), in_process(case, "jax.jit")) for _ in range(options.rounds)]
        row: dict[str, Any] = {"case": str(case), "target": TARGET}
        totals: dict[str, float] = {}
        for side, all_seconds in zip(("ours", "jax.jit"), zip(*runs, strict=True), strict=True):
            cpu, wall = (
                {part: statistics.median(s[part][n] for s in all_seconds) for part in PHASES} for n in (0, 1)
            )
            totals[side] = statistics.median(sum(s[part][0] for part in PHASES) for s in all_seconds)
            row[side] = {"cpu": cpu, "wall": wall, "total cpu": totals[side]}
            ratio = "" if side == "ours" else f"{totals['ours'] / totals[side]:>8.2f}"
            over = "  over" if side != "ours" and totals["ours"] / totals[side] > TARGET else ""
            print(
                f"{case!s:<36}{side:<9}{''.join(f'{cpu[part]:>9.2f}' for part in PHASES)}"
                f"{totals[side]:>9.2f}{sum(wall.values()):>9.2f}{ratio}{over}",
                flush=True,
            )
        row["ratio"] = totals["ours"] / totals["jax.jit"]
        rows.append(row)
    if options.json:
        options.json.write_text(json.dumps({"jax": jax.__version__, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
