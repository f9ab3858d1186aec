"""Figures of a compiled program, and tables of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir

from pathways.compiler.stages import Compiled, Lowered
from pathways.dialect import TransferOp, make_context, ops_named
from pathways.dialect.operations.operation import symbol_name
from pathways.passes.manager.base import main_function
from pathways.passes.schedule.policies.request import read_request
from pathways.runtime.plan.plan import Launch, Plan, Transfer
from pathways.runtime.plan.sub_programs import shown_program
from pathways.runtime.resources.tables import duration, duration_with_unit, percent, size, table
from pathways.tools.inputs.type_trees import type_tree

Row = Mapping[str, Any]


def figures(lowered: Lowered, compiled: Compiled) -> dict[str, Any]:
    """Returns the totals of one call of a program, and the shares of slices, computations and channels.

    Sizes are in bytes, times in seconds, except for the planned step time, which has its unit.
    """
    plan = compiled.plan
    cost = compiled.cost_analysis()
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    program = ir.Module.parse(lowered.as_text(), make_context())
    module = shown_program(program)
    loops = [{"loop": op.sym_name, "microbatches": op.count} for op in ops_named(module, ["pw.loop"])]
    timeline = compiled.timeline() if loops else None
    link = _link(lowered.schedule) if loops else None
    return {
        "program": lowered.name,
        "chunk_of": None if module is program else symbol_name(module.operation.opview),
        "arguments": {name: type_ for name, (type_, _) in _arguments(compiled).items()},
        "launches": cost["launches"],
        "transfers": cost["transfers"],
        "bytes_transferred": cost["bytes transferred"],
        "flops": cost["flops"],
        "planned_step_time": timeline and timeline.step_time,
        "planned_unit": timeline and timeline.unit,
        "bubble": timeline and timeline.mean_bubble,
        "links": link and " ".join(f"{name}={value}" for name, value in link.items()),
        "planned_step_time_on_links": link and compiled.timeline(**link).step_time,
        "loops": loops,
        "slices": _slices(plan, launches),
        "computations": [
            {
                "computation": name,
                "slice": slice_name,
                "launches": n,
                "flops_each": compiled.flops(name, slice_name),
            }
            for (name, slice_name), n in Counter((s.computation, s.slice) for s in launches).items()
        ],
        "modules": _modules(compiled),
        "memory": {name: dataclasses.asdict(of) for name, of in compiled.memory_analysis().items()},
        "channels": _channels(module, plan),
    }


def explain(lowered: Lowered, compiled: Compiled) -> str:
    """Returns the figures of a program as tables."""
    of = figures(lowered, compiled)
    tables = [
        f"program {of['program']}\n{table(_totals(of))}",
        table([("argument", "type"), *type_tree(_arguments(compiled))]) if of["arguments"] else "",
        _table(of["loops"]),
        _table([{**row, "mesh": _mesh(row["mesh"])} for row in of["slices"]]),
        _table([{**row, "flops_each": f"{row['flops_each']:.4g}"} for row in of["computations"]]),
        _table(_shown_modules(of["modules"])),
        f"memory\n{compiled.memory_analysis()}",
        _table([{**row, "bytes": size(row["bytes"])} for row in of["channels"]]),
    ]
    return "\n\n".join(filter(None, tables))


def _arguments(compiled: Compiled) -> dict[str, tuple[str, int]]:
    """Returns the type and the bytes of each argument, by its name."""
    names = compiled.executable.interface.argument_paths
    return {
        name: (aval.str_short(short_dtypes=True), aval.size * aval.dtype.itemsize)
        for name, aval in zip(names, compiled.in_avals, strict=True)
    }


_HEADS = {"flops_each": "FLOPs each", "module": "XLA module", "seconds": "time", "how": ""}
"""Column headings that differ from the names of their figures."""


def _table(rows: Sequence[Row]) -> str:
    """Returns a table of figures under their names; empty without rows."""
    if not rows:
        return ""
    return table(
        [tuple(_HEADS.get(name, name) for name in rows[0]), *(tuple(map(str, r.values())) for r in rows)]
    )


def _totals(of: Row) -> list[tuple[str, str]]:
    totals = [
        *([("of a chunk of", f"@{of['chunk_of']}")] if of["chunk_of"] else []),
        ("slices", str(len(of["slices"]))),
        ("computations", str(len({row["computation"] for row in of["computations"]}))),
        ("launches", str(of["launches"])),
        ("transfers", str(of["transfers"])),
        ("channels", str(len(of["channels"]))),
        ("bytes on the wire", size(of["bytes_transferred"])),
        ("FLOPs", f"{of['flops']:.4g}"),
    ]
    if of["planned_step_time"] is not None:
        totals += [
            ("planned step time", duration_with_unit(of["planned_step_time"], of["planned_unit"])),
            ("bubble", percent(of["bubble"])),
        ]
    if of["links"]:
        step_time, unit = of["planned_step_time_on_links"], of["planned_unit"]
        waited = duration_with_unit(step_time - of["planned_step_time"], unit)
        totals.append(
            (
                f"with links of {of['links']}",
                f"{duration_with_unit(step_time, unit)}, {waited} of them for links",
            )
        )
    return totals


def _link(schedule: str | None) -> dict[str, str] | None:
    """Returns the latency and bandwidth of links that a policy uses; None if it uses none."""
    if not schedule or schedule.endswith(".csv"):
        return None
    request = read_request(schedule)
    stated = {"latency": request.latency, "bandwidth": request.bandwidth}
    return {name: value for name, value in stated.items() if value} or None


def _slices(plan: Plan, launches: Sequence[Launch]) -> list[Row]:
    return [
        {
            "slice": name,
            "mesh": dict(zip(spec.axis_names, spec.shape, strict=True)),
            "computations": len({launch.computation for launch in launches if launch.slice == name}),
            "launches": sum(launch.slice == name for launch in launches),
        }
        for name, spec in plan.slices.items()
    ]


def _mesh(mesh: Mapping[str, int]) -> str:
    return " ".join(f"{axis}={n}" for axis, n in mesh.items())


def _modules(compiled: Compiled) -> list[Row]:
    """Returns the modules that XLA compiled, the slowest first, with their seconds."""
    executable = compiled.executable.loaded
    pairs = sorted(
        zip(executable.requests, executable.loaded, strict=True), key=lambda pair: -pair[1].seconds
    )
    return [
        {
            "module": request.computation.name,
            "slice": request.slice,
            "instructions": sum(
                module.to_string().count(" = ") for module in loaded.executable.hlo_modules()
            ),
            "seconds": loaded.seconds,
            "how": loaded.provenance,
        }
        for request, loaded in pairs
    ]


def _shown_modules(modules: Sequence[Row]) -> list[Row]:
    """Returns modules with their share of the compile time.

    Threads compile in parallel, so the total is less than the sum.
    """
    total = sum(row["seconds"] for row in modules)
    return [
        {
            **{name: row[name] for name in ("module", "slice", "instructions")},
            "seconds": duration(row["seconds"], "s"),
            "share": percent(row["seconds"] / total if total else 0.0),
            "how": row["how"],
        }
        for row in modules
    ]


def _channels(module: ir.Module, plan: Plan) -> list[Row]:
    """Returns each channel of the program, with the values that pass through it in one call."""
    block = main_function(module).regions[0].blocks[0]
    ops = [op for op in block.operations if isinstance(op, TransferOp)]
    # The plan has the transfers of the module in the same order.
    steps = [step for step in plan.steps if isinstance(step, Transfer)]
    count: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for op, step in zip(ops, steps, strict=True):
        count[op.channel] += 1
        moved[op.channel] += plan.bytes_moved(step)
    return [
        {
            "channel": op.sym_name,
            "from": op.src,
            "to": op.dst,
            "type": str(op.value_type).removeprefix("tensor<").removesuffix(">"),
            "transfers": count[op.sym_name],
            "bytes": moved[op.sym_name],
        }
        for op in ops_named(module, ["pw.channel"])
    ]
