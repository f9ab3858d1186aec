"""Arrays of clients, and memory that no array occupies, in the status of a service: from reports of hosts."""

from __future__ import annotations

from types import SimpleNamespace

from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.service.served import island_views


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


def host(index: int, *memory: int | None) -> SimpleNamespace:
    return SimpleNamespace(index=index, ready=SimpleNamespace(memory=memory))


def held(size: int) -> HostReport:
    return HostReport(1, size, (), ())


def test_free_memory_is_that_of_the_fullest_host():
    gang = SimpleNamespace(hosts=[host(0, 100, 100), host(1, 100, 100)])
    assert island_views.free_memory(gang, {0: held(10), 1: held(60)}) == 70
    assert island_views.free_memory(gang, {0: held(10), 1: held(900)}) == 0


def test_free_memory_is_unknown_without_a_report_or_a_limit():
    assert island_views.free_memory(SimpleNamespace(hosts=[host(0, 100)]), {}) is None
    assert island_views.free_memory(SimpleNamespace(hosts=[host(0, 100, None)]), {0: held(10)}) is None
