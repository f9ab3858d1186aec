"""Snapshots of a cluster, and the use of its islands in the time that they cover; reads no clock."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import msgspec

from pathways.runtime.resources.accounts import REST, AccountRecord
from pathways.runtime.resources.status import ServiceStatus

STRIP_SECONDS = 60.0
"""The time that a strip shows."""

_MAX_INTERVALS = 240
"""Limit on the intervals of a history: snapshots may come more often than once a second."""


class Snapshot(msgspec.Struct, frozen=True):
    """State of a cluster at a time.

    Attributes:
      cluster: the name of the cluster.
      status: the status of the service, with the time of the snapshot.
      accounts: the accounts of all clients.
    """

    cluster: str
    status: ServiceStatus
    accounts: tuple[AccountRecord, ...]


@dataclasses.dataclass
class UseInterval:
    """Time between two snapshots.

    Attributes:
      begin: its begin, in seconds since the epoch.
      end: its end.
      used: for each island the fraction of this time for which each client had it.
    """

    begin: float
    end: float
    used: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The length of the interval."""
        return self.end - self.begin

    def room(self, island: str) -> float:
        """Returns the seconds for which nobody had an island."""
        return self.seconds * max(0.0, 1 - sum(self.used.get(island, {}).values()))

    def add(self, island: str, client: str, seconds: float) -> None:
        """Adds seconds for which a client had an island."""
        used = self.used.setdefault(island, {})
        used[client] = used.get(client, 0.0) + seconds / self.seconds


class History:
    """Use of islands in the last minute, from snapshots.

    Attributes:
      latest: the last snapshot; None before the first.
      intervals: the intervals between snapshots, the oldest first.
      colours: the number of the colour of each client that is connected, or had an island in this time.
    """

    def __init__(self) -> None:
        self.latest: Snapshot | None = None
        self.intervals: collections.deque[UseInterval] = collections.deque(maxlen=_MAX_INTERVALS)
        self.colours: dict[str, int] = {}
        self._totals: dict[tuple[str, str], float] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Adds a snapshot, which is later than the ones before; an earlier one is only the latest."""
        before, self.latest = self.latest, snapshot
        totals: dict[tuple[str, str], float] = collections.defaultdict(float)
        for record in snapshot.accounts:
            # The rest of all clients gets their accounts long after their steps.
            if record.client != REST:
                totals[record.client, record.island] += record.use.device_seconds
        earlier_totals, self._totals = self._totals, dict(totals)
        if before is None or snapshot.status.time <= before.status.time:
            self._choose_colours()
            return
        self.intervals.append(UseInterval(before.status.time, snapshot.status.time))
        for (client, island), total in totals.items():
            if (seconds := total - earlier_totals.get((client, island), 0.0)) > 0:
                self._spread(island, client, seconds)
        while self.intervals[0].end < snapshot.status.time - STRIP_SECONDS:
            self.intervals.popleft()
        self._choose_colours()

    def _spread(self, island: str, client: str, seconds: float) -> None:
        """Adds the time of steps that have ended in the last interval, which may have begun before it."""
        for interval in reversed(self.intervals):
            part = min(seconds, interval.room(island))
            if part > 0:
                interval.add(island, client, part)
            seconds -= part
            if seconds <= 0:
                return

    def _choose_colours(self) -> None:
        """Gives clients colours: a client keeps its own, and a new one gets the first that is free."""
        assert self.latest is not None
        present = {name for each in self.intervals for used in each.used.values() for name in used}
        present |= {client.name for client in self.latest.status.clients}
        self.colours = {name: number for name, number in self.colours.items() if name in present}
        for name in sorted(present - self.colours.keys()):
            used_numbers = set(self.colours.values())
            self.colours[name] = next(number for number in itertools.count() if number not in used_numbers)

    def shares(self, island: str) -> dict[str, float]:
        """Returns the fraction of the last minute for which each client had an island."""
        total_seconds = sum(interval.seconds for interval in self.intervals)
        if not total_seconds:
            return {}
        totals: dict[str, float] = collections.defaultdict(float)
        for interval in self.intervals:
            for client, fraction in interval.used.get(island, {}).items():
                totals[client] += fraction * interval.seconds / total_seconds
        return dict(sorted(totals.items(), key=lambda item: self.colours[item[0]]))


def held_of(accounts: Sequence[AccountRecord]) -> Mapping[str, int]:
    """Returns the bytes that each client holds, all islands and shards together."""
    held: collections.Counter[str] = collections.Counter()
    for record in accounts:
        held[record.client] += record.held_bytes
    return held
