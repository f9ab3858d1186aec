"""Tables of `bench/paper.py` as text, and as one page of HTML with plots, which loads nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from html import escape

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 470, 300, 64, 44, 16
_LETTER = 7
"""Limit of the width of a legend's letter, in pixels."""
_COLOURS = ("#1f6fb2", "#c8601a", "#2f8f5b", "#8a57b8", "#b03a5b", "#6b7280")
_HEADS = ("case", "paper", "measured", "simulated", "to reach", "from")


@dataclasses.dataclass(frozen=True)
class Entry:
    """Row of a table.

    Attributes:
      case: its subject.
      paper: the paper's figure; all figures are text, with their units.
      measured: ours, of real processes.
      simulated: ours, simulated.
      target: the target.
      note: the inputs of the figures.
      is_over: whether the target is missed.
    """

    case: str
    paper: str = ""
    measured: str = ""
    simulated: str = ""
    target: str = ""
    note: str = ""
    is_over: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        """The texts of its columns."""
        target = f"{self.target} - over" if self.is_over else self.target
        return self.case, self.paper, self.measured, self.simulated, target, self.note


@dataclasses.dataclass(frozen=True)
class Series:
    """Points of a plot that belong together.

    Attributes:
      name: their name.
      points: their coordinates.
      is_line: whether a line joins them.
    """

    name: str
    points: Sequence[tuple[float, float]]
    is_line: bool = True


@dataclasses.dataclass(frozen=True)
class Plot:
    """Plot.

    Attributes:
      x: the title of the horizontal axis.
      y: the title of the vertical axis.
      series: the series.
      is_log: whether both axes are logarithmic; else they begin at 0.
    """

    x: str
    y: str
    series: Sequence[Series]
    is_log: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """Table of the paper.

    Attributes:
      title: its title.
      entries: its rows.
      plot: its plot.
    """

    title: str
    entries: Sequence[Entry]
    plot: Plot | None = None


def text_of(table: Table) -> str:
    """Returns a table as text; each figure says whether it is of the paper, measured or simulated."""
    lines = [f"{table.title}"]
    for entry in table.entries:
        figures = [
            f"{figure} ({kind})"
            for figure, kind in (
                (entry.paper, "paper"),
                (entry.measured, "measured"),
                (entry.simulated, "simulated"),
            )
            if figure
        ]
        target = f"; to reach {entry.target}{', over' if entry.is_over else ''}" if entry.target else ""
        lines.append(f"  {entry.case:<60}  {', '.join(figures)}{target}")
        if entry.note:
            lines.append(f"      {entry.note}")
    return "\n".join([*lines, ""])


def page_of(title: str, notes: Sequence[str], tables: Sequence[Table]) -> str:
    """Returns all tables as a page."""
    body = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(note)}</p>" for note in notes)]
    for table in tables:
        body += [f"<h2>{escape(table.title)}</h2>", *_table(table)]
        if table.plot is not None:
            body += _svg(table.plot)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style></head><body>",
            *body,
            "</body></html>",
            "",
        ]
    )


_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em;
       color: #1b1f24; background: #ffffff }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: 4px 10px; border-bottom: 1px solid #d8dce1 }
td:nth-child(6) { color: #57606a; font-size: 13px }
.over { background: #fdf0dc }
svg { margin: 1em 0; max-width: 100% }
"""


def _table(table: Table) -> Iterator[str]:
    yield "<table><thead><tr>"
    yield "".join(f"<th>{head}</th>" for head in _HEADS)
    yield "</tr></thead><tbody>"
    for entry in table.entries:
        over = ' class="over"' if entry.is_over else ""
        yield f"<tr{over}>{''.join(f'<td>{escape(cell)}</td>' for cell in entry.cells)}</tr>"
    yield "</tbody></table>"


class _Axis:
    """Axis of a plot.

    Args:
      values: the values that it must cover.
      begin: its begin, in pixels.
      end: its end.
      is_log: whether it is logarithmic; 0 is at its begin.
    """

    def __init__(self, values: Sequence[float], begin: float, end: float, *, is_log: bool) -> None:
        self._is_log = is_log
        self._begin, self._end = begin, end
        if is_log:
            shown = [value for value in values if value > 0] or [1.0]
            self._low = math.floor(math.log10(min(shown)))
            self._high = max(math.ceil(math.log10(max(shown))), self._low + 1)
            self.ticks = [10.0**n for n in range(self._low, self._high + 1)]
            return
        largest = max(values) or 1.0
        step = 10.0 ** math.floor(math.log10(largest))
        step = next(step * factor for factor in (0.2, 0.5, 1, 2) if largest / (step * factor) <= 6)
        self.ticks = [n * step for n in range(math.ceil(largest / step - 1e-9) + 1)]
        self._low, self._high = 0.0, self.ticks[-1]

    def at(self, value: float) -> float:
        """Returns the position of a value, in pixels."""
        if self._is_log:
            value = math.log10(value) if value > 0 else self._low
        part = (value - self._low) / (self._high - self._low)
        return self._begin + part * (self._end - self._begin)


def _svg(plot: Plot) -> Iterator[str]:
    right, bottom = _WIDTH, _HEIGHT - _BOTTOM
    width = right + 24 + _LETTER * max(len(series.name) for series in plot.series)
    points = [point for series in plot.series for point in series.points]
    across = _Axis([x for x, _ in points], _LEFT, right, is_log=plot.is_log)
    up = _Axis([y for _, y in points], bottom, _TOP, is_log=plot.is_log)
    name = escape(f"{plot.y} by {plot.x}: {', '.join(series.name for series in plot.series)}", quote=True)
    yield (
        f'<svg viewBox="0 0 {width} {_HEIGHT}" width="{width}" font-size="12" role="img" aria-label="{name}">'
    )
    for tick in across.ticks:
        x = across.at(tick)
        yield f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#e4e7ea"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
    for tick in up.ticks:
        y = up.at(tick)
        yield f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#e4e7ea"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
    yield f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(plot.x)}</text>'
    yield (
        f'<text transform="translate(14 {(_TOP + bottom) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(plot.y)}</text>'
    )
    for n, series in enumerate(plot.series):
        colour = _COLOURS[n % len(_COLOURS)]
        places = [f"{across.at(x):.1f} {up.at(y):.1f}" for x, y in series.points]
        if series.is_line:
            yield f'<path d="M{"L".join(places)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for (x, y), place in zip(series.points, places, strict=True):
            left, top = place.split()
            label = escape(f"{series.name}: {x:g}, {y:.4g}")
            yield f'<circle cx="{left}" cy="{top}" r="4" fill="{colour}"><title>{label}</title></circle>'
        y = _TOP + 14 + 18 * n
        yield f'<circle cx="{right + 14}" cy="{y - 4}" r="4" fill="{colour}"/>'
        yield f'<text x="{right + 24}" y="{y}">{escape(series.name)}</text>'
    yield "</svg>"
