"""What a compiled program does, as a table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from jaxlib.mlir import ir

from pathways.compiler.stages import Compiled, Lowered
from pathways.dialect import TransferOp, make_context, ops_named
from pathways.passes.base import main_function
from pathways.runtime.plan.plan import Launch, Plan, Transfer
from pathways.runtime.timelines.tables import duration, percent, size, table


def explain(lowered: Lowered, compiled: Compiled) -> str:
    """The totals of one call of a program, and what each slice, computation and channel has of them."""
    plan = compiled.plan
    cost = compiled.cost_analysis()
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    module = ir.Module.parse(lowered.as_text(), make_context())
    channels = _channels(module, plan)
    loops = [(op.sym_name, str(op.count)) for op in ops_named(module, ["pw.loop"])]
    totals = [
        ("slices", str(len(plan.slices))),
        ("computations", str(len(plan.computations))),
        ("launches", str(cost["launches"])),
        ("transfers", str(cost["transfers"])),
        ("channels", str(len(channels))),
        ("bytes on the wire", size(cost["bytes transferred"])),
        ("FLOPs", f"{cost['flops']:.4g}"),
    ]
    if loops:
        timeline = compiled.timeline()
        totals += [
            ("planned step time", f"{timeline.step_time:g} units"),
            ("bubble", percent(timeline.mean_bubble)),
        ]
    slices = [
        (
            name,
            " ".join(f"{axis}={n}" for axis, n in zip(spec.axis_names, spec.shape, strict=True)),
            str(len({launch.computation for launch in launches if launch.slice == name})),
            str(sum(launch.slice == name for launch in launches)),
        )
        for name, spec in plan.slices.items()
    ]
    computations = [
        (*pair, str(count), f"{compiled.flops(*pair):.4g}")
        for pair, count in Counter((s.computation, s.slice) for s in launches).items()
    ]
    arguments = ", ".join(aval.str_short(short_dtypes=True) for aval in lowered.in_avals)
    tables = [
        f"program {lowered.name}({arguments})\n{table(totals)}",
        *([table([("loop", "microbatches"), *loops])] if loops else []),
        table([("slice", "mesh", "computations", "launches"), *slices]),
        table([("computation", "slice", "launches", "FLOPs each"), *computations]),
        table([("XLA module", "slice", "instructions", "time", "share", ""), *_modules(compiled)]),
        f"memory\n{compiled.memory_analysis()}",
    ]
    if channels:
        tables.append(table([("channel", "from", "to", "type", "transfers", "bytes"), *channels]))
    return "\n\n".join(tables)


def _modules(compiled: Compiled) -> list[tuple[str, ...]]:
    """Each module that XLA made, the slowest first, with its share of the time that all took.

    Several threads compile, so that all together takes less than the sum.
    """
    executable = compiled.call.executable
    pairs = sorted(
        zip(executable.requests, executable.loaded, strict=True), key=lambda pair: -pair[1].seconds
    )
    total = sum(loaded.seconds for _, loaded in pairs)
    return [
        (
            request.computation.name,
            request.slice,
            str(_instructions(loaded.executable)),
            duration(loaded.seconds, "s"),
            percent(loaded.seconds / total if total else 0.0),
            loaded.how,
        )
        for request, loaded in pairs
    ]


def _instructions(executable: Any) -> int:
    """The number of instructions in the optimized module of an executable."""
    return sum(text.count(" = ") for text in (module.to_string() for module in executable.hlo_modules()))


def _channels(module: ir.Module, plan: Plan) -> list[tuple[str, ...]]:
    """Each channel of the program, with what passes through it in one call."""
    block = main_function(module).regions[0].blocks[0]
    ops = [op for op in block.operations if isinstance(op, TransferOp)]
    # The plan has the transfers of the module in the same order.
    steps = [step for step in plan.steps if isinstance(step, Transfer)]
    count: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for op, step in zip(ops, steps, strict=True):
        count[op.channel] += 1
        moved[op.channel] += plan.bytes_moved(step)
    rows: list[tuple[str, ...]] = []
    for op in ops_named(module, ["pw.channel"]):
        type_ = str(op.value_type).removeprefix("tensor<").removesuffix(">")
        name = op.sym_name
        rows.append((name, op.src, op.dst, type_, str(count[name]), size(moved[name])))
    return rows
