"""What XLA says of the executables that it made."""

from __future__ import annotations

from collections.abc import Mapping

from pathways.runtime.xla import pjrt


def flops_of(executable: pjrt.LoadedExecutable) -> float:
    """The floating-point operations of one launch by XLA's estimate, on all its devices."""
    return float(executable.cost_analysis().get("flops", 0.0))


def device_text(executables: Mapping[tuple[str, str], pjrt.LoadedExecutable]) -> str:
    """XLA's optimized module of each computation on each slice."""
    return "\n".join(
        f"// computation {computation} on slice {slice}\n\n{module.to_string().strip()}\n"
        for (computation, slice), executable in executables.items()
        for module in executable.hlo_modules()
    )
