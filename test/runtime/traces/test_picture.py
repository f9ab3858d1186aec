"""Timelines as pictures: one box for each launch, on one scale."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

from pathways.dialect.attributes.origins import Origin
from pathways.passes.analysis.measured.events import EventLog, TimelineEvent
from pathways.runtime.traces.picture import picture_of

SVG = "{http://www.w3.org/2000/svg}"


def test_picture_draws_launches_in_proportion_to_their_durations() -> None:
    origins = [Origin(stage=0, kind="fwd", microbatch=0), Origin(stage=0, kind="bwd", microbatch=0)]
    events = (
        TimelineEvent("launch", "s0", "f", 0.0, 1.0, (origins[0],), 0),
        TimelineEvent("launch", "s0", "f", 1.0, 3.0, (origins[1],), 0),
    )
    log = EventLog("step", "a < b", "units", ("s0",), events)
    root = ET.fromstring(picture_of([log, dataclasses.replace(log, events=events[:1])]))
    widths = [float(box.get("width", 0)) for box in root.iter(f"{SVG}rect") if box.get("stroke")]
    assert len(widths) == 3
    assert widths[1] == 2 * widths[0]
    assert widths[2] == widths[0]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[0] == "a < b: 3 units, bubble 0.0 %"
    assert "F0" in texts
    assert "B0" in texts
