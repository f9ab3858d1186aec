"""`pw-sim` replays a scheduled program: its step time, bubbles, peak memory and critical path."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pathways.tools.common import command
from pathways.tools.common.flags import TIMES_HELP, FlagParser, add_schedule_flags, add_timing_flags, count

_DESCRIPTION = """\
Replays a program in scheduled form and prints its step time, the bubble (the part of the step in which a
slice does not compute) and peak memory of each slice, and the critical path. Each slice runs its launches
in order; a send waits for room on its channel, takes no time of its slice and occupies the link.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; see `command.run`."""
    return command.run(make_parser(), _run, arguments)


def _run(options: argparse.Namespace) -> int:
    from pathways.tools.drivers import sim as driver

    return driver.run(options)


def make_parser() -> FlagParser:
    """Returns the flags of the tool."""
    parser = FlagParser(
        "pw-sim", "pw-sim [FILE] [--times FILE] [flags]", _DESCRIPTION, lambda: TIMES_HELP, library=None
    )
    add = parser.add_argument
    add(
        "input",
        nargs="?",
        default="-",
        metavar="FILE",
        help="the program, or a bundle: FILE.pwb; default: standard input",
    )
    add_timing_flags(parser)
    add("--json", action="store_true", help="print the figures as JSON")
    add("--compare", action="store_true", help="schedule a placed program by every policy, side by side")
    add_schedule_flags(parser)
    add("--steps", type=count, metavar="N", help="with --compare: also replay N consecutive steps")
    add("--save-times", metavar="FILE", help="only write the durations of the trace in --times, for policies")
    add("--trace", metavar="FILE", help="write a trace for Perfetto and pw-viz")
    add("-o", dest="output", default="-", metavar="FILE", help="default: standard output")
    return parser


if __name__ == "__main__":
    sys.exit(main())
