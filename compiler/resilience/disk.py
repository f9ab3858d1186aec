"""Versions of the state on disk, saved through `pw.checkpoint` in the background."""

from __future__ import annotations

import collections
import itertools
import math
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from pathways.compiler.data import checkpoint
from pathways.compiler.data.host_checkpoints import SnapshotArray, SnapshotBlock, SnapshotVersion
from pathways.compiler.resilience.host_layouts import HostArrayLayout, Rows
from pathways.compiler.resilience.source import SourcePosition
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.protocol.programs import WHOLE
from pathways.runtime.resilience.events import DiskSaveCompleted, DiskSaveFailed, ResilienceEvent
from pathways.runtime.resilience.records import VersionKey
from pathways.runtime.resources.paths import absolute_path
from pathways.runtime.resources.threads import RunningThread, start_thread

_MAX_CHUNKS = 64
"""Limit on chunks of a file per block of an array."""


class DiskVersions:
    """Versions in a folder of checkpoints.

    Args:
      folder: the folder, which has the checkpoints of this run alone.
      like: the state that the run begins with: versions are restored like it.
      keep: the number of versions that stay.
    """

    def __init__(self, folder: str | os.PathLike[str], like: Any, keep: int = 2) -> None:
        self.folder = absolute_path(folder)
        self._keep = keep
        self._like = jax.tree.map(_type_of, like)
        self._x64 = jax.config.jax_enable_x64
        self._lock = threading.Lock()
        self._events: list[ResilienceEvent] = []
        self._thread: RunningThread | None = None

    def latest(self) -> int | None:
        """Returns the step of the last version; None where there is none."""
        return checkpoint.latest(self.folder)

    def begin(self, key: VersionKey, state: Any, position: Any) -> None:
        """Begins to save a version; `poll` returns what became of it."""

        def work() -> None:
            event: ResilienceEvent = DiskSaveCompleted(key)
            try:
                # Settings of JAX belong to threads.
                with jax.enable_x64(self._x64):
                    self.save(key.step, state, position)
            except Exception as error:
                event = DiskSaveFailed(key, f"{type(error).__name__}: {error}")
            with self._lock:
                self._events.append(event)

        # The core has one save at a time in progress, so that an earlier thread has finished.
        self._thread = start_thread(work, "disk version")

    def save(self, step: int, state: Any, position: Any) -> None:
        """Saves a version, and waits until it is written.

        Raises:
          OSError: it cannot be written.
        """
        checkpoint.save(self.folder, state, step, data=SourcePosition(position), keep=self._keep).wait()

    def restore(self, step: int, *, places: bool = True) -> tuple[Any, Any]:
        """Reads a version; returns the state, and the position of the source.

        Args:
          step: the step of the version.
          places: whether arrays are put where they were when the run began; else they are of NumPy.

        Raises:
          Exception: it cannot be read, or is that of another state.
        """
        self.wait()
        data = SourcePosition(None)
        like = self._like if places else jax.tree.map(_without_place, self._like)
        return checkpoint.restore(self.folder, like, step=step, data=data), data.position

    def poll(self) -> list[ResilienceEvent]:
        """Returns the events since the last call."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def wait(self) -> None:
        """Waits for a save that is in progress."""
        if self._thread is not None:
            self._thread.join()


def _without_place(leaf: Any) -> Any:
    """Returns the same type without a sharding; other leaves as they are."""
    if not isinstance(leaf, jax.ShapeDtypeStruct) or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)


def _type_of(leaf: Any) -> Any:
    """Returns what says how a leaf is restored, without its data."""
    if isinstance(leaf, Array):
        # Those of this process: it may be donated, and the workers lost that have it.
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    if not isinstance(leaf, jax.Array):
        return leaf
    # Typed keys are never weak, and do not say so.
    is_weak = getattr(leaf, "weak_type", False)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding, weak_type=is_weak)


def stored_leaves(
    leaves: Sequence[Any], version: SnapshotVersion, owners: Mapping[str, Sequence[int]]
) -> list[Any]:
    """Returns the leaves of a state with arrays in the memory of hosts in place of their layouts.

    Layouts stay of arrays that a file cannot have as they are: keys, and those in blocks that would be in too
    many chunks of one shape.

    Args:
      leaves: the layout of each array on hosts; any other leaf itself.
      version: the version.
      owners: the hosts that have each block.

    Raises:
      KeyError: a block is in no memory any more.
    """
    loads: collections.Counter[int] = collections.Counter()
    return [_stored(leaf, version, owners, loads) for leaf in leaves]


def _stored(
    leaf: Any, version: SnapshotVersion, owners: Mapping[str, Sequence[int]], loads: collections.Counter[int]
) -> Any:
    if not isinstance(leaf, HostArrayLayout) or not leaf.sizes:
        return leaf
    blocks = _cover(leaf)
    is_key = jax.dtypes.issubdtype(leaf.aval.dtype, jax.dtypes.extended)
    if is_key or not leaf.aval.size:
        return leaf
    # Hosts write to no chunk together, and a file has chunks of one shape alone.
    chunk = tuple(math.gcd(*itertools.chain(*sides)) for sides in zip(*blocks.values(), strict=True))
    if leaf.aval.size > math.prod(chunk) * len(blocks) * _MAX_CHUNKS:
        return leaf
    found = []
    for name, rows in blocks.items():
        if not owners.get(name):
            raise KeyError(f"{name} is in no memory any more")
        # Of the hosts that have a block, the one with least to write.
        host = min(owners[name], key=lambda host: loads[host])
        loads[host] += leaf.dtype.itemsize * math.prod(stop - start for start, stop in rows)
        found.append(SnapshotBlock(host, name, tuple(start for start, _ in rows)))
    return SnapshotArray(version, leaf.aval.shape, leaf.dtype, chunk, tuple(found))


def _cover(layout: HostArrayLayout) -> dict[str, Rows]:
    """Returns blocks that are all of an array, by their names, and do not overlap."""
    whole = [place for place in layout.places if place.part == WHOLE][:1]
    first = layout.places[0].part
    # Replicas may have cut it differently.
    cut = {
        place.part: place
        for place in layout.places
        if (place.part.count, place.part.dim) == (first.count, first.dim)
    }
    return {block.name: block.rows for place in whole or cut.values() for block in place.blocks}
