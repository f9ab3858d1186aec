"""Versions of the state on disk, saved through `pw.checkpoint` in the background."""

from __future__ import annotations

import collections
import itertools
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pathways.compiler.data import checkpoint
from pathways.compiler.frontend.jax_internals import key_kind
from pathways.compiler.resilience.layouts.host_layouts import HostArrayLayout, Rows
from pathways.compiler.resilience.settings import shortened, shown
from pathways.compiler.resilience.source import SourcePosition
from pathways.runtime.data.host_files import SnapshotArray, SnapshotBlock, SnapshotVersion
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.protocol.programs import WHOLE_ARRAY
from pathways.runtime.resilience.events import DiskSaveCompleted, DiskSaveFailed, ResilienceEvent
from pathways.runtime.resilience.records import VersionKey
from pathways.runtime.resources.paths import absolute_path
from pathways.runtime.resources.threads import RunningThread, start_thread

_MAX_CHUNKS = 64
"""Limit on chunks of a file per block of an array."""


class DiskVersions:
    """Versions in a folder of checkpoints.

    Args:
      folder: the folder; no other run saves checkpoints there.
      like: the first state of the run; restored states have its types and shardings.
      max_to_keep: the number of versions that are not removed.
    """

    def __init__(self, folder: str | os.PathLike[str], like: Any, max_to_keep: int = 2) -> None:
        self.folder = absolute_path(folder)
        self._max_to_keep = max_to_keep
        self._like = jax.tree.map(_type_of, like)
        # Steps whose versions cannot be read.
        self._damaged: list[int] = []
        self._x64 = jax.config.jax_enable_x64
        self._lock = threading.Lock()
        self._events: list[ResilienceEvent] = []
        self._thread: RunningThread | None = None

    def latest(self) -> int | None:
        """Returns the step of the last version that can be read; None where there is none."""
        return max(self.steps(), default=None)

    def steps(self) -> list[int]:
        """Returns the steps of all versions that can be read, ascending."""
        return [step for step in checkpoint.steps(self.folder) if step not in self._damaged]

    def check(self, state: Any) -> None:
        """Checks that a state can be saved.

        Raises:
          TypeError, ValueError: a leaf cannot be saved, or the folder cannot have checkpoints.
        """
        checkpoint.check(self.folder, jax.tree.map(_without_empty, state))

    def begin(self, key: VersionKey, state: Any, position: Any) -> None:
        """Starts to save a version; `poll` returns `DiskSaveCompleted` or `DiskSaveFailed`."""

        def work() -> None:
            event: ResilienceEvent = DiskSaveCompleted(key)
            try:
                # Settings of JAX belong to threads.
                with jax.enable_x64(self._x64):
                    self.save(key.step, state, position)
            except Exception as error:
                event = DiskSaveFailed(key, shortened(f"{type(error).__name__}: {error}"))
            with self._lock:
                self._events.append(event)

        # The core starts one save at a time, so an earlier thread has finished.
        self._thread = start_thread(work, "disk version")

    def save(self, step: int, state: Any, position: Any) -> None:
        """Saves a version, and waits until it is written.

        Raises:
          OSError: it cannot be written.
        """
        state = jax.tree.map(_without_empty, state)
        checkpoint.save(
            self.folder, state, step, data=SourcePosition(position), max_to_keep=self._max_to_keep
        ).wait()

    def restore(
        self, step: int, position_of: Callable[[bytes], Any], *, places: bool = True
    ) -> tuple[Any, Any]:
        """Reads a version; returns the state and the position of the source.

        After a success, versions that could not be read before are set aside, so that a later version of the
        same step finds its folder free.

        Args:
          position_of: a function that decodes the position of the source, see `RewindableSource`.
          places: whether arrays get the shardings of the first state; else they are NumPy arrays.

        Raises:
          OtherTreeError: the version is of another state.
          Exception: the version cannot be read.
        """
        self.wait()
        data = SourcePosition()
        like = self._like if places else jax.tree.map(_without_place, self._like)
        try:
            state = checkpoint.restore(self.folder, jax.tree.map(_without_empty, like), step=step, data=data)
            state = jax.tree.map(_with_empty, like, state)
            position = position_of(data.position)
        except checkpoint.OtherTreeError:
            raise
        except Exception:
            self._damaged.append(step)
            raise
        for damaged in self._damaged:
            checkpoint.set_aside(self.folder, damaged)
        self._damaged.clear()
        return state, position

    def poll(self) -> list[ResilienceEvent]:
        """Returns the events since the last call."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def wait(self) -> None:
        """Waits for the save in flight."""
        if self._thread is not None:
            self._thread.join()


def _is_empty(leaf: Any) -> bool:
    """Returns whether a leaf is an array of no elements, which Orbax does not save."""
    return hasattr(leaf, "dtype") and 0 in getattr(leaf, "shape", ())


def _without_empty(leaf: Any) -> Any:
    """Returns the type of an array of no elements, as text; other leaves as they are."""
    return f"{leaf.dtype}{[*leaf.shape]} without elements" if _is_empty(leaf) else leaf


def _with_empty(like: Any, leaf: Any) -> Any:
    """Returns an array of no elements for its text; the inverse of `_without_empty`."""
    if not _is_empty(like):
        return leaf
    if leaf != _without_empty(like):
        raise ValueError(f"pw.resilient: a leaf is {shown(leaf)} on disk, and {_without_empty(like)} here")
    if jax.dtypes.issubdtype(like.dtype, jax.dtypes.extended):
        return jax.random.split(jax.random.key(0, impl=key_kind(like.dtype)), like.shape)
    empty = np.zeros(like.shape, like.dtype)
    return empty if (sharding := getattr(like, "sharding", None)) is None else jax.device_put(empty, sharding)


def _without_place(leaf: Any) -> Any:
    """Returns the same type without a sharding; other leaves as they are."""
    if not isinstance(leaf, jax.ShapeDtypeStruct) or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)


def _type_of(leaf: Any) -> Any:
    """Returns the type that a leaf is restored with; leaves that are not arrays as they are."""
    if isinstance(leaf, Array):
        # Without the array, which may be donated, and whose workers may be lost.
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    if not isinstance(leaf, jax.Array):
        return leaf
    # Typed keys have no attribute `weak_type`.
    is_weak = getattr(leaf, "weak_type", False)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding, weak_type=is_weak)


def stored_leaves(
    leaves: Sequence[Any], version: SnapshotVersion, owners: Mapping[str, Sequence[int]]
) -> list[Any]:
    """Returns the leaves of a state with arrays in the memory of hosts in place of their layouts.

    Two kinds of arrays keep their layouts, because a file cannot have their blocks: typed keys, and arrays
    whose blocks would need too many chunks of one shape.

    Args:
      leaves: the layout of each array on hosts; any other leaf itself.
      owners: the hosts that have each block.

    Raises:
      KeyError: no host has a block any more.
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
    # No two hosts write to one chunk, and all chunks of a file have one shape.
    chunk = tuple(math.gcd(*itertools.chain(*sides)) for sides in zip(*blocks.values(), strict=True))
    if leaf.aval.size > math.prod(chunk) * len(blocks) * _MAX_CHUNKS:
        return leaf
    stored = []
    for name, rows in blocks.items():
        if not owners.get(name):
            raise KeyError(f"{name} is in no memory any more")
        # Choose the host with the fewest bytes to write.
        host = min(owners[name], key=lambda host: loads[host])
        loads[host] += leaf.dtype.itemsize * math.prod(stop - start for start, stop in rows)
        stored.append(SnapshotBlock(host, name, tuple(start for start, _ in rows)))
    return SnapshotArray(version, leaf.aval.shape, leaf.dtype, chunk, tuple(stored))


def _cover(layout: HostArrayLayout) -> dict[str, Rows]:
    """Returns blocks that cover an array without overlap, by their names."""
    complete = [place for place in layout.places if place.part == WHOLE_ARRAY][:1]
    first = layout.places[0].part
    # Places of other replicas may be cut along another dimension.
    cut = {
        place.part: place
        for place in layout.places
        if (place.part.count, place.part.dim) == (first.count, first.dim)
    }
    return {block.name: block.rows for place in complete or cut.values() for block in place.blocks}
