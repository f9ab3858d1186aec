"""A cut that was considered, and what came of it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class TriedCut:
    """A cut that was simulated, or dropped.

    Attributes:
      kind: `even`, `row` for one stage on each slice, or `v` for two.
      positions: the first unit of each stage but the first.
      loads: how long each stage takes, in the unit of the plan.
      crossing: the bytes alive at each cut.
      bound: the closed estimate of the step.
      schedule: the best schedule of it; empty if it was dropped because no schedule could be the best.
      step: how long its step takes; infinite if it was dropped.
      bubble: how much of it slices idle.
      peak: the most bytes alive on a slice.
      fits: whether that is within `max_bytes`.
    """

    kind: str
    positions: tuple[int, ...]
    loads: tuple[float, ...]
    crossing: tuple[int, ...]
    bound: float
    schedule: str = ""
    step: float = float("inf")
    bubble: float = 0.0
    peak: int = 0
    fits: bool = True

    @property
    def rank(self) -> tuple[bool, float, int, float]:
        """Sorts cuts, best first: what fits, by step, then by what crosses."""
        return not self.fits, self.step, sum(self.crossing), self.bound
