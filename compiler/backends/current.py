"""Which devices programs run on."""

from __future__ import annotations

from pathways.compiler.backends.backend import Backend
from pathways.compiler.backends.hosts import HostsBackend
from pathways.compiler.backends.local import LocalBackend
from pathways.runtime.hosts.client.connect import controller


def backend() -> Backend:
    """What `pathways.connect` was called for, or the devices of this process."""
    hosts = controller()
    return LocalBackend() if hosts is None else HostsBackend(hosts)
