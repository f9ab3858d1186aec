"""Copies of blocks: from arrays to the memory of their host, and from there to another host."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pathways.compiler.resilience.layouts.host_layouts import StateOnHosts
from pathways.compiler.resilience.memory.known_islands import KnownIslands
from pathways.compiler.resilience.memory.memory_calls import MemoryCalls
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.calls import lanes
from pathways.runtime.hosts.cluster.host import HostGang, Location
from pathways.runtime.resilience.events import CopyCompleted, CopyFailed, ResilienceEvent
from pathways.runtime.resilience.records import BlockCopy, Blocks, HostPlace, VersionKey

NO_BLOCKS: Blocks = frozenset()


class BlockCopies:
    """Copies in flight, and copies that wait until their source has the blocks.

    Args:
      kept: the versions in memory.
      hosts: the places of the hosts.
    """

    def __init__(
        self,
        calls: MemoryCalls,
        islands: KnownIslands,
        states: Mapping[VersionKey, StateOnHosts],
        hosts: Mapping[int, HostPlace],
    ) -> None:
        self._calls = calls
        self._islands = islands
        self._states = states
        self._hosts = hosts
        self._stream_lane = next(lanes)
        # Copies whose source does not have the blocks yet.
        self._waiting: list[tuple[VersionKey, BlockCopy]] = []

    def _gang_of(self, host: int) -> HostGang:
        return self._islands.islands[self._hosts[host].island].gang

    def _is_present(self, host: int) -> bool:
        return self._islands.islands[self._hosts[host].island].is_present

    def make(self, key: VersionKey, state: StateOnHosts, copies: Sequence[BlockCopy]) -> None:
        """Starts copies of the blocks of a version."""
        for copy in copies:
            if copy.source == copy.target:
                self._begin_own_copy(key, state, copy)
            else:
                self._waiting.append((key, copy))
        # Calls are ordered with steps, so later steps may donate the arrays.
        state.arrays.clear()
        self.begin_waiting()

    def _begin_own_copy(self, key: VersionKey, state: StateOnHosts, copy: BlockCopy) -> None:
        gang = self._gang_of(copy.target)
        sources: list[tuple[Array, Location]] = []
        names: list[str] = []
        blocks: list[Any] = []
        remaining = set(copy.blocks)
        for n, array in state.arrays.items():
            for place in state.leaves[n].at(gang.number):
                own_blocks = [
                    block for block in place.blocks if block.host == copy.target and block.name in remaining
                ]
                if not own_blocks:
                    continue
                for block in own_blocks:
                    # Devices of one host may have the same block, which is written once.
                    if block.name in remaining:
                        remaining.discard(block.name)
                        blocks.append((len(sources), block.shard, block.name, block.rows, block.shard_rows))
                sources.append((array, gang.location(place.layout, place.part)))
                names.append(state.leaves[n].name)
        named = {"key": plain_key(key), "copy": copy.number, "names": names, "blocks": blocks}
        tree = {"t": [{"l": [*range(len(sources))]}]}
        self._copy("write", self._calls.memory_lane, key, copy, named, sources, tree)

    def begin_waiting(self) -> None:
        """Starts the waiting copies whose source now has the blocks."""
        waiting, self._waiting = self._waiting, []
        for key, copy in waiting:
            state = self._states.get(key)
            if state is None:
                # The version was dropped, and the core no longer waits for the copy.
                continue
            if not self._is_present(copy.source):
                if self._is_present(copy.target):
                    self._calls.events.append(CopyFailed(copy.number, f"host {copy.source} is lost"))
            elif copy.blocks <= state.copies.get(copy.source, NO_BLOCKS):
                self._copy(
                    "receive",
                    self._stream_lane,
                    key,
                    copy,
                    source_of(self._calls, key, copy.source, copy.blocks),
                )
            else:
                self._waiting.append((key, copy))

    def _copy(
        self,
        function: str,
        lane: int,
        key: VersionKey,
        copy: BlockCopy,
        named: dict[str, Any],
        sources: Sequence[tuple[Array, Location]] = (),
        tree: Any = None,
    ) -> None:
        """Calls the function that makes a copy, on its target."""
        gang = self._gang_of(copy.target)

        def on_end() -> list[ResilienceEvent]:
            if gang.is_lost():
                # A host that returns reports its blocks.
                return []
            if (reason := self._calls.failure_of(call, copy.target)) is not None:
                return [CopyFailed(copy.number, reason)]
            if (state := self._states.get(key)) is not None:
                state.copies[copy.target] = state.copies.get(copy.target, NO_BLOCKS) | copy.blocks
                if state.record is not None:
                    # The version is committed already: record it with this copy for another controller, too.
                    named = {"key": plain_key(key), "record": state.record}
                    with contextlib.suppress(HostError):
                        self._calls.call("commit", gang, [copy.target], self._calls.memory_lane, named)
            return [CopyCompleted(copy.number)]

        try:
            call = self._calls.call(
                function, gang, [copy.target], lane, named | {"copy": copy.number}, sources, tree
            )
        except (HostError, RuntimeError, KeyError) as error:
            # The step failed, or its island is lost.
            if not gang.is_lost():
                self._calls.events.append(CopyFailed(copy.number, str(error)))
            return
        self._calls.expect(call, on_end)


def source_of(calls: MemoryCalls, key: VersionKey, host: int, blocks: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of a function that reads blocks of another host."""
    address = calls.client.hosts[host].ready.probe_address
    return {"key": plain_key(key), "host": host, "address": address, "blocks": sorted(blocks)}


def plain_key(key: VersionKey) -> tuple[int, int]:
    """Returns a version as the argument of functions of workers."""
    return key.step, key.attempt
