"""Status of the cluster that programs run on."""

from __future__ import annotations

import os

from pathways.runtime.clusters.connect import controller
from pathways.runtime.local.devices import slice_statuses
from pathways.runtime.local.load import host_status
from pathways.runtime.resources.status import Status, open_runs
from pathways.runtime.xla.tracebacks import boundary


@boundary
def status() -> Status:
    """Returns the status of the cluster: its hosts and their arrays, bound slices, and steps in flight.

    `print` shows it as tables, with the longest round trip to a host and whether steps wait for it. A host
    that does not reply within two seconds is listed without numbers.

    Raises:
      ResourceError: JAX has no devices here.
    """
    hosts, training = controller(), tuple(run.status() for run in [*open_runs])
    if hosts is None:
        return Status("local", (host_status(os.getpid()),), slice_statuses(), training=training)
    statuses, steps = hosts.status()
    return Status(
        "hosts", statuses, slice_statuses(), steps, hosts.waits_for_network(), hosts.spares(), training
    )
