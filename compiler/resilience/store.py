"""Interface of the stores, which keep versions of the training state and restore them."""

from __future__ import annotations

import abc
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pathways.compiler.resilience.layouts.step_replicas import StepReplicas
from pathways.runtime.resilience.effects import RestoreState
from pathways.runtime.resilience.events import ResilienceEvent
from pathways.runtime.resilience.records import (
    BlockCopy,
    Holdings,
    ReplicaTopology,
    StoredVersion,
    VersionKey,
)


class SnapshotStore(abc.ABC):
    """Store of versions of the state in the memory of hosts.

    Methods that start an operation return at once; `poll` returns the events of operations and losses.

    Attributes:
      topology: the hosts, and the replicas that run on them.
      stored: the versions that an earlier controller left in the memory of hosts.
      positions: the positions of the source in these versions, by steps.
      outlives: whether versions stay in memory when this process is killed.
    """

    topology: ReplicaTopology
    stored: Mapping[VersionKey, StoredVersion] = types.MappingProxyType({})
    positions: Mapping[int, Any] = types.MappingProxyType({})
    outlives: bool = False

    @abc.abstractmethod
    def set_replicas(self, replicas: StepReplicas) -> None:
        """Sets the replicas of the topology if fewer may run; called right after `open`.

        Versions are then restored for `RestoreState.replicas`, for which the programs are loaded by then.
        """

    @abc.abstractmethod
    def open(self, state: Any, run: str | None) -> None:
        """Starts a run with its first state, and sets `topology`.

        Args:
          run: the name under which another controller can resume the run; None if none can.

        Raises:
          OSError: the state cannot be kept.
          ValueError: an earlier controller has left versions of another state.
        """

    @abc.abstractmethod
    def take(self, key: VersionKey, state: Any) -> Holdings:
        """Starts a version of a state that the next step may donate; returns each host's blocks."""

    @abc.abstractmethod
    def make_copies(self, key: VersionKey, copies: Sequence[BlockCopy]) -> None:
        """Starts copies; see `MakeCopies`."""

    @abc.abstractmethod
    def commit(self, key: VersionKey, position: Any) -> None:
        """Records that a version is committed.

        Args:
          key: the version.
          position: the position of the source.
        """

    @abc.abstractmethod
    def keep(self, hosts: Sequence[int], keys: Sequence[VersionKey]) -> None:
        """Frees all other versions on these hosts."""

    @abc.abstractmethod
    def check(self, islands: Collection[int]) -> None:
        """Checks that islands are not lost, including losses without an event so far.

        Raises:
          HostError: an island is lost.
        """

    @abc.abstractmethod
    def restore(self, restore: RestoreState) -> Any:
        """Starts to restore a version from memory; returns the state, which may be pending."""

    @abc.abstractmethod
    def release(self, island: int) -> None:
        """Frees all arrays of an island that leaves; see `ReleaseIsland`."""

    @abc.abstractmethod
    def read(self, tree: Any) -> Any:
        """Waits for arrays and returns them as NumPy arrays.

        Raises:
          Exception: an array is an error, or lost.
        """

    @abc.abstractmethod
    def detach(self, array: Any) -> Any:
        """Returns metrics without memory of the state, which the next step may donate.

        Raises:
          Exception: the array is an error, or lost.
        """

    @abc.abstractmethod
    def version(self, key: VersionKey) -> Any:
        """Returns the state of a version as `pw.checkpoint.save` accepts it.

        Raises:
          KeyError: no host has a block of the version any more.
          HostError: an island that reads its arrays is lost.
        """

    @abc.abstractmethod
    def sizes(self) -> dict[int, int]:
        """Returns the bytes of all versions in the memory of each host."""

    @abc.abstractmethod
    def lose(self, island: int, *, memory: bool, arrays: Sequence[Any], returns: bool = True) -> None:
        """Simulates the loss of an island, for tests; may be called by any thread.

        Args:
          island: its number.
          memory: whether the copies in its memory are lost, too.
          arrays: the arrays in use; the island loses its arrays.
          returns: whether the island returns by itself; otherwise it waits for `return_island`.
        """

    @abc.abstractmethod
    def return_island(self, island: int) -> None:
        """Returns an island after `lose(..., returns=False)`; may be called by any thread."""

    @abc.abstractmethod
    def poll(self) -> list[ResilienceEvent]:
        """Returns the events since the last call."""

    def awaits_loss(self, error: Exception) -> bool:
        """Waits for the event of a loss that may be the cause of an error; returns whether there is one."""
        return False

    @abc.abstractmethod
    def wait(self, seconds: float) -> None:
        """Waits at most some seconds for an event."""

    @abc.abstractmethod
    def close(self, *, keeps: bool) -> None:
        """Frees all memory; with `keeps`, not the versions that outlive this process."""
