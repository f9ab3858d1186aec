"""Times of placed calls, as a program carries them: plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from pathways.dialect.attributes.origins import KINDS, PARTS

CALL_KINDS = (*KINDS, *(f"bwd.{part}" for part in PARTS))
"""The kinds of placed calls, halves of backwards by their own names."""

CALL_UNITS = ("flops", "s", "units")
"""Operations on each device, seconds, and units of the schedule."""


class CallKey(NamedTuple):
    """Placed calls of one kind and stage, in one loop or outside of loops, which take equally long."""

    loop: str | None
    stage: int | None
    kind: str


@dataclasses.dataclass(frozen=True)
class CallTimes:
    """Times of the placed calls of a program, in one unit or more.

    Attributes:
      tables: the mean time of a call in each of `CALL_UNITS` that is known.
      made_with: the unit in which its orders were computed; None for a unit for each call.
    """

    tables: Mapping[str, Mapping[CallKey, float]] = dataclasses.field(default_factory=dict)
    made_with: str | None = None
