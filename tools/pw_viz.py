"""`pw-viz` draws the timeline of a program: planned, simulated and measured, as one HTML page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pathways.tools import scheduled
from pathways.tools.files import UserError, write_output

if TYPE_CHECKING:
    from pathways.runtime.timelines.events import EventLog

_DESCRIPTION = """\
Draws slices by time, with the memory of each slice below it, on one page that needs nothing else. FILE is a
program in scheduled form: it is drawn as planned, with one unit for each placed call, and as simulated when
durations or links are given. Traces of measured runs, from PW_TRACE or pw.trace, are drawn below it.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; returns its exit code: 0, 1 for any error, 130 when interrupted.

    Args:
      arguments: those of the command line when left out, in a process that can report a crash of MLIR;
        otherwise the tool runs in this process.
    """
    return scheduled.run("pw-viz", _main, arguments)


def _main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.version:
        write_output("-", scheduled.version_of("pw-viz").encode())
        return 0
    if options.input is None and not options.traces:
        raise UserError("expected a program in scheduled form, or --trace; see pw-viz --help")
    timelines: list[EventLog] = []
    if options.input is not None:
        found = _of_program(options)
        if found is None:
            return 1
        timelines += found
    for path in options.traces:
        timelines += _chosen(scheduled.read_timelines([path]), options.step, path)

    from pathways.runtime.timelines.page import page_of

    write_output(options.output, page_of(timelines).encode())
    return 0


def _of_program(options: argparse.Namespace) -> list[EventLog] | None:
    """The planned timeline of a program, and the simulated one if it is another."""
    from pathways.runtime.simulate.links import Link
    from pathways.runtime.simulate.times import Times

    plan = scheduled.read_plan(options.input)
    if plan is None:
        return None
    times, link = scheduled.read_model(options, plan)
    timelines: list[EventLog] = [scheduled.simulated(plan, Times(), Link(), "planned")]
    if times.has_entries or link != Link():
        timelines.append(scheduled.simulated(plan, times, link, "simulated"))
    return timelines


def _chosen(timelines: list[EventLog], step: str, path: str) -> list[EventLog]:
    """The steps of a trace that are to be drawn."""
    if step == "all":
        return timelines
    if step == "last":
        return timelines[-1:]
    if not (step.isascii() and step.isdecimal()) or int(step) >= len(timelines):
        raise UserError(f"--step: '{path}' has steps 0 to {len(timelines) - 1}, got '{step}'")
    return [timelines[int(step)]]


def _parser() -> argparse.ArgumentParser:
    parser = scheduled.Parser("pw-viz", "pw-viz [FILE] [--trace FILE ...] [-o FILE] [flags]", _DESCRIPTION)
    add = parser.add_argument
    add("input", nargs="?", metavar="FILE", help="the program; - for standard input")
    add(
        "--trace",
        dest="traces",
        action="append",
        default=[],
        metavar="FILE",
        help="also draw a measured run; may be given several times",
    )
    add("--step", default="last", metavar="N", help="which step of a trace: a number, last or all")
    add("-o", dest="output", default="-", metavar="FILE", help="default: standard output")
    add("--version", action="store_true", help="print the version")
    return parser


if __name__ == "__main__":
    sys.exit(main())
