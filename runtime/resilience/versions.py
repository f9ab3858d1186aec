"""Records of versions of the state, and of the copies that hosts have."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from pathways.runtime.resilience.records import BlockCopy, Blocks, Holdings, HostPlace, VersionKey

_NO_BLOCKS: Blocks = frozenset()


class StateVersion:
    """A version of the state.

    Args:
      key: its name.
      holdings: the blocks that each host had on its devices.
      replicas: the replicas that ran.

    Attributes:
      copies: the blocks in the memory of each host.
      pending: the copies that are being made, by their numbers.
      orphans: the copies that were being made when their source or target was lost, and may be complete.
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
        """Returns the blocks that some hosts have in their memory."""
        return {host: blocks for host, blocks in self.copies.items() if host in hosts}

    def planned_at(self, hosts: Collection[int]) -> dict[int, Blocks]:
        """Returns the blocks that some hosts have in their memory, or will have when all copies are made."""
        planned = self.copies_at(hosts)
        for copy in (*self.pending.values(), *self.orphans.values()):
            if copy.target in hosts:
                planned[copy.target] = planned.get(copy.target, _NO_BLOCKS) | copy.blocks
        return planned

    def missing_at(self, hosts: Collection[int]) -> Blocks:
        """Returns the blocks that none of some hosts has in its memory."""
        return self.blocks.difference(*self.copies_at(hosts).values())

    def is_doubled(self, hosts: Collection[int], places: Mapping[int, HostPlace]) -> bool:
        """Returns whether some hosts have all blocks without those of any one island."""
        there = self.copies_at(hosts)
        islands = {places[host].island for host in there}
        return not self.blocks or (
            len(islands) > 1
            and all(
                not self.blocks.difference(*(b for h, b in there.items() if places[h].island != island))
                for island in islands
            )
        )

    def complete(self, number: int) -> None:
        """Notes that a copy is complete."""
        copy = self.end_copy(number)
        self.copies[copy.target] = self.copies.get(copy.target, _NO_BLOCKS) | copy.blocks

    def end_copy(self, number: int) -> BlockCopy:
        """Notes that a copy is not being made any more, and returns it."""
        return self.orphans.pop(number) if number in self.orphans else self.pending.pop(number)

    def involves(self, hosts: Collection[int]) -> bool:
        """Returns whether copies of some hosts are complete, or are being made of or for them."""
        hosts_of_copies = {host for copy in self.pending.values() for host in (copy.source, copy.target)}
        return not hosts_of_copies.union(self.copies).isdisjoint(hosts)

    def lose_copies(self, hosts: Collection[int]) -> None:
        """Notes that what hosts have in their memory is lost."""
        for host in hosts:
            self.copies.pop(host, None)
        # Not the copies from these hosts, which may be complete on their targets: see `cancel_copies`.
        self.pending = _not_to(self.pending, hosts)
        self.orphans = _not_to(self.orphans, hosts)

    def set_copies(self, host: int, blocks: Blocks) -> None:
        """Notes what a host has in its memory that has returned."""
        # Also ends copies to it that were in flight when it was lost: no answer to those follows.
        self.lose_copies((host,))
        if blocks:
            self.copies[host] = blocks

    def cancel_copies(self, hosts: Collection[int]) -> None:
        """Notes that some hosts are lost, as sources and targets of copies."""
        lost = {n: copy for n, copy in self.pending.items() if {copy.source, copy.target} & set(hosts)}
        self.orphans |= lost
        self.pending = {number: copy for number, copy in self.pending.items() if number not in lost}


def _not_to(copies: Mapping[int, BlockCopy], hosts: Collection[int]) -> dict[int, BlockCopy]:
    return {number: copy for number, copy in copies.items() if copy.target not in hosts}


class VersionTable:
    """All versions that hosts have in their memory: two at most.

    Attributes:
      versions: the versions, by their names.
      saving: the version that is being saved to disk from memory, and stays until it is; None for none.
    """

    def __init__(self) -> None:
        self.versions: dict[VersionKey, StateVersion] = {}
        self.saving: VersionKey | None = None
        self._numbers = itertools.count(1)

    @property
    def pending(self) -> StateVersion | None:
        """The version that is not committed yet."""
        return next((version for version in self.versions.values() if not version.is_committed), None)

    @property
    def committed(self) -> StateVersion | None:
        """The last version that was committed."""
        return max(
            (version for version in self.versions.values() if version.is_committed),
            key=lambda version: version.key,
            default=None,
        )

    def has_room(self) -> bool:
        """Returns whether another version may begin."""
        return self.pending is None and len(self.versions) < 2

    def new_copies(self, transfers: Mapping[tuple[int, int], Blocks]) -> tuple[BlockCopy, ...]:
        """Returns copies for transfers, which have numbers of their own."""
        return tuple(
            BlockCopy(next(self._numbers), source, target, blocks)
            for (source, target), blocks in transfers.items()
        )

    def of_copy(self, number: int) -> StateVersion | None:
        """Returns the version of a copy that is being made; None where it is not any more."""
        versions = self.versions.values()
        return next((v for v in versions if number in v.pending or number in v.orphans), None)

    def drop_pending(self) -> bool:
        """Drops the version that is not committed; returns whether there was one."""
        pending = self.pending
        if pending is not None:
            del self.versions[pending.key]
        return pending is not None

    def drop_after(self, key: VersionKey | None) -> None:
        """Drops all versions but one that is restored, and those before it; all where it is None."""
        self.versions = {other: v for other, v in self.versions.items() if key is not None and other <= key}

    def drop_old(self) -> bool:
        """Drops what the last committed version replaces; returns whether there was any."""
        last = self.committed
        old = [
            key
            for key, version in self.versions.items()
            if last is not None and version.is_committed and key < last.key and key != self.saving
        ]
        for key in old:
            del self.versions[key]
        return bool(old)
