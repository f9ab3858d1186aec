"""Replays of a program for `pw-sim`, and their output."""

from __future__ import annotations

import argparse
import json
from typing import Any

from pathways.runtime.traces.timeline import Timeline
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import write_output
from pathways.tools.drivers.comparison import compare_requested
from pathways.tools.inputs.scheduled import durations_text, read_model, read_plan, simulated


def run(options: argparse.Namespace) -> int:
    """Runs the tool for its flags; returns the exit code."""
    if options.save_times is not None:
        return _save_times(options)
    if options.compare or options.schedules:
        return _compare(options)
    if options.limits or options.steps is not None:
        flag = "--limits" if options.limits else "--steps"
        raise UserError(f"{flag} is for --compare and --schedule")
    plan = read_plan(options.input)
    if plan is None:
        return 1
    timeline = simulated(plan, read_model(options, plan))
    if options.trace is not None:
        try:
            timeline.save_trace(options.trace)
        except OSError as error:
            raise UserError(f"cannot write output file '{options.trace}': {error.strerror}") from None
    text = json.dumps(_summary(timeline), indent=2) + "\n" if options.json else f"{timeline}\n"
    write_output(options.output, text.encode())
    return 0


def _save_times(options: argparse.Namespace) -> int:
    """Writes the durations in a trace."""
    if options.times is None:
        raise UserError("--save-times writes the durations of a trace; give it with --times")
    write_output(options.save_times, durations_text(options.times))
    return 0


def _compare(options: argparse.Namespace) -> int:
    """Prints the replay of a program by each policy."""
    if options.trace is not None:
        flag = "--compare" if options.compare else "--schedule"
        raise UserError(f"{flag} and --trace exclude each other: a trace is of one schedule")
    steps = 1 if options.steps is None else options.steps
    if steps < 1:
        raise UserError("--steps: must be at least 1")
    comparison = compare_requested(options, steps)
    if comparison is None:
        return 1
    text = f"{comparison}\n"
    if options.json:
        policies = {
            policy: _summary(timeline)
            | ({"steady_step_time": comparison.steady[policy]} if comparison.steady else {})
            for policy, timeline in comparison.timelines.items()
        }
        text = json.dumps({"policies": policies, "refused": comparison.refused}, indent=2) + "\n"
    write_output(options.output, text.encode())
    return 0


def _summary(timeline: Timeline) -> dict[str, Any]:
    """Returns the figures of a timeline for JSON; times are in its unit, memory in bytes."""
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
                "idle": timeline.idle(name),
                "peak_bytes": timeline.peak_bytes(name),
            }
            for name in timeline.slices
        },
        "critical_path": [
            {"name": event.name, "slice": event.slice, "start": event.start, "end": event.end}
            for event in (timeline.events[n] for n in timeline.critical_path)
        ],
    }
