"""Page of a cluster, as a reader without JavaScript gets it."""

from __future__ import annotations

import html.parser
import re

import pytest
from status_samples import client, snapshot

from pathways.runtime.metrics.page import POLICY, page_of
from pathways.runtime.metrics.snapshots import History

USED = {("ann", "island0"): 0.0}


class Outline(html.parser.HTMLParser):
    """Elements and texts of a page; elements without an end are errors."""

    VOID = frozenset({"meta", "rect"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["style"], ["script"]):
            self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)


def outline(*snapshots: object, age: float = 0.0) -> Outline:
    history = History()
    for each in snapshots:
        history.add(each)
    return Outline(page_of(history, age))


def test_the_page_has_islands_clients_and_hosts():
    ann = client("ann", quota=4 << 20, held=1 << 20, priority=1)
    page = outline(snapshot(0, USED), snapshot(1, {("ann", "island0"): 0.5}, clients=(ann,)))
    assert "2 of 2 islands running; 1 client; 2 steps waiting; process 4711, for 1 s" in page.text
    assert "island0 running 1 host, 4 devices; on box" in page.text
    assert "ann 50.0 %" in page.text
    assert "1, priority 1 100.0 % 2 5 1.5 s 1 KiB 1 MiB of 4 MiB ann@desk" in page.text
    assert "Problems none" in page.text
    (meter,) = [attributes for tag, attributes in page.elements if tag == "meter"]
    assert meter == {"min": "0", "max": str(4 << 20), "value": str(1 << 20)}


def test_strips_say_in_words_what_they_show():
    page = outline(snapshot(0, USED), snapshot(1, {("ann", "island0"): 0.5}))
    labels = [attributes["aria-label"] for tag, attributes in page.elements if tag == "svg"]
    assert labels == ["island0, last minute: ann 50.0 %", "island1, last minute: idle"]
    bars = [attributes for tag, attributes in page.elements if tag == "rect" and attributes["class"] == "c0"]
    assert bars == [{"class": "c0", "x": "59.00", "y": "12.00", "width": "1.00", "height": "12.00"}]


def test_problems_come_first():
    page = outline(snapshot(1, states=("running", "restarting")), age=30.0)
    assert "Problems host 1 (island1) is lost" in page.text.replace("island1: host", "host")
    assert "the service has sent nothing for 30 s" in page.text
    assert "1 of 2 islands running" in page.text
    assert "island1 restarting 1 host, 4 devices, lost 1 time; on box" in page.text


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", 'a"b', "a'b", "a&b"])
def test_names_are_text(name):
    """Clients report names of users and machines themselves."""
    stranger = client(name).__class__(name, 1.0, 0, 0, 0.0, 0, 0, name, name, 1)
    used = {(name, "island0"): 0.5}
    page = outline(snapshot(0), snapshot(1, used, clients=(stranger,), cluster=name))
    assert page.text.count(name) >= 4
    assert [tag for tag, _ in page.elements].count("script") == 1


def test_the_page_is_complete_without_other_servers():
    history = History()
    history.add(snapshot(0, clients=(client("ann"),)))
    text = page_of(history, 0.0)
    assert re.findall(r"(?:https?:)?//[a-z]", text) == []
    assert " src=" not in text
    assert " style=" not in text
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in text
    assert POLICY.startswith("default-src 'none'")
