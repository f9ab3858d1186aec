"""`pw-bundle` shows the contents of a bundle, and checks one without running it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pathways.tools.common import command
from pathways.tools.common.errors import UserError
from pathways.tools.common.flags import FlagParser

_DESCRIPTION = """\
  pw-bundle inspect FILE    what the program takes and returns, and what the file holds
  pw-bundle verify FILE     check the file as loading it without trust does, without running it

Both treat the file as untrusted: nothing in it is evaluated, and executables in it are not loaded.
"""


_COMMANDS = ("inspect", "verify")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; see `command.run`."""
    return command.run(make_parser(), _run, arguments)


def _run(options: argparse.Namespace) -> int:
    if options.command is None or options.bundle is None:
        raise UserError("expected a command and a bundle; see pw-bundle --help")

    from pathways.tools.drivers import bundle as driver

    return driver.run(options)


def make_parser() -> FlagParser:
    """Returns the flags of the tool."""
    parser = FlagParser("pw-bundle", "pw-bundle inspect|verify FILE [flags]", _DESCRIPTION)
    add = parser.add_argument
    add("command", nargs="?", choices=_COMMANDS, metavar="inspect|verify")
    add("bundle", nargs="?", metavar="FILE", help="a bundle")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--manifest", action="store_true", help="inspect: print the manifest, which is JSON")
    shown.add_argument("--program", action="store_true", help="inspect: print the scheduled program")
    shown.add_argument("--computation", metavar="NAME", help="inspect: print a computation as StableHLO")
    return parser


if __name__ == "__main__":
    sys.exit(main())
