"""Times, rates and sizes as people write them: `1.2ms`, `10GB/s`, `512MiB`, or a bare number."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from typing import Any

SECONDS = "s"
UNITS = "units"
FLOPS = "flops"
"""The units of times; the last are floating-point operations, where nothing else is known."""

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_RATES = {
    f"{prefix}{unit}": factor / bits
    for unit, bits in (("B/s", 1), ("bit/s", 8))
    for prefix, factor in {
        "": 1.0,
        "K": 1e3,
        "k": 1e3,
        "M": 1e6,
        "G": 1e9,
        "T": 1e12,
        "Ki": 2.0**10,
        "Mi": 2.0**20,
        "Gi": 2.0**30,
        "Ti": 2.0**40,
    }.items()
}
_SIZES = {name.removesuffix("/s"): factor for name, factor in _RATES.items() if name.endswith("B/s")}
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\s\d]\S*)?\s*")


class TimesError(ValueError):
    """Durations or links that cannot be used; the message names the entry."""


class QuantityReader:
    """Reader of quantities in one unit: that of the first one that is not zero.

    Args:
      unit: the unit that they must have, when it is known before.
    """

    def __init__(self, unit: str | None = None) -> None:
        self._unit = unit
        self._first = "the durations are"

    @property
    def unit(self) -> str:
        """`s` for seconds, or `units`, also when there was nothing but zeros."""
        return self._unit or UNITS

    def time(self, value: Any, entry: str) -> float:
        """Reads a time; `entry` is its name in errors.

        Raises:
          TimesError: it is none, or in another unit.
        """
        return self._number(value, entry, _SECONDS, "5us")

    def rate(self, value: Any, entry: str) -> float:
        """Reads a number of bytes in a time; `entry` is its name in errors.

        Raises:
          TimesError: it is none, or in another unit.
        """
        return self._number(value, entry, _RATES, "10GB/s")

    def _number(self, value: Any, entry: str, suffixes: Mapping[str, float], example: str) -> float:
        number, suffix = _split(value, entry, suffixes, example)
        if not math.isfinite(number) or number < 0:
            raise TimesError(f"{entry}: must be a number from 0 up, got {value}")
        unit = SECONDS if suffix else UNITS
        if number:
            if self._unit is None:
                self._unit, self._first = unit, f"'{entry}' is"
            if unit != self._unit:
                kinds = {SECONDS: "in seconds", UNITS: "in time units"}
                raise TimesError(f"{entry}: is {kinds[unit]}, but {self._first} {kinds[self._unit]}")
        return number * suffixes.get(suffix, 1.0)


def read_bytes(text: str, entry: str) -> int:
    """Reads a number of bytes, such as `512MiB`, rounded down; `entry` is its name in errors.

    Raises:
      TimesError: it is none, or less than one byte.
    """
    number, suffix = _split(text, entry, _SIZES, "512MiB")
    size = number * _SIZES.get(suffix, 1.0)
    if not 1 <= size < 1 << 62:
        raise TimesError(f"{entry}: must be at least one byte, got {text}")
    return int(size)


def _split(value: Any, entry: str, suffixes: Mapping[str, float], example: str) -> tuple[float, str]:
    """Returns the number and the suffix of a quantity."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (math.inf if abs(value) > sys.float_info.max else float(value)), ""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise TimesError(f'{entry}: expected a number or a string such as "{example}", got {value!r}')
    if match[2] and match[2] not in suffixes:
        raise TimesError(f"{entry}: unknown suffix '{match[2]}'; known are {', '.join(suffixes)}")
    return float(match[1]), match[2] or ""
