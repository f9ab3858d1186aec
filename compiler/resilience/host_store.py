"""Versions of the state in the memory of hosts, by calls of `snapshots.worker_snapshots` there."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import logging
import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, override

import jax
import numpy as np

from pathways.compiler.data.host_checkpoints import SnapshotVersion
from pathways.compiler.data.on_hosts import call_of, lanes, values_of
from pathways.compiler.frontend.jax_internals import key_kind
from pathways.compiler.frontend.memory_kinds import kind_of
from pathways.compiler.resilience.disk import stored_leaves
from pathways.compiler.resilience.host_layouts import (
    ArrayPlace,
    HostArrayLayout,
    StateOnHosts,
    layout_of_array,
)
from pathways.compiler.resilience.host_replicas import HostReplicaLayouts
from pathways.compiler.resilience.step_replicas import StepReplicas
from pathways.compiler.resilience.store import SnapshotStore
from pathways.compiler.resilience.version_records import RecordedVersion, VersionRecorder, read_versions
from pathways.runtime.control.records.errors import HostError, lost
from pathways.runtime.control.records.step import FunctionCall
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import HostGang, Location
from pathways.runtime.hosts.protocol import plain
from pathways.runtime.resilience.effects import RestoreState
from pathways.runtime.resilience.events import (
    CopyCompleted,
    CopyFailed,
    HostRestored,
    IslandAbandoned,
    IslandsUsed,
    MemoryLost,
    ResilienceEvent,
    RestoreFailed,
    WorkersLeaving,
    WorkersLost,
    WorkersReturned,
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
from pathways.runtime.resilience.snapshots import worker_snapshots as snapshots
from pathways.runtime.resilience.snapshots.block_file import SnapshotError
from pathways.runtime.resilience.snapshots.leftovers import remove_leftovers
from pathways.runtime.resilience.snapshots.run_names import run_name
from pathways.runtime.resources.process_identity import this_machine
from pathways.runtime.resources.tables import size

log = logging.getLogger("pathways")

_MODULE = snapshots.__name__

_NAME = "pw.resilient"
"""Name of the calls in messages."""

_LOSS_SECONDS = 2.0
"""Time from an error of a step to the report of the loss that is its cause."""

_VERSIONS = 2
"""Number of versions in memory at most."""

_NO_BLOCKS: Blocks = frozenset()


class _Change(enum.Enum):
    """Change of the workers of an island."""

    LOST = enum.auto()
    LEAVING = enum.auto()
    REPLACED = enum.auto()
    ABANDONED = enum.auto()
    """The workers are lost, and no new ones will come."""


@dataclasses.dataclass
class _KnownIsland:
    """An island, as the core of resilience knows it.

    Attributes:
      gang: its last workers that were ready.
      is_present: whether these are.
      is_leaving: whether it was reported that these leave.
      opening: the workers that have a request to open their memory; None for none.
      is_abandoned: whether it was reported that it will have no workers again.
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


@dataclasses.dataclass(frozen=True)
class _PendingCall:
    """A call in flight; `on_end` returns the events that its end is."""

    call: FunctionCall
    on_end: Callable[[], list[ResilienceEvent]]


class HostStore(SnapshotStore):
    """Versions in the memory of hosts; see `SnapshotStore`.

    Args:
      client: the client of the hosts, of this process or of a service.
    """

    def __init__(self, client: HostSession) -> None:
        self._client = client
        self._run = run_name(secrets.token_hex(16))
        self._recorder = VersionRecorder()
        self._islands = [_KnownIsland(gang) for gang in client.pool.gangs]
        # Workers that go on after the signal to leave, until there is a version of what they have.
        self._delayed: set[HostGang] = set()
        # The islands that have some of the state, and all that were reported to be used.
        self._holding: set[int] = set()
        self._used: frozenset[int] = frozenset()
        self._replicas: StepReplicas | None = None
        self._layouts: HostReplicaLayouts | None = None
        self._kept: dict[VersionKey, StateOnHosts] = {}
        self._newest: VersionKey | None = None
        self._space: dict[int, dict[str, Any]] = {}
        self._has_space = False
        self._pending: list[_PendingCall] = []
        # Copies of what hosts do not have in their memory yet.
        self._waiting: list[tuple[VersionKey, BlockCopy]] = []
        self._events: collections.deque[ResilienceEvent] = collections.deque()
        # In one lane what changes memory, in its order; streams and restores do not wait for each other.
        self._memory_lane, self._stream_lane, self._restore_lane = next(lanes), next(lanes), next(lanes)

    def open(self, state: Any, run: str | None) -> None:
        """See `SnapshotStore.open`.

        Raises:
          ValueError: an earlier controller has left versions of another state.
          SnapshotError: a host has too little memory, or no folder for it.
          HostError: a host was lost.
        """
        # What clients of a service have left is removed when they disconnect.
        if run is not None and self._client.owns_workers:
            self._run, self.outlives = run, True
        gangs = self._client.pool.current(range(len(self._islands)))
        self._islands = [_KnownIsland(gang) for gang in gangs]
        calls = [self._open_island(gang) for gang in gangs]
        for gang, call in zip(gangs, calls, strict=True):
            self._client.wait_for_call(call)
            for host in gang.hosts:
                if (why := self._failure(call, host.index)) is not None:
                    raise SnapshotError(f"pw.resilient: {host}: {why}")
            for host, found in zip(gang.hosts, values_of(self._client, call), strict=True):
                self._space[host.index] = found
        numbers = range(len(self._islands))
        self.topology = ReplicaTopology(
            {
                host.index: HostPlace(gang.number, self._space[host.index]["machine"])
                for gang in gangs
                for host in gang.hosts
            },
            (frozenset(numbers),),
            self._holdings,
        )
        self._read_stored(state)
        self._check_space_at_start(state)

    def _read_stored(self, state: Any) -> None:
        """Reads what an earlier controller has left in the memory of hosts.

        Raises:
          ValueError: versions of another state.
        """
        blocks: dict[VersionKey, dict[int, Blocks]] = {}
        for host, found in self._space.items():
            for step, attempt, names in found["versions"]:
                blocks.setdefault(VersionKey(step, attempt), {})[host] = frozenset(names)
        if not blocks:
            return
        self._newest = max(blocks, key=lambda key: (key.attempt, key.step))
        # They stay if the state is another one.
        self.stored = {key: StoredVersion(own, False, (0,)) for key, own in blocks.items()}
        records: dict[VersionKey, str] = {}
        for call in self._call_all("read_records", {}):
            for found in values_of(self._client, call):
                records |= {VersionKey(step, attempt): text for step, attempt, text in found}
        recorded = read_versions(records, state, [island.gang for island in self._islands])
        tree = jax.tree.structure(state)
        self._kept = {
            key: StateOnHosts(tree, one.leaves, {}, one.replicas, None, blocks[key], records[key])
            for key, one in recorded.items()
        }
        self.stored = {key: StoredVersion(own, key in recorded, (0,)) for key, own in blocks.items()}
        self.positions = {key.step: one.position for key, one in recorded.items()}

    @override
    def set_replicas(self, replicas: StepReplicas) -> None:
        self._replicas = replicas
        self._layouts = HostReplicaLayouts(replicas)
        self.topology = ReplicaTopology(self.topology.hosts, replicas.islands, self._holdings)
        stored = dict(self.stored)
        for key, kept in self._kept.items():
            is_usable = all(layout.allows(replicas.counts, replicas.islands) for layout in kept.array_layouts)
            if not is_usable:
                text = "pw.resilient: %s in memory is not used: it has other replicas, or another minimum="
                log.warning(text, key)
            kept.layouts = self._layouts
            stored[key] = StoredVersion(stored[key].blocks, is_usable, kept.replicas)
        self.stored = stored

    @property
    def _running(self) -> tuple[int, ...]:
        """The replicas that programs run on; a single one where there cannot be fewer."""
        return (0,) if self._replicas is None else self._replicas.running

    def _holdings(self, replicas: tuple[int, ...], key: VersionKey) -> Holdings:
        return self._kept[key].holdings(replicas)

    def _check_space_at_start(self, state: Any) -> None:
        """Checks that versions fit in the memory of all hosts, wherever steps will have the state."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            if (kind := kind_of(leaf)) is not None:
                raise ValueError(
                    f"pw.resilient: state{jax.tree_util.keystr(path)} is in {kind} memory, but versions on "
                    "hosts are restored to the default memory of devices: keep it there between steps"
                )
        leaves = [leaf for leaf in jax.tree.leaves(state) if hasattr(leaf, "nbytes")]
        if all(isinstance(leaf, Array) for leaf in leaves):
            # When it is copied, it is known where all of it is.
            return
        copies = _VERSIONS * min(2, len(self._islands))
        needed = copies * sum(_nbytes(leaf) for leaf in leaves)
        self._require(needed, f"at least {size(needed)}", self._space)

    def _check_space(self, kept: StateOnHosts) -> None:
        """Checks that versions fit in the memory of each host, whichever replicas run."""
        sizes = kept.sizes
        needs = [
            {host: sum(sizes[name] for name in names) for host, names in planned.items()}
            for planned in self._planned_copies(kept)
        ]
        for system in dict.fromkeys(map(_file_system, self._space.values())):
            # Hosts of one machine may share a file system, and with it the free bytes.
            sharing = [host for host, own in self._space.items() if _file_system(own) == system]
            needed = _VERSIONS * max(sum(of_hosts.get(host, 0) for host in sharing) for of_hosts in needs)
            self._require(needed, size(needed), sharing)
        self._has_space = True

    def _planned_copies(self, kept: StateOnHosts) -> Iterator[Holdings]:
        """Yields the blocks that each host keeps of a version, for choices of the replicas that run."""
        hosts = self.topology.hosts
        for replicas in [kept.replicas] if self._replicas is None else self._replicas.samples():
            own = place_own_copies(kept.holdings(replicas), hosts)
            # Fewer run where other islands are lost, which then keep nothing for these.
            is_fewer = len(replicas) < len(self.topology.replicas)
            present = self.topology.hosts_of(self.topology.islands(replicas)) if is_fewer else [*hosts]
            planned = dict(own)
            for (_, target), names in place_buddy_copies(own, present, hosts).items():
                planned[target] = planned.get(target, _NO_BLOCKS) | names
            yield planned

    def _require(self, needed: int, named: str, hosts: Collection[int]) -> None:
        """Checks the free bytes of some hosts; makes room first, if that is necessary."""
        if needed > self._free_bytes(hosts):
            for gang in (island.gang for island in self._islands if island.is_present):
                own = [host.index for host in gang.hosts]
                with contextlib.suppress(HostError):
                    call = self._call("free_memory", gang, own, self._memory_lane, {})
                    for host, found in zip(own, values_of(self._client, call), strict=True):
                        self._space[host] |= found
        if needed <= (free := self._free_bytes(hosts)):
            return
        folder = self._space[min(hosts)]["folder"]
        option = "HostOptions(snapshot_folder=)"
        if not self._client.owns_workers:
            option = "snapshot_folder in the file of the cluster"
        hosts_named = ", ".join(f"host {host}" for host in sorted(hosts))
        raise SnapshotError(
            f"pw.resilient: snapshots need {named}, {size(free)} free on {hosts_named} in {folder}; give the "
            f"machine or container more shared memory, or set {option}"
        )

    def _free_bytes(self, hosts: Collection[int]) -> int:
        systems = {_file_system(self._space[host]): self._space[host] for host in hosts}
        return sum(found["bytes"] for found in systems.values())

    def take(self, key: VersionKey, state: Any) -> Holdings:
        """See `SnapshotStore.take`.

        Raises:
          SnapshotError: a host has too little memory.
          ValueError: fewer replicas may run, and an array is on an island that has none of them.
        """
        leaves, tree = jax.tree_util.tree_flatten_with_path(state)
        kept = StateOnHosts(tree, [], {}, self._running, self._layouts)
        for path, leaf in leaves:
            if isinstance(leaf, Array) and leaf.is_of(self._client):
                kept.arrays[len(kept.leaves)] = leaf
                name = f"state{jax.tree_util.keystr(path)}"
                kept.leaves.append(layout_of_array(name, leaf, self._layouts))
            else:
                kept.leaves.append(_copied(leaf))
        holdings = kept.holdings(kept.replicas)
        if holdings and not self._has_space:
            self._check_space(kept)
        self._holding.update(self.topology.hosts[host].island for host in holdings)
        self._kept[key] = kept
        self._newest = key
        return holdings

    @override
    def make_copies(self, key: VersionKey, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            if copy.source == copy.target:
                self._begin_own_copy(key, copy)
            else:
                self._waiting.append((key, copy))
        # The calls have their place in the order of steps, so later steps may donate the arrays.
        self._kept[key].arrays.clear()
        self._begin_waiting_copies()

    def _begin_own_copy(self, key: VersionKey, copy: BlockCopy) -> None:
        kept, gang = self._kept[key], self._gang_of(copy.target)
        taken: list[tuple[Array, Location]] = []
        names: list[str] = []
        blocks: list[Any] = []
        wanted = set(copy.blocks)
        for n, array in kept.arrays.items():
            for place in kept.leaves[n].at(gang.number):
                own = [block for block in place.blocks if block.host == copy.target and block.name in wanted]
                if not own:
                    continue
                for block in own:
                    # Devices of one host may have the same block, which is written once.
                    if block.name in wanted:
                        wanted.discard(block.name)
                        blocks.append((len(taken), block.shard, block.name, block.rows, block.shard_rows))
                taken.append((array, gang.location(place.layout, place.part)))
                names.append(kept.leaves[n].name)
        named = {"key": _plain(key), "copy": copy.number, "names": names, "blocks": blocks}
        tree = {"t": [{"l": [*range(len(taken))]}]}
        self._copy("write", self._memory_lane, key, copy, named, taken, tree)

    def _begin_waiting_copies(self) -> None:
        """Begins copies whose source has the blocks in its memory."""
        waiting, self._waiting = self._waiting, []
        for key, copy in waiting:
            kept = self._kept.get(key)
            if kept is None:
                # It was dropped, and nobody waits for it.
                continue
            if not self._is_present(copy.source):
                if self._is_present(copy.target):
                    self._events.append(CopyFailed(copy.number, f"host {copy.source} is lost"))
            elif copy.blocks <= kept.copies.get(copy.source, _NO_BLOCKS):
                self._copy(
                    "receive", self._stream_lane, key, copy, self._source(key, copy.source, copy.blocks)
                )
            else:
                self._waiting.append((key, copy))

    def _source(self, key: VersionKey, host: int, blocks: Collection[str]) -> dict[str, Any]:
        """Returns the arguments of a function that reads blocks of another host."""
        address = self._client.hosts[host].ready.probe_address
        return {"key": _plain(key), "host": host, "address": address, "blocks": sorted(blocks)}

    def _copy(
        self,
        function: str,
        lane: int,
        key: VersionKey,
        copy: BlockCopy,
        named: dict[str, Any],
        taken: Sequence[tuple[Array, Location]] = (),
        tree: Any = None,
    ) -> None:
        """Calls the function that makes a copy, on its target."""
        gang = self._gang_of(copy.target)

        def on_end() -> list[ResilienceEvent]:
            if gang.is_lost():
                # When it returns it reports what it has.
                return []
            if (why := self._failure(call, copy.target)) is not None:
                return [CopyFailed(copy.number, why)]
            if (kept := self._kept.get(key)) is not None:
                kept.copies[copy.target] = kept.copies.get(copy.target, _NO_BLOCKS) | copy.blocks
                if kept.record is not None:
                    # It was committed before: another controller has to know of this copy, too.
                    named = {"key": _plain(key), "record": kept.record}
                    with contextlib.suppress(HostError):
                        self._call("commit", gang, [copy.target], self._memory_lane, named)
            return [CopyCompleted(copy.number)]

        try:
            call = self._call(function, gang, [copy.target], lane, named | {"copy": copy.number}, taken, tree)
        except (HostError, RuntimeError, KeyError) as error:
            # Arrays of a step that failed, or of a lost island.
            if not gang.is_lost():
                self._events.append(CopyFailed(copy.number, str(error)))
            return
        self._pending.append(_PendingCall(call, on_end))

    @override
    def commit(self, key: VersionKey, position: Any) -> None:
        kept = self._kept[key]
        # Without blocks, it is the state that the same call has, too.
        if self.outlives and kept.array_layouts:
            version = RecordedVersion(kept.leaves, position, kept.replicas)
            kept.record = self._recorder.write(kept.tree, version)
            if kept.record is not None:
                self._call_all("commit", {"key": _plain(key), "record": kept.record})

    @override
    def keep(self, hosts: Sequence[int], keys: Sequence[VersionKey]) -> None:
        self._kept = {key: kept for key, kept in self._kept.items() if key in keys}
        # Versions that begin after this call are not among the keys, and must stay.
        newest = None if self._newest is None else _plain(self._newest)
        named = {"keys": [_plain(key) for key in keys], "newest": newest}
        if newest is not None:
            self._call_all("keep", named)

    @override
    def restore(self, restore: RestoreState) -> Any:
        assert restore.key is not None
        loading = {load.host for load in restore.loads}
        for host in restore.hosts:
            if host not in loading:
                self._events.append(HostRestored(restore.attempt, host))
        return self._read_arrays(restore.key, restore.replicas, restore.loads, restore.attempt)

    def _read_arrays(
        self,
        key: VersionKey,
        replicas: tuple[int, ...],
        loads: Sequence[BlockLoad],
        attempt: int | None,
        kept: StateOnHosts | None = None,
    ) -> Any:
        """Begins to read a version from memory; returns its state.

        Args:
          key: the version.
          loads: what each host reads from where.
          attempt: that of `RestoreState`, whose answers are reported; None for another purpose.
          kept: the state, with layouts of the arrays that are read; all by default.
        """
        kept = self._kept[key] if kept is None else kept
        # Each time in a lane of its own: what an earlier attempt waits for may not come.
        lane = next(lanes)
        leaves = [
            Array(self._client, leaf.aval) if isinstance(leaf, HostArrayLayout) else _copied(leaf)
            for leaf in kept.leaves
        ]
        places = kept.places(replicas)
        for island in self._islands:
            hosts = [host.index for host in island.gang.hosts]
            own = [load for load in loads if load.host in hosts]
            if own and island.is_present:
                # Of a restore an event says that an island is lost.
                with contextlib.nullcontext() if attempt is None else contextlib.suppress(HostError):
                    of_island = [one for one in places if one[1].island == island.gang.number]
                    self._read_island(key, kept, island.gang, own, of_island, leaves, lane, attempt)
        return jax.tree.unflatten(kept.tree, leaves)

    def _read_island(
        self,
        key: VersionKey,
        kept: StateOnHosts,
        gang: HostGang,
        loads: Sequence[BlockLoad],
        places: Sequence[tuple[int, ArrayPlace]],
        leaves: Sequence[Any],
        lane: int,
        attempt: int | None,
    ) -> None:
        for load in loads:
            if load.source != load.host:
                named = self._source(key, load.source, load.blocks)
                # In the lane of `read` below, which finds the fetched blocks in the memory of the host.
                call = self._call("fetch", gang, [load.host], lane, named)
                self._pending.append(_PendingCall(call, self._on_fetched(call, gang, load, attempt)))
        blocks = [
            [*dict.fromkeys((block.own_rows, block.name) for block in place.blocks)] for _, place in places
        ]
        outputs = tuple(kept.leaves[n].result(place) for n, place in places)
        hosts = sorted({load.host for load in loads})
        named = {"key": _plain(key), "leaves": blocks}
        call = self._call("read", gang, hosts, lane, named, outputs=outputs)
        for number, (n, place) in enumerate(places, call.number + 1):
            leaves[n].add_copy(gang.location(place.layout, place.part), number, call)

        def on_end() -> list[ResilienceEvent]:
            if gang.is_lost() or attempt is None:
                return []
            failed = {host: why for host in hosts if (why := self._failure(call, host)) is not None}
            return [
                RestoreFailed(attempt, host, host, failed[host], is_corrupt=True)
                if host in failed
                else HostRestored(attempt, host)
                for host in hosts
            ]

        self._pending.append(_PendingCall(call, on_end))

    def _on_fetched(
        self, call: FunctionCall, gang: HostGang, load: BlockLoad, attempt: int | None
    ) -> Callable[[], list[ResilienceEvent]]:
        def on_end() -> list[ResilienceEvent]:
            if gang.is_lost() or attempt is None:
                return []
            why, is_corrupt = self._failure(call, load.host), False
            if why is None:
                found = plain.decode(call.answers[load.host].value)
                why, is_corrupt = found.get("why"), found.get("is_corrupt", False)
            if why is None:
                return []
            return [RestoreFailed(attempt, load.host, load.source, why, is_corrupt=is_corrupt)]

        return on_end

    @override
    def release(self, island: int) -> None:
        known = self._islands[island]
        known.is_present = known.is_leaving = False
        self._allow_leave(known.gang)

    @override
    def read(self, tree: Any) -> Any:
        for leaf in jax.tree.leaves(tree):
            if isinstance(leaf, Array):
                leaf.copy_to_host_async()
        return jax.tree.map(_as_numpy, tree)

    def detach(self, array: Any) -> Any:
        """See `SnapshotStore.detach`. Of arrays on hosts the value, which is waited for."""
        return _as_numpy(array) if isinstance(array, Array) else array.copy()

    def version(self, key: VersionKey) -> Any:
        """See `SnapshotStore.version`. Hosts write its arrays from their memory.

        Those that a file cannot have in such blocks are read on the hosts, beside those of the steps.
        """
        kept, replicas = self._kept[key], self._running
        if self._replicas is not None:
            # Those that run may be lost by now.
            islands = {number for number, island in enumerate(self._islands) if island.is_present}
            replicas = self._replicas.able(islands) or replicas
        if absent := sorted(
            {self.topology.hosts[n].island for n in kept.holdings(replicas) if not self._is_present(n)}
        ):
            named = ", ".join(f"island{island}" for island in absent)
            raise lost(f"{key} cannot be read while there are no workers of {named}").error()
        present = {host: blocks for host, blocks in kept.copies.items() if self._is_present(host)}
        owners: dict[str, list[int]] = {}
        for host, blocks in sorted(present.items()):
            for name in blocks:
                owners.setdefault(name, []).append(host)
        version = SnapshotVersion(self._client, self._run, _plain(key), _MODULE)
        kept = dataclasses.replace(kept, leaves=stored_leaves(kept.leaves, version, owners))
        planned = plan_loads(kept.holdings(replicas), present, self.topology.hosts)
        if planned is None:
            raise KeyError(f"{key} is in no memory any more")
        loads = [BlockLoad(host, source, blocks) for (source, host), blocks in planned.items()]
        return self._read_arrays(key, replicas, loads, None, kept)

    @override
    def sizes(self) -> dict[int, int]:
        counts = dict.fromkeys(self.topology.hosts, 0)
        for kept in self._kept.values():
            block_sizes = kept.sizes
            for host, blocks in kept.copies.items():
                counts[host] += sum(block_sizes[name] for name in blocks)
        return counts

    def lose(self, island: int, *, memory: bool, arrays: Sequence[Any], returns: bool = True) -> None:
        """See `SnapshotStore.lose`: kills the workers of the island, which start again by themselves.

        Those that start are not used before `return_island`, unless the island is to return by itself.
        """
        if not self._client.owns_workers:
            raise RuntimeError(
                "pw.resilient: run.lose kills workers, which other clients of the service use, too; to try a "
                "loss, kill a worker of a service of your own: pw.status() has their process ids"
            )
        if not returns:
            self._islands[island].is_away = True
        gang = self._client.pool.gangs[island]
        if memory:
            with contextlib.suppress(HostError):
                call = self._call("close_run", gang, [host.index for host in gang.hosts], next(lanes), {})
                self._client.wait_for_call(call)
                self._islands[island].has_memory = False
        for host in gang.hosts:
            host.process.kill()

    @override
    def return_island(self, island: int) -> None:
        self._islands[island].is_away = False

    @override
    def check(self, islands: Collection[int]) -> None:
        for number in islands:
            self._islands[number].gang.life.check_open()

    @override
    def poll(self) -> list[ResilienceEvent]:
        # Threads of their own notice losses; this reads the answers of calls.
        if self._pending:
            self._client.poll()
        # Losses first: they explain what else fails.
        events = self._poll_islands()
        for one in [*self._pending]:
            if one.call.is_done():
                self._pending.remove(one)
                events += one.on_end()
        self._begin_waiting_copies()
        events += self._events
        self._events.clear()
        return events

    def _poll_islands(self) -> list[ResilienceEvent]:
        events: list[ResilienceEvent] = []
        used = self._holding | self._client.used
        if used != self._used and len(self.topology.replicas) == 1:
            self._used = frozenset(used)
            events.append(IslandsUsed(self._used))
        for number, island in enumerate(self._islands):
            change = self._change_of(number, island)
            problem = island.gang.life.problem
            if change is _Change.LOST and problem is not None:
                island.is_present = island.is_leaving = False
                self._allow_leave(island.gang)
                why = problem.text.partition(": ")[2] or problem.text
                events.append(WorkersLost(number, why.partition("\n")[0]))
                if not island.has_memory:
                    island.has_memory = True
                    # After the loss: no copies are made on these hosts meanwhile.
                    events += [MemoryLost(host.index) for host in island.gang.hosts]
            elif change is _Change.LEAVING:
                island.is_leaving = True
                events.append(WorkersLeaving(number))
            elif change is _Change.ABANDONED:
                island.is_abandoned = True
                events.append(IslandAbandoned(number))
            elif change is _Change.REPLACED:
                current = self._client.pool.gangs[number]
                with contextlib.suppress(HostError):
                    # New workers count as present when they have reported their versions, see `_on_opened`.
                    call = self._open_island(current)
                    island.opening = current
                    self._pending.append(_PendingCall(call, self._on_opened(call, island, current)))
        return events

    def _change_of(self, number: int, island: _KnownIsland) -> _Change | None:
        """Returns the change of an island that no event was returned for yet."""
        if island.is_present:
            # Also of workers that leave, and accept nothing more because their time is over.
            if island.gang.life.problem is not None:
                return _Change.LOST
            is_leaving = island.gang.life.leaving is not None
            return _Change.LEAVING if is_leaving and not island.is_leaving else None
        current = self._client.pool.gangs[number]
        if current is island.gang:
            return _Change.ABANDONED if not island.is_abandoned and current.life.is_dead() else None
        is_ready = current.life.problem is None and not island.is_away
        return _Change.REPLACED if is_ready and current is not island.opening else None

    def _allow_leave(self, gang: HostGang) -> None:
        if gang in self._delayed:
            self._delayed.remove(gang)
            self._client.allow_leave(gang)

    def _open_island(self, gang: HostGang) -> FunctionCall:
        if gang not in self._delayed:
            self._delayed.add(gang)
            self._client.delay_leave(gang)
        return self._call("open_run", gang, [host.index for host in gang.hosts], self._memory_lane, {})

    def _on_opened(
        self, call: FunctionCall, island: _KnownIsland, gang: HostGang
    ) -> Callable[[], list[ResilienceEvent]]:
        def on_end() -> list[ResilienceEvent]:
            if gang.life.problem is not None:
                return []
            copies: dict[int, dict[VersionKey, Blocks]] = {}
            for host in gang.hosts:
                if (why := self._failure(call, host.index)) is not None:
                    raise SnapshotError(f"pw.resilient: {host}: {why}")
                found = plain.decode(call.answers[host.index].value)
                copies[host.index] = {
                    VersionKey(step, attempt): frozenset(names) for step, attempt, names in found["versions"]
                }
            island.gang, island.is_present, island.opening = gang, True, None
            # The report replaces what was known: blocks may be lost with the machine of a host.
            for number, versions in copies.items():
                for key, kept in self._kept.items():
                    kept.copies[number] = versions.get(key, _NO_BLOCKS)
            return [WorkersReturned(gang.number, copies)]

        return on_end

    @override
    def awaits_loss(self, error: Exception) -> bool:
        if not isinstance(error, HostError):
            return False
        self._wait_for(self._has_lost_islands, _LOSS_SECONDS)
        return self._has_lost_islands()

    def _has_lost_islands(self) -> bool:
        return any(
            self._change_of(number, island) is _Change.LOST for number, island in enumerate(self._islands)
        )

    @override
    def wait(self, seconds: float) -> None:
        self._wait_for(self._has_news, seconds)

    def _has_news(self) -> bool:
        """Returns whether `poll` returns events."""
        return (
            bool(self._events)
            or any(one.call.is_done() for one in self._pending)
            or any(self._change_of(number, island) for number, island in enumerate(self._islands))
        )

    def _wait_for(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Waits until a condition holds, at most some seconds."""
        deadline = time.monotonic() + seconds
        self._client.wait(lambda: is_done() or time.monotonic() >= deadline, seconds)

    @override
    def close(self, *, keeps: bool) -> None:
        self._kept.clear()
        if keeps and self.outlives:
            return
        # New workers may have opened the run, though no reply of theirs was read.
        opening = [island.opening for island in self._islands if island.opening is not None]
        present = [island.gang for island in self._islands if island.is_present]
        for call in self._call_gangs([*present, *opening], "close_run", {}):
            with contextlib.suppress(HostError):
                self._client.wait_for_call(call)
        for gang in [*self._delayed]:
            self._allow_leave(gang)
        if not self._client.owns_workers:
            # The service removes what lost workers have left.
            return
        # Of hosts that have no workers now, where this process can.
        machine = this_machine()
        for folder in {found["folder"] for found in self._space.values() if found["machine"] == machine}:
            with contextlib.suppress(OSError):
                remove_leftovers(folder, math.inf, lambda one: one.cluster == self._run)

    def _gang_of(self, host: int) -> HostGang:
        return self._islands[self.topology.hosts[host].island].gang

    def _is_present(self, host: int) -> bool:
        return self._islands[self.topology.hosts[host].island].is_present

    def _call_all(self, function: str, named: dict[str, Any]) -> list[FunctionCall]:
        """Calls a function on all hosts that have workers; what fails there is of no matter."""
        gangs = [island.gang for island in self._islands if island.is_present]
        return self._call_gangs(gangs, function, named)

    def _call_gangs(
        self, gangs: Iterable[HostGang], function: str, named: dict[str, Any]
    ) -> list[FunctionCall]:
        """Calls a function on all hosts of some islands; what fails there is of no matter."""
        calls = []
        for gang in gangs:
            hosts = [host.index for host in gang.hosts]
            with contextlib.suppress(HostError):
                calls.append(self._call(function, gang, hosts, self._memory_lane, named))
        return calls

    def _call(
        self,
        function: str,
        gang: HostGang,
        hosts: Sequence[int],
        lane: int,
        named: Mapping[str, Any],
        taken: Sequence[tuple[Array, Location]] = (),
        tree: Any = None,
        outputs: tuple[Any, ...] | None = None,
    ) -> FunctionCall:
        """Calls a function of `snapshots` on hosts of an island, in the order of steps.

        Raises:
          HostError: the island is lost.
          RuntimeError, KeyError: an array was deleted, or is not there.
        """
        arguments = plain.encode([[], tree or {"t": []}, {"run": self._run, **named}], _NAME)
        structure = plain.encode({"l": [*range(len(outputs or ()))]}, _NAME)
        with self._client.order:
            arrays = [(array.number_at(where), array.aval) for array, where in taken]
            message = call_of(f"{_MODULE}:{function}", 0, lane, arrays, arguments, outputs, structure)
            workers = [host for host in gang.hosts if host.index in hosts]
            producers = [array.step_at(where) for array, where in taken]
            return self._client.call(f"{_NAME}: {function}", gang, workers, message, producers)

    def _failure(self, call: FunctionCall, host: int) -> str | None:
        """Returns why a call failed on a host; None if it did not."""
        answer = call.answers.get(host)
        if answer is not None and answer.failure is not None:
            what = answer.failure
            return (
                what.text
                if what.kind == snapshots.SNAPSHOT_FAILURE
                else f"{what.type or what.kind}: {what.text}"
            )
        failure = call.failures().get(host)
        return None if failure is None else failure.text


def _plain(key: VersionKey) -> tuple[int, int]:
    return key.step, key.attempt


def _file_system(found: Mapping[str, Any]) -> tuple[str, int]:
    return found["machine"], found["device"]


def _nbytes(leaf: Any) -> int:
    """Returns the bytes of an array; typed PRNG keys are small."""
    return 0 if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended) else int(leaf.nbytes)


def _copied(leaf: Any) -> Any:
    """Returns a copy of what is in this process, which a step may donate or change."""
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
