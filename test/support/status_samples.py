"""Snapshots of an imaginary cluster, for tests of its metrics and its page."""

from __future__ import annotations

from collections.abc import Mapping

from pathways.runtime.metrics.snapshots import Snapshot
from pathways.runtime.resources.accounts import AccountRecord, Use
from pathways.runtime.resources.status import ClientStatus, IslandStatus, ServiceStatus, SharedHostStatus

BEGIN = 1_000_000.0
"""Time at which the service has started."""


def snapshot(
    seconds: float,
    used: Mapping[tuple[str, str], float] | None = None,
    *,
    clients: tuple[ClientStatus, ...] = (),
    states: tuple[str, ...] = ("running", "running"),
    cluster: str = "lab",
) -> Snapshot:
    """Returns a snapshot of a time after the start.

    Args:
      used: the device seconds so far, by clients and islands.
      states: the state of each island.
    """
    islands = tuple(
        IslandStatus(
            f"island{n}",
            state,
            (SharedHostStatus(n, 100 + n, 3, 1 << 20, "box", "10.0.0.1", BEGIN),),
            devices=4,
            losses=int(state != "running"),
            problem=None if state == "running" else f"host {n} (island{n}) is lost",
        )
        for n, state in enumerate(states)
    )
    accounts = tuple(
        AccountRecord(client, "train", island, Use(took, 10, 5, waited={"share": 0.5}), 1 << 10, 1 << 11)
        for (client, island), took in (used or {}).items()
    )
    status = ServiceStatus(4711, islands, clients, None, BEGIN, BEGIN + seconds)
    return Snapshot(cluster, status, accounts)


def client(name: str, **fields: object) -> ClientStatus:
    """Returns the status of a client."""
    return ClientStatus(name, 1.0, 5, 2, 1.5, 3, 1 << 20, "ann", "desk", 31337, since=BEGIN, **fields)
