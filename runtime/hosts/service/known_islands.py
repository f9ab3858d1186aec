"""What clients were told last of each island, and what has become of it since."""

from __future__ import annotations

from collections.abc import Iterator

from pathways.runtime.control.clients.items import IslandBack, IslandLeaves, IslandLost, SchedulerEvent
from pathways.runtime.hosts.cluster.host import HostGang
from pathways.runtime.hosts.cluster.islands import Islands
from pathways.runtime.hosts.protocol.messages import Message
from pathways.runtime.hosts.protocol.serving import (
    IslandFacts,
    IslandGone,
    IslandIsBack,
    IslandIsLeaving,
    Told,
    WorkerFacts,
)

Change = tuple[SchedulerEvent | None, Message]
"""What the scheduler is told, if anything, and what all clients are."""


class KnownIslands:
    """What clients were told last of each island.

    Args:
      islands: the islands, with the workers that each has now.
    """

    def __init__(self, islands: Islands) -> None:
        self._islands = islands
        self._known = [(gang, "runs") for gang in islands.gangs]

    def is_current(self, gang: HostGang) -> bool:
        """Whether clients know these workers as those of their island."""
        return self._known[gang.number][0] is gang and not gang.is_lost()

    def facts(self) -> tuple[IslandFacts, ...]:
        """All islands, with the workers that they have now."""
        return tuple(map(_facts, self._islands.gangs))

    def changes(self) -> Iterator[Change]:
        """What has become of islands since clients were told last."""
        for island in range(len(self._known)):
            yield from self._changes_of(island)

    def whole(self) -> Iterator[Message]:
        """All that a client has to know which was told nothing yet but of workers at some time."""
        for island, (gang, state) in enumerate(self._known):
            yield IslandIsBack(island, _facts(gang))
            problem = gang.life.problem
            if state == "runs" or problem is None:
                continue
            start, told = gang.life.key.start, Told.of(problem)
            if gang.life.failure is None:
                yield IslandIsLeaving(island, start, told)
            else:
                yield IslandGone(island, start, told, gang.life.is_dead())

    def _changes_of(self, island: int) -> list[Change]:
        gang, state = self._known[island]
        life = gang.life
        start = life.key.start
        changes: list[Change] = []
        if life.failure is not None:
            dead = life.is_dead()
            if state in ("runs", "leaves"):
                gone = IslandGone(island, start, Told.of(life.failure), dead)
                changes.append((IslandLost(island, life.failure.text), gone))
            elif dead and state != "dead":
                changes.append((None, IslandGone(island, start, Told.of(life.failure), True)))
            state = "dead" if dead else "gone"
        elif life.problem is not None and state == "runs":
            leaves = IslandIsLeaving(island, start, Told.of(life.problem))
            changes.append((IslandLeaves(island, life.problem.text), leaves))
            state = "leaves"
        current = self._islands.gangs[island]
        if current is not gang and state in ("gone", "dead") and current.life.failure is None:
            changes.append((IslandBack(island), IslandIsBack(island, _facts(current))))
            gang, state = current, "runs"
        self._known[island] = gang, state
        return changes


def _facts(gang: HostGang) -> IslandFacts:
    return IslandFacts(
        gang.life.key.start,
        tuple(WorkerFacts(host.index, host.process.pid, host.ready) for host in gang.hosts),
    )
