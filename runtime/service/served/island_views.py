"""Islands and clients, as clients of a service and readers of its status see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pathways.runtime.control.records.errors import lost
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.hosts.cluster.host import HostGang
from pathways.runtime.hosts.protocol.messages import Message
from pathways.runtime.resources.status import ClientStatus, IslandStatus, SharedHostStatus, SliceStatus
from pathways.runtime.service.protocol.service_messages import (
    IslandAddedNotice,
    IslandDrainingNotice,
    IslandFacts,
    IslandLeavingNotice,
    IslandLostNotice,
    IslandReturnedNotice,
    RemoteError,
    WorkerFacts,
)
from pathways.runtime.service.served.served_client import ServedClient
from pathways.runtime.service.sharing.memory import ClientMemory, DeviceLimits
from pathways.runtime.service.sharing.scheduler import ScheduledClient


def island_facts(gang: HostGang) -> IslandFacts:
    """Returns the facts about the workers of an island."""
    return IslandFacts(
        gang.life.key.start,
        tuple(WorkerFacts(host.index, host.process.pid, host.ready) for host in gang.hosts),
        gang.slices,
    )


def changes_since(gang: HostGang, start: int | None) -> Iterator[Message]:
    """Yields the messages that bring a client up to date.

    Args:
      gang: the workers of an island.
      start: the start of its workers that the client knows; None if it does not know the island.
    """
    life = gang.life
    if start is None:
        yield IslandAddedNotice(gang.number, island_facts(gang))
    elif life.key.start != start:
        yield IslandLostNotice(gang.number, start, RemoteError.of(lost(f"{gang.name} was lost")), False)
        yield IslandReturnedNotice(gang.number, island_facts(gang))
    if life.failure is not None:
        yield IslandLostNotice(*life.key, RemoteError.of(life.failure), life.is_dead(), life.is_out)
    elif life.problem is not None:
        yield IslandLeavingNotice(*life.key, RemoteError.of(life.problem))
    elif life.leaving is not None:
        # The client has nothing there that it could move.
        yield IslandDrainingNotice(*life.key, RemoteError.of(life.leaving), {})


def island_status(
    gang: HostGang, reports: Mapping[int, HostReport], limits: DeviceLimits | None
) -> IslandStatus:
    """Returns the status of an island, with the reports of its hosts, and the limits of its memory."""
    life = gang.life
    return IslandStatus(
        gang.name if gang.slices == 1 else f"{gang.name} ({gang.slices} joined)",
        life.state_name(),
        tuple(
            SharedHostStatus(
                host.index,
                host.process.pid,
                None if report is None else report.arrays,
                None if report is None else report.bytes,
                host.ready.machine,
                host.ready.data_address.rpartition(":")[0],
                host.since,
            )
            for host in gang.hosts
            for report in [reports.get(host.index)]
        ),
        sum(len(host.ready.devices) for host in gang.hosts),
        free_memory(gang, reports, None if limits is None else limits.memory),
        life.key.start + gang.is_lost(),
        None if life.problem is None else life.problem.text,
    )


def free_memory(gang: HostGang, reports: Mapping[int, HostReport], limit: int | None = None) -> int | None:
    """Returns the bytes of memory of a device that no array occupies; see `IslandStatus`.

    Args:
      limit: the bytes of each device that clients and their steps may use; None for all.
    """
    free = []
    for host in gang.hosts:
        report, memory = reports.get(host.index), host.ready.memory
        if report is None:
            return None
        for of_device in memory:
            total = of_device if limit is None else limit
            if total is None:
                return None
            free.append(max(0, total - report.bytes // len(memory)))
    return min(free, default=None)


def client_status(
    client: ServedClient,
    scheduled: ScheduledClient,
    slices: tuple[SliceStatus, ...],
    gangs: Sequence[HostGang],
    reports: Mapping[int, HostReport],
    quota: int | None,
) -> ClientStatus:
    """Returns the status of a client, with its slices and the reports of all hosts."""
    service, origin = scheduled.service, client.origin
    arrays, size = array_totals(client.number, gangs, reports)
    return ClientStatus(
        client.name,
        service.weight,
        scheduled.steps_done,
        scheduled.queued,
        service.device_seconds,
        arrays,
        size,
        None if origin is None else origin.user,
        None if origin is None else origin.machine,
        None if origin is None else origin.process,
        client.connections["watch"].peer,
        client.since,
        tuple(sorted({slice.island for slice in slices})),
        slices,
        service.priority,
        quota,
        scheduled.is_suspended,
        _most_held(scheduled.memory),
    )


def _most_held(memory: ClientMemory) -> int | None:
    """Returns the bytes that a client holds on the device where it has most; None without limits."""
    limited = [n for n, limit in enumerate(memory.quota.limits) if limit is not None]
    return max((max(memory.held(n).values(), default=0) for n in limited), default=None)


def array_totals(
    client: int, gangs: Sequence[HostGang], reports: Mapping[int, HostReport]
) -> tuple[int, int]:
    """Returns the number of arrays of a client, and their bytes."""
    arrays = size = 0
    for gang in gangs:
        totals = [
            reports[host.index].clients.get(client, (0, 0)) for host in gang.hosts if host.index in reports
        ]
        # All hosts of an island hold shards of the same arrays.
        arrays += max((count for count, _ in totals), default=0)
        size += sum(nbytes for _, nbytes in totals)
    return arrays, size
