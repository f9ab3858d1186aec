"""Table of the versions of the state, and of their copies on hosts."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Mapping

from pathways.runtime.control.effects import Log
from pathways.runtime.resilience.islands import TrainingIslands
from pathways.runtime.resilience.placement import place_buddy_copies, place_own_copies, plan_loads
from pathways.runtime.resilience.records import (
    BlockCopy,
    BlockLoad,
    Blocks,
    Holdings,
    HostPlace,
    ReplicaTopology,
    StoredVersion,
    VersionKey,
)

_NO_BLOCKS: Blocks = frozenset()

_MAX_NAMED = 4
"""Maximum number of blocks that a message names."""


class StateVersion:
    """Version of the state.

    Args:
      key: its name.
      holdings: the blocks on the devices of each host.
      replicas: the replicas that ran.

    Attributes:
      copies: the blocks in the memory of each host.
      pending: the copies in flight, by their numbers.
      orphans: the copies whose source or target was lost while they were in flight; they may be complete.
      is_committed: whether it may be restored.
    """

    def __init__(self, key: VersionKey, holdings: Holdings, replicas: tuple[int, ...]) -> None:
        self.key = key
        self.holdings = holdings
        self.replicas = replicas
        self.blocks: Blocks = _NO_BLOCKS.union(*holdings.values())
        self.copies: dict[int, Blocks] = {}
        self.pending: dict[int, BlockCopy] = {}
        self.orphans: dict[int, BlockCopy] = {}
        self.is_committed = False

    def copies_at(self, hosts: Collection[int]) -> dict[int, Blocks]:
        """Returns the blocks in the memory of some hosts."""
        return {host: blocks for host, blocks in self.copies.items() if host in hosts}

    def planned_at(self, hosts: Collection[int]) -> dict[int, Blocks]:
        """Returns the blocks in the memory of some hosts, including copies in flight."""
        planned = self.copies_at(hosts)
        for copy in (*self.pending.values(), *self.orphans.values()):
            if copy.target in hosts:
                planned[copy.target] = planned.get(copy.target, _NO_BLOCKS) | copy.blocks
        return planned

    def missing_at(self, hosts: Collection[int]) -> Blocks:
        """Returns the blocks that no host of some has in its memory."""
        return self.blocks.difference(*self.copies_at(hosts).values())

    def is_doubled(self, hosts: Collection[int], places: Mapping[int, HostPlace]) -> bool:
        """Returns whether some hosts have all blocks, whichever one island is lost."""
        present = self.copies_at(hosts)
        islands = {places[host].island for host in present}
        return not self.blocks or (
            len(islands) > 1
            and all(
                not self.blocks.difference(*(b for h, b in present.items() if places[h].island != island))
                for island in islands
            )
        )

    def complete(self, number: int) -> None:
        """Notes that a copy is complete."""
        copy = self.end_copy(number)
        self.copies[copy.target] = self.copies.get(copy.target, _NO_BLOCKS) | copy.blocks

    def end_copy(self, number: int) -> BlockCopy:
        """Notes the end of a copy, and returns it."""
        return self.orphans.pop(number) if number in self.orphans else self.pending.pop(number)

    def involves(self, hosts: Collection[int]) -> bool:
        """Returns whether some hosts have blocks of the version, or take part in copies in flight."""
        hosts_of_copies = {host for copy in self.pending.values() for host in (copy.source, copy.target)}
        return not hosts_of_copies.union(self.copies).isdisjoint(hosts)

    def lose_copies(self, hosts: Collection[int]) -> None:
        """Notes that the memory of some hosts is lost."""
        for host in hosts:
            self.copies.pop(host, None)
        # Copies from these hosts may be complete on their targets: see `cancel_copies`.
        self.pending = _not_to(self.pending, hosts)
        self.orphans = _not_to(self.orphans, hosts)

    def set_copies(self, host: int, blocks: Blocks) -> None:
        """Notes the blocks in the memory of a returned host."""
        # Also ends copies to it that were in flight when it was lost, which end without an event.
        self.lose_copies((host,))
        if blocks:
            self.copies[host] = blocks

    def cancel_copies(self, hosts: Collection[int]) -> None:
        """Notes that some hosts are lost, as sources and targets of copies."""
        lost = {n: copy for n, copy in self.pending.items() if {copy.source, copy.target} & set(hosts)}
        self.orphans |= lost
        self.pending = {number: copy for number, copy in self.pending.items() if number not in lost}

    def name_missing(self, hosts: Collection[int]) -> str:
        """Returns text that names the blocks that no host of some has; empty if there are none."""
        missing = sorted(self.missing_at(hosts))
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        return ", ".join(missing[:_MAX_NAMED]) + more

    def plan_restore(
        self, replicas: tuple[int, ...], hosts: Collection[int], topology: ReplicaTopology
    ) -> tuple[BlockLoad, ...]:
        """Returns the blocks that each host reads, with their sources, to run some replicas."""
        needs = self.holdings if self.replicas == replicas else topology.holdings(replicas, self.key)
        planned = plan_loads(needs, self.copies_at(hosts), topology.hosts)
        assert planned is not None, "a version that is whole has all blocks"
        return tuple(BlockLoad(host, source, blocks) for (source, host), blocks in planned.items())


def _not_to(copies: Mapping[int, BlockCopy], hosts: Collection[int]) -> dict[int, BlockCopy]:
    return {number: copy for number, copy in copies.items() if copy.target not in hosts}


class VersionTable:
    """Table of the versions in the memory of hosts, at most two.

    Attributes:
      versions: the versions, by their names.
      saving: the version with a save to disk in flight, which stays until the end of the save; None without
        one.
    """

    def __init__(self) -> None:
        self.versions: dict[VersionKey, StateVersion] = {}
        self.saving: VersionKey | None = None
        self._numbers = itertools.count(1)

    @property
    def pending(self) -> StateVersion | None:
        """The version that is not yet committed; None without one."""
        return next((version for version in self.versions.values() if not version.is_committed), None)

    @property
    def committed(self) -> StateVersion | None:
        """The last committed version; None before the first."""
        return max(
            (version for version in self.versions.values() if version.is_committed),
            key=lambda version: version.key,
            default=None,
        )

    def has_room(self) -> bool:
        """Returns whether another version may start."""
        return self.pending is None and len(self.versions) < 2

    def last_of_step(self, step: int) -> StateVersion | None:
        """Returns the last version of a step, which has several after restores."""
        of_step = [version for version in self.versions.values() if version.key.step == step]
        return max(of_step, key=lambda version: version.key, default=None)

    def newest_whole(self, hosts: Collection[int]) -> StateVersion | None:
        """Returns the last committed version that is complete on some hosts."""
        complete = [
            version
            for version in self.versions.values()
            if version.is_committed and not version.missing_at(hosts)
        ]
        return max(complete, key=lambda version: version.key, default=None)

    def may_be_whole(self, hosts: Collection[int]) -> bool:
        """Returns whether copies in flight to some hosts may complete a version."""
        return any(
            copy.target in hosts
            for version in self.versions.values()
            for copy in (*version.pending.values(), *version.orphans.values())
        )

    def add_stored(self, key: VersionKey, stored: StoredVersion, holdings: Holdings) -> None:
        """Adds a committed version of an earlier controller, whose replicas have `holdings`."""
        # All blocks of the state, so that a block without a host counts as missing.
        version = self.versions[key] = StateVersion(key, holdings, stored.replicas)
        version.copies = dict(stored.blocks)
        version.is_committed = True

    def drop_broken(self, hosts: Collection[int]) -> list[Log]:
        """Drops versions of an earlier controller with blocks that no host has."""
        broken = {
            key: missing for key, version in self.versions.items() if (missing := version.name_missing(hosts))
        }
        for key in broken:
            del self.versions[key]
        committed = self.committed
        # Lost hosts may have left blocks of older versions.
        return [
            Log(logging.WARNING, f"{key} in memory is not used: no host has {missing}")
            for key, missing in broken.items()
            if committed is None or key > committed.key
        ]

    def start(
        self, key: VersionKey, holdings: Holdings, replicas: tuple[int, ...], islands: TrainingIslands
    ) -> tuple[BlockCopy, ...]:
        """Starts a version of the state; returns the copies to make."""
        version = self.versions[key] = StateVersion(key, holdings, replicas)
        own_copies = place_own_copies(holdings, islands.topology.hosts)
        copies = self._new_copies({(host, host): blocks for host, blocks in own_copies.items()})
        version.pending = {copy.number: copy for copy in copies}
        return (*copies, *self.add_buddies(version, islands)) if copies else ()

    def add_buddies(self, version: StateVersion, islands: TrainingIslands) -> tuple[BlockCopy, ...]:
        """Returns the missing copies of a version, which are pending from now on."""
        places, leaving = islands.topology.hosts, islands.topology.hosts_of(frozenset(islands.leaving))
        transfers = place_buddy_copies(version.planned_at(islands.hosts), islands.hosts, places, leaving)
        copies = self._new_copies(transfers)
        version.pending.update((copy.number, copy) for copy in copies)
        return copies

    def cancel_copies(self, hosts: Collection[int]) -> None:
        """Notes that some hosts are lost, as sources and targets of copies of all versions."""
        for version in self.versions.values():
            version.cancel_copies(hosts)

    def _new_copies(self, transfers: Mapping[tuple[int, int], Blocks]) -> tuple[BlockCopy, ...]:
        """Returns copies for transfers, with new numbers."""
        return tuple(
            BlockCopy(next(self._numbers), source, target, blocks)
            for (source, target), blocks in transfers.items()
        )

    def of_copy(self, number: int) -> StateVersion | None:
        """Returns the version of a copy in flight; None if the copy was dropped."""
        versions = self.versions.values()
        return next((v for v in versions if number in v.pending or number in v.orphans), None)

    def drop_pending(self) -> bool:
        """Drops the pending version; returns whether there was one."""
        pending = self.pending
        if pending is not None:
            del self.versions[pending.key]
        return pending is not None

    def drop_after(self, key: VersionKey | None) -> None:
        """Keeps the versions up to `key`, drops the rest; all if None."""
        self.versions = {other: v for other, v in self.versions.items() if key is not None and other <= key}

    def drop_old(self) -> bool:
        """Drops versions that the last committed one replaces; returns whether there were any."""
        last = self.committed
        old = [
            key
            for key, version in self.versions.items()
            if last is not None and version.is_committed and key < last.key and key != self.saving
        ]
        for key in old:
            del self.versions[key]
        return bool(old)
