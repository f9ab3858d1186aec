"""HTML that notebooks show of timelines, memory, clusters and lowered programs."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import pytest

import pathways as pw
from pathways.passes.analysis.quantities import SECONDS
from pathways.runtime.local.memory import MemoryAnalysis, SliceMemory
from pathways.runtime.resources.cluster import Cluster, Device, DeviceIsland, Host
from pathways.runtime.traces.page import page_of
from pathways.runtime.traces.timeline import Timeline


@pytest.fixture(scope="module")
def lowered():
    place = pw.make_virtual_device_set().add_slice((1,), ("x",))
    return pw.jit(lambda x: x * 2, devices=place).lower(jax.ShapeDtypeStruct((3,), jnp.float32))


class Tags(HTMLParser):
    """Parser of the tags of a text as browsers read it, with their attributes."""

    @classmethod
    def of(cls, text: str) -> list[tuple[str, dict[str, str | None]]]:
        parser = cls()
        parser.found = []
        parser.feed(text)
        return parser.found

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def parsed(shown: object) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")


def cells(shown: object) -> list[list[str | None]]:
    return [[cell.text for cell in row] for row in parsed(shown).iter("tr")]


def test_notebook_shows_a_timeline_as_its_page_in_a_frame(lowered):
    timeline = lowered.compile().timeline()
    ((tag, attributes),) = Tags.of(timeline._repr_html_())
    assert tag == "iframe"
    assert attributes["srcdoc"] == page_of([timeline])
    assert "src" not in attributes


def test_notebook_escapes_names():
    timeline = Timeline('<b>"step"</b>', "planned", SECONDS, ("s0",), ())
    assert parsed(timeline)[0].get("title") == 'timeline of <b>"step"</b>'
    memory = MemoryAnalysis({"<s0>": SliceMemory(1, 2, 3, 4, 5, 6, 7)})
    assert cells(memory)[1][0] == "<s0>"


def test_notebook_shows_memory_as_a_table(lowered):
    memory = lowered.compile().memory_analysis()
    heads, row = cells(memory)
    assert heads[:3] == ["slice", "devices", "arguments"]
    assert row[:3] == [next(iter(memory)), "1", "12 B"]
    assert [line.split()[0] for line in str(memory).splitlines()] == [heads[0], row[0]]


def test_notebook_shows_a_cluster_as_a_table_of_islands():
    host = Host(0)
    devices = [Device(n, n, "cpu", host, "left" if n < 2 else "right") for n in range(3)]
    cluster = Cluster((DeviceIsland("left", tuple(devices[:2])), DeviceIsland("right", tuple(devices[2:]))))
    assert cells(cluster)[1:] == [
        ["left", "2 (0 to 1)", "cpu", "0", "unknown"],
        ["right", "1 (2 to 2)", "cpu", "0", "unknown"],
    ]


def test_notebook_shows_the_last_form_of_a_lowered_program(lowered):
    shown = parsed(lowered)
    assert next(shown.iter("b")).text == lowered.name
    assert next(shown.iter("pre")).text.rstrip() == lowered.as_text().rstrip()


def test_notebook_shows_schedule_slices_and_launches_of_a_compiled_program(lowered):
    compiled = lowered.compile()
    (place,) = compiled.slices
    assert repr(compiled) == f"<compiled program {lowered.name}: slices {place}, launches 1>"
    assert next(parsed(compiled).iter("b")).text == lowered.name
    assert cells(compiled)[:2] == [["slices", "launches"], [place, "1"]]
    assert cells(compiled)[2][0] == "slice"
