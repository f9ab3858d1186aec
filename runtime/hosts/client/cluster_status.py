"""What the cluster is at that programs run on."""

from __future__ import annotations

import os

from pathways.runtime.hosts.client.connect import controller
from pathways.runtime.local.devices import slice_statuses
from pathways.runtime.local.load import host_status
from pathways.runtime.resources.status import Status
from pathways.runtime.xla.tracebacks import boundary


@boundary
def status() -> Status:
    """What the cluster is at: its hosts, what they hold, which slices have devices, which steps are not done.

    `print` shows it as tables, and names the longest round trip to a host and whether steps wait for it.
    Hosts are asked; one that does not answer within two seconds is listed without numbers.

    Raises:
      ResourceError: JAX has no devices here.
    """
    hosts = controller()
    if hosts is None:
        return Status("local", (host_status(os.getpid()),), slice_statuses())
    told, steps = hosts.status()
    return Status("hosts", told, slice_statuses(), steps, hosts.waits_for_network(), hosts.spares())
