"""Status of the cluster that programs run on."""

from __future__ import annotations

import dataclasses
import os

from pathways.runtime.clusters.connect import controller
from pathways.runtime.local.devices import cluster, devices_of_cluster, slice_statuses
from pathways.runtime.local.load import host_status
from pathways.runtime.local.server_requests import STATUS, send_request
from pathways.runtime.resources.status import Status, open_runs
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.tracebacks import boundary


@boundary
def status() -> Status:
    """Returns the status of the cluster: its hosts and their arrays, bound slices, and steps in flight.

    `print` shows it as tables, with the longest round trip to a host and whether steps wait for it. A host
    that does not reply within two seconds is listed without numbers. In a process behind `pw-proxy`, the
    server lists its hosts, and the arrays, programs and steps of all its clients.

    Raises:
      ResourceError: JAX has no devices here.
      JaxRuntimeError: the server is lost.
    """
    hosts, training = controller(), tuple(run.status() for run in [*open_runs])
    if hosts is None:
        current, devices = cluster(), devices_of_cluster()
        if pjrt.is_proxied(devices[0]):
            reply = send_request(devices[0].client, STATUS, {}, Status)
            return dataclasses.replace(reply.body, slices=slice_statuses(), training=training)
        names = [island.name for island in current.islands]
        here = host_status(os.getpid(), names, devices)
        return Status("local", (here,), slice_statuses(), training=training)
    statuses, steps = hosts.status()
    return Status(
        "hosts", statuses, slice_statuses(), steps, hosts.waits_for_network(), hosts.spares(), training
    )
