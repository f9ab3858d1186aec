"""Tidies `test/durations.json`: drops entries of tests that no longer exist, and rounds seconds.

    pytest -p no:xdist --store-durations --durations-path=test/durations.json test/test_rooms.py
    python test/durations.py

`make durations ARGS=test/test_rooms.py` runs both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")

MAX_QUICK_TEST_S = 8.0
"""Longest duration of a test of the quick layer; assumed for a test without an entry."""


def collect(*options: str) -> list[str]:
    """Returns the ids of the tests that pytest collects with some options."""
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "--collect-only", "-q", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FILE.parents[1])
    if done.returncode:
        sys.exit(f"pytest cannot collect the tests:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return ids_of(done.stdout)


def ids_of(printed: str) -> list[str]:
    """Returns the ids of tests in what `pytest -o addopts= --collect-only -q` printed."""
    return [line for line in printed.splitlines() if line.startswith("test/") and "::" in line]


def tidy(durations: dict[str, float], existing: Sequence[str]) -> dict[str, float]:
    """Returns the rounded entries of tests that exist, in the order of their ids."""
    known = set(existing)
    return {name: round(seconds, 2) for name, seconds in sorted(durations.items()) if name in known}


if __name__ == "__main__":
    before = json.loads(FILE.read_text())
    after = tidy(before, collect())
    FILE.write_text(json.dumps(after, indent=0) + "\n")
    print(f"{len(after)} entries, {len(before) - len(after)} dropped, {sum(after.values()) / 60:.1f} minutes")
