"""Records of the core of resilience: hosts, versions of the state, and copies of them. Plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

Blocks = frozenset[str]
"""Names of blocks of the state. A host has a block entirely or not at all; the same name on two hosts means
the same bytes."""

Holdings = Mapping[int, Blocks]
"""The blocks that each host has on its devices, by the numbers of hosts."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostPlace:
    """Place of a host.

    Attributes:
      island: the number of its island, whose hosts are lost together.
      machine: the name of its machine, whose hosts lose their memory together.
    """

    island: int
    machine: str


@dataclasses.dataclass(frozen=True)
class ReplicaTopology:
    """Hosts, and the replicas that run on them.

    Attributes:
      hosts: the place of each host, by its number.
      replicas: the islands of each replica; a program without replicas counts as one on all islands.
      holdings: a function from running replicas and a version to the blocks of each host; no block is split
        for any choice of replicas.
    """

    hosts: Mapping[int, HostPlace]
    replicas: tuple[frozenset[int], ...]
    holdings: Callable[[tuple[int, ...], VersionKey], Holdings]

    def islands(self, replicas: tuple[int, ...]) -> frozenset[int]:
        """Returns the islands of some replicas."""
        return frozenset(island for number in replicas for island in self.replicas[number])

    def hosts_of(self, islands: frozenset[int]) -> tuple[int, ...]:
        """Returns the hosts of some islands, in their order."""
        return tuple(host for host, place in sorted(self.hosts.items()) if place.island in islands)


@dataclasses.dataclass(frozen=True)
class RecoveryRules:
    """Rules for copies of the state, and for running with fewer replicas.

    Attributes:
      every_steps: steps from one version to the next; None where time decides.
      every_seconds: seconds from one version to the next; None where steps decide.
      counts: the numbers of replicas that may run, ascending; the last one is the number of all replicas.
      patience: seconds that an island may take to return before fewer replicas run without it.
      disk_every: the number of committed versions per version that is saved to disk; None without a disk.
    """

    every_steps: int | None = None
    every_seconds: float | None = None
    counts: tuple[int, ...] = (1,)
    patience: float = 0.0
    disk_every: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class VersionKey:
    """Name of a version of the state.

    Attributes:
      step: the number of steps before it.
      attempt: the number of times that steps were resumed before it, which tells versions of one step apart.
    """

    step: int
    attempt: int

    def __str__(self) -> str:
        return f"version {self.step}"


@dataclasses.dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy of blocks of a version to the memory of a host.

    Attributes:
      number: a number that no other copy has.
      source: the host that has the blocks.
      target: the host that gets the copy in its memory; the source itself for a copy of its devices.
    """

    number: int
    source: int
    target: int
    blocks: Blocks


@dataclasses.dataclass(frozen=True, slots=True)
class BlockLoad:
    """Blocks that a host restores to its devices.

    Attributes:
      source: the host with the blocks in its memory.
    """

    host: int
    source: int
    blocks: Blocks


@dataclasses.dataclass(frozen=True)
class StoredVersion:
    """Version that an earlier controller left in the memory of hosts.

    Attributes:
      blocks: the blocks on each host.
      is_committed: whether a host has the record that it is committed, that is, that all copies were
        complete.
      replicas: the replicas that ran.
    """

    blocks: Holdings
    is_committed: bool
    replicas: tuple[int, ...]
