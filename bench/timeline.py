"""Accuracy of measured timelines: equal stages take equally long, and a replay takes as long as the run.

  python bench/timeline.py [--json PATH] [--steps N] [--only TEXT]

Two slices on two cores, with one thread for each, pass microbatches through equal stages. Each case is traced
five times; the figures are those of the run whose `stages` is the median of the five, and the other ratios
are medians of their own. Both cores must be free: on shared ones launches wait for a core, which no replay
knows, and only `stages` says something.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _parts import parser_of, print_header, write_json

# JAX reads both when it creates its first device: an execution then has no other thread to share its work
# with.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
os.environ["NPROC"] = "1"

import jax
import jax.numpy as jnp
import numpy as np

import pathways
from pathways.passes.analysis.measured.events import EventLog
from pathways.passes.analysis.measured.trace_file import read_trace
from pathways.runtime.local.devices import connect
from pathways.runtime.plan.plan import Plan
from pathways.runtime.resources.virtual import make_virtual_device_set
from pathways.runtime.simulate.replay import simulate
from pathways.runtime.simulate.times import measured_times

RUNS = 5
ROUNDING = 1e-9
"""Rounding of times when they are written, in seconds."""
MICROBATCHES = 16
STAGES = 1.30
"""Limit of the ratio of the medians of equal stages."""
REPLAY = 0.15
"""Limit of the difference of the replay of a trace and the measured step."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Stages of `layers` products with a square matrix, one on each slice."""

    name: str
    width: int
    rows: int
    layers: int


CASES = [
    Case("launches of 0.2 ms", 128, 192, 4),
    Case("launches of 1 ms", 256, 192, 4),
    Case("launches of 5 ms", 512, 256, 4),
]


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurement of one case.

    Attributes:
      case: its name.
      launches: medians of the launches of each stage, in milliseconds.
      stages: the larger of them in the smaller.
      step: the median measured step, in milliseconds.
      replay: the replay of the trace in the measured step.
      fastest: the replay of the fastest step, with its own times, relative to that step: the one that other
        load disturbed the least.
      tracing: a traced step relative to an untraced one, until results are ready.
      overlaps: the number of launches that began before the previous one on their slice had ended.
      estimated: the number of launches that no profile had.
    """

    case: str
    launches: tuple[float, ...]
    stages: float
    step: float
    replay: float
    fastest: float
    tracing: float
    overlaps: int
    estimated: int


Side = Callable[[], Any]
"""Step whose results are ready when it returns."""


def pipeline(case: Case) -> tuple[Plan, Side]:
    """Returns a compiled program of two stages, and a step of it."""
    devices = make_virtual_device_set()

    def stage(weights: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(case.layers):
            x = jnp.tanh(x @ weights)
        return x

    stages = [pathways.jit(stage, devices=devices.add_slice(1, "x")) for _ in range(2)]

    @pathways.program(fuse=False)
    def step(weights: list[jax.Array], batch: list[jax.Array]) -> list[jax.Array]:
        return [stages[1](weights[1], stages[0](weights[0], x)) for x in batch]

    weights = [np.full((case.width, case.width), 1 / case.width, np.float32)] * 2
    batch = [np.ones((case.rows, case.width), np.float32)] * MICROBATCHES
    compiled = step.lower(weights, batch).compile()
    placed = compiled.place(weights, batch)
    return compiled.plan, lambda: jax.block_until_ready(compiled(*placed))


def seconds(step: Side, steps: int) -> float:
    """Returns the median time of a step."""
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(case: Case, steps: int) -> Measured:
    """Returns the figures of a case: medians over several runs."""
    plan, step = pipeline(case)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for _ in range(RUNS):
            untraced = seconds(step, steps)
            with pathways.trace(path):
                traced = seconds(step, steps)
            runs.append(figures(case.name, plan, read_trace(path.read_bytes()), traced / untraced))
    middle = sorted(runs, key=lambda run: run.stages)[RUNS // 2]
    return dataclasses.replace(
        middle,
        replay=statistics.median(run.replay for run in runs),
        fastest=statistics.median(run.fastest for run in runs),
        tracing=statistics.median(run.tracing for run in runs),
        overlaps=sum(run.overlaps for run in runs),
        estimated=sum(run.estimated for run in runs),
    )


def figures(name: str, plan: Plan, timelines: Sequence[EventLog], tracing: float) -> Measured:
    """Returns the figures of one run."""
    launches = []
    overlaps = 0
    for slice in timelines[0].slices:
        on_slice = [[event for event in t.launches if event.slice == slice] for t in timelines]
        launches.append(statistics.median(e.duration for events in on_slice for e in events) * 1e3)
        pairs = [pair for events in on_slice for pair in itertools.pairwise(events)]
        overlaps += sum(after.start < before.end - ROUNDING for before, after in pairs)
    step = statistics.median(timeline.step_time for timeline in timelines)
    fastest = min(timelines, key=lambda timeline: timeline.step_time)
    return Measured(
        name,
        tuple(launches),
        max(launches) / min(launches),
        step * 1e3,
        simulate(plan, measured_times(timelines, plan)).step_time / step,
        simulate(plan, measured_times([fastest], plan)).step_time / fastest.step_time,
        tracing,
        overlaps,
        sum(event.estimated for timeline in timelines for event in timeline.launches),
    )


def report(found: Sequence[Measured]) -> None:
    """Prints the table."""
    print_header()
    print(
        f"{'case':<20}{'stages ms':>14}{'stages':>8}{'step ms':>9}{'replay':>8}{'fastest':>9}{'tracing':>9}"
    )
    for row in found:
        stages = " ".join(f"{time:.3f}" for time in row.launches)
        print(
            f"{row.case:<20}{stages:>14}{row.stages:>8.2f}{row.step:>9.1f}{row.replay:>8.2f}{row.fastest:>9.2f}{row.tracing:>9.2f}"
            f"{'  stages over 1.30' if row.stages > STAGES else ''}"
            f"{'  replay over 15 %' if abs(row.replay - 1) > REPLAY else ''}"
            f"{f'  {row.overlaps} overlap' if row.overlaps else ''}"
            f"{f'  {row.estimated} estimated' if row.estimated else ''}"
        )


def main() -> None:
    """Parses the command line, measures the cases, prints the table, and writes it as JSON where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=30, help="steps in each of five runs")
    options = parser.parse_args()
    connect(cpu_devices=2)
    found = [measure(case, options.steps) for case in CASES if options.only in case.name]
    report(found)
    write_json(options.json, map(dataclasses.asdict, found))


if __name__ == "__main__":
    main()
