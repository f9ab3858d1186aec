"""Which devices programs run on."""

from __future__ import annotations

from pathways.compiler.backends.backend import Backend
from pathways.compiler.backends.hosts import HostsBackend
from pathways.compiler.backends.local import LocalBackend
from pathways.runtime.hosts.controller.connect import controller
from pathways.runtime.resources.status import Status
from pathways.runtime.xla.tracebacks import boundary


def backend() -> Backend:
    """What `pathways.connect` was called for, or the devices of this process."""
    hosts = controller()
    return LocalBackend() if hosts is None else HostsBackend(hosts)


@boundary
def status() -> Status:
    """What the cluster is at: its hosts, what they hold, which slices have devices, which steps are not done.

    `print` shows it as tables. Hosts are asked; one that does not answer within two seconds is listed without
    numbers.

    Raises:
      ResourceError: JAX has no devices here.
    """
    return backend().status()
