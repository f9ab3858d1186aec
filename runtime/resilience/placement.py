"""Placement of copies: the hosts that keep a version, and the hosts that it is read from."""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping

from pathways.runtime.resilience.records import Blocks, Holdings, HostPlace

Transfer = tuple[int, int]
"""A source and a target host."""


def place_own_copies(holdings: Holdings, hosts: Mapping[int, HostPlace]) -> dict[int, Blocks]:
    """Returns the blocks that each host copies to its own memory: of each block one copy per island.

    Hosts of one island are lost together, so a second copy on them protects nothing.
    """
    placed: dict[int, Blocks] = {}
    of_island: dict[int, set[str]] = collections.defaultdict(set)
    for host, blocks in sorted(holdings.items()):
        new = blocks - of_island[hosts[host].island]
        of_island[hosts[host].island] |= new
        if new:
            placed[host] = new
    return placed


def place_buddy_copies(
    copies: Holdings, present: Collection[int], hosts: Mapping[int, HostPlace], leaving: Collection[int] = ()
) -> dict[Transfer, Blocks]:
    """Returns the copies to add so that each block is on two islands, not counting islands that leave.

    Args:
      copies: the blocks in the memory of each present host, including copies in flight.
      present: the hosts that have workers.
      leaving: the hosts of leaving islands, which get copies only if no other island stays.

    Returns:
      The blocks of each transfer, except blocks without a present host or without a second island.
    """
    # Staying hosts come first, because they are also the preferred sources.
    staying = sorted(set(present) - set(leaving))
    owners: dict[str, list[int]] = collections.defaultdict(list)
    for host in (*staying, *sorted(set(present) & set(leaving))):
        for block in copies.get(host, ()):
            owners[block].append(host)
    added: dict[Transfer, set[str]] = collections.defaultdict(set)
    for block, holders in sorted(owners.items()):
        source = holders[0]
        is_safe = source in staying or not staying
        if len({hosts[host].island for host in holders}) > 1 and is_safe:
            continue
        target = _buddy(source, staying, hosts)
        if target is None and is_safe:
            target = _buddy(source, present, hosts)
        if target is not None:
            added[source, target].add(block)
    return {transfer: frozenset(blocks) for transfer, blocks in sorted(added.items())}


def _buddy(host: int, present: Collection[int], hosts: Mapping[int, HostPlace]) -> int | None:
    """Returns the buddy, which keeps copies for a host: the host at the same place in the next island.

    Islands form a ring, so that each has as much to keep; an island on other machines is preferred.
    """
    home = hosts[host]
    islands: dict[int, list[int]] = collections.defaultdict(list)
    for other in sorted(present):
        if hosts[other].island != home.island:
            islands[hosts[other].island].append(other)
    if not islands:
        return None
    # All islands, also absent ones, so that the order of the ring never changes.
    count = max(place.island for place in hosts.values()) + 1

    def rank(island: int) -> tuple[bool, int]:
        return any(hosts[other].machine == home.machine for other in islands[island]), (
            island - home.island
        ) % count

    candidates = islands[min(islands, key=rank)]
    mates = sorted(mate for mate, place in hosts.items() if place.island == home.island)
    return candidates[mates.index(host) % len(candidates)]


def plan_loads(
    needs: Holdings, copies: Holdings, hosts: Mapping[int, HostPlace]
) -> dict[Transfer, Blocks] | None:
    """Returns the blocks that hosts read, by source and target host; None if no host has a block.

    A host prefers its own memory, then the memory of its island.

    Args:
      needs: the blocks that each host needs.
      copies: the blocks in the memory of each host that has workers.
    """
    loads: dict[Transfer, set[str]] = collections.defaultdict(set)
    owners: dict[str, list[int]] = collections.defaultdict(list)
    for host, blocks in sorted(copies.items()):
        for block in blocks:
            owners[block].append(host)
    for host, blocks in sorted(needs.items()):
        for block in sorted(blocks):
            sources = owners.get(block)
            if not sources:
                return None
            near = (source for source in sources if hosts[source].island == hosts[host].island)
            source = host if host in sources else next(near, sources[0])
            loads[source, host].add(block)
    return {transfer: frozenset(blocks) for transfer, blocks in sorted(loads.items())}
