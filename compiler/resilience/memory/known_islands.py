"""Islands as the core of resilience knows them: present, leaving, lost, replaced or abandoned."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Callable

from pathways.compiler.resilience.memory.memory_calls import MemoryCalls
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.step import FunctionCall
from pathways.runtime.hosts.cluster.host import HostGang
from pathways.runtime.hosts.protocol import plain
from pathways.runtime.resilience.events import (
    IslandAbandoned,
    MemoryLost,
    ResilienceEvent,
    WorkersLeaving,
    WorkersLost,
    WorkersReturned,
)
from pathways.runtime.resilience.records import Blocks, VersionKey
from pathways.runtime.resilience.snapshots.block_file import SnapshotError

CopiesOfHosts = dict[int, dict[VersionKey, Blocks]]
"""The blocks of each version on each host."""


class Change(enum.Enum):
    """Change of the workers of an island."""

    LOST = enum.auto()
    LEAVING = enum.auto()
    REPLACED = enum.auto()
    ABANDONED = enum.auto()
    """The workers are lost, and no new ones will come."""


@dataclasses.dataclass
class KnownIsland:
    """An island, as the core of resilience knows it.

    Attributes:
      gang: its last workers that were ready.
      is_present: whether they are still ready.
      is_leaving: whether their departure was reported.
      opening: the workers with a pending request to open their memory; None without one.
      is_abandoned: whether it was reported that the island gets no workers again.
      is_away: whether its new workers are not used, see `HostStore.lose`.
      has_memory: whether the copies in its memory stay when its workers are lost.
    """

    gang: HostGang
    is_present: bool = True
    is_leaving: bool = False
    opening: HostGang | None = None
    is_abandoned: bool = False
    is_away: bool = False
    has_memory: bool = True


class KnownIslands:
    """Islands of a session, and the changes of their workers that were not reported yet.

    Args:
      on_return: a function that gets the blocks in the memory of new workers, before the event.

    Attributes:
      islands: the islands, by their numbers.
    """

    def __init__(self, calls: MemoryCalls, on_return: Callable[[CopiesOfHosts], None]) -> None:
        self._calls = calls
        self._client = calls.client
        self._on_return = on_return
        self.islands = [KnownIsland(gang) for gang in self._client.pool.gangs]
        # Workers that run after their signal to leave, until their state has a version.
        self._delayed: set[HostGang] = set()

    def open_all(self) -> list[tuple[HostGang, FunctionCall]]:
        """Opens the memory of all islands and waits for it; returns their workers and calls.

        Raises:
          HostError: a host was lost.
          SnapshotError: a host has no folder for it.
        """
        gangs = self._client.pool.current(range(len(self.islands)))
        self.islands = [KnownIsland(gang) for gang in gangs]
        opened = [(gang, self._open(gang)) for gang in gangs]
        for gang, call in opened:
            self._client.wait_for_call(call)
            self._check_opened(gang, call)
        return opened

    def _check_opened(self, gang: HostGang, call: FunctionCall) -> None:
        for host in gang.hosts:
            if (reason := self._calls.failure_of(call, host.index)) is not None:
                raise SnapshotError(f"pw.resilient: {host}: {reason}")

    def present(self) -> list[HostGang]:
        """Returns the workers of the present islands."""
        return [island.gang for island in self.islands if island.is_present]

    def leaving(self) -> set[int]:
        """Returns the islands whose workers leave."""
        return {n for n, island in enumerate(self.islands) if island.gang.life.leaving is not None}

    def has_lost(self) -> bool:
        """Returns whether a loss was not reported yet."""
        return any(self._change_of(n, island) is Change.LOST for n, island in enumerate(self.islands))

    def has_news(self) -> bool:
        """Returns whether `poll` returns events."""
        return any(self._change_of(n, island) for n, island in enumerate(self.islands))

    def release(self, number: int) -> None:
        """Lets the workers of an island exit."""
        island = self.islands[number]
        island.is_present = island.is_leaving = False
        self._allow_leave(island.gang)

    def opening_or_present(self) -> list[HostGang]:
        """Returns the workers that may have opened the run, also where their reply is pending."""
        opening = [island.opening for island in self.islands if island.opening is not None]
        return [*self.present(), *opening]

    def allow_all(self) -> None:
        """Allows all workers that leave to exit."""
        for gang in [*self._delayed]:
            self._allow_leave(gang)

    def poll(self) -> list[ResilienceEvent]:
        """Returns events for islands that were lost, leave, or have new workers."""
        events: list[ResilienceEvent] = []
        for number, island in enumerate(self.islands):
            change = self._change_of(number, island)
            problem = island.gang.life.problem
            if change is Change.LOST and problem is not None:
                self.release(number)
                reason = problem.text.partition(": ")[2] or problem.text
                events.append(WorkersLost(number, reason.partition("\n")[0]))
                if not island.has_memory:
                    island.has_memory = True
                    # After the report of the loss, so that no copies are made on these hosts meanwhile.
                    events += [MemoryLost(host.index) for host in island.gang.hosts]
            elif change is Change.LEAVING:
                island.is_leaving = True
                events.append(WorkersLeaving(number))
            elif change is Change.ABANDONED:
                island.is_abandoned = True
                events.append(IslandAbandoned(number))
            elif change is Change.REPLACED:
                current = self._client.pool.gangs[number]
                with contextlib.suppress(HostError):
                    # New workers count as present when they have reported their versions, see `_on_opened`.
                    call = self._open(current)
                    island.opening = current
                    self._calls.expect(call, self._on_opened(call, island, current))
        return events

    def _change_of(self, number: int, island: KnownIsland) -> Change | None:
        """Returns the change of an island that was not reported yet."""
        if island.is_present:
            # Including leaving workers whose time is over, which accept no calls.
            if island.gang.life.problem is not None:
                return Change.LOST
            is_leaving = island.gang.life.leaving is not None
            return Change.LEAVING if is_leaving and not island.is_leaving else None
        current = self._client.pool.gangs[number]
        if current is island.gang:
            return Change.ABANDONED if not island.is_abandoned and current.life.is_dead() else None
        is_ready = current.life.problem is None and not island.is_away
        return Change.REPLACED if is_ready and current is not island.opening else None

    def _allow_leave(self, gang: HostGang) -> None:
        """Allows workers that leave to exit, if they wait for that."""
        if gang in self._delayed:
            self._delayed.remove(gang)
            self._client.allow_leave(gang)

    def _open(self, gang: HostGang) -> FunctionCall:
        """Opens the memory of the hosts of an island; the blocks there are the value of the call.

        Raises:
          HostError: the island is lost.
        """
        if gang not in self._delayed:
            self._delayed.add(gang)
            self._client.delay_leave(gang)
        return self._calls.call(
            "open_run", gang, [host.index for host in gang.hosts], self._calls.memory_lane, {}
        )

    def _on_opened(
        self, call: FunctionCall, island: KnownIsland, gang: HostGang
    ) -> Callable[[], list[ResilienceEvent]]:
        def on_end() -> list[ResilienceEvent]:
            if gang.life.problem is not None:
                return []
            self._check_opened(gang, call)
            copies: CopiesOfHosts = {}
            for host in gang.hosts:
                reply = plain.decode(call.answers[host.index].value)
                copies[host.index] = {
                    VersionKey(step, attempt): frozenset(names) for step, attempt, names in reply["versions"]
                }
            island.gang, island.is_present, island.opening = gang, True, None
            self._on_return(copies)
            return [WorkersReturned(gang.number, copies)]

        return on_end
