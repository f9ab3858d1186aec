"""Islands of a training run: tracks their workers, and chooses the replicas that run."""

from __future__ import annotations

import dataclasses

from pathways.runtime.resilience.effects import PrepareReplicas
from pathways.runtime.resilience.records import RecoveryRules, ReplicaTopology


class TrainingIslands:
    """Islands of a run; chooses the replicas that run.

    Attributes:
      topology: hosts and replicas.
      present: the islands that have workers.
      leaving: the present islands that leave.
    """

    def __init__(self, topology: ReplicaTopology, rules: RecoveryRules) -> None:
        self.topology = topology
        self.present = frozenset(place.island for place in topology.hosts.values())
        self.leaving: set[int] = set()
        self._rules = rules
        self._absent_since: dict[int, float] = {}
        self._dead: set[int] = set()
        # The replicas that the step is loaded for, ahead of a change.
        self._prepared: tuple[int, ...] | None = None

    @property
    def hosts(self) -> tuple[int, ...]:
        """The hosts that have workers."""
        return self.topology.hosts_of(self.present)

    def hosts_that_return(self) -> tuple[int, ...]:
        """Returns the hosts that have workers, or will have."""
        islands = frozenset(place.island for place in self.topology.hosts.values())
        return self.topology.hosts_of(islands - self._dead)

    def use(self, islands: frozenset[int]) -> None:
        """Sets the islands of the only replica."""
        # With several replicas, the topology has their islands.
        assert len(self.topology.replicas) == 1
        self.topology = dataclasses.replace(self.topology, replicas=(islands,))

    def leave(self, island: int) -> None:
        """Notes that an island leaves."""
        if island in self.present:
            self.leaving.add(island)

    def lose(self, island: int, now: float) -> tuple[int, ...]:
        """Notes that an island has no workers; returns its hosts."""
        self.present -= {island}
        self.leaving.discard(island)
        self._absent_since[island] = now
        if self._prepared is not None and island in self.topology.islands(self._prepared):
            self._prepared = None
        return self.topology.hosts_of(frozenset((island,)))

    def release_leaving(self, now: float) -> list[int]:
        """Notes that the leaving islands are released, and returns them."""
        leaving = sorted(self.leaving)
        self.leaving.clear()
        self.present -= {*leaving}
        self._absent_since.update(dict.fromkeys(leaving, now))
        return leaving

    def abandon(self, island: int) -> None:
        """Notes that an island gets no workers again."""
        self._dead.add(island)

    def add(self, island: int) -> None:
        """Notes that an island has workers again."""
        self.present |= {island}
        self.leaving.discard(island)
        self._absent_since.pop(island, None)
        self._dead.discard(island)

    def set_prepared(self, replicas: tuple[int, ...] | None) -> None:
        """Notes the replicas that the step is loaded for; None for none."""
        self._prepared = replicas

    def choose_replicas(self, now: float) -> tuple[int, ...] | None:
        """Returns the replicas that can run now; None while the run has to wait for islands."""
        islands = self.topology.replicas
        able = [number for number, of_replica in enumerate(islands) if of_replica <= self.present]
        if len(able) == len(islands):
            return tuple(able)
        missing = frozenset().union(*islands) - self.present
        if not all(self._is_overdue(island, now) for island in missing):
            return None
        count = max((count for count in self._rules.counts if count <= len(able)), default=None)
        return None if count is None else tuple(able[:count])

    def prepare_larger(self, running: tuple[int, ...], now: float) -> list[PrepareReplicas]:
        """Returns the order to load the step for more replicas, if more can run."""
        larger = self.choose_replicas(now)
        return [] if larger is None or len(larger) <= len(running) else [PrepareReplicas(larger)]

    def _is_overdue(self, island: int, now: float) -> bool:
        return island in self._dead or now - self._absent_since[island] >= self._rules.patience

    def grows(self, running: tuple[int, ...]) -> bool:
        """Returns whether more replicas can run, and the step is loaded for them."""
        prepared = self._prepared
        return (
            prepared is not None
            and len(prepared) > len(running)
            and self.topology.islands(prepared) <= self.present - self.leaving
        )

    def why_hopeless(self) -> str | None:
        """Returns the reason why no allowed number of replicas can ever run again; None if one can."""
        able = [of_replica for of_replica in self.topology.replicas if not of_replica & self._dead]
        if len(able) >= self._rules.counts[0]:
            return None
        dead = ", ".join(f"island{island}" for island in sorted(self._dead))
        return f"{dead} will not return, and no smaller number of replicas is allowed"
