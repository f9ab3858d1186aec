"""Interface of what keeps versions of the state of training, and restores them."""

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
    """Versions of the state in the memory of hosts.

    Methods that begin something return at once; `poll` returns what became of it, and what was lost.

    Attributes:
      topology: the hosts, and the replicas that run on them.
      stored: the versions that an earlier controller has left in the memory of hosts.
      positions: the position of the source of each of them, by steps.
      outlives: whether versions stay in memory when this process is killed.
    """

    topology: ReplicaTopology
    stored: Mapping[VersionKey, StoredVersion] = types.MappingProxyType({})
    positions: Mapping[int, Any] = types.MappingProxyType({})
    outlives: bool = False

    @abc.abstractmethod
    def set_replicas(self, replicas: StepReplicas) -> None:
        """Sets the replicas of the topology, if fewer may run; called after `open`, before anything else.

        Versions are then restored for those of `RestoreState.replicas`, on which the programs run by then.
        """

    @abc.abstractmethod
    def open(self, state: Any, run: str | None) -> None:
        """Begins a run with a state; before that there is no topology.

        Args:
          run: the name of the run, which another controller goes on with that has the same one; None where
            none will.

        Raises:
          OSError: the state cannot be kept.
          ValueError: an earlier controller has left versions of another state.
        """

    @abc.abstractmethod
    def take(self, key: VersionKey, state: Any) -> Holdings:
        """Begins a version of a state that the next step may donate; returns which host has what of it."""

    @abc.abstractmethod
    def make_copies(self, key: VersionKey, copies: Sequence[BlockCopy]) -> None:
        """Begins copies; see `MakeCopies`."""

    @abc.abstractmethod
    def commit(self, key: VersionKey, position: Any) -> None:
        """Records that a version is committed.

        Args:
          key: the version.
        """

    @abc.abstractmethod
    def keep(self, hosts: Sequence[int], keys: Sequence[VersionKey]) -> None:
        """Frees all other versions on these hosts."""

    @abc.abstractmethod
    def check(self, islands: Collection[int]) -> None:
        """Checks that islands are not lost, also where no event has said so yet.

        Raises:
          HostError: one is.
        """

    @abc.abstractmethod
    def restore(self, restore: RestoreState) -> Any:
        """Begins to restore a version from memory; returns the state, which need not be ready."""

    @abc.abstractmethod
    def release(self, island: int) -> None:
        """Frees all arrays of an island that leaves; see `ReleaseIsland`."""

    @abc.abstractmethod
    def read(self, tree: Any) -> Any:
        """Waits for arrays, and returns a tree with arrays of NumPy in their place.

        Raises:
          Exception: one is an error, or lost.
        """

    @abc.abstractmethod
    def detach(self, array: Any) -> Any:
        """Returns an array of metrics that shares no memory with the state, which the next step may donate.

        Raises:
          Exception: the array is an error, or lost.
        """

    @abc.abstractmethod
    def version(self, key: VersionKey) -> Any:
        """Returns the state of a version as `pw.checkpoint.save` accepts it.

        Raises:
          KeyError: some of it is in no memory any more.
          HostError: an island is lost on which its arrays are read.
        """

    @abc.abstractmethod
    def sizes(self) -> dict[int, int]:
        """Returns the bytes of all versions in the memory of each host."""

    @abc.abstractmethod
    def lose(self, island: int, *, memory: bool, arrays: Sequence[Any], returns: bool = True) -> None:
        """Loses an island on purpose, for tests; may be called by any thread.

        Args:
          island: its number.
          memory: whether the copies in its memory are lost, too.
          arrays: the arrays that are in use; those on the island are lost.
          returns: whether it returns by itself; else at `return_island`.
        """

    @abc.abstractmethod
    def return_island(self, island: int) -> None:
        """Returns an island that was lost and stays away; may be called by any thread."""

    @abc.abstractmethod
    def poll(self) -> list[ResilienceEvent]:
        """Returns the events since the last call."""

    def awaits_loss(self, error: Exception) -> bool:
        """Waits until the loss is noticed that may be the cause of an error; returns whether it was."""
        return False

    @abc.abstractmethod
    def wait(self, seconds: float) -> None:
        """Waits for an event, or until some seconds have passed."""

    @abc.abstractmethod
    def close(self, *, keeps: bool) -> None:
        """Frees everything; with `keeps` not the versions that outlive this process."""
