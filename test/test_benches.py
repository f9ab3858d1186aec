"""Benches are run by hand; they start, at least."""

from __future__ import annotations

import dataclasses
import importlib
import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pathways.runtime.simulate.cluster.costs import read_costs

BENCHES = sorted((Path(__file__).parents[1] / "bench").glob("[!_]*.py"))


@pytest.mark.parametrize("path", BENCHES, ids=lambda path: path.stem)
def test_a_bench_starts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(path.parent))
    assert "__doc__" in runpy.run_path(str(path))


def test_the_page_of_the_paper_is_whole_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHES[0].parent))
    page = importlib.import_module("_paper_page")
    points = [(2, 0.5), (512, 35.0)]
    plots = [page.Plot("hosts", "ms", [page.Series("a < b", points)], is_log=log) for log in (False, True)]
    entry = page.Entry("16 hosts & more", "2.3 ms", "", "0.1 ms", "<= 0.5 ms", is_over=True)
    text = page.page_of("Paper", ["note"], [page.Table("Figure", [entry], plot) for plot in plots])
    ET.fromstring(text.partition("\n")[2])
    assert not re.search(r"src=|href=|url\(|@import|<script", text)
    assert "2.3 ms (paper), 0.1 ms (simulated); to reach <= 0.5 ms, over" in page.text_of(
        page.Table("Figure", [entry])
    )


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("most", [0.0, 0.1, 0.61, 1.0, 5.9, 6.5, 9.997, 61.2, 99.97, 100.0, 650.0, 1000.0])
def test_all_points_are_on_a_plot(most, is_log, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHES[0].parent))
    page = importlib.import_module("_paper_page")
    plot = page.Plot("x", "y", [page.Series("s", [(1, most), (2, 0.0), (16, most / 3)])], is_log)
    text = page.page_of("Paper", [], [page.Table("Figure", [], plot)])
    root = ET.fromstring(text.partition("\n")[2])
    width, height = map(float, root.find(".//svg").attrib["viewBox"].split()[2:])
    circles = root.findall(".//circle")
    # Of the points, and of the legend.
    assert len(circles) == 4
    for circle in circles:
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height
    ticks = [float(x.text) for x in root.findall(".//text") if x.attrib.get("text-anchor") == "end"]
    assert 2 <= len(ticks) <= 8
    assert max(ticks) >= most


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--what-if", "hosts=2x"], "there is no cost 'hosts'"),
        (["--costs", "/no/such/file"], "--costs: cannot read /no/such/file"),
    ],
)
def test_the_paper_names_what_is_wrong(arguments, message, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHES[0].parent))
    paper = importlib.import_module("paper")
    monkeypatch.setattr("sys.argv", ["paper.py", *arguments])
    with pytest.raises(SystemExit):
        paper.main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("who", ["controller", "service"])
def test_a_cost_is_changed_once(who, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHES[0].parent))
    paper, costs = importlib.import_module("paper"), importlib.import_module("_costs")
    file = read_costs(costs.CHECKED_IN.read_bytes(), "costs.json")

    def of(what_if: str) -> dict[str, float]:
        return dataclasses.asdict(getattr(paper.Inputs(file, what_if), who)(16))

    for name, seconds in of("").items():
        assert of(f"{name}=2x")[name] == pytest.approx(2 * seconds)
        assert of(f"{name}=7us")[name] == pytest.approx(7e-6)
