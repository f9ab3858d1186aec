"""Versions of the state on disk, saved through `pw.checkpoint` in the background."""

from __future__ import annotations

import os
import threading
from typing import Any

import jax

from pathways.compiler.data import checkpoint
from pathways.compiler.resilience.source import SourcePosition
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.resilience.events import DiskSaveCompleted, DiskSaveFailed, ResilienceEvent
from pathways.runtime.resilience.records import VersionKey
from pathways.runtime.resources.paths import absolute_path
from pathways.runtime.resources.threads import RunningThread, start_thread


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
