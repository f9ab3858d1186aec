"""File of the costs that benches measure, with which `bench/paper.py` simulates.

Each bench has a section of its own, and in it each group of its rows, with the run that has measured it. So
several benches write one file, one after the other, and a run of some groups leaves the others as they were.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _simulated.costs import CostsError, read_costs

HELP = "also write the figures to this file, beside those of other benches"
CHECKED_IN = Path(__file__).with_name("costs.json")


@dataclasses.dataclass(frozen=True)
class Cost:
    """Measured cost that a simulated cluster has.

    Attributes:
      name: its name in the file.
      seconds: the cost.
      what: its description, and the method.
    """

    name: str
    seconds: float
    what: str


@dataclasses.dataclass(frozen=True)
class Group:
    """Measurements of a group of rows.

    Attributes:
      cases: its rows.
      costs: the costs among them.
    """

    cases: Sequence[Mapping[str, Any]]
    costs: Sequence[Cost]


def machine() -> str:
    """Returns the kind of this machine, without its name."""
    model = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = (line.partition(":")[2] for line in info.read_text().splitlines() if "model name" in line)
        model = next(names, model).strip()
    return f"{os.cpu_count()} cores, {model}, {platform.system()}, Python {platform.python_version()}"


def writable(text: str) -> Path:
    """Returns the path of a file that is written when all is measured; creates its folder.

    Raises:
      argparse.ArgumentTypeError: it cannot be written.
    """
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {path}: {error.strerror}") from None
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {path}: it is a folder")
    return path


def costs_file(text: str) -> Path:
    """Returns the path of a file of costs that is written when all is measured; an existing one is kept.

    Raises:
      argparse.ArgumentTypeError: it cannot be written, or is another file.
    """
    path = writable(text)
    if path.exists():
        try:
            read_costs(path.read_bytes(), str(path))
        except OSError as error:
            raise argparse.ArgumentTypeError(f"cannot read {path}: {error.strerror}") from None
        except CostsError as error:
            raise argparse.ArgumentTypeError(f"it is no file of costs: {error}") from None
    return path


def write(path: Path, groups: Mapping[str, Group], load: float) -> None:
    """Writes the measurements of the running bench, in its section of a file.

    Args:
      path: the file; other benches, and other groups of this one, stay in it as they are.
      groups: the measurements, by names.
      load: the number of other processes that wanted cores when the bench began.
    """
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"benches": {}}
    run = {
        "command": shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "load": round(load, 1),
    }
    section = document["benches"].setdefault(Path(sys.argv[0]).stem, {})
    for name, group in groups.items():
        costs = {cost.name: {"seconds": cost.seconds, "what": cost.what} for cost in group.costs}
        section[name] = {**run, "costs": costs, "cases": list(group.cases)}
    replace(path, json.dumps(document, indent=2) + "\n")


def replace(path: Path, text: str) -> None:
    """Writes a file, whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)
