"""`pw-run` runs a bundle: no code of the program, no tracing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pathways.tools.common import command
from pathways.tools.common.errors import UserError
from pathways.tools.common.flags import FlagParser, count, cpu_devices

_DESCRIPTION = """\
Runs a program from a bundle, made by pw-compile -o or Compiled.save. Arrays in files are named as the bundle
names its arguments and results (pw-bundle inspect): x, params.w, result.0.
"""

_EXAMPLES = """\
examples:
  pw-run model.pwb --inputs in.npz --outputs out.npz
  pw-run model.pwb --input 2x2xf32=1,2,3,4 --input i32=7 --print
  pw-run step.pwb --random 0 --steps 100 --feed result.0:state

--input is given once for each of the first arguments, in the order of pw-bundle inspect. Its form is that of
iree-run-module: a single value is a splat, no value means zeros, and brackets may replace commas.
--print writes results in the same form, up to 1024 elements each.
--feed OUT:IN passes a result on to the next step: a leaf, or all leaves under a name to those under another.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; see `command.run`."""
    return command.run(make_parser(), _run, arguments)


def _run(options: argparse.Namespace) -> int:
    if options.bundle is None:
        raise UserError("expected a bundle; see pw-run --help")
    if options.steps < 1:
        raise UserError("--steps 0: expected at least 1")

    from pathways.tools.drivers import run as driver

    return driver.run(options)


def make_parser() -> FlagParser:
    """Returns the flags of the tool."""
    parser = FlagParser(
        "pw-run",
        "pw-run BUNDLE [--inputs FILE] [--outputs FILE] [--steps N] [--feed OUT:IN ...] [flags]",
        _DESCRIPTION,
        lambda: _EXAMPLES,
    )
    add = parser.add_argument
    add("bundle", nargs="?", metavar="BUNDLE", help="a file made by pw-compile -o or Compiled.save")
    add("--inputs", metavar="FILE", help="arrays by the names of arguments (.npz)")
    add(
        "--input",
        dest="values",
        action="append",
        default=[],
        metavar="VALUE",
        help="the next argument, such as 2x2xf32=1,2,3,4 or i32=7, or @FILE.npy",
    )
    add("--outputs", metavar="FILE", help="write the results of the last step by their names (.npz)")
    add("--steps", type=count, default=1, metavar="N", help="run this many steps; default: 1")
    add(
        "--feed",
        nargs="+",
        action="extend",
        default=[],
        metavar="OUT:IN",
        help="pass results on to the next step",
    )
    add("--print", dest="shown", action="store_true", help="print the results of the last step")
    add("--trace", metavar="FILE", help="record when each launch and transfer ran, for Perfetto and pw-viz")
    making = parser.add_mutually_exclusive_group()
    making.add_argument("--random", type=count, metavar="SEED", help="fill missing inputs with random values")
    making.add_argument("--zeros", action="store_true", help="fill missing inputs with zeros")
    add(
        "--trust",
        action="store_true",
        help="load the executables in the bundle, which are native code, and allow any custom call; only for "
        "files that you trust as you would a program",
    )
    add(
        "--cpu-devices",
        type=cpu_devices,
        metavar="N",
        help="number of CPU devices; default: as many as needed",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
