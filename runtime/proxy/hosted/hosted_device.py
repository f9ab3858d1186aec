"""Devices of hosts as placements of clients' arrays have them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class HostedDevice:
    """Device of a host.

    Attributes:
      id: its position in the cluster, which stays the same when workers restart.
      worker_id: its id in the processes of its island.
      island: the number of its island.
      host: the number of its host.
    """

    id: int
    worker_id: int
    island: int
    host: int
