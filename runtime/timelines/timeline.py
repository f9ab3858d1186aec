"""Timeline of one step of a program, with its report, page and trace file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pathways.passes.analysis.measured.events import EventLog
from pathways.passes.analysis.measured.trace_file import TraceFile
from pathways.runtime.timelines.page import frame_of, page_of
from pathways.runtime.timelines.report import report


@dataclasses.dataclass(frozen=True)
class Timeline(EventLog):
    """Timeline of a step, planned, simulated or measured; `str` shows its figures and its critical path."""

    def __str__(self) -> str:
        return report(self)

    def _repr_html_(self) -> str:
        """Returns the page of the timeline, for a notebook."""
        return frame_of(self)

    def save_trace(self, path: str | Path) -> None:
        """Writes the timeline for Perfetto and `chrome://tracing`; see `passes.measured.trace_file`."""
        with TraceFile(path) as file:
            file.append(self)

    def save_html(self, path: str | Path, *below: EventLog) -> None:
        """Draws the timeline, and `below` below it, as one HTML page that needs no other file."""
        Path(path).write_text(page_of([self, *below]), encoding="utf-8")
