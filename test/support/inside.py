"""Access of tests to the inside of clients of clusters, where no interface suffices; in this module alone."""

from __future__ import annotations

import pathways as pw
from pathways.runtime.hosts.client.client import Client
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.protocol.shards import shard_indices
from pathways.runtime.hosts.protocol.wire import Connection
from pathways.runtime.hosts.service.service import Service


def core_of(client: Client) -> SharedCore:
    """Returns the core of a client, with the lock round it."""
    return client.session._core


def service_connection(client: Client) -> Connection[object]:
    """Returns the connection on which a client requests steps from a service."""
    return client.session._service.steps


def worker_process(service: Service, host: int) -> int:
    """Returns the process of a worker of a service."""
    return service._workers.pool.hosts[host].process.pid


def shards_agree(x: pw.Array) -> bool:
    """Returns whether all shards of an array on hosts equal a fetch of it."""
    fetched = x.fetch()
    for location, number in x._copies.items():
        whole = location.part.of(fetched)
        parts = shard_indices(whole.shape, location.placement)
        for host, positions in location.holders.items():
            wanted = [whole[parts[at]] for at in positions]
            sizes = [part.nbytes for part in wanted]
            request = x._controller.ask(location, host.index, number, range(len(positions)), sizes)
            shards = x._controller.fetch(request)
            if any(bytes(s) != part.tobytes() for s, part in zip(shards, wanted, strict=True)):
                return False
    return True
