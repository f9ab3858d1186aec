"""Flags that all harnesses have."""

from __future__ import annotations

import argparse
from pathlib import Path

from corpus import ROOT


def parser_of(description: str | None, folder: str, count: int) -> argparse.ArgumentParser:
    """Returns a parser of the flags; a harness adds its own.

    Args:
      description: the docstring of the harness.
      folder: the folder in `build/fuzz` for failures.
      count: the default number of cases.
    """
    flags = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    flags.add_argument("--first", type=int, default=0, help="number of the first case (default: %(default)s)")
    flags.add_argument("--count", type=int, default=count, help="number of cases (default: %(default)s)")
    flags.add_argument("--jobs", type=int, default=2, help="processes at once (default: %(default)s)")
    flags.add_argument(
        "--keep", type=Path, default=ROOT / "build" / "fuzz" / folder, help="folder for examples of failures"
    )
    return flags
