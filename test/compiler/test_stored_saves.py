"""Saves of arrays that are in the memory of hosts already."""

from __future__ import annotations

import numpy as np
import pytest

from pathways.runtime.control.records.errors import HostLostError
from pathways.runtime.data.host_files import SnapshotArray, SnapshotBlock, SnapshotVersion, StoredSave


class Host:
    def __init__(self, index):
        self.index = index
        self.gang = None


class Cluster:
    """Client of two hosts that records calls; the second host is lost."""

    def __init__(self):
        self.hosts = [Host(0), Host(1)]
        self.calls = []

    def call(self, name, gang, hosts, message):
        if self.hosts[1] in hosts:
            raise HostLostError("host 1 (island1) was lost")
        self.calls += [(message.function.rpartition(":")[2], host.index) for host in hosts]


def test_stored_save_that_fails_unmaps_the_blocks_of_other_hosts():
    """Mapped blocks take memory on a host even after their version is removed there."""
    cluster = Cluster()
    blocks = tuple(SnapshotBlock(host, f"block{host}", (2 * host,)) for host in (0, 1))
    array = SnapshotArray(
        SnapshotVersion(cluster, "run", (4, 0), "snapshots"), (4,), np.dtype("f4"), (2,), blocks
    )
    with pytest.raises(HostLostError, match="host 1"):
        StoredSave([array])
    assert cluster.calls == [("map_blocks", 0), ("drop", 0)]
