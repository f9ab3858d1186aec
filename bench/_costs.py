"""The file in which benches keep what they measure: what `bench/paper.py` simulates with.

Each bench has a section of its own, so that several of them write one file, one after the other.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HELP = "also write the figures to this file, beside those of other benches"
CHECKED_IN = Path(__file__).with_name("costs.json")


def machine() -> str:
    """What kind of machine this is, without its name."""
    model = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = (line.partition(":")[2] for line in info.read_text().splitlines() if "model name" in line)
        model = next(names, model).strip()
    return f"{os.cpu_count()} cores, {model}, {platform.system()}, Python {platform.python_version()}"


def write(
    path: Path, cases: Sequence[Mapping[str, Any]], costs: Mapping[str, tuple[float, str]], load: float
) -> None:
    """Writes what the bench that runs has measured, in its section of a file.

    Costs that it has not measured this time stay as they were.

    Args:
      path: the file; those of other benches stay in it.
      cases: all rows.
      costs: seconds and what they are, by names.
      load: how many other processes wanted cores when it began.
    """
    document: dict[str, Any] = {"benches": {}}
    if path.exists():
        document = json.loads(path.read_text())
    command = shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    bench = Path(sys.argv[0]).stem
    before = document["benches"].get(bench, {}).get("costs", {})
    now = {name: {"seconds": seconds, "what": what} for name, (seconds, what) in costs.items()}
    document["benches"][bench] = {
        "command": command,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "load": round(load, 1),
        "costs": before | now,
        "cases": list(cases),
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
