"""`pw-viz` draws the timeline of a program: planned, simulated and measured, as one HTML page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pathways.tools.common import command
from pathways.tools.common.errors import UserError
from pathways.tools.common.flags import TIMES_HELP, FlagParser, add_schedule_flags, add_timing_flags

_DESCRIPTION = """\
Draws slices against time, with the memory of each slice below it, on one self-contained page. FILE is a
program in scheduled form: it is drawn as planned, with one unit for each placed call, and as simulated when
durations or links are given. Or it is one in placed form, which policies schedule: they are drawn under one
another. Traces of measured runs, from PW_TRACE or pw.trace, are drawn below it. With
-o FILE.svg only launches are drawn, as a picture for documents.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; see `command.run`."""
    return command.run(make_parser(), _run, arguments)


def _run(options: argparse.Namespace) -> int:
    if options.input is None and not options.traces:
        raise UserError("expected a program in scheduled form, or --trace; see pw-viz --help")

    from pathways.tools.drivers import viz as driver

    return driver.run(options)


def make_parser() -> FlagParser:
    """Returns the flags of the tool."""
    parser = FlagParser(
        "pw-viz",
        "pw-viz [FILE] [--trace FILE ...] [-o FILE] [flags]",
        _DESCRIPTION,
        lambda: TIMES_HELP,
        library=None,
    )
    add = parser.add_argument
    add("input", nargs="?", metavar="FILE", help="the program, or a bundle: FILE.pwb; - for standard input")
    add_timing_flags(parser)
    add(
        "--compare", action="store_true", help="schedule a placed program by every policy, the fastest on top"
    )
    add_schedule_flags(parser)
    add(
        "--trace",
        dest="traces",
        action="append",
        default=[],
        metavar="FILE",
        help="also draw a measured run; may be given several times",
    )
    add("--step", default="last", metavar="N", help="which step of a trace: a number, last or all")
    add(
        "-o",
        dest="output",
        default="-",
        metavar="FILE",
        help="a page, or FILE.svg: a picture of the launches alone; default: a page on standard output",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
