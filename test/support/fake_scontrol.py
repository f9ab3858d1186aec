"""Script that stands in for Slurm's `scontrol show hostnames`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest


def write_scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, lists: Mapping[str, Sequence[str]]) -> None:
    """Writes the script, which knows some lists of nodes, and puts its folder on PATH.

    It notes its arguments in the file `arguments` there.
    """
    cases = [
        f"{shlex.quote(nodes)}) echo {shlex.quote(chr(10).join(names))};;" for nodes, names in lists.items()
    ]
    script = folder / "scontrol"
    script.write_text(
        f'#!/bin/sh\necho "$*" > {folder}/arguments\ncase "$3" in\n'
        + "\n".join(cases)
        + '\n*) echo "Invalid hostlist: $3" >&2; exit 1;;\nesac\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
