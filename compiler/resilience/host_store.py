"""Store of versions in the memory of hosts; workers run `snapshots.worker_snapshots` for it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, override

import jax
import numpy as np

from pathways.compiler.frontend.jax_internals import key_kind
from pathways.compiler.resilience.disk import stored_leaves
from pathways.compiler.resilience.layouts.host_layouts import (
    ArrayPlace,
    HostArrayLayout,
    StateOnHosts,
    layout_of_array,
)
from pathways.compiler.resilience.layouts.host_replicas import HostReplicaLayouts
from pathways.compiler.resilience.layouts.step_replicas import StepReplicas
from pathways.compiler.resilience.layouts.version_records import (
    RecordedVersion,
    VersionRecorder,
    read_versions,
)
from pathways.compiler.resilience.memory.block_copies import NO_BLOCKS, BlockCopies, plain_key, source_of
from pathways.compiler.resilience.memory.known_islands import CopiesOfHosts, KnownIslands
from pathways.compiler.resilience.memory.memory_calls import MODULE, MemoryCalls
from pathways.compiler.resilience.memory.memory_space import MemorySpace
from pathways.compiler.resilience.store import SnapshotStore
from pathways.runtime.control.records.errors import HostError, lost
from pathways.runtime.control.records.step import FunctionCall
from pathways.runtime.data.host_files import SnapshotVersion
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.calls import lanes
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import HostGang
from pathways.runtime.hosts.protocol import plain
from pathways.runtime.resilience.effects import RestoreState
from pathways.runtime.resilience.events import (
    HostRestored,
    IslandsUsed,
    ResilienceEvent,
    RestoreFailed,
)
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
from pathways.runtime.resilience.snapshots.leftovers import remove_leftovers
from pathways.runtime.resilience.snapshots.run_names import run_name
from pathways.runtime.resources.process_identity import this_machine

log = logging.getLogger("pathways")

_LOSS_SECONDS = 2.0
"""Time from an error of a step to the report of the loss that is its cause."""


class HostStore(SnapshotStore):
    """Versions in the memory of hosts; see `SnapshotStore`.

    Args:
      client: the session with the hosts, of this process or of a service.
    """

    def __init__(self, client: HostSession) -> None:
        self._client = client
        self._calls = MemoryCalls(client, run_name(secrets.token_hex(16)))
        self._islands = KnownIslands(self._calls, self._set_copies)
        self._space = MemorySpace(self._calls, self._islands)
        self._recorder = VersionRecorder()
        # The islands with blocks of the state, and all islands that the last `IslandsUsed` named.
        self._holding: set[int] = set()
        self._used: frozenset[int] = frozenset()
        self._replicas: StepReplicas | None = None
        self._layouts: HostReplicaLayouts | None = None
        self._states: dict[VersionKey, StateOnHosts] = {}
        self._newest: VersionKey | None = None
        self._has_space = False

    def open(self, state: Any, run: str | None) -> None:
        """See `SnapshotStore.open`.

        Raises:
          ValueError: an earlier controller has left versions of another state.
          SnapshotError: a host has too little memory, or no folder for it.
          HostError: a host was lost.
        """
        # A service removes the versions of its clients when they disconnect.
        if run is not None and self._client.owns_workers:
            self._calls.run, self.outlives = run, True
        places: dict[int, HostPlace] = {}
        for gang, call in self._islands.open_all():
            for host, opened in zip(gang.hosts, self._calls.values(call), strict=True):
                self._space.reports[host.index] = opened
                places[host.index] = HostPlace(gang.number, opened["machine"])
        numbers = frozenset(range(len(self._islands.islands)))
        self.topology = ReplicaTopology(places, (numbers,), self._holdings)
        self._read_stored(state)
        self._copies = BlockCopies(self._calls, self._islands, self._states, places)
        self._space.check_state(state)

    def _read_stored(self, state: Any) -> None:
        """Reads the versions that an earlier controller left in the memory of hosts.

        Raises:
          ValueError: the versions are of another state.
        """
        blocks: dict[VersionKey, dict[int, Blocks]] = {}
        for host, reply in self._space.reports.items():
            for step, attempt, names in reply["versions"]:
                blocks.setdefault(VersionKey(step, attempt), {})[host] = frozenset(names)
        if not blocks:
            return
        self._newest = max(blocks, key=lambda key: (key.attempt, key.step))
        # If the state is another one, the versions stay.
        self.stored = {key: StoredVersion(copies, False, (0,)) for key, copies in blocks.items()}
        records: dict[VersionKey, str] = {}
        for call in self._calls.call_gangs(self._islands.present(), "read_records", {}):
            for reply in self._calls.values(call):
                records |= {VersionKey(step, attempt): text for step, attempt, text in reply}
        recorded = read_versions(records, state, [island.gang for island in self._islands.islands])
        tree = jax.tree.structure(state)
        self._states = {
            key: StateOnHosts(tree, version.leaves, {}, version.replicas, None, blocks[key], records[key])
            for key, version in recorded.items()
        }
        self.stored = {key: StoredVersion(copies, key in recorded, (0,)) for key, copies in blocks.items()}
        self.positions = {key.step: version.position for key, version in recorded.items()}

    @override
    def set_replicas(self, replicas: StepReplicas) -> None:
        self._replicas = replicas
        self._layouts = HostReplicaLayouts(replicas)
        self.topology = ReplicaTopology(self.topology.hosts, replicas.islands, self._holdings)
        stored = dict(self.stored)
        for key, state in self._states.items():
            is_usable = all(
                layout.allows(replicas.counts, replicas.islands) for layout in state.array_layouts
            )
            if not is_usable:
                text = (
                    "pw.resilient: %s in memory is not used: it has other replicas, or another min_replicas="
                )
                log.warning(text, key)
            state.layouts = self._layouts
            stored[key] = StoredVersion(stored[key].blocks, is_usable, state.replicas)
        self.stored = stored

    @property
    def _running(self) -> tuple[int, ...]:
        """The replicas that run; replica 0 where the step has none."""
        return (0,) if self._replicas is None else self._replicas.running

    def _holdings(self, replicas: tuple[int, ...], key: VersionKey) -> Holdings:
        return self._states[key].holdings(replicas)

    def _planned_copies(self, state: StateOnHosts) -> Iterator[Holdings]:
        """Yields the blocks of a version that each host would keep, for choices of running replicas."""
        hosts = self.topology.hosts
        for replicas in [state.replicas] if self._replicas is None else self._replicas.samples():
            own_copies = place_own_copies(state.holdings(replicas), hosts)
            # Fewer replicas run where islands are lost, and lost islands keep no copies.
            is_fewer = len(replicas) < len(self.topology.replicas)
            present = self.topology.hosts_of(self.topology.islands(replicas)) if is_fewer else [*hosts]
            planned = dict(own_copies)
            for (_, target), names in place_buddy_copies(own_copies, present, hosts).items():
                planned[target] = planned.get(target, NO_BLOCKS) | names
            yield planned

    def take(self, key: VersionKey, state: Any) -> Holdings:
        """See `SnapshotStore.take`.

        Raises:
          SnapshotError: a host has too little memory.
          ValueError: fewer replicas may run, and an array is on an island without a replica.
        """
        leaves, tree = jax.tree_util.tree_flatten_with_path(state)
        copied = StateOnHosts(tree, [], {}, self._running, self._layouts)
        for path, leaf in leaves:
            if isinstance(leaf, Array) and leaf.is_of(self._client):
                copied.arrays[len(copied.leaves)] = leaf
                name = f"state{jax.tree_util.keystr(path)}"
                copied.leaves.append(layout_of_array(name, leaf, self._layouts))
            else:
                copied.leaves.append(_copied(leaf))
        holdings = copied.holdings(copied.replicas)
        if holdings and not self._has_space:
            self._space.check(copied, self._planned_copies(copied))
            self._has_space = True
        self._holding.update(self.topology.hosts[host].island for host in holdings)
        self._states[key] = copied
        self._newest = key
        return holdings

    @override
    def make_copies(self, key: VersionKey, copies: Sequence[BlockCopy]) -> None:
        self._copies.make(key, self._states[key], copies)

    @override
    def commit(self, key: VersionKey, position: Any) -> None:
        state = self._states[key]
        # A state without blocks needs no record: the same call has it, too.
        if self.outlives and state.array_layouts:
            version = RecordedVersion(state.leaves, position, state.replicas)
            state.record = self._recorder.write(state.tree, version)
            if state.record is not None:
                self._calls.call_gangs(
                    self._islands.present(), "commit", {"key": plain_key(key), "record": state.record}
                )

    @override
    def keep(self, hosts: Sequence[int], keys: Sequence[VersionKey]) -> None:
        for key in self._states.keys() - set(keys):
            del self._states[key]
        # Versions that start after this call are not among the keys, and must stay.
        newest = None if self._newest is None else plain_key(self._newest)
        named = {"keys": [plain_key(key) for key in keys], "newest": newest}
        if newest is not None:
            self._calls.call_gangs(self._islands.present(), "keep", named)

    @override
    def restore(self, restore: RestoreState) -> Any:
        assert restore.key is not None
        loading = {load.host for load in restore.loads}
        for host in restore.hosts:
            if host not in loading:
                self._calls.events.append(HostRestored(restore.attempt, host))
        return self._read_arrays(restore.key, restore.replicas, restore.loads, restore.attempt)

    def _read_arrays(
        self,
        key: VersionKey,
        replicas: tuple[int, ...],
        loads: Sequence[BlockLoad],
        attempt: int | None,
        state: StateOnHosts | None = None,
    ) -> Any:
        """Starts to read a version from memory; returns its state.

        Args:
          key: the version.
          loads: the blocks that each host reads, and their sources.
          attempt: the attempt of `RestoreState` that replies are reported for; None outside of a restore.
          kept: the state, with layouts of the arrays that are read; all by default.
        """
        state = self._states[key] if state is None else state
        # A new lane for each attempt: an earlier one may wait for a lost host.
        lane = next(lanes)
        leaves = [
            Array(self._client, leaf.aval) if isinstance(leaf, HostArrayLayout) else _copied(leaf)
            for leaf in state.leaves
        ]
        places = state.places(replicas)
        for island in self._islands.islands:
            hosts = [host.index for host in island.gang.hosts]
            island_loads = [load for load in loads if load.host in hosts]
            if island_loads and island.is_present:
                # In a restore, an event reports the lost island.
                with contextlib.nullcontext() if attempt is None else contextlib.suppress(HostError):
                    of_island = [place for place in places if place[1].island == island.gang.number]
                    self._read_island(key, state, island.gang, island_loads, of_island, leaves, lane, attempt)
        return jax.tree.unflatten(state.tree, leaves)

    def _read_island(
        self,
        key: VersionKey,
        state: StateOnHosts,
        gang: HostGang,
        loads: Sequence[BlockLoad],
        places: Sequence[tuple[int, ArrayPlace]],
        leaves: Sequence[Any],
        lane: int,
        attempt: int | None,
    ) -> None:
        for load in loads:
            if load.source != load.host:
                named = source_of(self._calls, key, load.source, load.blocks)
                # In the lane of `read` below, which reads the fetched blocks from the memory of the host.
                call = self._calls.call("fetch", gang, [load.host], lane, named)
                self._calls.expect(call, self._on_fetched(call, gang, load, attempt))
        blocks = [
            [*dict.fromkeys((block.own_rows, block.name) for block in place.blocks)] for _, place in places
        ]
        outputs = tuple(state.leaves[n].result(place) for n, place in places)
        hosts = sorted({load.host for load in loads})
        named = {"key": plain_key(key), "leaves": blocks}
        call = self._calls.call("read", gang, hosts, lane, named, outputs=outputs)
        for number, (n, place) in enumerate(places, call.number + 1):
            leaves[n].add_copy(gang.location(place.layout, place.part), number, call)

        def on_end() -> list[ResilienceEvent]:
            if gang.is_lost() or attempt is None:
                return []
            failed = {
                host: reason for host in hosts if (reason := self._calls.failure_of(call, host)) is not None
            }
            return [
                RestoreFailed(attempt, host, host, failed[host], is_corrupt=True)
                if host in failed
                else HostRestored(attempt, host)
                for host in hosts
            ]

        self._calls.expect(call, on_end)

    def _on_fetched(
        self, call: FunctionCall, gang: HostGang, load: BlockLoad, attempt: int | None
    ) -> Callable[[], list[ResilienceEvent]]:
        def on_end() -> list[ResilienceEvent]:
            if gang.is_lost() or attempt is None:
                return []
            reason, is_corrupt = self._calls.failure_of(call, load.host), False
            if reason is None:
                reply = plain.decode(call.answers[load.host].value)
                reason, is_corrupt = reply.get("why"), reply.get("is_corrupt", False)
            if reason is None:
                return []
            return [RestoreFailed(attempt, load.host, load.source, reason, is_corrupt=is_corrupt)]

        return on_end

    @override
    def release(self, island: int) -> None:
        self._islands.release(island)

    @override
    def read(self, tree: Any) -> Any:
        for leaf in jax.tree.leaves(tree):
            if isinstance(leaf, Array):
                leaf.copy_to_host_async()
        return jax.tree.map(_as_numpy, tree)

    def detach(self, array: Any) -> Any:
        """See `SnapshotStore.detach`. Waits for the values of arrays on hosts."""
        return _as_numpy(array) if isinstance(array, Array) else array.copy()

    def version(self, key: VersionKey) -> Any:
        """See `SnapshotStore.version`. Hosts write its arrays from their memory.

        Arrays whose blocks a file cannot have become arrays on the hosts again, beside the state of the
        steps.
        """
        state, replicas = self._states[key], self._running
        if self._replicas is not None:
            # The running replicas may be lost by now.
            islands = {number for number, island in enumerate(self._islands.islands) if island.is_present}
            replicas = self._replicas.able(islands) or replicas
        if absent := sorted(
            {self.topology.hosts[n].island for n in state.holdings(replicas) if not self._is_present(n)}
        ):
            named = ", ".join(f"island{island}" for island in absent)
            raise lost(f"{key} cannot be read while there are no workers of {named}").error()
        present = {host: blocks for host, blocks in state.copies.items() if self._is_present(host)}
        owners: dict[str, list[int]] = {}
        for host, blocks in sorted(present.items()):
            for name in blocks:
                owners.setdefault(name, []).append(host)
        version = SnapshotVersion(self._client, self._calls.run, plain_key(key), MODULE)
        state = dataclasses.replace(state, leaves=stored_leaves(state.leaves, version, owners))
        planned = plan_loads(state.holdings(replicas), present, self.topology.hosts)
        if planned is None:
            raise KeyError(f"{key} is in no memory any more")
        loads = [BlockLoad(host, source, blocks) for (source, host), blocks in planned.items()]
        return self._read_arrays(key, replicas, loads, None, state)

    @override
    def sizes(self) -> dict[int, int]:
        counts = dict.fromkeys(self.topology.hosts, 0)
        for state in self._states.values():
            block_sizes = state.sizes
            for host, blocks in state.copies.items():
                counts[host] += sum(block_sizes[name] for name in blocks)
        return counts

    def lose(self, island: int, *, memory: bool, arrays: Sequence[Any], returns: bool = True) -> None:
        """See `SnapshotStore.lose`. Kills the workers of the island, which start again by themselves.

        Unless `returns` is true, the new workers are not used before `return_island`.
        """
        if not self._client.owns_workers:
            raise RuntimeError(
                "pw.resilient: run.lose kills workers, which other clients of the service use, too; to try a "
                "loss, kill a worker of a service of your own: pw.status() has their process ids"
            )
        if not returns:
            self._islands.islands[island].is_away = True
        gang = self._client.pool.gangs[island]
        if memory:
            with contextlib.suppress(HostError):
                call = self._calls.call(
                    "close_run", gang, [host.index for host in gang.hosts], next(lanes), {}
                )
                self._client.wait_for_call(call)
                self._islands.islands[island].has_memory = False
        for host in gang.hosts:
            host.process.kill()

    @override
    def return_island(self, island: int) -> None:
        self._islands.islands[island].is_away = False

    @override
    def check(self, islands: Collection[int]) -> None:
        for number in islands:
            self._islands.islands[number].gang.life.check_open()

    @override
    def poll(self) -> list[ResilienceEvent]:
        self._calls.receive()
        events: list[ResilienceEvent] = []
        # If no program is loaded on a leaving island, the state has moved off it.
        self._holding -= self._islands.leaving() - self._client.used
        used = self._holding | self._client.used
        if used != self._used and len(self.topology.replicas) == 1:
            self._used = frozenset(used)
            events.append(IslandsUsed(self._used))
        # Losses first: they are the cause of other failures.
        events += self._islands.poll()
        events += self._calls.poll()
        self._copies.begin_waiting()
        return [*events, *self._calls.take_events()]

    def _set_copies(self, copies: CopiesOfHosts) -> None:
        """Replaces the copies that hosts are known to have: a lost machine loses its blocks."""
        for number, versions in copies.items():
            for key, state in self._states.items():
                state.copies[number] = versions.get(key, NO_BLOCKS)

    @override
    def awaits_loss(self, error: Exception) -> bool:
        if not isinstance(error, HostError):
            return False
        self._calls.wait(self._islands.has_lost, _LOSS_SECONDS)
        return self._islands.has_lost()

    @override
    def wait(self, seconds: float) -> None:
        self._calls.wait(lambda: self._calls.has_news() or self._islands.has_news(), seconds)

    @override
    def close(self, *, keeps: bool) -> None:
        self._states.clear()
        if keeps and self.outlives:
            return
        for call in self._calls.call_gangs(self._islands.opening_or_present(), "close_run", {}):
            with contextlib.suppress(HostError):
                self._client.wait_for_call(call)
        self._islands.allow_all()
        if not self._client.owns_workers:
            # The service removes the files of lost workers.
            return
        # Hosts without workers cannot remove their files; on this machine this process can.
        machine = this_machine()
        for folder in {
            opened["folder"] for opened in self._space.reports.values() if opened["machine"] == machine
        }:
            with contextlib.suppress(OSError):
                remove_leftovers(folder, math.inf, lambda leftover: leftover.cluster == self._calls.run)

    def _is_present(self, host: int) -> bool:
        return self._islands.islands[self.topology.hosts[host].island].is_present


def _copied(leaf: Any) -> Any:
    """Returns a copy of a leaf in this process, which a step may donate or change."""
    return leaf.copy() if isinstance(leaf, np.ndarray | jax.Array) else leaf


def _as_numpy(leaf: Any) -> Any:
    if isinstance(leaf, Array):
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)
        data = np.asarray(leaf)
        if not is_key:
            return data
        return jax.random.wrap_key_data(jax.numpy.asarray(data), impl=key_kind(leaf.dtype))
    if not isinstance(leaf, jax.Array):
        return leaf
    return jax.device_get(leaf)
