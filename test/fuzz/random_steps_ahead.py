"""Training of random pipelines with collectives in their stages, on hosts with several devices.

  python test/fuzz/random_steps_ahead.py --seed 0 --count 20
  python test/fuzz/random_steps_ahead.py --hosts 4 --schedule gpipe --count 1 --steps 20000
  python test/fuzz/random_steps_ahead.py --hosts 4 --hosts-per-island 2 --count 20

Run number n of a seed is always the same for the same flags. The losses of the first steps are those of
`jax.jit` of the same function without slices, within a tolerance; then the state is reset, and each further
round gives the same losses to the last bit. A step without progress for a minute is a failure. The exit code
is 1 after a failure.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import pathways as pw

WIDTH = 8
ROUND = 25
"""Number of steps from one state."""

STAGES_OF_SLICE = {"interleaved-1f1b": 2, "looped-bfs": 2, "interleaved-zb": 2, "zb-v": 2}
"""Number of stages of a slice under some schedules; one under all others."""

SCHEDULES = ("program", "gpipe", "1f1b", "eager", "zb-h1", "zb-h2", *STAGES_OF_SLICE)


def _sum(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(jax.lax.psum(x @ w, "x"))


def _scatter(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(jax.lax.psum_scatter(x @ w, "x", scatter_dimension=1, tiled=True))


def _gather(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ jax.lax.all_gather(w, "x", axis=0, tiled=True))


def _exchange(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(jax.lax.all_to_all(x, "x", split_axis=0, concat_axis=1, tiled=True) @ w)


BODIES: Sequence[tuple[Callable[..., Any], Any, Any]] = (
    (_sum, (P("x"), P(None, "x")), P()),
    (_scatter, (P("x"), P(None, "x")), P(None, "x")),
    (_gather, (P("x"), P("x")), P("x")),
    (_exchange, (P(), P(None, "x")), P("x")),
)
"""Bodies of stages on each device, with the specs of their weights and inputs, and of their outputs."""


def _mapped(number: int, w: jax.Array, x: jax.Array) -> Any:
    body, in_specs, out_specs = BODIES[number]
    return jax.shard_map(body, in_specs=in_specs, out_specs=out_specs)(w, x)


@dataclasses.dataclass(frozen=True)
class Run:
    """Pipeline, with the options of its training.

    Attributes:
      schedule: the order of its stages.
      microbatches: the number of microbatches of a batch.
      bodies: the body of each stage, by its position in `BODIES`.
      donates: whether a step consumes its state.
      ahead: the maximum of steps that are issued before a loss is read.
      reads: the seed of the times at which losses are read.
    """

    schedule: str
    microbatches: int
    bodies: tuple[int, ...]
    donates: bool
    ahead: int
    reads: int


def random_run(rng: random.Random, slices: int, schedules: Sequence[str]) -> Run:
    """Draws a run."""
    schedule = rng.choice(schedules)
    stages = slices * STAGES_OF_SLICE.get(schedule, 1)
    microbatches = slices * rng.choice([1, 2, 4, 8])
    bodies = tuple(rng.randrange(len(BODIES)) for _ in range(stages))
    return Run(
        schedule, microbatches, bodies, rng.random() < 0.5, rng.choice([1, 4, 16, 64]), rng.getrandbits(32)
    )


def training(stages: Sequence[Callable[..., Any]], run: Run, accumulate: Callable[..., Any]) -> Any:
    """Returns a step of training with given stages."""

    def loss(ws: Any, x: Any) -> Any:
        for stage, w in zip(stages, ws, strict=True):
            x = stage(w, x)
        return (x**2).mean()

    def step(ws: Any, x: Any) -> Any:
        value, grads = accumulate(jax.value_and_grad(loss), run.microbatches)(ws, x)
        return jax.tree.map(lambda w, grad: w - 0.2 * grad, ws, grads), value

    return step


def staged(run: Run, slices: Sequence[Any]) -> Any:
    """Returns the step as a program over slices."""
    order = [*slices, *(reversed(slices) if run.schedule == "zb-v" else slices)]
    stages = []
    for stage, (number, slice) in enumerate(zip(run.bodies, order, strict=False)):
        stages.append(
            pw.jit(
                functools.partial(_mapped, number), devices=slice, in_shardings=BODIES[number][1], stage=stage
            )
        )
    donated = (0,) if run.donates else ()
    return pw.program(training(stages, run, pw.accumulate), schedule=run.schedule, donate_argnums=donated)


def losses_of(run: Run, ws: Any, x: Any) -> np.ndarray:
    """Returns losses by `jax.jit` of the step without slices."""
    plain = [lambda w, x: jnp.tanh(x @ w)] * len(run.bodies)
    step = jax.jit(training(plain, run, lambda f, count: f))
    losses = []
    for _ in range(ROUND):
        ws, value = step(ws, x)
        losses.append(value)
    return np.asarray(losses)


def problem(run: Run, slices: Sequence[Any], steps: int) -> str | None:
    """Trains; returns the failure, None if there is none."""
    rng, draws = np.random.default_rng(run.reads), random.Random(run.reads)
    rows = run.microbatches * slices[0].size
    x = rng.normal(size=(rows, WIDTH)).astype(np.float32)
    first = tuple(rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 3 for _ in run.bodies)
    step, expected = staged(run, slices), losses_of(run, first, x)
    rounds: np.ndarray | None = None
    for begin in range(0, steps, ROUND):
        ws, losses, unread = first, [], draws.randint(1, run.ahead)
        for _ in range(ROUND):
            ws, value = step(ws, x)
            losses.append(value)
            unread -= 1
            if not unread:
                float(value)
                unread = draws.randint(1, run.ahead)
        got = np.asarray([float(value) for value in losses])
        if rounds is None:
            if not np.allclose(got, expected, rtol=2e-4):
                return f"losses are {got}, and those of jax.jit {expected}"
            rounds = got
        elif not np.array_equal(got, rounds):
            return f"losses from step {begin} on are {got}, and were {rounds}"
    return None


def main() -> int:
    """Runs the harness; returns its exit code."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    flags.add_argument("--first", type=int, default=0, help="number of the first run (default: %(default)s)")
    flags.add_argument("--count", type=int, default=20, help="number of runs (default: %(default)s)")
    flags.add_argument("--steps", type=int, default=200, help="steps of each run (default: %(default)s)")
    flags.add_argument("--hosts", type=int, default=2, help="number of hosts; 0 for one process (default: 2)")
    flags.add_argument("--hosts-per-island", type=int, default=1, help="default: %(default)s")
    flags.add_argument("--devices-per-host", type=int, default=2, help="default: %(default)s")
    flags.add_argument("--schedule", action="append", choices=SCHEDULES, help="default: a random one")
    flags.add_argument("--keep", help="is not used: runs are known by their numbers")
    args = flags.parse_args()

    size = args.devices_per_host * args.hosts_per_island
    if args.hosts:
        options = pw.HostOptions(step_deadline=60)
        island = pw.Island(hosts=args.hosts_per_island, devices_per_host=args.devices_per_host)
        pw.connect(islands=[island] * (args.hosts // args.hosts_per_island), options=options)
    count = args.hosts // args.hosts_per_island if args.hosts else 2
    if not args.hosts:
        pw.connect(cpu_devices=count * size)
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((size,), ("x",)) for _ in range(count)]
    found: collections.Counter[str] = collections.Counter()
    for number in range(args.first, args.first + args.count):
        rng = random.Random(f"{args.seed} {number}")
        run = random_run(rng, count, args.schedule or SCHEDULES)
        began = time.monotonic()
        try:
            wrong = problem(run, slices, args.steps)
            verdict = "wrong" if wrong else "right"
        except pw.PathwaysError as error:
            is_refused = not isinstance(error, pw.HostError)
            wrong = f"{type(error).__name__}: {error}"
            verdict = "refused" if is_refused else "failed"
        found[verdict] += 1
        print(f"{number} {verdict} in {time.monotonic() - began:.1f} s: {run}", flush=True)
        if wrong:
            print(f"  {wrong}", flush=True)
    print(", ".join(f"{n} {verdict}" for verdict, n in found.items()))
    return 1 if found["wrong"] or found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
