"""Arrays of each client in the status of a service, added up from the reports of hosts."""

from __future__ import annotations

from types import SimpleNamespace

from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.service import island_views


def report(**clients: tuple[int, int]) -> HostReport:
    own = {int(name.removeprefix("client")): held for name, held in clients.items()}
    return HostReport(0, 0, (), (), clients=own)


def test_service_status_counts_an_array_of_an_island_once():
    """A host may send no report, or hold no shard of an array."""
    gangs = [
        SimpleNamespace(hosts=[SimpleNamespace(index=index) for index in hosts])
        for hosts in ((0, 1), (2,), (3,))
    ]
    reports = {
        0: report(client1=(3, 24)),
        1: report(client1=(2, 16), client2=(1, 8)),
        2: report(client1=(1, 4)),
    }
    assert island_views.array_totals(1, gangs, reports) == (4, 44)
    assert island_views.array_totals(2, gangs, reports) == (1, 8)
    assert island_views.array_totals(3, gangs, reports) == (0, 0)
