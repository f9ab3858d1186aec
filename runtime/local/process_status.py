"""What this process is at."""

from __future__ import annotations

from pathways.runtime.local.devices import cluster, devices_of_cluster, live_arrays
from pathways.runtime.local.load import loaded_programs
from pathways.runtime.resources.status import HostStatus


def host_status(pid: int) -> HostStatus:
    """How this process is; its arrays are all that JAX has alive on devices of the cluster."""
    here = cluster()
    devices = set(devices_of_cluster())
    arrays = [
        array
        for array in live_arrays(here.platform)
        if not array.is_deleted() and not devices.isdisjoint(array.sharding.device_set)
    ]
    return HostStatus(
        0,
        " ".join(island.name for island in here.islands),
        pid,
        here.platform,
        len(here.devices),
        len(arrays),
        sum(shard.data.nbytes for array in arrays for shard in array.addressable_shards),
        tuple(sorted(executable.plan.name for executable in loaded_programs())),
    )
