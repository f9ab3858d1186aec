"""The links between slices, for policies and for simulations: their latency and their bandwidth."""

from __future__ import annotations

import dataclasses
import math

from pathways.passes.analysis.quantities import FLOPS, QuantityReader, TimesError


@dataclasses.dataclass(frozen=True)
class Link:
    """A link between two slices.

    Attributes:
      latency: the time from sending the last byte to its arrival.
      bandwidth: bytes in one unit of time.
    """

    latency: float = 0.0
    bandwidth: float = math.inf


def read_link(latency: str | float | None, bandwidth: str | float | None, unit: str | None = None) -> Link:
    """Reads a link.

    Args:
      latency: a time, `5us` or a number of units; None for no latency.
      bandwidth: bytes in a time, `10GB/s`, `200Gbit/s` or a number of bytes in a unit; None for no limit.
      unit: the unit of the durations that it goes with; None for any. None goes with operations.

    Raises:
      TimesError: when it cannot be read, or is in another unit.
    """
    for name, value in (("latency", latency), ("bandwidth", bandwidth)):
        if unit == FLOPS and value is not None:
            raise TimesError(f"{name}: needs times to go with it, not operations: state times, or 'units'")
    reader = QuantityReader(unit)
    time = reader.time(latency, "latency") if latency is not None else 0.0
    rate = reader.rate(bandwidth, "bandwidth") if bandwidth is not None else math.inf
    if rate == 0:
        raise TimesError("bandwidth: must be more than 0")
    return Link(time, rate)
