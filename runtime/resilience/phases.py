"""Phases of the core of resilience; `core.py` has the transitions."""

from __future__ import annotations

import dataclasses

from pathways.runtime.resilience.effects import RestoreState
from pathways.runtime.resilience.records import ReplicaTopology, VersionKey


@dataclasses.dataclass(frozen=True, slots=True)
class StepsRunning:
    """Steps are issued."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepsHeld:
    """No step is issued until the version of this boundary is committed.

    Attributes:
      key: the version.
      is_first: whether it is the first state of the run, which need not be restored.
    """

    key: VersionKey
    is_first: bool


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingForIslands:
    """Steps wait for lost islands.

    Attributes:
      retry_at: the earliest time of the next restore.
    """

    retry_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class RestoringState:
    """Hosts restore a version.

    Attributes:
      restore: the order to the hosts.
      pending: the hosts with a pending reply.
    """

    restore: RestoreState
    pending: frozenset[int]

    def islands(self, topology: ReplicaTopology) -> frozenset[int]:
        """Returns the islands that the restore needs."""
        # So are islands without a running replica, while other islands read copies from them, and
        # islands with a pending reply, although no step uses them.
        hosts = {*(load.source for load in self.restore.loads), *self.pending}
        return topology.islands(self.restore.replicas) | {topology.hosts[host].island for host in hosts}


@dataclasses.dataclass(frozen=True, slots=True)
class RunAbandoned:
    """Final phase of a run that cannot be restored.

    Attributes:
      why: the error.
    """

    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class RunOver:
    """Final phase of a run that was ended."""


Phase = StepsRunning | StepsHeld | WaitingForIslands | RestoringState | RunAbandoned | RunOver
