"""How many steps may be under way on an island."""

from __future__ import annotations

import collections

from pathways.runtime.control.records.step import Step


class Window:
    """The steps that an island has a part of and that may not be done, in their order.

    Hosts have room for the arrays of so many steps and no more, by what was planned when programs were
    compiled. Steps of other islands do not count: a flood on one delays none on another.

    Args:
      most: how many may be under way; a step may count for several, see `Step.share`.
    """

    __slots__ = ("_beside", "_most", "_steps")

    def __init__(self, most: int) -> None:
        self._most = most
        # Each with the shares of all steps up to it: Ctrl-C may come between any two lines, and would leave a
        # total beside them wrong.
        self._steps: collections.deque[tuple[Step, int]] = collections.deque()
        # Those that take no room, see `Step.is_beside`.
        self._beside: list[Step] = []

    def add(self, step: Step) -> None:
        """Notes that a step is under way; twice changes nothing."""
        if step.is_beside:
            self._beside = [o for o in self._beside if o is not step and not o.is_done()] + [step]
            return
        steps = self._steps
        if not steps or steps[-1][0] is not step:
            self._drop_done()
            before = steps[-1][1] if steps else 0
            steps.append((step, before + step.share))

    def unfinished(self) -> list[Step]:
        """The steps that are not done, in their order; behind them those that take no room."""
        return [step for step in [*(step for step, _ in self._steps), *self._beside] if not step.is_done()]

    def blocker(self, share: int = 1) -> Step | None:
        """The step that has to be done before there is room for another one; None when there is room.

        Args:
          share: for how many the other one counts.
        """
        self._drop_done()
        if self._steps:
            (oldest, first), (_, last) = self._steps[0], self._steps[-1]
            if last - first + oldest.share + share > self._most:
                return oldest
        return None

    def _drop_done(self) -> None:
        steps = self._steps
        while steps and steps[0][0].is_done():
            steps.popleft()
