"""What the command lines of the tools have in common."""

from __future__ import annotations

import argparse
import difflib
from typing import Any, NoReturn

from pathways.tools.files import UserError

MOST_CPU_DEVICES = 4096


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `UserError`s, with a guess at what was meant."""

    def __init__(self, tool: str, usage: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            tool,
            usage=usage,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            flags = [name for action in self._actions for name in action.option_strings]
            near = difflib.get_close_matches(rest[0].partition("=")[0], flags, 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            self.error(f"unexpected argument '{rest[0]}'{hint}")
        return options

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def count(text: str) -> int:
    """A number on the command line."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise argparse.ArgumentTypeError(f"must be a number, got '{text}'")
    return int(text)


def cpu_devices(text: str) -> int:
    """A number of CPU devices on the command line; XLA starts threads for each."""
    number = count(text)
    if not 1 <= number <= MOST_CPU_DEVICES:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MOST_CPU_DEVICES}, got {number}")
    return number


def version_of(tool: str) -> str:
    """The line that `--version` prints."""
    from importlib.metadata import PackageNotFoundError, version

    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    return f"{tool} {installed('pathways-mlir')} (jax {installed('jax')})\n"
