"""Records of the core of resilience: hosts, versions of the state, and copies of them. Plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

Blocks = frozenset[str]
"""Names of blocks of the state. A block is what hosts have whole or not at all: the same name on two hosts
means the same bytes."""

Holdings = Mapping[int, Blocks]
"""The blocks that each host has on its devices, by the numbers of hosts."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostPlace:
    """Place of a host.

    Attributes:
      island: the number of its island, whose hosts are lost together.
      machine: the name of its machine, whose memory is lost at once.
    """

    island: int
    machine: str


@dataclasses.dataclass(frozen=True)
class ReplicaTopology:
    """Hosts, and the replicas that run on them.

    Attributes:
      hosts: where each host is, by its number.
      replicas: the islands of each replica; one of all islands where the program has none.
      holdings: returns what each host has of a version when these replicas run, in terms of its blocks, which
        are small enough for each such set of replicas.
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
class RecoveryPolicy:
    """Rules of when state is copied, and what may go on without which islands.

    Attributes:
      every_steps: steps from one version to the next; None where time decides.
      every_seconds: seconds from one version to the next; None where steps decide.
      counts: the numbers of replicas that may run, ascending; the last is all.
      patience: seconds that an island may take to return before the others go on without it.
      disk_every: how many versions are committed for each that is saved to disk; None without a disk.
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
      step: how many steps were run before it.
      attempt: how often training was resumed before it; versions of earlier attempts at the same step are
        others.
    """

    step: int
    attempt: int

    def __str__(self) -> str:
        return f"version {self.step}"


@dataclasses.dataclass(frozen=True, slots=True)
class BlockCopy:
    """A copy to be made of blocks of a version.

    Attributes:
      number: a number that no other copy has.
      source: the host that has the blocks.
      target: the host that is to have it in its memory; the same one for its own.
    """

    number: int
    source: int
    target: int
    blocks: Blocks


@dataclasses.dataclass(frozen=True, slots=True)
class BlockLoad:
    """Blocks that a host restores to its devices.

    Attributes:
      source: the host that has them in its memory.
    """

    host: int
    source: int
    blocks: Blocks


@dataclasses.dataclass(frozen=True)
class StoredVersion:
    """A version that is left in the memory of hosts by an earlier controller.

    Attributes:
      blocks: the blocks that each host has.
      is_committed: whether any host has it as committed. All copies were complete then.
      replicas: the replicas that ran.
    """

    blocks: Holdings
    is_committed: bool
    replicas: tuple[int, ...]
