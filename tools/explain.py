"""What a compiled program does, as a table."""

from __future__ import annotations

from collections import Counter

from jaxlib.mlir import ir

from pathways.compiler.stages import Compiled, Lowered
from pathways.dialect import make_context
from pathways.runtime.plan import Launch
from pathways.runtime.tables import size, table


def explain(lowered: Lowered, compiled: Compiled) -> str:
    """The totals of one call of a program, and what each slice and each computation has of them."""
    plan = compiled.plan
    cost = compiled.cost_analysis()
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    totals = [
        ("slices", str(len(plan.slices))),
        ("computations", str(len(plan.computations))),
        ("launches", str(cost["launches"])),
        ("transfers", str(cost["transfers"])),
        ("channels", str(_channels(lowered))),
        ("bytes on the wire", size(cost["bytes transferred"])),
        ("FLOPs", f"{cost['flops']:.4g}"),
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
        (computation, slice, str(count))
        for (computation, slice), count in Counter((s.computation, s.slice) for s in launches).items()
    ]
    arguments = ", ".join(aval.str_short(short_dtypes=True) for aval in lowered.in_avals)
    return "\n\n".join(
        [
            f"program {lowered.name}({arguments})\n{table(totals)}",
            table([("slice", "mesh", "computations", "launches"), *slices]),
            table([("computation", "slice", "launches"), *computations]),
            f"memory\n{compiled.memory_analysis()}",
        ]
    )


def _channels(lowered: Lowered) -> int:
    module = ir.Module.parse(lowered.as_text(), make_context())
    return sum(op.operation.name == "pw.channel" for op in module.body.operations)
