"""The flags of the tools."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pathways.tools.common.errors import UserError, hint

MOST_CPU_DEVICES = 4096

TIMES_HELP = """\
times:
  A JSON file of durations. All of it is optional; the most specific entry counts.
    {"kinds": {"fwd": "1.2ms", "bwd": "2.4ms", "bwd.input": "1ms", "recompute": "1ms", "glue": 0},
     "stages": {"3": {"fwd": "2ms"}},
     "computations": {"front": "1ms"},
     "launches": {"front[3]": "5ms"}}
  A number counts time units, a string has a suffix (s, ms, us, ns); the two do not mix. Without the file a
  placed call takes one unit, glue none, and a launch that several calls were fused into what they take
  together. A trace of a measured run serves as well: each launch takes the median of its durations there.
  In place of a file, flops stands for the operations of placed calls on each device, as estimated when the
  program was scheduled, and units for one unit for each call. By default a replay goes by the times that
  the schedule was made with, and policies are compared by units.
"""


class FlagParser(argparse.ArgumentParser):
    """The flags of a tool; its errors are `UserError`s, with a guess at what was meant.

    Args:
      tool: the name of the tool.
      usage: how to call it.
      description: what it does.
      more_help: gives what `--help` says after the flags.
      library: the package whose version `--version` names beside ours.
    """

    def __init__(
        self,
        tool: str,
        usage: str,
        description: str,
        more_help: Callable[[], str] = str,
        library: str | None = "jax",
    ) -> None:
        super().__init__(
            tool,
            usage=usage,
            description=description,
            allow_abbrev=False,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._more_help = more_help
        self._library = library
        self.add_argument("--version", action="store_true", help="print the version")
        self.add_argument("-h", "--help", action="store_true", help="print this")

    @property
    def flags(self) -> list[str]:
        """All flags, with their dashes."""
        return [flag for action in self._actions for flag in action.option_strings]

    @property
    def destinations(self) -> dict[str, str]:
        """The attribute of the options that each flag sets."""
        return {flag: action.dest for action in self._actions for flag in action.option_strings}

    @property
    def actions(self) -> Sequence[argparse.Action]:
        """All flags and arguments, as they were added."""
        return self._actions

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Also `tool command --flag FILE`, where a flag parts two arguments that may be missing.
        options, rest = self.parse_known_intermixed_args(args, namespace)
        if rest:
            self.error(f"unexpected argument '{rest[0]}'{hint(rest[0].partition('=')[0], self.flags)}")
        return options

    def error(self, message: str) -> NoReturn:
        raise UserError(message)

    def answer(self, options: argparse.Namespace) -> str | None:
        """What `--version` or `--help` asks for; None where neither is given."""
        if options.version:
            library = f" ({self._library} {_version(self._library)})" if self._library else ""
            return f"{self.prog} {_version('pathways-mlir')}{library}\n"
        if options.help:
            more = self._more_help()
            return f"{self.format_help()}\n{more}" if more else self.format_help()
        return None


def _version(package: str) -> str:
    from importlib import metadata  # Slow, and seldom needed.

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def count(text: str) -> int:
    """A number on the command line."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise argparse.ArgumentTypeError(f"must be a number, got '{text}'")
    return int(text)


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """A word on the command line, of some."""

    def word(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(
                f"must be one of {', '.join(choices)}, got '{text}'{hint(text, choices)}"
            )
        return text

    return word


def cpu_devices(text: str) -> int:
    """A number of CPU devices on the command line; XLA starts threads for each."""
    number = count(text)
    if not 1 <= number <= MOST_CPU_DEVICES:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MOST_CPU_DEVICES}, got {number}")
    return number


def add_timing_flags(parser: FlagParser) -> None:
    """Adds the flags that say how long things take; `TIMES_HELP` describes the file."""
    add = parser.add_argument
    add(
        "--times",
        metavar="FILE",
        help="how long launches take: a JSON file, the trace of a run, flops or units",
    )
    add(
        "--taken",
        type=_probability,
        default=1.0,
        metavar="P",
        help="how likely calls of branches, and iterations after a possible end, are taken: each takes so "
        "much of its time; default: 1",
    )
    add("--latency", metavar="TIME", help="of a link between two slices, such as 5us; default: none")
    add("--bandwidth", metavar="RATE", help="of a link, such as 10GB/s or 200Gbit/s; default: no limit")


def _probability(text: str) -> float:
    """A number from 0 to 1 on the command line."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a probability from 0 to 1, got '{text}'")
    return value


def add_policy_flags(parser: FlagParser) -> None:
    """Adds the flags that name policies to set side by side, and what they keep to."""
    parser.add_argument(
        "--policy",
        dest="policies",
        action="append",
        default=[],
        metavar="NAME",
        help="like --compare, but with this policy or FILE.csv; may be repeated",
    )
    parser.add_argument(
        "--limits",
        default="",
        metavar="OPTIONS",
        help="with policies: limits for all of them, such as max-live=4 or max-bytes=2GiB",
    )
