"""Replay of orders: their step time, and the action that delayed each action."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pathways.passes.schedule.search.scheduling_problem import SearchProblem


@dataclasses.dataclass(frozen=True)
class Replayed:
    """Result of a replay of the orders of slices.

    Attributes:
      step_time: the time at which the last action ends.
      end: the time at which each action ends.
      after: for each action the one that it waited for last, itself for none.
    """

    step_time: float
    end: Sequence[float]
    after: Sequence[int]

    def critical_path(self) -> list[int]:
        """Returns actions, the last first; each began when the next one in the list ended."""
        if not self.end:
            return []
        n = max(range(len(self.end)), key=self.end.__getitem__)
        path = [n]
        while self.after[n] != n:
            n = self.after[n]
            path.append(n)
        return path


_EQUAL = 1e-9
"""Relative difference up to which times count as equal."""


def compared(time: float, other: float) -> int:
    """Returns -1 where a time is shorter than another, 0 where they count as equal, else 1."""
    return (time > other * (1 + _EQUAL)) - (time < other * (1 - _EQUAL))


def tie_time(problem: SearchProblem, orders: Sequence[Sequence[int]]) -> float:
    """Returns the step time of feasible orders by the durations that break ties; 0 where there are none."""
    if problem.ties is None:
        return 0.0
    run = replay(problem, orders, problem.ties)
    assert run is not None
    return run.step_time


def replay(
    problem: SearchProblem, orders: Sequence[Sequence[int]], durations: Sequence[float] | None = None
) -> Replayed | None:
    """Lets slices go through their orders, each as soon as it can; None when they wait for each other.

    Args:
      problem: the actions to order.
      orders: the numbers of the actions of each slice.
      durations: the duration of each action; by default as in the problem.
    """
    durations, every_need = durations or problem.durations, problem.needs
    count = len(problem.actions)
    end = [-1.0] * count
    after = list(range(count))
    waiting: dict[int, list[int]] = {}
    position = [0] * len(orders)
    todo = list(range(len(orders)))
    done = 0
    # A slice continues until it waits for an action of another one, whose end resumes it.
    while todo:
        place = todo.pop()
        row, at = orders[place], position[place]
        while at < len(row):
            n = row[at]
            last = row[at - 1] if at else n
            time = end[last] if at else 0.0
            for need, delay in every_need[n]:
                arrived = end[need]
                if arrived < 0:
                    waiting.setdefault(need, []).append(place)
                    break
                arrived += delay
                if arrived > time:
                    time, last = arrived, need
            else:
                end[n] = time + durations[n]
                after[n] = last
                at += 1
                done += 1
                if n in waiting:
                    todo += waiting.pop(n)
                continue
            break
        position[place] = at
    return Replayed(max(end, default=0.0), end, after) if done == count else None
