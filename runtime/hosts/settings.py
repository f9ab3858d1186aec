"""What a user says of workers."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """How workers are started and watched.

    Attributes:
      hosts: how many.
      devices_per_host: CPU devices of each.
      ahead: how many steps may be issued and not done: so many steps' worth of arrays hosts have room for.
      stall_report: seconds without progress after which a step is reported, and again whenever they have
        doubled; None for never.
      step_deadline: seconds without progress after which a step is ended; None for never.

    Raises:
      ValueError: one of them cannot be.
    """

    hosts: int
    devices_per_host: int = 1
    ahead: int = 4
    stall_report: float | None = 60.0
    step_deadline: float | None = None

    def __post_init__(self) -> None:
        for name in ("hosts", "devices_per_host", "ahead"):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ValueError(f"{name}={number!r}: expected at least 1")
        for name in ("stall_report", "step_deadline"):
            seconds = getattr(self, name)
            if seconds is not None and (not isinstance(seconds, int | float) or not seconds > 0):
                raise ValueError(f"{name}={seconds!r}: expected seconds, or None for never")
