"""CPU time of processes, and idle time of the cores of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def cpu_seconds(processes: Iterable[int]) -> float:
    """Returns the CPU seconds of some processes so far."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def idle_seconds() -> float:
    """Returns the idle seconds of all cores so far, added up."""
    # The columns: user, nice, system, idle, waiting for disks.
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
