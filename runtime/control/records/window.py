"""Limit of the steps in flight on an island."""

from __future__ import annotations

import collections

from pathways.runtime.control.records.step import Step


class Window:
    """Steps of an island that may not be done, in their order.

    Hosts have room for the arrays of this many steps and no more, as planned when programs were compiled.
    Steps of other islands do not count: a flood on one delays none on another.

    Args:
      limit: the maximum of steps in flight; a step may count for several, see `Step.share`.
    """

    __slots__ = ("_limit", "_steps", "_unordered")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Each with the shares of all steps up to it: Ctrl-C may come between any two lines, and would make a
        # separate total wrong.
        self._steps: collections.deque[tuple[Step, int]] = collections.deque()
        # Steps that need no room, see `Step.is_unordered`.
        self._unordered: list[Step] = []

    def add(self, step: Step) -> None:
        """Adds a step in flight; a repetition changes nothing."""
        if step.is_unordered:
            self._unordered = [o for o in self._unordered if o is not step and not o.is_done()] + [step]
            return
        steps = self._steps
        # A retry after Ctrl-C adds the last step again.
        if not steps or steps[-1][0] is not step:
            self._drop_done()
            before = steps[-1][1] if steps else 0
            steps.append((step, before + step.share))

    def unfinished(self) -> list[Step]:
        """Returns the steps that are not done, in their order; unordered ones last."""
        return [step for step in [*(step for step, _ in self._steps), *self._unordered] if not step.is_done()]

    def blocker(self, share: int = 1) -> Step | None:
        """Returns the step that has to be done before there is room for another one; None when there is room.

        Args:
          share: the share of the other step.
        """
        self._drop_done()
        if self._steps:
            (oldest, first), (_, last) = self._steps[0], self._steps[-1]
            if last - first + oldest.share + share > self._limit:
                return oldest
        return None

    def _drop_done(self) -> None:
        steps = self._steps
        while steps and not steps[0][0].pending_hosts:
            steps.popleft()
