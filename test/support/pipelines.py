"""Scheduled programs of pipelines, written by hand: the order of every launch and send is explicit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.passes.manager.driver import run_passes
from pathways.passes.schedule.memory.plan_memory import PlanMemory
from pathways.passes.schedule.verify_schedule import VerifySchedule

Work = tuple[str, int, int]
"""Kind, stage and microbatch."""
Policy = Callable[[int, int, int, int], list[Work]]
"""Function from the number of a slice, and the numbers of slices, stages on a slice and microbatches, to its
work in order."""


def gpipe(slice: int, slices: int, folds: int, count: int) -> list[Work]:
    """Returns all forward passes, then all backward passes."""
    assert folds == 1
    return [(kind, slice, mb) for kind in ("fwd", "bwd") for mb in range(count)]


def one_f_one_b(slice: int, slices: int, folds: int, count: int) -> list[Work]:
    """Returns as many forward passes as there are later stages, then one backward for one forward."""
    assert folds == 1
    return _alternate(
        [("fwd", slice, mb) for mb in range(count)],
        [("bwd", slice, mb) for mb in range(count)],
        slices - slice - 1,
    )


def interleaved(slice: int, slices: int, folds: int, count: int) -> list[Work]:
    """Returns an order with more than one stage on each slice; groups of `slices` microbatches go through
    them in turn."""
    work: dict[str, list[Work]] = {"fwd": [], "bwd": []}
    for k in range(count * folds):
        group, place = divmod(k, slices * folds)
        mb, fold = group * slices + place % slices, place // slices
        work["fwd"].append(("fwd", fold * slices + slice, mb))
        work["bwd"].append(("bwd", (folds - 1 - fold) * slices + slice, mb))
    return _alternate(work["fwd"], work["bwd"], (slices - slice - 1) * 2 + (folds - 1) * slices)


def _alternate(forward: list[Work], backward: list[Work], warmup: int) -> list[Work]:
    warmup = min(warmup, len(forward))
    steady = [work for pair in zip(forward[warmup:], backward, strict=False) for work in pair]
    return [*forward[:warmup], *steady, *backward[len(forward) - warmup :]]


def pipeline(policy: Policy, slices: int, count: int, folds: int = 1) -> ir.Module:
    """Returns a pipeline of `slices * folds` stages in scheduled form, each value 16 bytes."""
    module = ir.Module.parse("\n".join(_lines(policy, slices, folds, count)), make_context())
    run_passes(module, [PlanMemory(), VerifySchedule()])
    return module


def _lines(policy: Policy, slices: int, folds: int, count: int) -> Iterator[str]:
    stages = slices * folds
    orders = {}
    for s in range(slices):
        position = 0
        for work in policy(s, slices, folds, count):
            kind, stage, _ = work
            orders[work] = position
            sends = stage + 1 < stages if kind == "fwd" else stage > 0
            position += 2 if sends and slices > 1 else 1
    yield "!x = tensor<4xf32>"
    yield 'module @pipeline attributes {pw.form = "ordered"} {'
    yield 'sdy.mesh @mesh = <["x"=1]>'
    for s in range(slices):
        yield f'"pw.slice"() {{sym_name = "s{s}", mesh = @mesh}} : () -> ()'
    yield f'"pw.loop"() {{sym_name = "l", count = {count}}} : () -> ()'
    for stage in range(stages - 1):
        for name, src, dst in ("act", stage, stage + 1), ("grad", stage + 1, stage):
            yield (
                f'"pw.channel"() {{sym_name = "{name}{stage}", src = @s{src % slices}, '
                f"dst = @s{dst % slices}, capacity = {count}, value_type = !x}} : () -> ()"
            )
    yield "func.func @main(%x: !x {pw.slice = @s0}) -> (!x {pw.slice = @s0}) {"
    for mb in range(count):
        for kind, order in ("fwd", range(stages)), ("bwd", range(stages - 1, -1, -1)):
            for stage in order:
                yield from _work(kind, stage, mb, stages, slices, orders[kind, stage, mb])
    yield f"return %dx{count - 1}_0 : !x }}"
    yield "func.func private @front(%x: !x) -> !x { return %x : !x }"
    yield "func.func private @front_bwd(%x: !x, %g: !x) -> !x { return %g : !x } }"


def _work(kind: str, stage: int, mb: int, stages: int, slices: int, order: int) -> Iterator[str]:
    """Yields a launch, and the send of its result to the slice of the stage that reads it."""
    callee, result, operands = "front", "y", ["%x" if stage == 0 else f"%x{mb}_{stage}"]
    if kind == "bwd":
        callee, result = "front_bwd", "dx"
        operands = [f"%y{mb}_{stage}", f"%g{mb}_{stage}" if stage + 1 < stages else f"%y{mb}_{stage}"]
    yield (
        f'%{result}{mb}_{stage} = "pw.launch"({", ".join(operands)}) {{callee = @{callee}, '
        f"loop = @l, microbatch = {mb}, order = {order}, slice = @s{stage % slices}, "
        f'origins = [{{kind = "{kind}", microbatch = {mb}, stage = {stage}}}]}} '
        f": ({', '.join('!x' for _ in operands)}) -> !x"
    )
    to = stage + 1 if kind == "fwd" else stage - 1
    if 0 <= to < stages:
        name, channel = ("x", f"act{stage}") if kind == "fwd" else ("g", f"grad{to}")
        yield (
            f'%{name}{mb}_{to} = "pw.transfer"(%{result}{mb}_{stage}) {{channel = @{channel}, '
            f"loop = @l, microbatch = {mb}, order = {order + 1}, slice = @s{to % slices}}} : (!x) -> !x"
        )
