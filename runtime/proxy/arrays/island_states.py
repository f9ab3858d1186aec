"""States of islands that can be lost and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Self

from pathways.runtime.proxy.wire.statuses import StatusError, island_lost, island_out


@dataclasses.dataclass(frozen=True)
class IslandStates:
    """Record of the islands that are lost, and of the epoch in which each was lost last.

    The record is immutable: `lose` and `restore` return the next one. Sessions compare the record that they
    have seen last with the current one, and drop the arrays on islands that were lost in between, even if
    these have returned.

    Attributes:
      names: the names of the islands.
      lost_at: the epoch in which each island was lost last; 0 for never.
      reasons: the reason of the last loss of each island; empty without one.
      lost: the islands that are lost now.
      out: the islands of these that return only if an operator requests it.
      epoch: the number of losses and returns so far.
    """

    names: tuple[str, ...]
    lost_at: tuple[int, ...]
    reasons: tuple[str, ...]
    lost: frozenset[int] = frozenset()
    epoch: int = 0
    out: frozenset[int] = frozenset()

    @classmethod
    def of(cls, names: Sequence[str]) -> Self:
        """Returns the state of connected islands."""
        return cls(tuple(names), (0,) * len(names), ("",) * len(names))

    def lose(self, index: int, reason: str = "", *, returns: bool = True) -> IslandStates:
        """Returns the state after the loss of an island.

        Args:
          returns: whether it returns by itself.

        Raises:
          ValueError: the island does not exist, or is lost already.
        """
        self._check(index)
        if index in self.lost:
            raise ValueError(f"{self.names[index]} is lost already")
        epoch = self.epoch + 1
        lost_at = (*self.lost_at[:index], epoch, *self.lost_at[index + 1 :])
        reasons = (*self.reasons[:index], reason, *self.reasons[index + 1 :])
        out = self.out if returns else self.out | {index}
        return IslandStates(self.names, lost_at, reasons, self.lost | {index}, epoch, out)

    def restore(self, index: int) -> IslandStates:
        """Returns the state after the return of an island, without the arrays that it had.

        Raises:
          ValueError: the island does not exist, or is not lost.
        """
        self._check(index)
        if index not in self.lost:
            raise ValueError(f"{self.names[index]} is not lost")
        lost, out = self.lost - {index}, self.out - {index}
        return IslandStates(self.names, self.lost_at, self.reasons, lost, self.epoch + 1, out)

    def lost_since(self, epoch: int) -> frozenset[int]:
        """Returns the islands that were lost after an epoch."""
        return frozenset(index for index, lost_at in enumerate(self.lost_at) if lost_at > epoch)

    def refusal_of(self, islands: Iterable[int]) -> StatusError:
        """Returns the error in place of arrays that would have been created on lost islands.

        It is UNAVAILABLE where nobody needs to wait for an island.
        """
        islands = frozenset(islands)
        error = self.error_of(islands)
        return island_out(error.message) if islands & self.out else error

    def error_of(self, islands: Iterable[int]) -> StatusError:
        """Returns the error in place of arrays that were on lost islands."""
        indices = sorted(islands)
        names = ", ".join(self.names[index] for index in indices)
        lost = f"{names} was lost" if len(indices) == 1 else f"{names} were lost"
        reasons = "; ".join(dict.fromkeys(filter(None, (self.reasons[index] for index in indices))))
        return island_lost(f"{lost}: {reasons}" if reasons else lost)

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self.lost_at):
            raise ValueError(f"island {index} does not exist: the islands are 0 to {len(self.names) - 1}")
