"""Timelines as trace files, for Perfetto (ui.perfetto.dev), `chrome://tracing` and `pw-viz`.

The format is the JSON array of Chrome's trace events, one event per line. Each slice is a process: a row of
launches, rows of what it sends, and a counter of its live bytes; arrows lead from the launch that makes a
value over its transfer to the launch that reads it. Slices on several hosts name their hosts, and are in
the order of them. Steps are appended as they come. Spans of work that belongs to no step have processes of
their own, below the slices. The closing bracket may be missing, so that the file of a process that was killed
is a trace all the same.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pathways.dialect.attributes.origins import Origin
from pathways.passes.analysis.measured.events import EventLog, TimelineEvent, TraceSpan
from pathways.passes.analysis.quantities import FLOPS, SECONDS, UNITS

_TICKS = {SECONDS: 1e6, UNITS: 1e3, FLOPS: 1e-3}
"""Microseconds of the trace in one unit of time: a unit, and a million operations, are a millisecond."""

_LAUNCHES = 1
"""The number of the row of launches; those of sends follow."""

_encode = json.JSONEncoder(separators=(",", ":")).encode

_HEADER = "pathways step"
_HOST_ROWS = 1 << 20
"""Offset between the rows of two hosts: more than there are slices."""
_SPAN = "span"
"""Category of work that belongs to no step."""
_SPAN_TRACKS = 1 << 30
"""Offset of the numbers of processes for such work."""
_OPTIONAL = ("microbatch", "dst", "after")


class TraceError(ValueError):
    """Error of a trace file that cannot be read; the message has the reason."""


class TraceFile:
    """A trace file that is written step by step.

    Args:
      path: the file, which is replaced where it exists.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        self._processes: dict[str, int] = {}
        # The rows of spans, by track.
        self._tracks: dict[str, list[str]] = {}
        self._flows = 0
        self._separator = "\n"
        self._file.write("[")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, timeline: EventLog, at: float = 0.0) -> None:
        """Writes one step.

        Args:
          timeline: the step.
          at: the time of its start, in the unit of the timeline.
        """
        self._write(self._events(timeline, at))

    def append_span(self, span: TraceSpan) -> None:
        """Writes work that belongs to no step."""
        self._write(self._events_of_span(span))

    def _write(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            self._file.write(self._separator + _encode(event))
            self._separator = ",\n"
        self._file.flush()

    @property
    def is_closed(self) -> bool:
        """Whether nothing more may be written."""
        return self._file.closed

    def close(self) -> None:
        """Closes the file."""
        if not self._file.closed:
            self._file.write("\n]\n")
            self._file.close()

    def _events(self, timeline: EventLog, at: float) -> Iterator[dict[str, Any]]:
        tick = _TICKS[timeline.unit]
        for name in timeline.slices:
            if name not in self._processes:
                self._processes[name] = pid = len(self._processes) + 1
                host = timeline.hosts.get(name)
                shown = name if host is None else f"{name} (host {host})"
                yield _metadata("process_name", pid, 0, name=shown, slice=name)
                order = pid + _HOST_ROWS * (host or 0)
                yield _metadata("process_sort_index", pid, 0, sort_index=order)
                yield _metadata("thread_name", pid, _LAUNCHES, name="launches")
        about = {field: getattr(timeline, field) for field in ("program", "title", "unit", "slices", "hosts")}
        yield {
            "name": _HEADER,
            "ph": "i",
            "s": "g",
            "ts": at * tick,
            "pid": 1,
            "tid": 0,
            "args": {**about, "events": len(timeline.events)},
        }
        rows = _rows(timeline)
        for event, row in zip(timeline.events, rows, strict=True):
            yield {
                "name": event.name,
                "cat": event.kind,
                "ph": "X",
                "ts": (at + event.start) * tick,
                "dur": event.duration * tick,
                "pid": self._processes[event.slice],
                "tid": row,
                "args": _args(event),
            }
        for name, curve in timeline.memory.items():
            for time, nbytes in curve:
                yield {
                    "name": "live bytes",
                    "ph": "C",
                    "ts": (at + time) * tick,
                    "pid": self._processes[name],
                    "args": {"bytes": nbytes},
                }
        yield from self._arrows(timeline, at, rows)

    def _events_of_span(self, span: TraceSpan) -> Iterator[dict[str, Any]]:
        if span.track not in self._tracks:
            self._tracks[span.track] = []
            pid = _SPAN_TRACKS + len(self._tracks)
            yield _metadata("process_name", pid, 0, name=span.track)
            yield _metadata("process_sort_index", pid, 0, sort_index=pid)
        pid = _SPAN_TRACKS + 1 + [*self._tracks].index(span.track)
        rows = self._tracks[span.track]
        if span.row not in rows:
            rows.append(span.row)
            yield _metadata("thread_name", pid, len(rows), name=span.row)
        yield {
            "name": span.name,
            "cat": _SPAN,
            "ph": "X",
            "ts": span.start * _TICKS[SECONDS],
            "dur": (span.end - span.start) * _TICKS[SECONDS],
            "pid": pid,
            "tid": rows.index(span.row) + 1,
            "args": {"track": span.track, "row": span.row},
        }

    def _arrows(self, timeline: EventLog, at: float, rows: list[int]) -> Iterator[dict[str, Any]]:
        """Yields arrows from launches over transfers of their results to the first launch that reads them."""
        readers: dict[int, int] = {}
        for n, event in enumerate(timeline.events):
            for read in event.reads:
                readers.setdefault(read, n)
        for n, event in enumerate(timeline.events):
            if event.kind != "transfer":
                continue
            stops = [("s", event.reads[0])] if event.reads else []
            stops.append(("t" if stops else "s", n))
            if n in readers:
                stops.append(("f", readers[n]))
            self._flows += 1
            for phase, stop in stops:
                yield {
                    "name": event.label,
                    "cat": "transfer",
                    "ph": phase,
                    # The arrow ends at the slice that encloses its time, not at the next one.
                    "bp": "e",
                    "id": self._flows,
                    "ts": (at + timeline.events[stop].start) * _TICKS[timeline.unit],
                    "pid": self._processes[timeline.events[stop].slice],
                    "tid": rows[stop],
                }


def _metadata(name: str, pid: int, tid: int, /, **args: object) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _args(event: TimelineEvent) -> dict[str, Any]:
    """Returns the arguments of an event in a trace: all but its name and times."""
    args: dict[str, Any] = {"label": event.label, "slice": event.slice, "reads": list(event.reads)}
    args |= {name: getattr(event, name) for name in _OPTIONAL if getattr(event, name) is not None}
    if event.kind == "launch":
        args["origins"] = [origin.as_fields() for origin in event.origins]
    if event.estimated:
        args["estimated"] = True
    if event.kind == "transfer":
        args["nbytes"] = event.nbytes
    return args


def _rows(timeline: EventLog) -> list[int]:
    """Returns the row of each event in its process: transfers in flight at once need more than one."""
    rows = [_LAUNCHES] * len(timeline.events)
    by_slice: dict[str, list[int]] = {}
    for n, event in enumerate(timeline.events):
        if event.kind == "transfer":
            by_slice.setdefault(event.slice, []).append(n)
    for sends in by_slice.values():
        # Interval partitioning: the lowest free row, or else a new one after those of transfers in flight.
        free: list[int] = []
        under_way: list[tuple[float, int]] = []
        for n in sorted(sends, key=lambda n: timeline.events[n].start):
            while under_way and under_way[0][0] <= timeline.events[n].start:
                heapq.heappush(free, heapq.heappop(under_way)[1])
            rows[n] = heapq.heappop(free) if free else _LAUNCHES + 1 + len(under_way)
            heapq.heappush(under_way, (timeline.events[n].end, rows[n]))
    return rows


def is_trace(data: bytes) -> bool:
    """Returns whether a file of JSON is meant to be a trace: an array."""
    return data.lstrip().startswith(b"[")


def read_trace(text: str | bytes) -> list[EventLog]:
    """Returns the steps in a trace file, those that are whole.

    Raises:
      TraceError: when it is none of ours.
    """
    events = _parse(text)
    steps: list[_RecordedStep] = []
    processes: dict[object, str] = {}
    try:
        for event in events:
            args = event.get("args", {})
            if event["ph"] == "M" and event["name"] == "process_name":
                processes[event["pid"]] = args.get("slice", args["name"])
            elif event["name"] == _HEADER:
                steps.append(_RecordedStep(event["ts"], args))
            elif steps and event.get("cat") != _SPAN:
                steps[-1].add(event, args, processes)
        logs = [step.log() for step in steps if step.whole]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise TraceError(f"damaged: {type(error).__name__}: {error}") from None
    if not logs:
        raise TraceError("holds no whole step of a pathways program")
    return logs


def read_spans(text: str | bytes) -> list[TraceSpan]:
    """Returns the work in a trace file that belongs to no step.

    Raises:
      TraceError: when it is none of ours.
    """
    try:
        return [
            TraceSpan(
                event["args"]["track"],
                event["args"]["row"],
                event["name"],
                event["ts"] / _TICKS[SECONDS],
                (event["ts"] + event["dur"]) / _TICKS[SECONDS],
            )
            for event in _parse(text)
            if event.get("cat") == _SPAN
        ]
    except (KeyError, TypeError) as error:
        raise TraceError(f"damaged: {type(error).__name__}: {error}") from None


class _RecordedStep:
    """One step of a file that is being read."""

    def __init__(self, began: float, about: Mapping[str, Any]) -> None:
        self.began = began
        self.about = about
        self.tick = _TICKS[about["unit"]]
        self.events: list[TimelineEvent] = []
        self.memory: dict[str, list[tuple[float, int]]] = {name: [] for name in about["slices"]}

    def add(self, event: Mapping[str, Any], args: Mapping[str, Any], processes: Mapping[object, str]) -> None:
        if event["ph"] == "C":
            self.memory[processes[event["pid"]]].append((self.time(event["ts"]), int(args["bytes"])))
        elif event["ph"] == "X":
            start = self.time(event["ts"])
            more = {name: args[name] for name in (*_OPTIONAL, "label", "slice", "nbytes") if name in args}
            more["reads"] = tuple(args.get("reads", ()))
            more["estimated"] = bool(args.get("estimated", False))
            more["origins"] = tuple(Origin.from_fields(fields) for fields in args.get("origins", ()))
            end = start + _finite(event["dur"]) / self.tick
            self.events.append(TimelineEvent(kind=event["cat"], start=start, end=end, **more))

    def time(self, ts: float) -> float:
        return (_finite(ts) - self.began) / self.tick

    @property
    def whole(self) -> bool:
        return len(self.events) == self.about["events"]

    def log(self) -> EventLog:
        slices = tuple(self.about["slices"])
        for n, event in enumerate(self.events):
            before = [*event.reads, *(() if event.after is None else (event.after,))]
            if event.kind not in ("launch", "transfer") or {event.slice, event.dst} - {*slices, None}:
                raise ValueError(f"event {n} is not a launch or transfer of the program")
            if not all(0 <= other < n for other in before):
                raise ValueError(f"event {n} waits for one that comes later")
        memory = {name: tuple(curve) for name, curve in self.memory.items()}
        return EventLog(
            str(self.about["program"]),
            str(self.about["title"]),
            self.about["unit"],
            slices,
            tuple(self.events),
            memory,
            {str(name): int(host) for name, host in self.about.get("hosts", {}).items()},
        )


def _finite(number: Any) -> float:
    if not math.isfinite(number):
        raise ValueError(f"time {number} is not finite")
    return float(number)


def _parse(text: str | bytes) -> list[dict[str, Any]]:
    """Returns the events of a file; of one that ends early, all that are whole."""
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise TraceError("is no UTF-8 text") from None
    try:
        events = json.loads(decoded)
    except (ValueError, RecursionError):
        events = _whole_lines(decoded)
    if isinstance(events, dict):
        events = events.get("traceEvents")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise TraceError("is not a trace in Chrome's JSON format")
    return events


def _whole_lines(text: str) -> list[Any] | None:
    """Returns the events of an array that was not closed; None for anything else."""
    head, *lines = text.split("\n")
    if head != "[":
        return None
    events: list[Any] = []
    for line in lines:
        try:
            events.append(json.loads(line.removesuffix(",")))
        except (ValueError, RecursionError):
            break
    return events
