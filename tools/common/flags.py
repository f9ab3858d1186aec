"""Flags of the tools."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pathways.tools.common.errors import UserError

MAX_CPU_DEVICES = 4096

RENAMED = {"--policy": "--schedule", "--slices": "--islands"}
"""New names of flags that tools had under other names."""

TIMES_HELP = """\
times:
  A JSON file of durations. All of it is optional; the most specific entry counts.
    {"kinds": {"fwd": "1.2ms", "bwd": "2.4ms", "bwd.input": "1ms", "recompute": "1ms", "glue": 0},
     "stages": {"3": {"fwd": "2ms"}},
     "computations": {"front": "1ms"},
     "launches": {"front[3]": "5ms"}}
  A number counts time units, a string has a suffix (s, ms, us, ns); the two do not mix. Without the file a
  placed call takes one unit, glue none, and a fused launch the sum of its calls. A trace of a measured run
  serves as well: each launch takes the median of its durations there. In place of a file, flops stands for
  the operations of placed calls on each device, as estimated when the program was scheduled, and units for
  one unit for each call. By default a replay uses the times of its schedule, and policies are compared by
  units.
"""


class CommandParser(argparse.ArgumentParser):
    """Parser of the flags of a tool or of one of its commands; errors are `UserError`s, with a suggestion."""

    @property
    def flags(self) -> list[str]:
        """All flags, with their dashes, the flags of commands last."""
        parsers = (self, *self.commands.values())
        return [flag for parser in parsers for action in parser._actions for flag in action.option_strings]

    @property
    def actions(self) -> Sequence[argparse.Action]:
        """All flags and arguments, as they were added."""
        return self._actions

    @property
    def commands(self) -> dict[str, CommandParser]:
        """The flags of each command; empty for a tool without commands."""
        subparsers = (a for a in self._actions if isinstance(a, argparse._SubParsersAction))
        return {name: parser for action in subparsers for name, parser in action.choices.items()}

    def error(self, message: str) -> NoReturn:
        missing = message.partition("the following arguments are required: ")[2]
        raise UserError(f"{self.prog}: expected {missing}" if missing else message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from pathways.dialect.spelling import did_you_mean

            choices = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action, f"must be one of {', '.join(choices)}, got '{value}'{did_you_mean(value, choices)}"
            )


class FlagParser(CommandParser):
    """Parser of the flags of a tool.

    Args:
      more_help: returns the text of `--help` after the flags.
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
        self._subcommands: argparse._SubParsersAction[CommandParser] | None = None
        self.add_argument("--version", action="store_true", help="print the version")
        self.add_argument("-h", "--help", action="store_true", help="print this")

    @property
    def destinations(self) -> dict[str, str]:
        """The attribute of the options that each flag sets."""
        return {flag: action.dest for action in self._actions for flag in action.option_strings}

    def add_command(self, name: str, usage: str, help: str) -> CommandParser:
        """Returns the parser of a command, to which its own flags are to be added.

        Args:
          usage: its usage, after the name.
          help: its description.
        """
        if self._subcommands is None:
            self._subcommands = self.add_subparsers(
                prog=self.prog,
                dest="command",
                metavar="COMMAND",
                parser_class=CommandParser,
                help=argparse.SUPPRESS,
            )
        return self._subcommands.add_parser(
            name,
            usage=f"{self.prog} {name} {usage}".rstrip(),
            help=help,
            description=help,
            allow_abbrev=False,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        if commands := self.commands:
            # Without parsing, which requires the arguments of a command even for its help.
            if not {"-h", "--help"}.isdisjoint(args):
                command = next((word for word in args if word in commands), None)
                return argparse.Namespace(version=False, help=True, command=command)
            options, rest = self.parse_known_args(args, namespace)
        else:
            # Also `tool command --flag FILE`, where a flag separates two arguments that may be missing.
            options, rest = self.parse_known_intermixed_args(args, namespace)
        if rest:
            from pathways.dialect.spelling import did_you_mean

            flag = rest[0].partition("=")[0]
            if (name := RENAMED.get(flag)) in self.flags:
                self.error(f"{flag} is renamed to {name}")
            if owners := [name for name, parser in commands.items() if flag in parser.flags]:
                self.error(f"{flag} is for {self.prog} {' and '.join(owners)}")
            self.error(f"unexpected argument '{rest[0]}'{did_you_mean(flag, self.flags)}")
        return options

    def answer(self, options: argparse.Namespace) -> str | None:
        """Returns the output of `--version` or `--help`; None if neither is given."""
        if options.version:
            library = f" ({self._library} {_version(self._library)})" if self._library else ""
            return f"{self.prog} {_version('pathways-mlir')}{library}\n"
        if options.help:
            if command := self.commands.get(getattr(options, "command", None) or ""):
                return command.format_help()
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
    """Returns a number on the command line."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise argparse.ArgumentTypeError(f"must be a number, got '{text}'")
    return int(text)


def positive(text: str) -> int:
    """Returns a number of at least one on the command line."""
    number = count(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def hosts(text: str) -> int | list[str]:
    """Returns a number of hosts, or the names of their machines, on the command line."""
    return positive(text) if text.lstrip("-").isdecimal() else text.split(",")


def seconds(text: str) -> float:
    """Returns a time on the command line, in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, got '{text}'")
    return value


def cpu_devices(text: str) -> int:
    """Returns a number of CPU devices on the command line; XLA starts threads for each."""
    number = count(text)
    if not 1 <= number <= MAX_CPU_DEVICES:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MAX_CPU_DEVICES}, got {number}")
    return number


def add_timing_flags(parser: FlagParser) -> None:
    """Adds the flags of the durations of launches and links; `TIMES_HELP` describes the file."""
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
    """Returns a number from 0 to 1 on the command line."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a probability from 0 to 1, got '{text}'")
    return value


def add_schedule_flags(parser: FlagParser) -> None:
    """Adds the flags of the schedules to compare, and of their limits."""
    parser.add_argument(
        "--schedule",
        dest="schedules",
        action="append",
        default=[],
        metavar="NAME",
        help="like --compare, but with this policy or schedule file, FILE.csv; may be repeated",
    )
    parser.add_argument(
        "--limits",
        default="",
        metavar="OPTIONS",
        help="with policies: limits for all of them, such as max-live=4 or max-bytes=2GiB",
    )
