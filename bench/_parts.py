"""Runner of benches with parts that yield rows of figures: selects, prints and writes them."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

Row = dict[str, Any]
"""Measurements by name; the first is the name of the case."""


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Returns the command line of such a bench; the first line of its docstring describes it."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--only", default="", help="only what has this text in its name")
    return parser


def print_header() -> None:
    """Prints the name and versions of a run."""
    print(f"command: {' '.join(['python', *sys.argv])}")
    print(f"python {platform.python_version()}, jax {jax.__version__}, jaxlib {jax.lib.__version__}")


def write_json(path: Path | None, rows: Iterable[object]) -> None:
    """Writes the figures to a file, if one is given."""
    if path is not None:
        document = {"jax": jax.__version__, "command": sys.argv, "cases": [*rows]}
        path.write_text(json.dumps(document, indent=2) + "\n")


def run_parts(options: argparse.Namespace, parts: Mapping[str, Callable[[], Iterable[Row]]]) -> None:
    """Measures the selected parts, and prints each row when it is ready."""
    print_header()
    rows: list[Row] = []
    for name, part in parts.items():
        if options.only not in name:
            continue
        for row in part():
            rows.append(row)
            (_, case), *figures = row.items()
            shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures)
            print(f"{case:<40}{', '.join(shown)}", flush=True)
    write_json(options.json, rows)
