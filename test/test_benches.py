"""Benches are run by hand; they start, at least."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import runpy
import subprocess
import sys
import time
import types
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from _simulated.costs import read_costs
from _simulated.figures import Usage, smallest_hidden, used_together
from _simulated.fleet import FleetShape
from _simulated.service import ClientModel

BENCHES = sorted((Path(__file__).parents[1] / "bench").glob("[!_]*.py"))


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of the benches."""
    monkeypatch.syspath_prepend(str(BENCHES[0].parent))
    return importlib.import_module(name)


@pytest.mark.parametrize("path", BENCHES, ids=lambda path: path.stem)
def test_bench_starts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(path.parent))
    assert "__doc__" in runpy.run_path(str(path))


def test_paper_page_is_whole_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    page = module("_paper_page", monkeypatch)
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
def test_plot_has_all_points(most, is_log, monkeypatch):
    page = module("_paper_page", monkeypatch)
    points = [(1, most), (2, 0.0), (16, most / 3)]
    plot = page.Plot("x", "y", [page.Series("simulated, 0.33 ms, 16 hosts", points)], is_log)
    text = page.page_of("Paper", [], [page.Table("Figure", [], plot)])
    root = ET.fromstring(text.partition("\n")[2])
    width, height = map(float, root.find(".//svg").attrib["viewBox"].split()[2:])
    for legend in root.findall(".//text")[-1:]:
        assert float(legend.attrib["x"]) + 6 * len(legend.text) <= width
    assert root.find(".//svg").attrib["aria-label"] == "y by x: simulated, 0.33 ms, 16 hosts"
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
        (["--page", "/dev/null/page.html"], "argument --page: cannot write /dev/null/page.html"),
        (["--page", "/"], "argument --page: cannot write /: it is a folder"),
    ],
)
def test_paper_refuses_wrong_arguments(arguments, message, monkeypatch, capsys):
    paper = module("paper", monkeypatch)
    monkeypatch.setattr("sys.argv", ["paper.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        paper.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("bench", ["clients", "hosts", "network"])
def test_costs_file_is_checked_before_measuring(bench, monkeypatch, capsys, tmp_path):
    main = module(bench, monkeypatch).main
    path = tmp_path / "costs.json"
    for text, message in (
        ("{", "it is no file of costs"),
        ('{"benches": {"hosts": {"ring": 1}}}', "hosts.ring"),
    ):
        path.write_text(text)
        monkeypatch.setattr("sys.argv", [f"{bench}.py", "--json", str(path)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
        assert path.read_text() == text


def test_costs_of_other_groups_are_kept(monkeypatch, tmp_path):
    costs = module("_costs", monkeypatch)
    path = tmp_path / "costs.json"
    monkeypatch.setattr("sys.argv", ["bench/hosts.py", "--json", str(path)])
    groups = {
        name: costs.Group([{"case": name}], [costs.Cost(f"per_{name}", 1e-6, name)]) for name in ("a", "b")
    }
    costs.write(path, groups, 4.0)
    before = json.loads(path.read_text())["benches"]["hosts"]
    monkeypatch.setattr(costs, "machine", lambda: "another")
    monkeypatch.setattr("sys.argv", ["bench/hosts.py", "--only", "b"])
    costs.write(path, {"b": costs.Group([{"case": "new"}], [costs.Cost("per_b", 2e-6, "new")])}, 0.5)
    after = json.loads(path.read_text())["benches"]["hosts"]
    assert after["a"] == before["a"]
    assert after["b"]["cases"] == [{"case": "new"}]
    assert (after["b"]["command"], after["b"]["load"]) == ("python bench/hosts.py --only b", 0.5)
    # Each run that costs are from is said, once.
    file = read_costs(path.read_bytes(), "costs.json")
    paper = module("paper", monkeypatch)
    assert [note.partition(": python")[0] for note in paper.noted(paper.Inputs(file, ""), None)] == [
        "Costs of hosts: per_a",
        "Costs of hosts: per_b",
    ]
    monkeypatch.setattr("sys.argv", ["bench/hosts.py"])
    costs.write(path, groups, 4.0)
    file = read_costs(path.read_bytes(), "costs.json")
    (note,) = paper.noted(paper.Inputs(file, ""), None)
    assert note.startswith("Costs of hosts: per_a; hosts: per_b: python bench/hosts.py, ")


@pytest.fixture
def inputs(monkeypatch):
    """`Inputs` of the checked-in costs, by what is changed of them."""
    paper, costs = module("paper", monkeypatch), module("_costs", monkeypatch)
    file = read_costs(costs.CHECKED_IN.read_bytes(), "costs.json")
    return lambda what_if="": paper.Inputs(file, what_if)


@pytest.mark.parametrize("process", ["controller", "service"])
def test_costs_are_changed_once(process, inputs):
    def of(what_if: str) -> dict[str, float]:
        return dataclasses.asdict(getattr(inputs(what_if), process)(16))

    for name, seconds in of("").items():
        assert of(f"{name}=2x")[name] == pytest.approx(2 * seconds)
        assert of(f"{name}=7us")[name] == pytest.approx(7e-6)


def test_costs_reach_about_the_goals_of_the_paper(inputs):
    # Twice what is to be reached: costs may be of a busy machine.
    assert smallest_hidden(FleetShape([16]), inputs().controller(16)) <= 1e-3
    assert smallest_hidden(FleetShape([512]), inputs().controller(512)) <= 20e-3
    assert smallest_hidden(FleetShape([512], 32), inputs().controller(16)) <= 1e-3
    shape, costs = FleetShape([16]), inputs().service(16)
    for weights in ((1,) * 16, (1, 2, 4, 8)):
        usage = used_together(shape, costs, [ClientModel((0,), 0.33e-3, each) for each in weights], 0.3)
        assert usage.busy >= 0.8
        assert usage.unfair <= 0.1
    shape, clients = FleetShape([128] * 4, 32), [ClientModel((0, 1, 2, 3), 3e-3)] * 16
    assert used_together(shape, inputs().service(16), clients, 0.3).busy >= 0.8


def test_paper_reports_no_step_as_unfair(inputs, monkeypatch):
    paper = module("paper", monkeypatch)
    table = paper.clients(inputs("per_host=1s"), seconds=0.1)
    unfair = [entry for entry in table.entries if entry.case.startswith("shares")]
    assert [(entry.simulated, entry.is_over) for entry in unfair] == [("no step was done", True)] * 2


def test_paper_measures_nothing_late(monkeypatch, capsys):
    paper = module("paper", monkeypatch)
    assert paper.Measuring(time.monotonic() + 60).take("early", lambda: 1) == 1
    assert paper.Measuring(time.monotonic() - 1).take("late", lambda: 1) is None
    assert capsys.readouterr().out.splitlines() == ["measured: early, in 0 s", "late: left out: time"]


def test_paper_page_is_written_after_each_table(monkeypatch, tmp_path):
    paper = module("paper", monkeypatch)
    report = paper.Report(tmp_path / "page.html", ["note"])
    for case in ("first", "second"):
        report.show(paper.Table("Figure", [paper.Entry(case)]))
        page = (tmp_path / "page.html").read_text()
        assert page.count("<table>") == 1
        assert f"<td>{case}</td>" in page


def hosts_of(measured, count: int, rate: float):
    """Measured hosts whose controller had 10 us of CPU for a step, and 5 for each host."""
    steps = {
        seconds: measured.Measured(rate, count * 5e-6 + 10e-6, 0.0, 0.0)
        for seconds in (0.0, 1e-3, measured.LONG)
    }
    return measured.MeasuredHosts(count, steps, 1e-3)


def clients_of(measured, rate: float, cpu: float, idle: float = 0.0):
    """A measured client of a service, whose steps had so much of its CPU."""
    case = measured.ClientCase((1,), 0.0)
    had = measured.ServedSteps({"client0": rate}, 1.0, rate * cpu, 0.0, 0.0, idle)
    return case, measured.MeasuredClients(case, had)


def test_paper_checks_the_simulator_with_unchanged_costs(inputs, monkeypatch):
    check, measured = module("_paper_check", monkeypatch), module("_paper_measured", monkeypatch)
    hosts = {count: hosts_of(measured, count, 5000.0) for count in (2, 4)} | {8: None}
    clients = dict([clients_of(measured, 9000.0, 100e-6)]) | {measured.ClientCase((1, 1), 3e-3, 4): None}
    plain, changed = (
        check.check(inputs(what_if), hosts, clients)
        for what_if in ("", "per_host=1ms,per_step=1ms,per_island=1ms,net=1ms,per_client=1ms,per_worker=1ms")
    )
    assert plain == changed
    rows = {entry.case: entry for entry in plain.entries}
    fit = rows["per_host and per_island of a controller, this run and the file"]
    assert fit.measured == "5 us"
    assert rows["8 hosts"].measured == rows["2 clients, 3 ms, 4 hosts"].measured == "left out: time"


@pytest.mark.parametrize(
    ("rate", "cpu", "idle", "why"),
    [
        (100.0, 100e-6, 1.0, "cores were idle"),
        (100.0, 100e-6, 0.0, "processes waited for cores"),
        (9500.0, 100e-6, 1.0, "the service had all of a core"),
        (1e6, 1e-6, 0.0, "measured is faster, for less CPU a step"),
        (1e6, 100e-6, 0.0, "measured is faster, but not for less CPU a step"),
    ],
)
def test_paper_rows_say_why_they_are_off(rate, cpu, idle, why, inputs, monkeypatch):
    check, measured = module("_paper_check", monkeypatch), module("_paper_measured", monkeypatch)
    monkeypatch.setattr(check.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(check, "simulated", lambda case, costs: Usage(1.0, rate=20e3, control=1.0))
    (entry,) = check.check(inputs(), {}, dict([clients_of(measured, rate, cpu, idle)])).entries
    assert entry.is_over
    assert entry.note.startswith(why)


def test_resilience_bench_measures_fewer_replicas(monkeypatch, capsys):
    resilience = module("resilience", monkeypatch)
    for row in ("fewer-local", "throughput-local"):
        monkeypatch.setattr("sys.argv", ["resilience.py", "--quick", "--mib", "1", "--only", row])
        resilience.main()
        figures = capsys.readouterr().out.splitlines()[-1]
        assert figures.startswith({"f": "4 replicas to 3", "t": "throughput with 3 of 4"}[row[0]])
        assert "(to reach " in figures


@pytest.mark.process
def test_served_bench_imports_no_jax():
    code = "import sys, _served; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=BENCHES[0].parent, check=True)


@pytest.mark.hosts
def test_resilience_bench_measures_snapshots(monkeypatch, capsys):
    resilience = module("resilience", monkeypatch)
    options = ["--quick", "--mib", "1", "--hosts", "2", "--only", "snapshot"]
    monkeypatch.setattr("sys.argv", ["resilience.py", *options])
    resilience.main()
    assert "(to reach 3)" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.process
def test_served_bench_timers_are_hosts_of_one_island(monkeypatch):
    served = module("_served", monkeypatch)
    with served.ServedIslands(2, hosts=3) as islands:
        assert [len(island.hosts) for island in islands.status().islands] == [3, 3]
        client = islands.attach("client")
        program = served.load(client, [0, 1], 0.0)
        for _ in range(3):
            client.wait_for_step(client.run(program, {0: (), 1: ()}))
        client.close()
