"""Timelines that `pw-viz` draws."""

from __future__ import annotations

import argparse

from pathways.passes.analysis.measured.events import EventLog
from pathways.runtime.traces.page import page_of
from pathways.runtime.traces.picture import picture_of
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import check_extension, write_output
from pathways.tools.drivers.comparison import compare_requested
from pathways.tools.inputs.scheduled import read_model, read_plan, read_timelines, simulated


def run(options: argparse.Namespace) -> int:
    """Runs the tool for its flags; returns the exit code."""
    timelines: list[EventLog] = []
    if options.input is not None:
        replays = _replays(options)
        if replays is None:
            return 1
        timelines += replays
    for path in options.traces:
        timelines += _steps_of(read_timelines(path), options.step, path)
    if options.output.endswith(".svg"):
        write_output(options.output, picture_of(timelines).encode())
        return 0
    check_extension("pw-viz", options.output, "a page of HTML", ".html", ".htm")
    write_output(options.output, page_of(timelines).encode())
    return 0


def _replays(options: argparse.Namespace) -> list[EventLog] | None:
    """Returns the planned timeline, and the simulated one if it differs; or the timeline of each policy."""
    if options.compare or options.schedules:
        return _by_policies(options)
    if options.limits:
        raise UserError("--limits is for policies; give --schedule or --compare")
    plan = read_plan(options.input)
    if plan is None:
        return None
    by_default = argparse.Namespace(times=None, taken=1.0, latency=None, bandwidth=None)
    models = [read_model(by_default, plan)]
    if (requested := read_model(options, plan)) != models[0]:
        models.append(requested)
    return [simulated(plan, model) for model in models]


def _by_policies(options: argparse.Namespace) -> list[EventLog] | None:
    """Returns the timelines of a program by several policies, the fastest first."""
    comparison = compare_requested(options)
    if comparison is None:
        return None
    for policy in options.schedules:
        if policy in comparison.refused:
            raise UserError(f"{policy} {comparison.refused[policy]}")
    return list(comparison.timelines.values())


def _steps_of(timelines: list[EventLog], step: str, path: str) -> list[EventLog]:
    """Returns the steps of a trace that are to be drawn."""
    if step == "all":
        return timelines
    if step == "last":
        return timelines[-1:]
    if not (step.isascii() and step.isdecimal()) or int(step) >= len(timelines):
        raise UserError(f"--step: '{path}' has steps 0 to {len(timelines) - 1}, got '{step}'")
    return [timelines[int(step)]]
