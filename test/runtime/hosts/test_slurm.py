"""Allocations of Slurm: lists of nodes, and islands on them."""

from __future__ import annotations

import pytest

import pathways as pw
from pathways.runtime.hosts.launch.slurm import expanded, islands_on, nodes_of, own_address


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a,b.lan", ["a", "b.lan"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("gpu-[08-11,7],login", ["gpu-08", "gpu-09", "gpu-10", "gpu-11", "gpu-7", "login"]),
        ("r[1-2]n[0,2]x", ["r1n0x", "r1n2x", "r2n0x", "r2n2x"]),
    ],
)
def test_slurm_expands_lists_of_nodes(text: str, names: list[str]):
    assert expanded(text) == names


@pytest.mark.parametrize(
    "text", ["n[1-", "n]", "n[a]", "n[3-1]", "n[]", "n[1-99999999]", ",", "n[1-9999][1-9999]"]
)
def test_slurm_refuses_other_lists(text: str):
    with pytest.raises(ValueError, match=r"^SLURM_JOB_NODELIST"):
        nodes_of({"SLURM_JOB_NODELIST": text})


def test_slurm_gives_islands_nodes_in_order():
    nodes = ["a", "b", "c"]
    assert [island.hosts for island in islands_on(nodes, None, 2)] == [("a",), ("b",), ("c",)]
    asked = [pw.Island(hosts=2, cores=4), pw.Island()]
    assert islands_on(nodes, asked, 1) == (pw.Island(hosts=["a", "b"], cores=4), pw.Island(hosts=["c"]))
    with pytest.raises(ValueError, match="islands=: 4 hosts, but this allocation has 3 nodes"):
        islands_on(nodes, [pw.Island(hosts=2), pw.Island(hosts=2)], 1)
    with pytest.raises(ValueError, match="islands=: 'd' is not a node of this allocation: a, b, c"):
        islands_on(nodes, [pw.Island(hosts=["d"])], 1)


def test_slurm_reports_a_missing_node_list_or_address(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.delenv("SLURM_NODELIST", raising=False)
    with pytest.raises(ValueError, match="SLURM_JOB_NODELIST is not set"):
        pw.connect("slurm")
    assert own_address({"SLURMD_NODENAME": "localhost"}, 1) == "127.0.0.1"
    with pytest.raises(
        ValueError, match=r"localhost is 127\.0\.0\.1 here, which other nodes do not reach; pass bind="
    ):
        own_address({"SLURMD_NODENAME": "localhost"}, 2)
