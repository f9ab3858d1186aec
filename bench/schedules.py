"""Gains and costs of schedules: halves against wholes, simulated steps against real ones, bubbles, searches.

  python bench/schedules.py [--json PATH] [--only TEXT] [--steps N]

Rows: the halves of a transformer stage against its whole backward; steps simulated from the halves of a
measured run against real steps; bubbles against the formulas; two towers that join; the gain of a search over
the best policy on 50 random pipelines; and the time to cut, schedule and prove a long one. Medians.
"""

from __future__ import annotations

import os

from _parts import Row, parser_of, run_parts

# One device to a core, so that slices overlap.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"

import dataclasses
import itertools
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

import pathways
from pathways.compiler.stages import Compiled, Lowered
from pathways.dialect import LaunchOp, make_context, symbol_table
from pathways.passes.analysis.measured.durations import measured_durations
from pathways.passes.analysis.measured.events import EventLog
from pathways.passes.analysis.measured.trace_file import read_trace
from pathways.passes.analysis.operations import byte_size
from pathways.passes.analysis.work import WorkEstimate
from pathways.passes.manager.driver import run_passes
from pathways.passes.pipeline import Options, phases_after
from pathways.passes.schedule.order.ordering import Costs, orders_by
from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.pipeline import Pipeline, PolicyError
from pathways.passes.schedule.policies.registry import POLICIES
from pathways.passes.schedule.policies.request import ScheduleRequest
from pathways.passes.schedule.policies.schedule_file import Work
from pathways.passes.schedule.search.replay import replay
from pathways.passes.schedule.search.scheduling_problem import Limit, SearchProblem, counted
from pathways.passes.shard.halves import split_loops
from pathways.runtime.local.devices import connect
from pathways.runtime.plan.plan import Launch
from pathways.runtime.simulate.replay import simulate
from pathways.runtime.simulate.times import read_times
from pathways.runtime.xla import pjrt

ROWS, WIDTH, LAYERS = 256, 256, 4
SEED = 0
WARM = 3
"""Number of steps before those that count."""

Stage = Callable[[Any, jax.Array], jax.Array]


def block(w: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """Applies a transformer block to one sequence: attention with one head, then two products."""
    h = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * w["scale"]
    q, k, v = (h @ w[name] for name in ("q", "k", "v"))
    x = x + jax.nn.softmax(q @ k.T / x.shape[-1] ** 0.5) @ v
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def stage_of(scanned: bool, remat: bool) -> Stage:
    """Returns a stage of some blocks, as a scan or unrolled, whose backward may repeat the forward."""
    one = jax.checkpoint(block) if remat else block

    def in_turn(w: Any, x: jax.Array) -> jax.Array:
        for n in range(LAYERS):
            x = one({name: a[n] for name, a in w.items()}, x)
        return x

    def in_scan(w: Any, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (one(w, x), None), x, w)[0]

    return in_scan if scanned else in_turn


def weights(seed: int) -> dict[str, np.ndarray]:
    """Returns the weights of a stage."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH)}
    shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH), "scale": (WIDTH,)}
    return {
        name: (rng.normal(size=(LAYERS, *shape)) / WIDTH**0.5).astype(np.float32)
        for name, shape in shapes.items()
    }


def lower_pipeline(
    stage: Stage, count: int, microbatches: int, schedule: str, params: Any, batch: Any
) -> Lowered:
    """Returns a pipeline of equal stages with its loss, on a slice each."""
    devices = pathways.make_virtual_device_set()
    stages = [pathways.jit(stage, devices=devices.add_slice((1,), ("x",))) for _ in range(count)]

    def loss(params: Any, batch: jax.Array) -> jax.Array:
        x = batch.reshape(batch.shape[-2:])
        for run, w in zip(stages, params, strict=True):
            x = run(w, x)
        return jnp.mean(x**2)

    def step(params: Any, batch: jax.Array) -> Any:
        return pathways.accumulate(jax.value_and_grad(loss), microbatches)(params, batch)

    return pathways.program(step, schedule=schedule).lower(params, batch)


def traced(programs: Mapping[str, Compiled], steps: int, *arguments: Any) -> dict[str, list[EventLog]]:
    """Returns measured steps of programs that take turns, without the first few."""
    placed = {name: compiled.place(*arguments) for name, compiled in programs.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with pathways.trace(path):
            for _ in range(WARM + steps):
                for name, compiled in programs.items():
                    jax.block_until_ready(compiled(*placed[name]))
        logs = read_trace(path.read_bytes())
    return {name: logs[n :: len(programs)][WARM:] for n, name in enumerate(programs)}


def seconds_alone(programs: Mapping[str, Compiled], stage: int, steps: int) -> dict[str, float]:
    """Returns the time of a stage's backward launches together, in sequence on an idle device.

    In a pipeline the halves of one stage run beside other stages, which share the cores of the machine. All
    launches of all programs take turns, so that other load on the machine meets them alike.
    """
    device = jax.devices()[0]
    rng = np.random.default_rng(1)
    launches: list[tuple[str, Any, list[np.ndarray], list[float]]] = []
    for name, compiled in programs.items():
        for step in compiled.plan.steps:
            if not isinstance(step, Launch) or not any(
                o.kind == "bwd" and o.stage == stage for o in step.origins
            ):
                continue
            computation = compiled.plan.computations[step.computation]
            options = pjrt.compile_options([device], len(computation.operands), len(computation.results))
            executable = pjrt.compile_anew(computation.module, [device], options)
            values = [(rng.normal(size=a.shape) * 0.1).astype(a.dtype) for a in computation.operands]
            launches.append((name, executable, values, []))
    for _ in range(steps + 1):
        for _, executable, values, times in launches:
            # Some are donated.
            operands = jax.block_until_ready([jax.device_put(value, device) for value in values])
            began = time.perf_counter()
            jax.block_until_ready(pjrt.execute_to_shards(executable, operands))
            times.append(time.perf_counter() - began)
    # Other work on the machine only adds to it.
    return {name: sum(min(times) for of, _, _, times in launches if of == name) for name in programs}


def halves(steps: int) -> Iterator[Row]:
    """Measures the backward of the second of three stages in halves, against the whole, without fusion."""
    params = [weights(n) for n in range(3)]
    batch = np.random.default_rng(9).normal(size=(1, ROWS, WIDTH)).astype(np.float32)
    for scanned, remat in itertools.product((False, True), (False, True)):
        stage = stage_of(scanned, remat)
        flops: dict[str, float] = {}
        programs: dict[str, Compiled] = {}
        passed = kept = 0
        for schedule in ("1f1b", "zb-h1"):
            lowered = lower_pipeline(stage, 3, 1, schedule, params, batch)
            module = ir.Module.parse(lowered.as_text("sharded"), make_context())
            flops[schedule] = work_of_backward(module, 1)
            programs[schedule] = lowered.compile()
            if schedule == "zb-h1":
                passed = passed_on(module, 1)
            else:
                kept = read_by_backward(module, 1)
        if scanned:
            # The gain of batching all iterations of the loop of W.
            with mock.patch.object(split_loops, "can_be_batched", return_value=False):
                one_by_one = lower_pipeline(stage, 3, 1, "zb-h1", params, batch).compile()
            programs["one by one"] = one_by_one
        seconds = seconds_alone(programs, 1, steps)
        yield {
            "case": f"I + W / B: {'scan' if scanned else 'unrolled'}{', remat' if remat else ''}",
            "flops": flops["zb-h1"] / flops["1f1b"],
            "time": seconds["zb-h1"] / seconds["1f1b"],
            **({"one by one": seconds["one by one"] / seconds["1f1b"]} if scanned else {}),
            "ms": seconds["1f1b"] * 1e3,
            "passed MiB": passed / 2**20,
            "kept by B MiB": kept / 2**20,
            "target": "flops equal, time 1.05",
        }


def _backward_launches(module: ir.Module, stage: int) -> list[LaunchOp]:
    main = symbol_table(module)["main"].regions[0].blocks[0]
    return [
        op
        for op in main.operations
        if isinstance(op, LaunchOp) and any(o.kind == "bwd" and o.stage == stage for o in op.origins)
    ]


def work_of_backward(module: ir.Module, stage: int) -> float:
    """Returns the floating point operations of the backward of a stage, by our estimate."""
    work = WorkEstimate(symbol_table(module))
    return float(sum(work.of(op.callee) for op in _backward_launches(module, stage)))


def passed_on(module: ir.Module, stage: int) -> int:
    """Returns the bytes that the first half of a backward passes to the second one."""
    first, second = _backward_launches(module, stage)
    return sum(byte_size(v.type) for v in dict.fromkeys(second.operands) if v in set(first.results))


def read_by_backward(module: ir.Module, stage: int) -> int:
    """Returns the bytes of launches' results that the whole backward reads."""
    (whole,) = _backward_launches(module, stage)
    produced = [v for v in whole.operands if not isinstance(v, ir.BlockArgument)]
    return sum(byte_size(v.type) for v in dict.fromkeys(produced))


def real_steps(steps: int) -> Iterator[Row]:
    """Compares steps simulated from the halves of a measured run with real ones.

    Both schedules run in turn, so that other load on the machine meets them alike. Of all steps of `zb-h1`
    the median of each half counts, and is compared with the median step; and the same of the fastest step.
    """
    width, microbatches = 512, 8

    def stage(w: jax.Array, x: jax.Array) -> jax.Array:
        for n in range(4):
            x = jnp.tanh(x @ w[n])
        return x

    rng = np.random.default_rng(3)
    params = [(rng.normal(size=(4, width, width)) / width**0.5).astype(np.float32) for _ in range(2)]
    batch = rng.normal(size=(microbatches, width // 2, width)).astype(np.float32)
    programs = {
        schedule: lower_pipeline(stage, 2, microbatches, schedule, params, batch).compile()
        for schedule in ("zb-h1", "1f1b")
    }
    logs = traced(programs, steps, params, batch)
    medians = {name: statistics.median(log.step_time for log in logs[name]) for name in programs}
    # The steps that other load disturbed the least.
    fastest = {name: min(logs[name], key=lambda log: log.step_time) for name in programs}
    for schedule, compiled in programs.items():
        ratios = {}
        for of, measured, real in (
            ("median", logs["zb-h1"], medians[schedule]),
            ("fastest", [fastest["zb-h1"]], fastest[schedule].step_time),
        ):
            durations = measured_durations(measured) | {"kinds": {"glue": "0s"}}
            ratios[of] = simulate(compiled.plan, read_times(durations, compiled.plan)).step_time / real
        yield {
            "case": f"simulated / real: {schedule}",
            **ratios,
            "ms": medians[schedule] * 1e3,
            "target": "within 10 %",
        }
    yield {
        "case": "real: zb-h1 / 1f1b",
        "median": medians["zb-h1"] / medians["1f1b"],
        "fastest": fastest["zb-h1"].step_time / fastest["1f1b"].step_time,
        "target": "1.05",
    }


def line(
    slices: tuple[int, ...], microbatches: int, kinds: str = "FIW", reads: tuple[frozenset[int], ...] = ()
) -> Work:
    """Returns the actions of a pipeline of these kinds, in a row unless the inputs of stages are given."""
    pipeline = Pipeline(slices, microbatches, reads=reads)
    actions = [
        Action(stage, kind, m) for stage in range(len(slices)) for kind in kinds for m in range(microbatches)
    ]
    rows = [f"s{n}" for n in range(max(slices) + 1)]
    needs = {action: set(pipeline.needs(action)) for action in actions}
    return Work(rows, {stage: rows[place] for stage, place in enumerate(slices)}, microbatches, needs)


def bubbles() -> Iterator[Row]:
    """Measures the idle time of a slice from its first to its last action, against the formulas, at F = I =
    W."""
    formulas: dict[str, Callable[[int], int]] = {
        "1f1b": lambda s: 3 * (s - 1),
        "zb-h1": lambda s: s - 1,
        "zb-h2": lambda s: 0,
        "zb-v": lambda s: 0,
    }
    for policy, formula in formulas.items():
        equal = cases = 0
        for s in range(2, 17):
            for m in range(s, 4 * s + 1, max(1, s // 2)):
                if policy in ("zb-h2", "zb-v") and m < 2 * s:
                    continue
                places = (*range(s), *reversed(range(s))) if policy == "zb-v" else tuple(range(s))
                # 1f1b has whole backwards.
                work = line(places, m, "FB" if policy == "1f1b" else "FIW")
                cases += 1
                equal += idle(orders_by(ScheduleRequest(policy), work, Costs(), str), work) == formula(s)
        yield {"case": f"bubble: {policy}", "equal": f"{equal} of {cases}", "target": "all"}


TOWERS = (frozenset(), frozenset({0}), frozenset(), frozenset({2}), frozenset({3}), frozenset({1, 4}))
"""The inputs of each stage: two stages of images, three of text, and one that joins them."""


def towers() -> Iterator[Row]:
    """Measures two towers on slices of their own, 8 microbatches: time in units of F = 1, B = 2, and
    peaks."""
    work = {kinds: line(tuple(range(len(TOWERS))), 8, kinds, TOWERS) for kinds in ("FB", "FIW")}
    units = {kinds: {a: 1.0 + (a.kind == "B") for a in w.needs} for kinds, w in work.items()}
    dear = {
        kinds: {a: takes * (3 if a.stage < 2 else 1) for a, takes in units[kinds].items()} for kinds in units
    }
    for case, policy, kinds, durations, is_timed, target in (
        ("towers: 1f1b", "1f1b", "FB", units, False, "33; 3 2 4 3 2 1"),
        ("towers, dear images: 1f1b", "1f1b", "FB", dear, False, "81; 3 2 4 3 2 1"),
        ("towers, dear images: search, times", "search", "FIW", dear, True, "at most 75"),
        ("towers: zb-h1", "zb-h1", "FIW", units, False, "27; at most 5"),
    ):
        costs = Costs(durations[kinds]) if is_timed else Costs()
        orders = orders_by(ScheduleRequest(policy), work[kinds], costs, str)
        alive = [peak_microbatches(row) for row in orders]
        took = replayed(problem_of(work[kinds], durations[kinds]), orders)
        yield {"case": case, "time": took, "alive": " ".join(map(str, alive)), "target": target}


def grad_cache() -> Iterator[Row]:
    """Measures the same towers, contrastive over the whole batch: images in 8 microbatches, text in 4."""
    devices = pathways.make_virtual_device_set()
    places = [devices.add_slice((1,), ("x",)) for _ in range(6)]
    stages = [pathways.jit(lambda w, x: jnp.tanh(x @ w), devices=place) for place in places[:5]]
    join = pathways.jit(lambda a, b: jnp.mean((a @ b.T) ** 2), devices=places[5])

    def embed(stages: Any, params: Any, x: jax.Array) -> jax.Array:
        for run, w in zip(stages, params, strict=True):
            x = run(w, x)
        return x

    def step(params: Any, images: jax.Array, texts: jax.Array) -> Any:
        towers = ((stages[:2], params[:2], images, 8), (stages[2:], params[2:], texts, 4))
        rows = [
            pathways.accumulate(lambda w, x, t=run: embed(t, w, x), count, reduce="concat")(w, x)
            for run, w, x, count in towers
        ]
        pulled = jax.grad(join, argnums=(0, 1))(*rows)

        def back(run: Any) -> Any:
            return lambda w, x, by_row: jax.vjp(lambda w: embed(run, w, x), w)[1](by_row)[0]

        return [
            pathways.accumulate(back(run), count, reduce="sum")(w, x, by_row)
            for (run, w, x, count), by_row in zip(towers, pulled, strict=True)
        ]

    square, batch = jnp.ones((8, 8)), jnp.ones((32, 8))
    compiled = pathways.program(step, schedule="gpipe").lower([square] * 5, batch, batch).compile()
    timeline = compiled.timeline({"kinds": {"fwd": "1s", "bwd": "2s", "glue": 0}})
    yield {"case": "towers: GradCache, gpipe", "time": timeline.step_time, "target": "35"}


def peak_microbatches(order: Sequence[Action]) -> int:
    """Returns the number of microbatches of a slice at once, from a forward to its backward or the last
    half."""
    steps = ((a.kind == "F") - (a.kind in "BW") for a in order)
    return max(itertools.accumulate(steps))


def idle(orders: Any, work: Work) -> float:
    """Returns the longest idle time of a slice between its first and its last action; B takes two units."""
    problem = problem_of(work, {action: 1.0 + (action.kind == "B") for action in work.needs})
    numbers, takes = problem.numbered(orders), problem.durations
    run = replay(problem, numbers)
    assert run is not None
    return max(
        run.end[row[-1]] - run.end[row[0]] + takes[row[0]] - sum(takes[n] for n in row) for row in numbers
    )


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Random pipeline with times, links and a limit of microbatches that a stage works on at once."""

    work: Work
    costs: Costs
    limit: int

    def problem(self, limits: Sequence[Limit] = ()) -> SearchProblem:
        """Returns the pipeline, to be replayed."""
        assert self.costs.durations is not None
        return problem_of(self.work, self.costs.durations, limits, self.costs.delays)

    def step_time(self, costs: Costs, policy: str, **options: int) -> float:
        """Returns the time of a step by a policy that gets these costs; infinite for one that does not
        fit."""
        try:
            orders = orders_by(ScheduleRequest(policy, max_live=self.limit, **options), self.work, costs, str)
        except PolicyError:
            return math.inf
        return replayed(self.problem(), orders)


def draw(rng: random.Random) -> Drawn:
    """Draws a pipeline as `DRAWN` describes."""
    stages = rng.choice([4, 6, 8])
    half = stages // 2
    is_v = rng.random() < 0.5
    places = (*range(half), *reversed(range(half))) if is_v else tuple(range(stages))
    work = line(places, rng.randint(stages, 4 * stages))
    takes: dict[tuple[int, str], float] = {}
    for stage in range(stages):
        forward = 2.5 ** rng.uniform(-0.5, 0.5)
        takes[stage, "F"] = forward
        takes[stage, "I"] = forward * rng.uniform(0.8, 1.4)
        takes[stage, "W"] = forward * rng.uniform(0.6, 1.1)
    link = rng.uniform(0.0, 0.5)
    delays = {
        (need, action): link
        for action, needs in work.needs.items()
        for need in needs
        if work.slices[need.stage] != work.slices[action.stage]
    }
    durations = {action: takes[action[:2]] for action in work.needs}
    return Drawn(work, Costs(durations, delays=delays), rng.randint(1, stages))


DRAWN = (
    "S = 4, 6 or 8 stages, on a slice each or in a V; M = S..4S; forwards 1 to 2.5, I 0.8 to 1.4 and W 0.6 "
    "to 1.1 of that; links 0 to 0.5; max-live 1..S, up to what 1f1b needs"
)


def searches() -> Iterator[Row]:
    """Measures the gain of a search over the best policy under the same limits, on pipelines of unequal
    stages."""
    named, timed, gaps, seconds, worse = [], [], [], [], 0
    print(f"drawn 50 times: {DRAWN}")
    for seed in range(50):
        drawn = draw(random.Random(f"{SEED}/{seed}"))
        by_name = min(drawn.step_time(Costs(), policy) for policy in POLICIES)
        by_times = min(drawn.step_time(drawn.costs, policy) for policy in POLICIES)
        began = time.perf_counter()
        taken = drawn.step_time(drawn.costs, "search", iterations=400)
        seconds.append(time.perf_counter() - began)
        worse += taken > min(by_name, by_times) * (1 + 1e-9)
        named.append(by_name / taken - 1)
        timed.append(min(by_name, by_times) / taken - 1)
        gaps.append(taken / drawn.problem(counted(drawn.work.needs, drawn.limit)).lower_bound() - 1)
    yield {
        "case": "search, 50 pipelines",
        "worse": worse,
        "gain over policies by name": f"{statistics.median(named):.1%}",
        "over policies with times and links": f"{statistics.median(timed):.1%} (largest {max(timed):.1%})",
        "at the bound": sum(gap < 1e-6 for gap in gaps),
        "gap": f"{statistics.median(gaps):.1%} (largest {max(gaps):.1%})",
        "s": statistics.median(seconds),
        "target": "worse 0, gain 3 %",
    }


def problem_of(
    work: Work,
    durations: Mapping[Action, float],
    limits: Sequence[Limit] = (),
    delays: Mapping[tuple[Action, Action], float] | None = None,
) -> SearchProblem:
    """Returns the problem that a search solves."""
    place = {stage: work.rows.index(slice) for stage, slice in work.slices.items()}
    return SearchProblem(place, work.needs, durations, limits, delays)


def replayed(problem: SearchProblem, orders: Any) -> float:
    """Returns the time of a step."""
    run = replay(problem, problem.numbered(orders))
    assert run is not None
    return run.step_time


def compile_times() -> Iterator[Row]:
    """Measures cutting, scheduling and proving a long pipeline, against 1f1b; and a search with a time
    limit."""
    s, m = 16, 64
    params = [np.zeros((8, 8), np.float32)] * s
    lowered = lower_pipeline(
        lambda w, x: jnp.tanh(x @ w), s, m, "1f1b", params, np.zeros((m, 4, 8), np.float32)
    )
    text = lowered.as_text("placed")
    counted_passes = ("pw-split-backward", "pw-schedule", "pw-verify-schedule")
    times: dict[str, float] = {}
    for policy in ("1f1b", "zb-h1", "search(seconds=2)"):
        runs = []
        for _ in range(1 if "search" in policy else 3):
            module = ir.Module.parse(text, make_context())
            spent = 0.0
            for phase in phases_after(Options(policy=policy), "placed"):
                for each in phase.passes:
                    began = time.perf_counter()
                    run_passes(module, [each], verify_each=False)
                    spent += (time.perf_counter() - began) * (each.name in counted_passes)
            runs.append(spent)
        times[policy] = statistics.median(runs)
    yield {
        "case": "split + schedule + proof, S=16 M=64",
        "zb-h1 / 1f1b": times["zb-h1"] / times["1f1b"],
        "1f1b s": times["1f1b"],
        "with search(seconds=2) s": times["search(seconds=2)"],
        "target": "2",
    }


def main() -> None:
    """Parses the command line, measures, and prints."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each run")
    options = parser.parse_args()
    connect(cpu_devices=16)
    parts = {
        "halves": lambda: halves(options.steps),
        "real": lambda: real_steps(options.steps),
        "bubbles": bubbles,
        "towers": towers,
        "towers over the batch": grad_cache,
        "search": searches,
        "compile": compile_times,
    }
    run_parts(options, parts)


if __name__ == "__main__":
    main()
