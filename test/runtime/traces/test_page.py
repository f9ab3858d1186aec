"""Page of timelines: well formed, self-contained, with every event in its row and at its time."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ElementTree

import pytest
from pipelines import gpipe, interleaved, one_f_one_b, pipeline

from pathways.dialect.attributes.origins import Origin
from pathways.passes.analysis.links import Link
from pathways.passes.analysis.measured.events import EventLog, TimelineEvent
from pathways.passes.analysis.times import Times
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.simulate.replay import simulate
from pathways.runtime.traces.page import page_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def timelines():
    plan = plan_of(pipeline(one_f_one_b, 3, 4), "step")
    slow = Times(kinds={"fwd": 1.0, "bwd": 2.0})
    return [simulate(plan), simulate(plan, slow, Link(0.5), 'with <slow> links & "quotes"')]


def parsed(page: str) -> ElementTree.Element:
    doctype, _, rest = page.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    return ElementTree.fromstring(rest)


def numbers(element, *names):
    return [float(element.get(name)) for name in names]


def test_page_is_self_contained(timelines):
    page = page_of(timelines)
    root = parsed(page)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert not tags & {"link", "img", "iframe", "object", "image", "use"}
    assert not [element for element in root.iter() if {"src", "href"} & set(element.keys())]
    without_names = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//\w+\.|url\((?!#)|@import|fetch\(|XMLHttpRequest|import\(", without_names)


def test_page_names_hosts_of_slices(timelines):
    """The hosts of one timeline are shown in all timelines of the page."""
    planned, measured = timelines
    hosts = {name: n for n, name in enumerate(measured.slices)}
    root = parsed(page_of([planned, dataclasses.replace(measured, hosts=hosts)]))
    shown = [element.text for element in root.iter("div") if element.get("class") == "host"]
    assert shown == ["host 0", "host 1", "host 2"] * 2
    assert not [e for e in parsed(page_of(timelines)).iter("div") if e.get("class") == "host"]


def test_page_draws_every_event_in_its_row_and_at_its_time(timelines):
    sections = list(parsed(page_of(timelines)).iter("section"))
    assert len(sections) == len(timelines)
    whole = max(timeline.step_time for timeline in timelines)
    for section, timeline in zip(sections, timelines, strict=True):
        boxes = [r for r in section.iter(f"{SVG}rect") if "launch" in r.get("class", "").split()]
        rows = sorted({box.get("y") for box in boxes}, key=float)
        for box, event in zip(boxes, timeline.launches, strict=True):
            x, width = numbers(box, "x", "width")
            assert x == pytest.approx(event.start / whole * 1000, abs=1e-3)
            assert width == pytest.approx(event.duration / whole * 1000, abs=1e-3)
            assert rows.index(box.get("y")) == timeline.slices.index(event.slice)
            assert box.get("data-name") == event.name
            assert event.origins[0].kind in box.get("class").split()
            assert event.label in box.get("data-tip").splitlines()[0]
        lines = [p for p in section.iter(f"{SVG}path") if "transfer" in p.get("class").split()]
        for line, event in zip(lines, timeline.transfers, strict=True):
            sender, reader = (timeline.events[int(n)] for n in line.get("data-ends").split())
            assert (sender.slice, reader.slice) == (event.slice, event.dst)
            assert sender.origins[-1].kind in line.get("class").split()
        memory = [p for p in section.iter(f"{SVG}path") if p.get("class") == "memory"]
        assert len(memory) == len(timeline.slices)


def test_page_has_a_table_of_timelines(timelines):
    rows = [
        [cell.text for cell in row.iter("td")]
        for row in parsed(page_of(timelines)).iter("tr")
        if row.find("td") is not None
    ]
    assert rows[0][:3] == ["planned", "12 units", "33.3 %"]
    assert [row[0] for row in rows] == [timeline.title for timeline in timelines]


def test_page_draws_a_fused_launch_as_boxes_in_a_row():
    event = TimelineEvent("launch", "s0", "f[2]", 1.0, 3.0, (Origin("fwd"), Origin("bwd")), 2)
    page = parsed(page_of([EventLog("step", "planned", "units", ("s0",), (event,))]))
    boxes = [r for r in page.iter(f"{SVG}rect") if "launch" in r.get("class", "")]
    assert [(box.get("data-name"), box.get("class").split()[1]) for box in boxes] == [
        ("F2", "fwd"),
        ("B2", "bwd"),
    ]
    assert float(boxes[1].get("x")) == pytest.approx(sum(numbers(boxes[0], "x", "width")), abs=1e-3)


def test_page_shades_stages_on_one_slice():
    timeline = simulate(plan_of(pipeline(interleaved, 2, 4, 2), "step"))
    boxes = [r for r in parsed(page_of([timeline])).iter(f"{SVG}rect") if "launch" in r.get("class", "")]
    shades = {
        (e.slice, e.stage): b.get("class").split()[2] for b, e in zip(boxes, timeline.launches, strict=True)
    }
    assert shades == {("s0", 0): "shade0", ("s0", 2): "shade1", ("s1", 1): "shade0", ("s1", 3): "shade1"}


def test_page_hatches_estimated_launches():
    seen, unseen = (
        TimelineEvent("launch", "s0", "f", n, n + 1.0, (Origin("fwd"),), estimated=bool(n)) for n in range(2)
    )
    root = parsed(page_of([EventLog("step", "measured", "s", ("s0",), (seen, unseen))]))
    boxes = [r for r in root.iter(f"{SVG}rect") if "launch" in r.get("class", "").split()]
    assert ["estimated" in box.get("class").split() for box in boxes] == [False, True]
    assert boxes[1].get("data-tip").splitlines()[-1] == "estimated: it is missing from the profile"
    legend = [i.get("class") for i in root.iter("i")]
    assert "estimated" in legend
    only_seen = parsed(page_of([EventLog("step", "measured", "s", ("s0",), (seen,))]))
    assert "estimated" not in [i.get("class") for i in only_seen.iter("i")]


def contrast(one: str, other: str) -> float:
    """Returns the contrast of two colours, by the formula of WCAG."""

    def luminance(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        red, green, blue = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_page_colours_leave_text_readable():
    fills = set(re.findall(r"\{ fill: (#\w{6})", page_of([])))
    assert len(fills) > 10
    for fill in fills:
        assert contrast(fill, "#1b1f24") >= 7, fill


def test_page_is_readable_by_day_and_by_night():
    roots = re.findall(r":root \{(.*?)\}", page_of([]), re.DOTALL)
    day, night = (dict(re.findall(r"--([\w-]+): (#\w{6})", root)) for root in roots[:2])
    assert day.keys() == night.keys()
    for colours in (day, night):
        for name in ("text", "quiet"):
            assert contrast(colours[name], colours["page"]) >= 4.5, name
            assert contrast(colours[name], colours["button"]) >= 4.5, name
        for name in ("sent-fwd", "sent-bwd", "sent-glue"):
            assert contrast(colours[name], colours["page"]) >= 3, name
            assert contrast(colours[name], colours["memory"]) >= 3, name


def test_page_of_a_program_without_duration_is_valid():
    timeline = EventLog("empty", "planned", "units", ("s0",), ())
    parsed(
        page_of(
            [timeline, simulate(plan_of(pipeline(gpipe, 1, 1), "step"), Times(kinds={"fwd": 0, "bwd": 0}))]
        )
    )
