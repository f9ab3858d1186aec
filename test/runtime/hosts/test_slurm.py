"""Slurm allocations: lists of nodes, and islands on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_scontrol import write_scontrol

import pathways as pw
from pathways.runtime.hosts.launch.slurm import islands_on, nodes_of, own_address


@pytest.mark.process
@pytest.mark.quick
def test_slurm_has_scontrol_expand_lists_of_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_scontrol(tmp_path, monkeypatch, {"gpu-[08-09],login": ["gpu-08", "gpu-09", "login"], "a": ["a"]})
    assert nodes_of({"SLURM_JOB_NODELIST": "gpu-[08-09],login"}) == ["gpu-08", "gpu-09", "login"]
    assert nodes_of({"SLURM_NODELIST": "a"}) == ["a"]
    assert (tmp_path / "arguments").read_text() == "show hostnames a\n"
    with pytest.raises(
        ValueError, match=r"SLURM_JOB_NODELIST='n\[1-': scontrol cannot expand it: Invalid hostlist: n\[1-$"
    ):
        nodes_of({"SLURM_JOB_NODELIST": "n[1-"})


@pytest.mark.process
@pytest.mark.quick
def test_slurm_says_that_scontrol_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ValueError,
        match=r"^Slurm: SLURM_JOB_NODELIST='a': scontrol is not on PATH, .*Ssh\(\['a', 'b'\], bind=\)$",
    ):
        nodes_of({"SLURM_JOB_NODELIST": "a"})


def test_slurm_gives_islands_nodes_in_order():
    nodes = ["a", "b", "c"]
    assert [island.hosts for island in islands_on(nodes, None, 2)] == [("a",), ("b",), ("c",)]
    requested = [pw.Island(hosts=2, cores=4), pw.Island()]
    assert islands_on(nodes, requested, 1) == (pw.Island(hosts=["a", "b"], cores=4), pw.Island(hosts=["c"]))
    with pytest.raises(ValueError, match="islands=: 4 hosts, but this allocation has 3 nodes"):
        islands_on(nodes, [pw.Island(hosts=2), pw.Island(hosts=2)], 1)
    with pytest.raises(ValueError, match="islands=: 'd' is not a node of this allocation: a, b, c"):
        islands_on(nodes, [pw.Island(hosts=["d"])], 1)


def test_slurm_reports_a_missing_node_list_or_address(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.delenv("SLURM_NODELIST", raising=False)
    with pytest.raises(ValueError, match="SLURM_JOB_NODELIST is not set"):
        pw.connect(pw.Slurm())
    assert own_address({"SLURMD_NODENAME": "localhost"}, 1) == "127.0.0.1"
    with pytest.raises(
        ValueError,
        match=r"localhost is 127\.0\.0\.1 here, which .* do not reach; pass pathways.Slurm\(bind=\)",
    ):
        own_address({"SLURMD_NODENAME": "localhost"}, 2)
