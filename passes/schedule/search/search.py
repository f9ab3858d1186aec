"""Search for the order in which a step takes the least time."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Mapping, Sequence

from pathways.passes.schedule.search import exact
from pathways.passes.schedule.search.construct import Rules, construct, usual_rules
from pathways.passes.schedule.search.improve import Numbers, Walk, walk_rules
from pathways.passes.schedule.search.replay import compared, replay, tie_time
from pathways.passes.schedule.search.scheduling_problem import Limit, SearchProblem

_ROUND = 24
"""Number of steps of one kind before steps of the other."""

_WORK = 1_200_000
"""Actions that are looked at in steps, unless a number of steps is given: some seconds."""


class NothingFitsError(Exception):
    """No order keeps to the limits that any policy or rule gives.

    Attributes:
      limit: the limit that the order which is nearest to it breaks.
      least: how much that order keeps alive.
    """

    def __init__(self, limit: Limit, least: int) -> None:
        super().__init__(f"at least {least} {limit.quantity}, more than {limit.most}")
        self.limit, self.least = limit, least


@dataclasses.dataclass(frozen=True)
class Budget:
    """Budget of a search.

    Attributes:
      iterations: the number of steps; 0 for as many as suit the number of actions.
      seconds: the limit on time; 0 for none. With a limit the result depends on the machine.
      seed: of the random numbers.
      solver: whether to run OR-tools' CP-SAT in the end.
    """

    iterations: int = 0
    seconds: float = 0.0
    seed: int = 0
    solver: bool = False


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """Result of a search: the best order.

    Attributes:
      orders: the numbers of the actions of each slice.
      step_time: the duration of a step.
      lower_bound: a time that no order can be faster than.
      best: the fastest of the named orders that keep to the limits, and its time; None when none does.
      steps: how many steps were taken.
    """

    orders: Numbers
    step_time: float
    lower_bound: float
    best: tuple[str, float] | None
    steps: int

    @property
    def gap(self) -> float:
        """Fraction of the lower bound by which the step may exceed it."""
        return self.step_time / self.lower_bound - 1 if self.lower_bound else 0.0


def search(
    problem: SearchProblem,
    named: Mapping[str, Sequence[Sequence[int]]],
    budget: Budget,
    clock: Callable[[], float] = time.monotonic,
) -> SearchResult:
    """Searches for a good order: named orders first, then changed rules, then changed orders.

    The result is never slower than the fastest named order that keeps to the limits. It is the same for equal
    problems, seeds and numbers of steps, as long as the time does not end first.

    Args:
      problem: the actions to order.
      named: orders to start from, by their names.
      budget: limits on the search.
      clock: returns the time in seconds.

    Raises:
      NothingFitsError: no order was found that keeps to the limits.
      NoSolverError: the requested solver is not installed.
    """
    if budget.solver:
        exact.cp_model_or_fail()
    deadline = clock() + budget.seconds if budget.seconds else None
    seeker = _Seeker(problem, random.Random(budget.seed))
    best = seeker.start(named)
    size = max(1, len(problem.actions))
    iterations = budget.iterations or min(2000, max(20, _WORK // size))
    steps = 0
    while steps < iterations and compared(seeker.time, seeker.lower_bound) > 0:
        if deadline is not None and clock() >= deadline:
            break
        seeker.step(steps)
        steps += 1
    if budget.solver and compared(seeker.time, seeker.lower_bound) > 0:
        left = None if deadline is None else deadline - clock()
        if left is None or left > 0:
            seeker.take(exact.solve(problem, seeker.orders, left, budget.seed))
    return SearchResult(seeker.orders, seeker.time, seeker.lower_bound, best, steps)


class _Seeker:
    """The best order so far, and where the two walks are."""

    def __init__(self, problem: SearchProblem, rng: random.Random) -> None:
        self.problem, self.rng = problem, rng
        self.lower_bound = problem.lower_bound()
        self.orders: Numbers = []
        self.time = float("inf")
        self.worth: tuple[float, int] = 0.0, 0
        """The criteria between equal times: the time of ties, and the microbatches alive."""
        self.rules: tuple[Rules, float] | None = None
        self.walk: Walk | None = None

    def start(self, named: Mapping[str, Sequence[Sequence[int]]]) -> tuple[str, float] | None:
        """Takes the best of all known orders; gives the best of the named ones."""
        nearest: tuple[Limit, int] | None = None
        best: tuple[str, float] | None = None
        # The first one of equally fast policies is named: that with the least alive.
        for name, orders in sorted(named.items(), key=lambda item: self.problem.most_alive(item[1])):
            time = self.take(orders)
            if time is not None and (best is None or compared(time, best[1]) < 0):
                best = name, time
        for rules in usual_rules(self.problem).values():
            by_rules = construct(self.problem, rules)
            time = None if by_rules is None else self.take(by_rules)
            if time is not None and (self.rules is None or time < self.rules[1]):
                self.rules = rules, time
        if not self.problem.actions or self.time < float("inf"):
            return best
        alone = one_by_one(self.problem)
        if self.take(alone) is not None:
            return best
        for row in alone:
            broken = self.problem.broken(row)
            if broken is not None and (nearest is None or broken[1] > nearest[1]):
                nearest = broken
        assert nearest is not None, "an order of one microbatch after the other can be met"
        raise NothingFitsError(*nearest)

    def take(self, orders: Sequence[Sequence[int]] | None) -> float | None:
        """Keeps orders if they are better; gives their time, None when they do not fit."""
        if orders is None or any(self.problem.broken(row) for row in orders):
            return None
        run = replay(self.problem, orders)
        if run is None:
            return None
        self.keep(orders, run.step_time)
        return run.step_time

    def keep(self, orders: Sequence[Sequence[int]], time: float) -> None:
        """Keeps orders that fit if they are faster, or as fast and better by ties, or with less alive."""
        slower = compared(time, self.time)
        if slower > 0:
            return
        worth = tie_time(self.problem, orders), self.problem.most_alive(orders)
        if slower < 0 or worth < self.worth:
            self.time, self.worth, self.orders = time, worth, [list(row) for row in orders]

    def step(self, number: int) -> None:
        """Tries one change of the rules, or one of the order, in rounds."""
        if self.rules is not None and number // _ROUND % 2 == 0:
            # A later walk starts anew from the best order, which rules may find in the meantime.
            self.walk = None
            tried = walk_rules(self.problem, self.rules[0], self.rng)
            if tried is not None and tried[2].step_time <= self.rules[1]:
                self.rules = tried[0], tried[2].step_time
                self.keep(tried[1], tried[2].step_time)
            return
        if self.walk is None:
            self.walk = Walk(self.problem, self.orders, self.rng)
        self.walk.step()
        if compared(self.walk.run.step_time, self.time) < 0:
            self.keep(self.walk.orders, self.walk.run.step_time)


def one_by_one(problem: SearchProblem) -> Numbers:
    """Returns one microbatch after the other, which keeps little alive."""
    position = {n: at for at, n in enumerate(problem.in_order)}
    return [sorted(row, key=lambda n: (problem.actions[n].microbatch, position[n])) for row in problem.rows]
