"""What XLA says of the executables that it made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pathways.runtime.xla import pjrt

Executables = Mapping[tuple[str, str], pjrt.LoadedExecutable]
"""The executable of each computation on each slice, by their names."""


def stats_of(executables: Executables) -> dict[tuple[str, str], Any]:
    """XLA's analysis of the memory of each computation on each slice, where there is one."""
    stats = {pair: pjrt.memory_stats(executable) for pair, executable in executables.items()}
    return {pair: analysis for pair, analysis in stats.items() if analysis is not None}


def flops_of(executable: pjrt.LoadedExecutable) -> float:
    """Returns the floating-point operations of one launch by XLA's estimate, on all its devices."""
    return float(executable.cost_analysis().get("flops", 0.0))


def device_text(executables: Executables) -> str:
    """XLA's optimized module of each computation on each slice."""
    return "\n".join(
        f"// computation {computation} on slice {slice}\n\n{module.to_string().strip()}\n"
        for (computation, slice), executable in executables.items()
        for module in executable.hlo_modules()
    )
