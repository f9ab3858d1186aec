"""Store of versions in the memory of this process, in which each island of devices is one host."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, override

import jax
import numpy as np

from pathways.compiler.frontend.jax_internals import key_data, key_kind
from pathways.compiler.lower.structures import is_key
from pathways.compiler.resilience.layouts.array_layouts import ArrayLayout, ReplicaLayouts
from pathways.compiler.resilience.layouts.step_replicas import StepReplicas
from pathways.compiler.resilience.store import SnapshotStore
from pathways.runtime.local.devices import cluster, devices_of_cluster
from pathways.runtime.local.recording import span
from pathways.runtime.plan.block_rows import blocks_in, index_of, rows_within, shape_of
from pathways.runtime.resilience.effects import RestoreState
from pathways.runtime.resilience.events import (
    CopyCompleted,
    CopyFailed,
    HostRestored,
    MemoryLost,
    ResilienceEvent,
    RestoreFailed,
    WorkersLost,
    WorkersReturned,
)
from pathways.runtime.resilience.records import (
    BlockCopy,
    BlockLoad,
    Holdings,
    HostPlace,
    ReplicaTopology,
    VersionKey,
)
from pathways.runtime.resources.threads import Condition
from pathways.runtime.xla import pjrt


@dataclasses.dataclass
class _KeptState:
    """State of a version.

    Attributes:
      tree: its structure.
      running: the replicas that ran.
      layouts: the layout of each array on devices; any other leaf itself.
      arrays: the data of each array on devices by positions of leaves, until the version is committed.
    """

    tree: Any
    running: tuple[int, ...]
    layouts: list[Any]
    arrays: dict[int, jax.Array]

    def sharding(self, layout: ArrayLayout, replicas: tuple[int, ...]) -> jax.sharding.Sharding:
        """Returns the sharding of an array for running replicas."""
        return layout.sharding_of(None if replicas == self.running else replicas)


class LocalSnapshotStore(SnapshotStore):
    """Versions in the memory of this process; see `SnapshotStore`.

    Each island is one host. A version is copied when it starts, and the next step waits for the copies.
    """

    def __init__(self) -> None:
        described = cluster()
        islands = {island.name: number for number, island in enumerate(described.islands)}
        self._islands = {
            handle: islands[device.island]
            for handle, device in zip(devices_of_cluster(), described.devices, strict=True)
        }
        numbers = range(len(islands))
        self._hosts = {number: HostPlace(number, f"island{number}") for number in numbers}
        self.topology = ReplicaTopology(self._hosts, (frozenset(numbers),), self._holdings)
        self._replicas: StepReplicas | None = None
        self._layouts: ReplicaLayouts | None = None
        self._absent: set[int] = set()
        self._states: dict[VersionKey, _KeptState] = {}
        self._memory: dict[int, dict[VersionKey, dict[str, np.ndarray]]] = {n: {} for n in numbers}
        self._events: collections.deque[ResilienceEvent] = collections.deque()
        self._changed = Condition()

    def open(self, state: Any, run: str | None) -> None:
        """See `SnapshotStore.open`."""

    @override
    def set_replicas(self, replicas: StepReplicas) -> None:
        self._layouts = ReplicaLayouts(replicas)
        self._replicas = replicas
        self.topology = ReplicaTopology(self._hosts, replicas.islands, self._holdings)

    @property
    def _running(self) -> tuple[int, ...]:
        """The replicas that run; replica 0 where the step has none."""
        return (0,) if self._replicas is None else self._replicas.running

    @override
    def take(self, key: VersionKey, state: Any) -> Holdings:
        leaves, tree = jax.tree_util.tree_flatten_with_path(state)
        copied = _KeptState(tree, self._running, [], {})
        for path, leaf in leaves:
            if not isinstance(leaf, jax.Array):
                # The caller may change an array of NumPy in place.
                copied.layouts.append(np.array(leaf) if isinstance(leaf, np.ndarray) else leaf)
                continue
            data = key_data(leaf) if is_key(leaf.aval) else leaf
            copied.arrays[len(copied.layouts)] = data
            copied.layouts.append(self._layout(f"state{jax.tree_util.keystr(path)}", leaf, data))
        self._states[key] = copied
        return self._holdings(self._running, key)

    def _layout(self, name: str, leaf: jax.Array, data: jax.Array) -> ArrayLayout:
        replicas = None
        if self._layouts is not None:
            replicas = self._layouts.find(name, data)
        return ArrayLayout(name, leaf.aval, data.sharding, data.shape, data.dtype, leaf.committed, replicas)

    def _holdings(self, replicas: tuple[int, ...], key: VersionKey) -> Holdings:
        """Returns the blocks of a version on each host for running replicas."""
        state = self._states[key]
        holdings: dict[int, set[str]] = {}
        for layout in state.layouts:
            if isinstance(layout, ArrayLayout):
                for device, _, blocks in layout.blocks_of(state.sharding(layout, replicas)):
                    host = self._host(layout, device, replicas)
                    holdings.setdefault(host, set()).update(map(layout.block, blocks))
        return {host: frozenset(blocks) for host, blocks in sorted(holdings.items())}

    def _host(self, layout: ArrayLayout, device: jax.Device, replicas: tuple[int, ...]) -> int:
        """Returns the host of a device; for a device outside of the cluster the first running host."""
        if not layout.is_committed or device not in self._islands:
            # The array is on no slice, so no loss of an island affects it.
            return min(self.topology.islands(replicas))
        return self._islands[device]

    @override
    def make_copies(self, key: VersionKey, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            try:
                if copy.source == copy.target:
                    with span("snapshots", f"snapshot {key.step}", track=f"island{copy.target}"):
                        blocks = self._copy_own(key, copy)
                else:
                    # The core orders copies of a host's own blocks first, so the source has the blocks.
                    source_blocks = self._memory[copy.source][key]
                    blocks = {block: source_blocks[block] for block in copy.blocks}
            except Exception as error:
                # The step failed, or its island is lost.
                self._notify(CopyFailed(copy.number, f"{type(error).__name__}: {error}"))
                continue
            self._memory[copy.target].setdefault(key, {}).update(blocks)
            self._notify(CopyCompleted(copy.number))

    def _copy_own(self, key: VersionKey, copy: BlockCopy) -> dict[str, np.ndarray]:
        state = self._states[key]
        copies: dict[str, np.ndarray] = {}
        for n, data in state.arrays.items():
            layout = state.layouts[n]
            shards = {shard.device: shard for shard in data.addressable_shards}
            for device, shard, blocks in layout.blocks_of(layout.sharding):
                if self._host(layout, device, state.running) != copy.target:
                    continue
                data_there = np.asarray(shards[device].data)
                for block in blocks:
                    name = layout.block(block)
                    if name in copy.blocks and name not in copies:
                        # A copy: on CPU `np.asarray` shares the buffer, which a later step may donate.
                        copies[name] = np.array(data_there[index_of(rows_within(block, shard))])
        return copies

    @override
    def commit(self, key: VersionKey, position: Any) -> None:
        self._states[key].arrays.clear()

    @override
    def keep(self, hosts: Sequence[int], keys: Sequence[VersionKey]) -> None:
        for host in hosts:
            self._memory[host] = {key: blocks for key, blocks in self._memory[host].items() if key in keys}
        self._states = {key: state for key, state in self._states.items() if key in keys}

    def check(self, islands: Collection[int]) -> None:
        """See `SnapshotStore.check`. Programs here need no workers."""

    @override
    def restore(self, restore: RestoreState) -> Any:
        assert restore.key is not None
        sources = {
            (load.host, block): self._memory[load.source].get(restore.key, {}).get(block)
            for load in restore.loads
            for block in load.blocks
        }
        missing = next((load for load in restore.loads if self._lacks(restore.key, load)), None)
        if missing is not None:
            reason = "its memory was lost"
            self._notify(
                RestoreFailed(restore.attempt, missing.host, missing.source, reason, is_corrupt=True)
            )
            return None
        state = self._states[restore.key]
        leaves = [
            self._array(layout, state.sharding(layout, restore.replicas), restore.replicas, sources)
            if isinstance(layout, ArrayLayout)
            # The step may write to an array of NumPy.
            else np.array(layout)
            if isinstance(layout, np.ndarray)
            else layout
            for layout in state.layouts
        ]
        self._notify(*(HostRestored(restore.attempt, host) for host in restore.hosts))
        return jax.tree.unflatten(state.tree, leaves)

    def _lacks(self, key: VersionKey, load: BlockLoad) -> bool:
        return not load.blocks <= self._memory[load.source].get(key, {}).keys()

    def _array(
        self,
        layout: ArrayLayout,
        sharding: jax.sharding.Sharding,
        replicas: tuple[int, ...],
        sources: Mapping[tuple[int, str], np.ndarray | None],
    ) -> Any:
        copies = []
        for device, shard, blocks in layout.blocks_of(sharding):
            host = self._host(layout, device, replicas)
            # Fresh memory: JAX may share it, and a later step may donate it.
            copy = np.empty(shape_of(shard), layout.dtype)
            for block in blocks:
                copy[index_of(rows_within(block, shard))] = sources[host, layout.block(block)]
            copies.append((device, copy))
        if layout.is_committed:
            kind = sharding.memory_kind
            shards = [
                jax.device_put(copy, jax.sharding.SingleDeviceSharding(device, memory_kind=kind))
                for device, copy in copies
            ]
            array = jax.make_array_from_single_device_arrays(layout.shape, sharding, shards)
        else:
            array = jax.device_put(copies[0][1])
        if is_key(layout.aval) or layout.aval.weak_type:
            return pjrt.rewrap(layout.aval, array.sharding, committed=layout.is_committed)(array)
        return array

    def release(self, island: int) -> None:
        """See `SnapshotStore.release`. The island returns at once."""
        self._notify(WorkersReturned(island))

    @override
    def read(self, tree: Any) -> Any:
        return jax.tree.map(_as_numpy, tree)

    @override
    def detach(self, array: Any) -> Any:
        return array.copy()

    @override
    def version(self, key: VersionKey) -> Any:
        state = self._states[key]
        blocks: dict[str, np.ndarray] = {}
        for memory in self._memory.values():
            blocks.update(memory.get(key, {}))
        leaves = []
        for layout in state.layouts:
            if not isinstance(layout, ArrayLayout):
                leaves.append(layout)
                continue
            array = np.empty(layout.shape, layout.dtype)
            for block in blocks_in(tuple((0, size) for size in layout.shape), layout.bounds):
                array[index_of(block)] = blocks[layout.block(block)]
            leaves.append(_as_keys(layout.aval, array) if is_key(layout.aval) else array)
        return jax.tree.unflatten(state.tree, leaves)

    @override
    def sizes(self) -> dict[int, int]:
        return {
            host: sum(block.nbytes for blocks in memory.values() for block in blocks.values())
            for host, memory in self._memory.items()
        }

    @override
    def lose(self, island: int, *, memory: bool, arrays: Sequence[Any], returns: bool = True) -> None:
        events: list[ResilienceEvent] = []
        is_there = island not in self._absent
        if is_there:
            events.append(WorkersLost(island, "run.lose"))
        if memory:
            self._memory[island] = {}
            events.append(MemoryLost(island))
        if not returns:
            self._absent.add(island)
        elif is_there:
            events.append(WorkersReturned(island))
        # Before arrays are deleted, so that the error of one names the loss.
        self._notify(*events)
        for array in arrays:
            # A donated or lost array has no devices.
            with contextlib.suppress(RuntimeError):
                # An uncommitted array is on no slice.
                if isinstance(array, jax.Array) and array.committed and self._is_on(array, island):
                    array.delete()

    def _is_on(self, array: jax.Array, island: int) -> bool:
        return any(self._islands.get(device) == island for device in array.devices())

    @override
    def return_island(self, island: int) -> None:
        if island in self._absent:
            self._absent.discard(island)
            self._notify(WorkersReturned(island))

    def _notify(self, *events: ResilienceEvent) -> None:
        with self._changed:
            self._events.extend(events)
            self._changed.notify_all()

    @override
    def poll(self) -> list[ResilienceEvent]:
        with self._changed:
            events = [*self._events]
            self._events.clear()
        return events

    @override
    def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._events), seconds)

    @override
    def close(self, *, keeps: bool) -> None:
        self._states.clear()
        for memory in self._memory.values():
            memory.clear()


def _as_numpy(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    return jax.device_get(leaf) if is_key(leaf.aval) else np.asarray(leaf)


def _as_keys(aval: Any, data: np.ndarray) -> jax.Array:
    return jax.random.wrap_key_data(jax.numpy.asarray(data), impl=key_kind(aval.dtype))
