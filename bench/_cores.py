"""What the cores of this machine have done."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def cpu_seconds(processes: Iterable[int]) -> float:
    """Returns what cores have done for some processes so far."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def idle_seconds() -> float:
    """For how long cores have had nothing to do so far, added up."""
    # All cores: user, nice, system, idle, waiting for disks.
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
