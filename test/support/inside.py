"""Access of tests to the inside of clients of clusters, where no interface suffices; in this module alone."""

from __future__ import annotations

from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.protocol.wire import Connection
from pathways.runtime.service.service import Service


def core_of(client: HostSession) -> SharedCore:
    """Returns the core of a client, with the lock round it."""
    return client._core


def service_connection(client: HostSession) -> Connection[object]:
    """Returns the connection on which a client requests steps from a service."""
    return client._service.steps


def worker_process(service: Service, host: int) -> int:
    """Returns the process of a worker of a service."""
    return service._workers.pool.hosts[host].process.pid
