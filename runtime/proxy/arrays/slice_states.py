"""States of slices that can be lost and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Self

from pathways.runtime.proxy.wire.statuses import StatusError, slice_lost, slice_out


@dataclasses.dataclass(frozen=True)
class SliceStates:
    """Record of the slices that are lost, and of the epoch in which each was lost last.

    The record is immutable: `lose` and `restore` return the next one. Sessions compare the record that they
    have seen last with the current one, and drop the arrays on slices that were lost in between, also on
    those that have returned since.

    Attributes:
      lost_at: the epoch in which each slice was lost last; 0 for never.
      reasons: the reason of the last loss of each slice; empty without one.
      lost: the slices that are lost now.
      out: the slices of these that return only if an operator requests it.
      epoch: the number of losses and returns so far.
    """

    lost_at: tuple[int, ...]
    reasons: tuple[str, ...]
    lost: frozenset[int] = frozenset()
    epoch: int = 0
    out: frozenset[int] = frozenset()

    @classmethod
    def of(cls, slices: int) -> Self:
        """Returns the state of a number of connected slices."""
        return cls((0,) * slices, ("",) * slices)

    def lose(self, index: int, reason: str = "", *, returns: bool = True) -> SliceStates:
        """Returns the state after the loss of a slice.

        Args:
          returns: whether it returns by itself.

        Raises:
          ValueError: there is no such slice, or it is lost already.
        """
        self._check(index)
        if index in self.lost:
            raise ValueError(f"slice {index} is lost already")
        epoch = self.epoch + 1
        lost_at = (*self.lost_at[:index], epoch, *self.lost_at[index + 1 :])
        reasons = (*self.reasons[:index], reason, *self.reasons[index + 1 :])
        out = self.out if returns else self.out | {index}
        return SliceStates(lost_at, reasons, self.lost | {index}, epoch, out)

    def restore(self, index: int) -> SliceStates:
        """Returns the state after the return of a slice, without the arrays that it had.

        Raises:
          ValueError: there is no such slice, or it is not lost.
        """
        self._check(index)
        if index not in self.lost:
            raise ValueError(f"slice {index} is not lost")
        lost, out = self.lost - {index}, self.out - {index}
        return SliceStates(self.lost_at, self.reasons, lost, self.epoch + 1, out)

    def lost_since(self, epoch: int) -> frozenset[int]:
        """Returns the slices that were lost after an epoch."""
        return frozenset(index for index, lost_at in enumerate(self.lost_at) if lost_at > epoch)

    def refusal_of(self, slices: Iterable[int]) -> StatusError:
        """Returns the error in place of arrays that would have been created on lost slices.

        It is UNAVAILABLE where nobody needs to wait for a slice.
        """
        slices = frozenset(slices)
        error = self.error_of(slices)
        return slice_out(error.message) if slices & self.out else error

    def error_of(self, slices: Iterable[int]) -> StatusError:
        """Returns the error in place of arrays that were on lost slices."""
        indices = sorted(slices)
        names = ", ".join(map(str, indices))
        lost = f"slice {names} was lost" if len(indices) == 1 else f"slices {names} were lost"
        reasons = "; ".join(dict.fromkeys(filter(None, (self.reasons[index] for index in indices))))
        return slice_lost(f"{lost}: {reasons}" if reasons else lost)

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self.lost_at):
            raise ValueError(f"slice {index} does not exist: the slices are 0 to {len(self.lost_at) - 1}")
