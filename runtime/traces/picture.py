"""Timelines as one SVG picture for documents: no scripts, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from pathways.passes.analysis.measured.events import EventLog
from pathways.runtime.resources.tables import duration_with_unit, percent
from pathways.runtime.traces.page import kind_of

_WIDTH, _LEFT, _TITLE, _LANE, _GAP = 860, 40, 26, 24, 4
"""In pixels: of the picture, of the names of slices, of a title, of a slice, and between slices."""

_COLOURS = {
    "fwd": "#8cc6ee",
    "bwd": "#f5b55f",
    "grad": "#c5b3e6",
    "weight": "#e0b1cd",
    "recompute": "#c9cfd6",
    "glue": "#93d8bd",
}


def picture_of(timelines: Sequence[EventLog]) -> str:
    """Draws the launches of timelines below each other, on one scale for each unit of time.

    Returns the text of the picture.
    """
    heights = [_TITLE + len(timeline.slices) * (_LANE + _GAP) for timeline in timelines]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {sum(heights) + _GAP}" '
        f'width="{_WIDTH}" font-family="system-ui, sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for n, timeline in enumerate(timelines):
        longest = max(other.step_time for other in timelines if other.unit == timeline.unit) or 1.0
        lines += [f'<g transform="translate(0 {sum(heights[:n])})">', *_panel(timeline, longest), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _panel(timeline: EventLog, span: float) -> Iterator[str]:
    """Yields one timeline: its title, and a lane for each slice.

    Args:
      span: the time that spans the whole width.
    """
    scale = (_WIDTH - _LEFT - _GAP) / span
    step = duration_with_unit(timeline.step_time, timeline.unit)
    title = f"{timeline.title}: {step}, bubble {percent(timeline.mean_bubble)}"
    yield f'<text x="{_LEFT}" y="18" font-weight="600" fill="#1b1f24">{escape(title)}</text>'
    for row, name in enumerate(timeline.slices):
        top = _TITLE + row * (_LANE + _GAP)
        yield f'<text x="8" y="{top + 16}" fill="#4b535d">{escape(name)}</text>'
        width = timeline.step_time * scale
        yield f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_LANE}" fill="#f1f2f3"/>'
        for event in timeline.launches:
            if event.slice != name or not event.duration:
                continue
            width = event.duration * scale / len(event.calls)
            for n, (origin, label) in enumerate(event.calls):
                left = _LEFT + event.start * scale + n * width
                yield (
                    f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_LANE}" '
                    f'fill="{_COLOURS[kind_of(origin)]}" stroke="#5b6470" stroke-width="0.6"/>'
                )
                if width >= 7 * len(label):
                    yield (
                        f'<text x="{left + width / 2:.1f}" y="{top + 16}" text-anchor="middle" '
                        f'fill="#1b1f24">{escape(label)}</text>'
                    )
