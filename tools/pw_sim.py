"""`pw-sim` replays a scheduled program: its step time, bubbles, peak memory and critical path."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pathways.tools import scheduled
from pathways.tools.files import UserError, write_output

if TYPE_CHECKING:
    from pathways.runtime.timelines.timeline import Timeline

_DESCRIPTION = """\
Replays a program in scheduled form and prints its step time, the bubble (the part of the step in which a
slice does not compute) and peak memory of each slice, and the critical path. Each slice runs its launches
in order; a send waits for room on its channel, takes no time of its slice and occupies the link.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; returns its exit code: 0, 1 for any error, 130 when interrupted.

    Args:
      arguments: those of the command line when left out, in a process that can report a crash of MLIR;
        otherwise the tool runs in this process.
    """
    return scheduled.run("pw-sim", _main, arguments)


def _main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.version:
        write_output("-", scheduled.version_of("pw-sim").encode())
        return 0
    plan = scheduled.read_plan(options.input)
    if plan is None:
        return 1
    timeline = scheduled.simulated(plan, *scheduled.read_model(options, plan))
    if options.trace is not None:
        try:
            timeline.save_trace(options.trace)
        except OSError as error:
            raise UserError(f"cannot write output file '{options.trace}': {error.strerror}") from None
    text = json.dumps(summary(timeline), indent=2) + "\n" if options.json else f"{timeline}\n"
    write_output(options.output, text.encode())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = scheduled.Parser("pw-sim", "pw-sim [FILE] [--times FILE] [flags]", _DESCRIPTION)
    parser.add_argument(
        "input", nargs="?", default="-", metavar="FILE", help="the program; default: standard input"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for Perfetto and pw-viz")
    parser.add_argument("-o", dest="output", default="-", metavar="FILE", help="default: standard output")
    parser.add_argument("--version", action="store_true", help="print the version")
    return parser


def summary(timeline: Timeline) -> dict[str, Any]:
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


if __name__ == "__main__":
    sys.exit(main())
