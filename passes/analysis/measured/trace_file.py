"""Timelines as trace files, for Perfetto (ui.perfetto.dev), `chrome://tracing` and `pw-viz`.

The format is the JSON array of Chrome's trace events, one event per line. Each slice is a process: a row of
launches, rows of sends, and a counter of its live bytes; arrows lead from the launch that makes a value over
its transfer to the launch that reads it. Slices on several hosts name their hosts, and are in the order of
them. Steps are appended as they come. Spans of work that belongs to no step have processes of their own,
below the slices. The closing bracket may be missing, so that the file of a process that was killed is a trace
all the same.
"""

from __future__ import annotations

import codecs
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self

import msgspec

from pathways.dialect.attributes.origins import CallKind, Origin
from pathways.dialect.plain_data import Count, PlainDataError, decode_text, read_record, shown
from pathways.passes.analysis.measured.events import EventLog, TimelineEvent, TraceSpan
from pathways.passes.analysis.quantities import FLOPS, SECONDS, UNITS

_TICKS = {SECONDS: 1e6, UNITS: 1e3, FLOPS: 1e-3}
"""Microseconds of the trace in one unit of time: a unit, and a million operations, are a millisecond."""

_LAUNCHES = 1
"""The number of the row of launches; the rows of sends follow."""

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
        # Interval partitioning: the lowest free row, or else a new one after the rows of transfers in flight.
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
    return data.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def read_trace(text: str | bytes) -> list[EventLog]:
    """Returns the complete steps in a trace file.

    Raises:
      TraceError: when it is none of ours; names the event that is damaged.
    """
    reader = _TraceReader()
    for n, event in enumerate(_parse(text)):
        try:
            reader.add(event)
        except ValueError as error:
            raise TraceError(f"damaged: event {n}: {error}") from None
    logs = [step.log() for step in reader.steps if step.is_whole]
    if not logs:
        raise TraceError("holds no whole step of a pathways program")
    return logs


def read_spans(text: str | bytes) -> list[TraceSpan]:
    """Returns the work in a trace file that belongs to no step.

    Raises:
      TraceError: when it is none of ours; names the event that is damaged.
    """
    spans: list[TraceSpan] = []
    for n, event in enumerate(_parse(text)):
        if event.get("cat") != _SPAN:
            continue
        try:
            span = read_record(event, _SpanEvent)
        except PlainDataError as error:
            raise TraceError(f"damaged: event {n}: {error}") from None
        start, end = span.ts / _TICKS[SECONDS], (span.ts + span.dur) / _TICKS[SECONDS]
        spans.append(TraceSpan(span.args.track, span.args.row, span.name, start, end))
    return spans


_Time = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30, description="a finite number")]
_Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62, description="a whole number from 0 up")]


class _ProcessRecord(msgspec.Struct):
    name: str
    slice: str | None = None


class _ProcessEvent(msgspec.Struct):
    pid: int
    args: _ProcessRecord


class _StepRecord(msgspec.Struct):
    program: str
    title: str
    unit: Literal["s", "units", "flops"]
    slices: list[str]
    events: _Natural
    hosts: dict[str, _Natural] = {}


class _StepEvent(msgspec.Struct):
    ts: _Time
    args: _StepRecord


class _BytesRecord(msgspec.Struct):
    bytes: _Natural


class _CounterEvent(msgspec.Struct):
    pid: int
    ts: _Time
    args: _BytesRecord


class _OriginRecord(msgspec.Struct, forbid_unknown_fields=True):
    kind: CallKind
    stage: _Natural | None = None
    microbatch: _Natural | None = None
    part: Literal["input", "weight"] | None = None
    pieces: Count | None = None
    when: bool = False


class _WorkRecord(msgspec.Struct):
    label: str
    slice: str
    reads: list[_Natural] = []
    origins: list[_OriginRecord] = []
    microbatch: _Natural | None = None
    dst: str | None = None
    nbytes: _Natural = 0
    after: _Natural | None = None
    estimated: bool = False


class _WorkEvent(msgspec.Struct):
    cat: Literal["launch", "transfer"]
    ts: _Time
    dur: _Time
    args: _WorkRecord


class _SpanRecord(msgspec.Struct):
    track: str
    row: str


class _SpanEvent(msgspec.Struct):
    name: str
    ts: _Time
    dur: _Time
    args: _SpanRecord


class _TraceReader:
    """Reader of the events of a file, which collects its steps."""

    def __init__(self) -> None:
        self.steps: list[_RecordedStep] = []
        self._processes: dict[int, str] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Reads the next event; raises ValueError if it is damaged."""
        name, phase = event.get("name"), event.get("ph")
        if (name, phase) == ("process_name", "M"):
            process = read_record(event, _ProcessEvent)
            self._processes[process.pid] = process.args.slice or process.args.name
        elif name == _HEADER:
            step = read_record(event, _StepEvent)
            self.steps.append(_RecordedStep(step.ts, step.args))
        elif self.steps and event.get("cat") != _SPAN:
            if phase == "C":
                counter = read_record(event, _CounterEvent)
                self.steps[-1].add_counter(counter, self._processes.get(counter.pid))
            elif phase == "X":
                self.steps[-1].add_work(read_record(event, _WorkEvent))


class _RecordedStep:
    """One step of a file that is being read."""

    def __init__(self, began: float, about: _StepRecord) -> None:
        self.began = began
        self.about = about
        self.tick = _TICKS[about.unit]
        self.events: list[TimelineEvent] = []
        self.memory: dict[str, list[tuple[float, int]]] = {name: [] for name in about.slices}

    def add_counter(self, event: _CounterEvent, slice: str | None) -> None:
        """Adds live bytes of a slice of the step (ValueError for others); None for an unknown process."""
        if slice not in self.memory:
            raise ValueError(f"pid = {event.pid}: expected the process of a slice of its step")
        self.memory[slice].append((self.time(event.ts), event.args.bytes))

    def add_work(self, event: _WorkEvent) -> None:
        """Adds a launch or a transfer; ValueError: its step lacks its slice or an event that it reads."""
        work = event.args
        for field, slice in (("slice", work.slice), ("dst", work.dst)):
            if slice is not None and slice not in self.memory:
                raise ValueError(f"args.{field} = {shown(slice)}: expected a slice of its step")
        for field, numbers in (("reads", work.reads), ("after", [work.after])):
            for number in numbers:
                if number is not None and number >= len(self.events):
                    raise ValueError(f"args.{field}: expected earlier events of its step, got {number}")
        start = self.time(event.ts)
        self.events.append(
            TimelineEvent(
                event.cat,
                work.slice,
                work.label,
                start,
                start + event.dur / self.tick,
                tuple(Origin(**msgspec.structs.asdict(call)) for call in work.origins),
                work.microbatch,
                work.dst,
                work.nbytes,
                tuple(work.reads),
                work.after,
                work.estimated,
            )
        )

    def time(self, ts: float) -> float:
        return (ts - self.began) / self.tick

    @property
    def is_whole(self) -> bool:
        """Whether all of its events have been read."""
        return len(self.events) == self.about.events

    def log(self) -> EventLog:
        about = self.about
        memory = {name: tuple(curve) for name, curve in self.memory.items()}
        slices, events = tuple(about.slices), tuple(self.events)
        return EventLog(about.program, about.title, about.unit, slices, events, memory, about.hosts)


def _parse(text: str | bytes) -> list[dict[str, Any]]:
    """Returns the events of a file; of one that ends early, all that are whole."""
    try:
        decoded = decode_text(text) if isinstance(text, bytes) else text
    except PlainDataError as error:
        raise TraceError(str(error)) from None
    try:
        events = msgspec.json.decode(decoded)
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
            events.append(msgspec.json.decode(line.removesuffix(",")))
        except (ValueError, RecursionError):
            break
    return events
