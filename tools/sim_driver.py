"""Replays a program for `pw-sim` and prints what that shows."""

from __future__ import annotations

import argparse
import json
from typing import Any

from pathways.runtime.simulate.replay import simulate
from pathways.runtime.timelines.timeline import Timeline
from pathways.tools.comparison import compare
from pathways.tools.errors import UserError
from pathways.tools.files import write_output
from pathways.tools.scheduled import read_model, read_plan, simulated


def run(options: argparse.Namespace) -> int:
    """Does what the flags ask for; returns the exit code."""
    if options.compare:
        return _compare(options)
    plan = read_plan(options.input)
    if plan is None:
        return 1
    timeline = simulated(plan, *read_model(options, plan))
    if options.trace is not None:
        try:
            timeline.save_trace(options.trace)
        except OSError as error:
            raise UserError(f"cannot write output file '{options.trace}': {error.strerror}") from None
    text = json.dumps(_summary(timeline), indent=2) + "\n" if options.json else f"{timeline}\n"
    write_output(options.output, text.encode())
    return 0


def _compare(options: argparse.Namespace) -> int:
    """Prints what each policy makes of a program."""
    if options.trace is not None:
        raise UserError("--compare and --trace exclude each other: a trace is of one schedule")
    comparison = compare(options.input, lambda plan: simulate(plan, *read_model(options, plan)))
    if comparison is None:
        return 1
    text = f"{comparison}\n"
    if options.json:
        policies = {policy: _summary(timeline) for policy, timeline in comparison.timelines.items()}
        text = json.dumps({"policies": policies, "refused": comparison.refused}, indent=2) + "\n"
    write_output(options.output, text.encode())
    return 0


def _summary(timeline: Timeline) -> dict[str, Any]:
    """The figures of a timeline for JSON; times are in its unit, memory in bytes."""
    return {
        "program": timeline.program,
        "unit": timeline.unit,
        "step_time": timeline.step_time,
        "bubble": timeline.mean_bubble,
        "launches": len(timeline.launches),
        "transfers": len(timeline.transfers),
        "bytes_transferred": sum(event.nbytes for event in timeline.transfers),
        "slices": {
            name: {
                "busy": timeline.busy(name),
                "bubble": timeline.bubble(name),
                "peak_bytes": timeline.peak_bytes(name),
            }
            for name in timeline.slices
        },
        "critical_path": [
            {"name": event.name, "slice": event.slice, "start": event.start, "end": event.end}
            for event in (timeline.events[n] for n in timeline.critical_path)
        ],
    }
