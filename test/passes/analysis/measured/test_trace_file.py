"""Trace files: valid for Perfetto, read back as they were written, and readable when cut off."""

from __future__ import annotations

import codecs
import dataclasses
import json
import re

import pytest
from pipelines import one_f_one_b, pipeline

from pathways.passes.analysis.links import Link
from pathways.passes.analysis.measured.trace_file import TraceError, TraceFile, read_trace
from pathways.passes.analysis.times import Times
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.simulate.replay import simulate


@pytest.fixture(scope="module")
def timeline():
    plan = plan_of(pipeline(one_f_one_b, 3, 4), "step")
    return simulate(plan, Times(kinds={"fwd": 1.0, "bwd": 2.0}), Link(0.25, 64))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


def test_trace_file_is_read_back_as_written(timeline, path):
    with TraceFile(path) as file:
        file.append(timeline)
        file.append(timeline, at=timeline.step_time)
    for read in read_trace(path.read_bytes()):
        assert read.slices == timeline.slices
        assert read.step_time == pytest.approx(timeline.step_time)
        assert read.critical_path == timeline.critical_path
        for event, other in zip(read.events, timeline.events, strict=True):
            assert (event.name, event.start, event.end) == (
                other.name,
                pytest.approx(other.start),
                pytest.approx(other.end),
            )
            assert (event.reads, event.dst, event.nbytes) == (other.reads, other.dst, other.nbytes)
        assert [read.peak_bytes(s) for s in read.slices] == [timeline.peak_bytes(s) for s in timeline.slices]


def test_trace_file_keeps_estimates_marked(timeline, path):
    first, *rest = timeline.events
    estimated = dataclasses.replace(first, estimated=True)
    dataclasses.replace(timeline, events=(estimated, *rest)).save_trace(path)
    (read,) = read_trace(path.read_bytes())
    assert [event.estimated for event in read.events] == [True] + [False] * len(rest)


def test_trace_file_sorts_and_names_slices_by_host(timeline, path):
    first, second, third = timeline.slices
    hosts = {first: 1, second: 0, third: 1}
    dataclasses.replace(timeline, hosts=hosts).save_trace(path)
    (read,) = read_trace(path.read_bytes())
    assert (read.hosts, read.slices) == (hosts, timeline.slices)
    assert all(read.peak_bytes(name) > 0 for name in read.slices)
    events = json.loads(path.read_text())
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert [named[pid] for pid in sorted(order, key=order.__getitem__)] == [
        f"{second} (host 0)",
        f"{first} (host 1)",
        f"{third} (host 1)",
    ]


def test_trace_file_is_in_the_format_of_trace_events(timeline, path):
    timeline.save_trace(path)
    events = json.loads(path.read_text())
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(named.values()) == list(timeline.slices)
    whole = [e for e in events if e["ph"] == "X"]
    assert len(whole) == len(timeline.events)
    # Rows hold no two things at once: viewers would nest them.
    rows = {}
    for event in sorted(whole, key=lambda e: e["ts"]):
        row = (event["pid"], event["tid"])
        assert rows.get(row, 0) <= event["ts"] + 1e-6
        rows[row] = event["ts"] + event["dur"]
    arrows = {}
    for event in events:
        if event["ph"] in "stf":
            arrows.setdefault(event["id"], []).append((event["ph"], event["ts"], named[event["pid"]]))
    assert len(arrows) == len(timeline.transfers)
    for stops in arrows.values():
        assert [ph for ph, _, _ in stops] == ["s", "t", "f"]
        assert [ts for _, ts, _ in stops] == sorted(ts for _, ts, _ in stops)
        assert stops[0][2] != stops[2][2]
    assert {e["name"] for e in events if e["ph"] == "C"} == {"live bytes"}


def test_trace_file_of_a_killed_process_is_readable(timeline, path):
    file = TraceFile(path)
    file.append(timeline)
    unclosed = path.read_text()
    file.append(timeline)
    two = path.read_text()
    file.close()
    assert len(read_trace(unclosed)) == 1
    assert len(read_trace(two)) == 2
    assert len(read_trace(two[: len(unclosed) + 5000])) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a trace in Chrome's JSON format"),
        ("{}", "is not a trace in Chrome's JSON format"),
        ("[1]", "is not a trace in Chrome's JSON format"),
        (b"\xff\xfe", "not UTF-8 text: byte 0 is 0xff"),
        ("[]", "holds no whole step of a pathways program"),
        ('[{"ph": "X"}]', "holds no whole step of a pathways program"),
        ("[" * 100_000, "is not a trace in Chrome's JSON format"),
    ],
)
def test_read_trace_refuses_other_files(text, message):
    with pytest.raises(TraceError, match=message):
        read_trace(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"reads":[0]', '"reads":[9999]', "args.reads: expected earlier events of its step, got 9999"),
        ('"reads":[0]', '"reads":["0"]', 'args.reads[0] = "0": expected a whole number from 0 up'),
        ('"dur":1000.0', '"dur":1e300', "dur = 1e+300: expected a finite number"),
        ('"dur":1000.0', '"length":1000.0', "dur: missing"),
        ('"unit":"units"', '"unit":"days"', "args.unit = \"days\": expected one of 's', 'units', 'flops'"),
        ('"slices":["s0","s1","s2"]', '"slices":["s0",[]]', "args.slices[1] = []: expected a text"),
        ('"slice":"s1","reads"', '"slice":"s9","reads"', 'args.slice = "s9": expected a slice of its step'),
        ('"cat":"launch"', '"cat":"lunch"', "cat = \"lunch\": expected one of 'launch', 'transfer'"),
        ('"label":"f', '"label":{"a":1},"other":"f', 'args.label = {"a": 1}: expected a text'),
        ('"kind":"fwd"', '"kind":{}', "args.origins[0].kind = {}: expected one of 'fwd', 'bwd', 'grad',"),
        ('"nbytes":', '"nbytes":{},"other":', "args.nbytes = {}: expected a whole number from 0 up"),
        ('"bytes":', '"bytes":-1,"other":', "args.bytes = -1: expected a whole number from 0 up"),
        ('"pid":2,"args":{"bytes"', '"pid":7,"args":{"bytes"', "pid = 7: expected the process of a slice of"),
    ],
)
def test_read_trace_names_the_event_that_is_damaged(old, new, message, timeline, path):
    timeline.save_trace(path)
    text = path.read_text()
    assert old in text
    with pytest.raises(TraceError, match=rf"^damaged: event \d+: {re.escape(message)}"):
        read_trace(text.replace(old, new))


def test_read_trace_accepts_a_byte_order_mark(timeline, path):
    timeline.save_trace(path)
    assert len(read_trace(codecs.BOM_UTF8 + path.read_bytes())) == 1
