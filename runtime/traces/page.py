"""Timelines as one HTML page: slices by time, in SVG, in a file that loads nothing.

Drawings use a fixed width for the whole time axis; `page.js` scales them to the window, writes names where
there is room, and zooms.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from pathways.dialect.attributes.origins import Origin
from pathways.passes.analysis.measured.events import EventLog, TimelineEvent
from pathways.runtime.resources.tables import duration_with_unit, percent, size

_AXIS_WIDTH = 1000.0
"""The width of the whole time axis in the coordinates of the drawings."""
_AXIS, _LANE, _MEMORY, _GAP = 22, 28, 20, 12
"""Heights in pixels: of the axis, of the launches of a slice, of its memory, and between slices."""
_HEADER = 320
"""Pixels above and below the drawing on a page of one timeline, where the legend takes two lines."""
_SHADES = 4
"""Number of shades that distinguish stages on one slice."""

_KINDS = {
    "fwd": "forward",
    "bwd": "backward",
    "grad": "gradient that is differentiated",
    "weight": "backward, weights",
    "recompute": "recomputed forward",
    "glue": "update and glue",
    "idle": "idle",
    "memory": "live bytes",
    "sent fwd": "sent by a forward",
    "sent bwd": "sent by a backward",
    "sent glue": "other transfer",
    "estimated": "not profiled, times estimated",
}


def page_of(timelines: Sequence[EventLog]) -> str:
    """Draws timelines below each other, in the same colours and with the same rows.

    Those with one unit of time have one scale. Returns the text of the page.
    """
    assets = importlib.resources.files("pathways.runtime.traces")
    style, script = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    programs = ", ".join(dict.fromkeys(timeline.program for timeline in timelines))
    rows = list(dict.fromkeys(name for timeline in timelines for name in timeline.slices))
    body = [
        f"<h1>{escape(programs)}</h1>",
        *_summary(timelines),
        *_legend(timelines),
        *(line for timeline in timelines for line in _panel(timeline, rows, timelines)),
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>{escape(programs)}: timeline</title>",
            f"<style>\n{style}</style></head><body>",
            *body,
            '<svg width="0" height="0"><pattern id="hatch" width="6" height="6" '
            'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2.5" height="6"/>'
            "</pattern></svg>",
            '<div id="tip" hidden="hidden"></div>',
            f"<script>/*<![CDATA[*/\n{script}/*]]>*/</script>",
            "</body></html>",
            "",
        ]
    )


def frame_of(timeline: EventLog) -> str:
    """Returns the page of one timeline in a frame, for notebooks, whose styles and scripts stay inside."""
    height = _HEADER + _height(timeline.slices)
    return (
        f'<iframe srcdoc="{escape(page_of([timeline]))}" style="width:100%;height:{height}px;border:0" '
        f'title="timeline of {escape(timeline.program)}"></iframe>'
    )


def _summary(timelines: Sequence[EventLog]) -> Iterator[str]:
    heads = ("timeline", "step time", "bubble", "peak memory", "launches", "transfers", "bytes moved")
    yield '<div class="scroll"><table class="summary"><thead><tr>'
    yield "".join(f"<th>{head}</th>" for head in heads)
    yield "</tr></thead><tbody>"
    for timeline in timelines:
        cells = (
            timeline.title,
            _time(timeline.step_time, timeline),
            percent(timeline.mean_bubble),
            size(max(map(timeline.peak_bytes, timeline.slices), default=0)),
            str(len(timeline.launches)),
            str(len(timeline.transfers)),
            size(sum(event.nbytes for event in timeline.transfers)),
        )
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    yield "</tbody></table></div>"


def _legend(timelines: Sequence[EventLog]) -> Iterator[str]:
    present = {"idle"}
    for timeline in timelines:
        present |= {kind_of(origin) for event in timeline.launches for origin, _ in event.calls}
        present |= {f"sent {_sender(event, timeline)}" for event in timeline.transfers}
        present |= {"estimated"} if any(event.estimated for event in timeline.launches) else set()
        present |= {"memory"} if any(timeline.memory.values()) else set()
    yield '<div class="bar"><span class="legend">'
    for kind, text in _KINDS.items():
        if kind in present:
            yield f'<span><i class="{kind}"></i>{text}</span>'
    if any(shade for timeline in timelines for shade in _shades(timeline).values()):
        yield "<span>shades distinguish stages on a slice</span>"
    yield '</span><span class="tools">'
    yield '<label><input type="checkbox" id="sends" checked="checked"/> transfers</label>'
    yield '<label><input type="checkbox" id="fit"/> scale each to full width</label>'
    yield '<button id="out">&#8722;</button><button id="in">+</button><button id="all">whole step</button>'
    yield "</span></div>"
    yield (
        '<p class="hint">Drag to move, Ctrl and wheel or + and &#8722; to zoom, 0 for all of it. '
        "Names appear where there is room; a launch under the pointer shows its transfers alone.</p>"
    )


def _panel(timeline: EventLog, rows: Sequence[str], timelines: Sequence[EventLog]) -> Iterator[str]:
    """Yields one timeline: a caption, the names and figures of the slices, and the drawing between them."""
    longest = max(t.step_time for t in timelines if t.unit == timeline.unit) or 1.0
    height = _height(rows)
    unit = escape(timeline.unit)
    yield f'<section data-whole="{longest!r}" data-own="{timeline.step_time!r}" data-unit="{unit}">'
    yield f"<h2>{escape(timeline.title)} <small>{escape(_caption(timeline))}</small></h2>"
    yield f'<div class="scroll"><div class="panel" style="height:{height}px"><div class="names">'
    places = {name: f'style="top:{_top(n)}px;height:{_LANE}px"' for n, name in enumerate(rows)}
    hosts = {name: host for other in timelines for name, host in other.hosts.items()}
    for n, (name, place) in enumerate(places.items()):
        yield f'<div class="name" {place}>{escape(name)}</div>'
        if name in hosts:
            yield f'<div class="host" style="top:{_top(n) + _LANE}px">host {hosts[name]}</div>'
    yield "</div>"
    for name, place in places.items():
        if name in timeline.slices:
            figures = f"bubble {percent(timeline.bubble(name))}<br/>peak {size(timeline.peak_bytes(name))}"
            yield f'<div class="figures" {place}>{figures}</div>'
    yield f'<svg class="plot" height="{height}" xmlns="http://www.w3.org/2000/svg">'
    yield (
        f'<svg class="shapes" viewBox="0 0 {_AXIS_WIDTH:g} {height}" width="100%" height="{height}" '
        'preserveAspectRatio="none">'
    )
    scale = _AXIS_WIDTH / longest
    yield from _lanes(timeline, rows, scale)
    yield from _curves(timeline, rows, scale)
    yield '<g class="sends">'
    yield from _sends(timeline, rows, scale)
    yield "</g>"
    yield from _boxes(timeline, rows, scale)
    yield '</svg><g class="texts"></g></svg></div></div></section>'


def _lanes(timeline: EventLog, rows: Sequence[str], scale: float) -> Iterator[str]:
    """Yields the idle background of each slice, as long as the step."""
    width = timeline.step_time * scale
    for n, name in enumerate(rows):
        if name in timeline.slices:
            yield f'<rect class="idle" x="0" y="{_top(n)}" width="{_number(width)}" height="{_LANE}"/>'


def _boxes(timeline: EventLog, rows: Sequence[str], scale: float) -> Iterator[str]:
    """Yields the launches; one that several calls were fused into has a box for each call."""
    shades = _shades(timeline)
    for number, event in enumerate(timeline.events):
        if event.kind != "launch":
            continue
        estimated = " estimated" if event.estimated else ""
        shade = shades.get((event.slice, event.stage), 0)
        top, tip = _top(rows.index(event.slice)), _tip(event, timeline)
        width = event.duration * scale / len(event.calls)
        for n, (origin, name) in enumerate(event.calls):
            left = _number(event.start * scale + n * width)
            yield (
                f'<rect class="launch {kind_of(origin)} shade{shade}{estimated}" x="{left}" y="{top}" '
                f'width="{_number(width)}" height="{_LANE}" data-event="{number}" data-name="{escape(name)}" '
                f'data-tip="{tip}"/>'
            )


def _sends(timeline: EventLog, rows: Sequence[str], scale: float) -> Iterator[str]:
    """Yields the transfers, as lines from the slice that sends to the one that receives."""
    readers: dict[int, list[str]] = {}
    for number, event in enumerate(timeline.events):
        for read in event.reads:
            readers.setdefault(read, []).append(str(number))
    for number, event in enumerate(timeline.events):
        if event.dst is None:
            continue
        ends = " ".join([*map(str, event.reads), *readers.get(number, ())])
        src, dst = rows.index(event.slice), rows.index(event.dst)
        down = dst > src
        y1, y2 = _top(src) + (_LANE if down else 0), _top(dst) + (0 if down else _LANE)
        x1, x2 = _number(event.start * scale), _number(event.end * scale)
        yield (
            f'<path class="transfer {_sender(event, timeline)}" d="M{x1} {y1}L{x2} {y2}" data-ends="{ends}" '
            f'data-tip="{_tip(event, timeline)}" vector-effect="non-scaling-stroke"/>'
        )


def _curves(timeline: EventLog, rows: Sequence[str], scale: float) -> Iterator[str]:
    """Yields the live bytes of each slice, all to one scale."""
    peak = max(map(timeline.peak_bytes, timeline.slices), default=0)
    if not peak:
        return
    for name, curve in timeline.memory.items():
        base = _top(rows.index(name)) + _LANE + _MEMORY
        path, height = [f"M0 {base}"], 0.0
        for time, nbytes in _steps(curve):
            height = (_MEMORY - 3) * nbytes / peak
            path.append(f"H{_number(max(0.0, time * scale))}V{_number(base - height)}")
        path.append(f"H{_number(timeline.step_time * scale)}V{base}Z")
        tip = escape(f"live bytes of {name}\nat most {size(timeline.peak_bytes(name))}")
        yield (
            f'<path class="memory" d="{"".join(path)}" data-tip="{tip}" vector-effect="non-scaling-stroke"/>'
        )


def _steps(curve: Iterable[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """Yields a curve with at most two points for each moment: its peak, and its last value."""
    moments: dict[float, tuple[int, int]] = {}
    for time, nbytes in curve:
        peak, _ = moments.get(time, (0, 0))
        moments[time] = max(peak, nbytes), nbytes
    for time, (peak, last) in moments.items():
        if peak > last:
            yield time, peak
        yield time, last


def kind_of(origin: Origin | None) -> str:
    """Returns the colour class of a placed call, or of glue for None."""
    if origin is None:
        return "glue"
    return "weight" if origin.part == "weight" else origin.kind


def _sender(event: TimelineEvent, timeline: EventLog) -> str:
    """Returns the colour class of a transfer: `fwd` or `bwd` by the producer of its array, or `glue`."""
    origins = timeline.events[event.reads[0]].origins if event.reads else ()
    return {"fwd": "fwd", "recompute": "fwd"}.get(origins[-1].kind, "bwd") if origins else "glue"


def _shades(timeline: EventLog) -> dict[tuple[str, int | None], int]:
    """Returns the shade of each stage on a slice."""
    stages: dict[str, set[int]] = {}
    for event in timeline.launches:
        if event.stage is not None:
            stages.setdefault(event.slice, set()).add(event.stage)
    return {(name, s): n % _SHADES for name, some in stages.items() for n, s in enumerate(sorted(some))}


def _tip(event: TimelineEvent, timeline: EventLog) -> str:
    """Returns the text that is shown when the pointer is on an event."""
    lines = [event.label if event.kind == "launch" else f"transfer {event.label}"]
    if event.stage is not None:
        lines.append(f"stage {event.stage}")
    if event.kind == "launch":
        kinds = [
            _KINDS[kind_of(origin)] + (" on a condition" if origin and origin.when else "")
            for origin, _ in event.calls
        ]
        lines.append(", ".join(kinds))
    if event.microbatch is not None:
        lines.append(f"microbatch {event.microbatch}")
    if event.kind == "transfer":
        lines.append(size(event.nbytes))
    lines.append(f"{_time(event.start, timeline)} to {_time(event.end, timeline)}")
    lines.append(f"duration {_time(event.duration, timeline)}")
    if event.estimated:
        lines.append("estimated: it is missing from the profile")
    return escape("\n".join(lines)).replace("\n", "&#10;")


def _caption(timeline: EventLog) -> str:
    return f"{_time(timeline.step_time, timeline)}, bubble {percent(timeline.mean_bubble)}"


def _time(value: float, timeline: EventLog) -> str:
    return duration_with_unit(value, timeline.unit)


def _height(rows: Sequence[str]) -> int:
    """Returns the height of a drawing."""
    return _AXIS + len(rows) * (_LANE + _MEMORY + _GAP)


def _top(row: int) -> int:
    """Returns the top of the lane of a slice."""
    return _AXIS + row * (_LANE + _MEMORY + _GAP)


def _number(value: float) -> str:
    return f"{value:.4f}".rstrip("0").rstrip(".")
