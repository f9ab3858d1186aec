"""Versions of the state in the memory of this process, which stands for all islands of its devices."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pathways.compiler.frontend.jax_internals import key_data
from pathways.compiler.lower.structures import is_key
from pathways.compiler.resilience.store import SnapshotStore
from pathways.runtime.local.devices import cluster, devices_of_cluster
from pathways.runtime.resilience.effects import RestoreState
from pathways.runtime.resilience.events import (
    CopyCompleted,
    CopyFailed,
    HostRestored,
    MemoryLost,
    ReplicasPrepared,
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
from pathways.runtime.xla import pjrt


@dataclasses.dataclass(frozen=True)
class _ArrayLayout:
    """Layout of an array, to put it together from its blocks.

    Attributes:
      aval: its type; for typed PRNG keys that of the keys.
      sharding: the sharding of its data.
      shape: the shape of its data.
      dtype: the dtype of its data.
      is_committed: whether it has to be on its device.
      blocks: the block on each device, in the order of the sharding's devices, and its position in the array.
    """

    aval: Any
    sharding: jax.sharding.Sharding
    shape: tuple[int, ...]
    dtype: Any
    is_committed: bool
    blocks: tuple[tuple[jax.Device, str, tuple[slice, ...]], ...]


@dataclasses.dataclass
class _KeptState:
    """State state that is copied.

    Attributes:
      tree: its structure.
      layouts: the layout of each leaf; a leaf that is no array on devices stands here itself.
      arrays: the data of each array on devices, until its copies are made, by positions of leaves.
    """

    tree: Any
    layouts: list[Any]
    arrays: dict[int, jax.Array]


class LocalSnapshotStore(SnapshotStore):
    """Versions in the memory of this process; see `SnapshotStore`.

    Each island is one host. Copies are made when a version begins, and complete at once: the next step waits
    for that.
    """

    def __init__(self) -> None:
        described = cluster()
        islands = {island.name: number for number, island in enumerate(described.islands)}
        self._islands = {
            handle: islands[device.island]
            for handle, device in zip(devices_of_cluster(), described.devices, strict=True)
        }
        numbers = range(len(islands))
        self.topology = ReplicaTopology(
            {number: HostPlace(number, f"island{number}") for number in numbers},
            (frozenset(numbers),),
            lambda replicas, key: self._holdings,
        )
        self._holdings: Holdings = {}
        self._kept: dict[VersionKey, _KeptState] = {}
        self._memory: dict[int, dict[VersionKey, dict[str, np.ndarray]]] = {n: {} for n in numbers}
        self._events: collections.deque[ResilienceEvent] = collections.deque()
        self._changed = threading.Condition()

    def open(self, state: Any) -> None:
        """See `SnapshotStore.open`."""

    def take(self, key: VersionKey, state: Any) -> Holdings:
        """See `SnapshotStore.take`."""
        leaves, tree = jax.tree_util.tree_flatten_with_path(state)
        kept = _KeptState(tree, [], {})
        holdings: dict[int, set[str]] = {}
        for path, leaf in leaves:
            if not isinstance(leaf, jax.Array):
                kept.layouts.append(np.array(leaf) if isinstance(leaf, np.ndarray) else leaf)
                continue
            data = key_data(leaf) if is_key(leaf.aval) else leaf
            layout = self._layout(f"state{jax.tree_util.keystr(path)}", leaf, data)
            kept.arrays[len(kept.layouts)] = data
            kept.layouts.append(layout)
            for device, block, _ in layout.blocks:
                holdings.setdefault(self._island(device), set()).add(block)
        self._kept[key] = kept
        self._holdings = {host: frozenset(blocks) for host, blocks in sorted(holdings.items())}
        return self._holdings

    def _layout(self, name: str, leaf: jax.Array, data: jax.Array) -> _ArrayLayout:
        indices = data.sharding.devices_indices_map(data.shape)
        blocks = tuple(
            (device, f"{name}{_rows(index, data.shape)}", index) for device, index in indices.items()
        )
        return _ArrayLayout(leaf.aval, data.sharding, data.shape, data.dtype, leaf.committed, blocks)

    def _island(self, device: jax.Device) -> int:
        # A device that the cluster does not have is not lost with any island.
        return self._islands.get(device, 0)

    def make_copies(self, key: VersionKey, copies: Sequence[BlockCopy]) -> None:
        """See `SnapshotStore.make_copies`."""
        for copy in copies:
            try:
                if copy.source == copy.target:
                    blocks = self._copy_own(key, copy)
                else:
                    there = self._memory[copy.source][key]
                    blocks = {block: there[block] for block in copy.blocks}
            except Exception as error:
                # Arrays of a step that failed, or of a lost island.
                self._notify(CopyFailed(copy.number, f"{type(error).__name__}: {error}"))
                continue
            self._memory[copy.target].setdefault(key, {}).update(blocks)
            self._notify(CopyCompleted(copy.number))

    def _copy_own(self, key: VersionKey, copy: BlockCopy) -> dict[str, np.ndarray]:
        kept = self._kept[key]
        found: dict[str, np.ndarray] = {}
        for n, data in kept.arrays.items():
            shards = {shard.device: shard for shard in data.addressable_shards}
            for device, block, _ in kept.layouts[n].blocks:
                if block in copy.blocks and block not in found and self._island(device) == copy.target:
                    found[block] = np.array(shards[device].data)
        return found

    def commit(self, key: VersionKey) -> None:
        """See `SnapshotStore.commit`."""
        self._kept[key].arrays.clear()

    def keep(self, hosts: Sequence[int], keys: Sequence[VersionKey]) -> None:
        """See `SnapshotStore.keep`."""
        for host in hosts:
            self._memory[host] = {key: own for key, own in self._memory[host].items() if key in keys}
        self._kept = {key: kept for key, kept in self._kept.items() if key in keys}

    def restore(self, restore: RestoreState) -> Any:
        """See `SnapshotStore.restore`."""
        assert restore.key is not None
        sources = {
            (load.host, block): self._memory[load.source].get(restore.key, {}).get(block)
            for load in restore.loads
            for block in load.blocks
        }
        missing = next((load for load in restore.loads if self._lacks(restore.key, load)), None)
        if missing is not None:
            why = "its memory was lost"
            self._notify(RestoreFailed(restore.attempt, missing.host, missing.source, why, is_corrupt=True))
            return None
        kept = self._kept[restore.key]
        leaves = [
            self._array(layout, sources) if isinstance(layout, _ArrayLayout) else layout
            for layout in kept.layouts
        ]
        self._notify(*(HostRestored(restore.attempt, host) for host in restore.hosts))
        return jax.tree.unflatten(kept.tree, leaves)

    def _lacks(self, key: VersionKey, load: BlockLoad) -> bool:
        return not load.blocks <= self._memory[load.source].get(key, {}).keys()

    def _array(self, layout: _ArrayLayout, sources: Mapping[tuple[int, str], np.ndarray | None]) -> Any:
        # JAX may use the memory of what it is given, and a later step donate it.
        copies = [
            (device, np.array(sources[self._island(device), block])) for device, block, _ in layout.blocks
        ]
        if layout.is_committed:
            kind = layout.sharding.memory_kind
            shards = [
                jax.device_put(copy, jax.sharding.SingleDeviceSharding(device, memory_kind=kind))
                for device, copy in copies
            ]
            array = jax.make_array_from_single_device_arrays(layout.shape, layout.sharding, shards)
        else:
            array = jax.device_put(copies[0][1])
        if is_key(layout.aval) or layout.aval.weak_type:
            return pjrt.rewrap(layout.aval, array.sharding)(array)
        return array

    def prepare(self, replicas: tuple[int, ...]) -> None:
        """See `SnapshotStore.prepare`."""
        self._notify(ReplicasPrepared(replicas))

    def release(self, island: int) -> None:
        """See `SnapshotStore.release`. The island returns at once."""
        self._notify(WorkersReturned(island))

    def read(self, tree: Any) -> Any:
        """See `SnapshotStore.read`."""
        return jax.tree.map(_as_numpy, tree)

    def version(self, key: VersionKey) -> Any:
        """See `SnapshotStore.version`."""
        kept = self._kept[key]
        blocks: dict[str, np.ndarray] = {}
        for memory in self._memory.values():
            blocks.update(memory.get(key, {}))
        leaves = []
        for layout in kept.layouts:
            if not isinstance(layout, _ArrayLayout):
                leaves.append(layout)
                continue
            whole = blocks[layout.blocks[0][1]]
            if whole.shape != layout.shape:
                whole = np.empty(layout.shape, layout.dtype)
                for _, block, index in layout.blocks:
                    whole[index] = blocks[block]
            leaves.append(_as_keys(layout.aval, whole) if is_key(layout.aval) else whole)
        return jax.tree.unflatten(kept.tree, leaves)

    def sizes(self) -> dict[int, int]:
        """See `SnapshotStore.sizes`."""
        return {
            host: sum(block.nbytes for own in memory.values() for block in own.values())
            for host, memory in self._memory.items()
        }

    def lose(self, island: int, *, memory: bool, arrays: Sequence[Any]) -> None:
        """See `SnapshotStore.lose`."""
        events: list[ResilienceEvent] = [WorkersLost(island, "run.lose")]
        if memory:
            self._memory[island] = {}
            events.append(MemoryLost(island))
        # Before: who finds an array deleted reads why.
        self._notify(*events, WorkersReturned(island))
        for array in arrays:
            # One that was donated, or lost before, has no devices.
            with contextlib.suppress(RuntimeError):
                if isinstance(array, jax.Array) and any(self._island(d) == island for d in array.devices()):
                    array.delete()

    def _notify(self, *events: ResilienceEvent) -> None:
        with self._changed:
            self._events.extend(events)
            self._changed.notify_all()

    def poll(self) -> list[ResilienceEvent]:
        """See `SnapshotStore.poll`."""
        with self._changed:
            events = [*self._events]
            self._events.clear()
        return events

    def wait(self, seconds: float) -> None:
        """See `SnapshotStore.wait`."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._events), seconds)

    def close(self) -> None:
        """See `SnapshotStore.close`."""
        self._kept.clear()
        for memory in self._memory.values():
            memory.clear()


def _rows(index: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    """Returns a place in an array for messages, such as `[0:4, :]`; nothing for all of it."""
    parts = [
        ":" if (own.start or 0, own.stop or size) == (0, size) else f"{own.start or 0}:{own.stop or size}"
        for own, size in zip(index, shape, strict=True)
    ]
    return f"[{', '.join(parts)}]" if any(part != ":" for part in parts) else ""


def _as_numpy(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    return jax.device_get(leaf) if is_key(leaf.aval) else np.asarray(leaf)


def _as_keys(aval: Any, data: np.ndarray) -> jax.Array:
    return jax.random.wrap_key_data(jax.numpy.asarray(data), impl=jax.random.key_impl(aval))
