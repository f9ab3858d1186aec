"""Random loops, with glue, skip connections and code around them, get orders that are proved."""

from __future__ import annotations

import dataclasses
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from examples import examples
from pathways.dialect import LaunchOp, make_context
from pathways.dialect.relations.order import events_of, proved_order
from pathways.dialect.relations.program_view import read_program
from pathways.passes.analysis.functions import body_block
from pathways.passes.manager.base import main_function
from pathways.passes.manager.driver import run_passes
from pathways.passes.schedule.order.schedule import Schedule, schedule_of
from pathways.passes.schedule.policies.actions import action_of
from pathways.passes.schedule.policies.pipeline import Pipeline
from pathways.passes.schedule.policies.registry import POLICIES

CONTEXT = make_context()


@dataclasses.dataclass(frozen=True)
class Step:
    """A launch of the code of one microbatch; it reads steps before it, by their numbers."""

    slice: int
    phase: str
    stage: int | None
    reads: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Loop:
    """Steps of a loop for each microbatch, in an order that meets data edges."""

    slices: tuple[int, ...]
    microbatches: int
    backward: bool
    overlap: bool
    steps: tuple[Step, ...]

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(self.slices, self.microbatches, self.backward)


@st.composite
def loops(draw: st.DrawFn) -> Loop:
    width = draw(st.integers(2, 4))
    owners = [*range(width)]
    for _ in range(draw(st.integers(0, 3))):
        owners.append(draw(st.sampled_from([s for s in range(width) if s != owners[-1]])))
    backward = draw(st.booleans())
    chain = [("fwd", k) for k in range(len(owners))]
    chain += [("bwd", k) for k in reversed(range(len(owners)))] if backward else []
    steps: list[Step] = []
    number: dict[tuple[str, int], int] = {}

    def glue(phase: str) -> None:
        for _ in range(draw(st.integers(0, 2))):
            stage = draw(st.integers(0, len(owners) - 1))
            known = draw(st.sampled_from([phase, "glue"]))
            place = owners[stage] if known == "recompute" else draw(st.integers(0, width - 1))
            reads = draw(st.lists(st.integers(0, len(steps) - 1), max_size=2, unique=True)) if steps else []
            steps.append(Step(place, known, stage if known == "recompute" else None, tuple(reads)))

    for phase, k in chain:
        glue("glue" if phase == "fwd" else "recompute")
        needs = [number[p, s] for p, s in ((phase, k - 1 if phase == "fwd" else k + 1),) if (p, s) in number]
        needs += [number["fwd", k]] if phase == "bwd" else []
        more = draw(st.lists(st.integers(0, len(steps) - 1), max_size=2)) if steps else []
        number[phase, k] = len(steps)
        steps.append(Step(owners[k], phase, k, tuple(dict.fromkeys([*needs, *more]))))
    glue("glue")
    return Loop(tuple(owners), draw(st.integers(1, 4)), backward, draw(st.booleans()), tuple(steps))


def text_of(loop: Loop) -> str:
    """The unrolled loop as a module, between a launch that all its steps read and one that reads a result."""
    width = loop.pipeline.width
    lines = ["!x = tensor<4xf32>", 'sdy.mesh @mesh = <["x"=1]>']
    overlap = ", overlap" if loop.overlap else ""
    lines += [f'"pw.slice"() {{sym_name = "s{s}", mesh = @mesh{overlap}}} : () -> ()' for s in range(width)]
    lines += [
        f'"pw.loop"() {{sym_name = "l", count = {loop.microbatches} : i64}} : () -> ()',
        f"func.func @main(%x: !x {{pw.slice = @s0}}) -> (!x {{pw.slice = @s{loop.steps[-1].slice}}}) {{",
        '%w = "pw.launch"(%x) {callee = @f1, slice = @s0} : (!x) -> !x',
    ]
    moved: set[str] = set()

    def on(value: str, source: int, target: int) -> str:
        if source == target:
            return value
        if f"{value}_{target}" not in moved:
            moved.add(f"{value}_{target}")
            of = re.fullmatch(r"%v(\d+)_\d+", value)
            loop = f"loop = @l, microbatch = {of[1]}, " if of else ""
            lines.append(
                f'{value}_{target} = "pw.transfer"({value}) {{{loop}slice = @s{target}}} : (!x) -> !x'
            )
        return f"{value}_{target}"

    for m in range(loop.microbatches):
        for n, step in enumerate(loop.steps):
            read = [on("%w", 0, step.slice), on("%x", 0, step.slice)]
            read += [on(f"%v{m}_{k}", loop.steps[k].slice, step.slice) for k in step.reads]
            stage = "" if step.stage is None else f", stage = {step.stage} : i64"
            origin = f'[{{kind = "{step.phase}", microbatch = {m} : i64{stage}}}]'
            origins = "" if step.phase == "glue" else f"origins = {origin}, "
            lines.append(
                f'%v{m}_{n} = "pw.launch"({", ".join(read)}) {{callee = @f{len(read)}, loop = @l, '
                f"microbatch = {m} : i64, {origins}slice = @s{step.slice}}} "
                f": ({', '.join(['!x'] * len(read))}) -> !x"
            )
    result, last = "%v0_" + str(len(loop.steps) - 1), loop.steps[-1].slice
    if loop.microbatches > 1:
        terms = [f"%v{m}_{len(loop.steps) - 1}" for m in range(loop.microbatches)]
        lines.append(
            f'%r = "pw.reduce"({", ".join(terms)}) {{kind = "sum", loop = @l, slice = @s{last}}} '
            f": ({', '.join(['!x'] * len(terms))}) -> !x"
        )
        result = "%r"
    lines.append(f'%z = "pw.launch"({result}) {{callee = @f1, slice = @s{last}}} : (!x) -> !x')
    lines.append("return %z : !x\n}")
    lines += [f"func.func private @f{n}({', '.join(['!x'] * n)}) -> !x" for n in range(1, 9)]
    return "\n".join(lines)


def actions_of(module: ir.Module, place: int) -> list[str]:
    """The actions of a slice in the order of its launches."""
    launches = [
        op
        for op in body_block(main_function(module)).operations
        if isinstance(op, LaunchOp) and op.slice == f"s{place}"
    ]
    launches.sort(key=lambda op: op.order)
    return [str(action) for op in launches for action in map(action_of, op.origins) if action is not None]


@settings(max_examples=examples(70), deadline=None)
@given(loops(), st.sampled_from(["program", "gpipe", "1f1b", "eager"]), st.integers(0, 3))
def test_schedule_of_random_loops_is_proved(loop: Loop, policy: str, bound: int):
    max_live = bound if policy == "eager" else 0
    module = ir.Module.parse(text_of(loop), CONTEXT)
    run_passes(module, [Schedule(policy=policy, max_live=max_live)])
    with CONTEXT:
        proved_order(events_of(read_program(module)))
    if policy == "program":
        return
    for place, order in enumerate(POLICIES[policy](dataclasses.replace(loop.pipeline, max_live=max_live))):
        assert actions_of(module, place) == list(map(str, order))


@settings(max_examples=examples(35), deadline=None)
@given(loops(), st.sampled_from(["program", "gpipe", "1f1b"]))
def test_schedule_written_to_a_file_gives_the_same_program(tmp_path_factory, loop: Loop, policy: str):
    first, second = (ir.Module.parse(text_of(loop), CONTEXT) for _ in range(2))
    run_passes(first, [Schedule(policy=policy)])
    file = tmp_path_factory.mktemp("schedule") / "schedule.csv"
    with CONTEXT:
        file.write_text(schedule_of(first))
    run_passes(second, [Schedule(file=str(file))])
    for place in range(loop.pipeline.width):
        assert actions_of(second, place) == actions_of(first, place)
