"""Formats of sizes, durations and tables for people."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from html import escape

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_AGES = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_SECONDS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))


def size(count: float) -> str:
    """Returns a number of bytes with a unit that keeps it short: `24 B`, `1.5 MiB`."""
    unit = 0
    while count >= 1024 and unit < len(_BYTES) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.4g} {_BYTES[unit]}"


_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGTP]i)?B", re.ASCII)


def bytes_of(text: str) -> int:
    """Returns the number of bytes that a text such as `16 GiB` means.

    Raises:
      ValueError: the text has no number, or no unit of bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r}: expected a number of bytes with a unit, as in '16 GiB'")
    return int(float(match[1]) * 1024 ** _BYTES.index(f"{match[2] or ''}B"))


def duration(time: float, unit: str) -> str:
    """Returns a time as text: seconds with a unit that keeps it short, `1.5 ms`; others as a bare number."""
    if unit != "s":
        return f"{time:.6g}"
    name, factor = next((suffix for suffix in _SECONDS if abs(time) >= suffix[1]), _SECONDS[-1])
    return f"{time / factor:.4g} {name}" if time else "0 s"


def duration_with_unit(time: float, unit: str) -> str:
    """Returns a time with its unit: `1.5 ms`, `3 units`, `2.5e+06 FLOPs`."""
    return duration(time, unit) + {"s": "", "flops": " FLOPs"}.get(unit, " units")


def age(seconds: float) -> str:
    """Returns the time since an event in its largest unit, rounded down: `12 s`, `5 min`, `3 h`, `2 d`."""
    name, size = next((unit for unit in _AGES if seconds >= unit[1]), _AGES[-1])
    # Below zero after the clock was set back.
    return f"{max(0, seconds) // size:.0f} {name}"


def ranges(positions: Sequence[int]) -> str:
    """Returns positions as text: `0-3, 6`."""
    texts = []
    # Consecutive positions all differ from their index by the same number.
    for _, group in itertools.groupby(enumerate(sorted(positions)), key=lambda pair: pair[1] - pair[0]):
        run = [position for _, position in group]
        texts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(texts)


def percent(fraction: float) -> str:
    """Returns a fraction from 0 to 1 as `27.3 %`."""
    return f"{100 * fraction:.1f} %"


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Returns rows of cells in columns, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def html_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Returns rows of cells as an HTML table, for notebooks; the first row is the header."""
    heads, *body = [[escape(cell) for cell in row] for row in rows]
    lines = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in body]
    head = "".join(f"<th>{cell}</th>" for cell in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
