"""How many steps may be under way on an island."""

from __future__ import annotations

import collections

from pathways.runtime.control.step import Step


class Window:
    """The steps that an island has a part of and that may not be done, in their order.

    Hosts have room for the arrays of so many steps and no more, by what was planned when programs were
    compiled. Steps of other islands do not count: a flood on one delays none on another.

    Args:
      most: how many may be under way.
    """

    __slots__ = ("_most", "_steps")

    def __init__(self, most: int) -> None:
        self._most = most
        self._steps: collections.deque[Step] = collections.deque()

    def add(self, step: Step) -> None:
        """Notes that a step is under way; twice changes nothing."""
        if not self._steps or self._steps[-1] is not step:
            self._steps.append(step)

    def unfinished(self) -> list[Step]:
        """The steps that are not done, in their order."""
        return [step for step in [*self._steps] if not step.is_done()]

    def blocker(self) -> Step | None:
        """The step that has to be done before there is room for another one; None when there is room."""
        steps = self._steps
        while len(steps) >= self._most:
            if not steps[0].is_done():
                return steps[0]
            steps.popleft()
        return None
