"""Status of the cluster that programs run on."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from pathways.runtime.clusters.connect import controller
from pathways.runtime.local import devices
from pathways.runtime.local.load import host_status
from pathways.runtime.local.server_requests import DEVICES, STATUS, ServedDevice, send_request
from pathways.runtime.resources.cluster import Cluster, DeviceIsland, Host
from pathways.runtime.resources.status import Status, open_runs
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.tracebacks import boundary


@boundary
def cluster() -> Cluster:
    """Returns the current cluster, with the state and the round trip of each island at this call.

    Unless `connect` was called before, the first call discovers the devices of JAX; `JAX_NUM_CPU_DEVICES` in
    the environment is the number of CPU devices that JAX creates. The cluster is plain data, and does not
    change: call this again for later states. In a process behind `pw-proxy`, the server reports hosts,
    memory, states and round trips.

    Raises:
      ResourceError: JAX has no devices here.
      ValueError: PW_CPU_DEVICES or PW_ISLANDS, which have no effect any more, are set.
      JaxRuntimeError: the server is lost.
    """
    hosts = controller()
    if hosts is not None:
        return hosts.current_cluster()
    current, handles = devices.cluster(), devices.devices_of_cluster()
    if not pjrt.is_proxied(handles[0]):
        return current
    reply = send_request(handles[0].client, DEVICES, {}, tuple[ServedDevice, ...])
    served = {device.id: device for device in reply.body}
    islands = tuple(_with_facts(island, served) for island in current.islands)
    return dataclasses.replace(current, islands=islands)


def _with_facts(island: DeviceIsland, served: Mapping[int, ServedDevice]) -> DeviceIsland:
    """Returns an island with the facts of a server about its devices."""
    described = tuple(
        dataclasses.replace(
            device,
            host=Host(served[device.id].host),
            memory=served[device.id].memory if device.memory is None else device.memory,
        )
        for device in island.devices
    )
    first = served[island.devices[0].id]
    return dataclasses.replace(island, devices=described, state=first.state, round_trip=first.round_trip)


@boundary
def status() -> Status:
    """Returns the status of the cluster: its hosts and their arrays, bound slices, and steps in flight.

    `print` shows it as tables, with the longest round trip to a host and whether steps wait for it. A host
    that does not reply within two seconds is listed without numbers. In a process behind `pw-proxy`, the
    server lists its hosts, and the arrays, programs and steps of all its clients.

    Raises:
      ResourceError: JAX has no devices here.
      ValueError: PW_CPU_DEVICES or PW_ISLANDS, which have no effect any more, are set.
      JaxRuntimeError: the server is lost.
    """
    hosts, training = controller(), tuple(run.status() for run in [*open_runs])
    if hosts is None:
        current, handles = devices.cluster(), devices.devices_of_cluster()
        if pjrt.is_proxied(handles[0]):
            reply = send_request(handles[0].client, STATUS, {}, Status)
            return dataclasses.replace(reply.body, slices=devices.slice_statuses(), training=training)
        names = [island.name for island in current.islands]
        here = host_status(os.getpid(), names, handles)
        return Status("local", (here,), devices.slice_statuses(), training=training)
    statuses, steps = hosts.status()
    slices, waits = devices.slice_statuses(), hosts.waits_for_network()
    return Status("hosts", statuses, slices, steps, waits, hosts.spares(), training)
