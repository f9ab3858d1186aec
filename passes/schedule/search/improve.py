"""Local search: orders are improved by one change at a time."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from pathways.passes.schedule.search.construct import Rules, construct
from pathways.passes.schedule.search.replay import Replayed, replay
from pathways.passes.schedule.search.scheduling_problem import SearchProblem

Numbers = list[list[int]]
"""The numbers of the actions of each slice, in order."""

_FARTHEST = 12
"""Over how many actions one is moved at once."""


def changed_rules(rules: Rules, rng: random.Random) -> Rules:
    """Returns rules that are a little different."""
    chance = rng.random()
    if chance < 0.1:
        return dataclasses.replace(rules, forward_first=not rules.forward_first)
    if chance < 0.2:
        return dataclasses.replace(rules, deep=not rules.deep)
    if chance < 0.3:
        return dataclasses.replace(rules, patience=rng.choice([0.0, 0.0, 0.25, 0.5, 1.0]))
    tables = {"ahead": list(rules.ahead), "pending": list(rules.pending)}
    for _ in range(rng.choice([1, 1, 2, 4])):
        name = rng.choice(("ahead", "pending"))
        first = rng.randrange(len(rules.ahead))
        # Neighbours often want the same.
        last = first + rng.choice([1, 1, 2, len(rules.ahead)])
        step = rng.choice([-2, -1, 1, 2])
        least = 1 if name == "ahead" else 0
        for k in range(first, min(last, len(rules.ahead))):
            tables[name][k] = max(least, tables[name][k] + step)
    return dataclasses.replace(rules, ahead=tuple(tables["ahead"]), pending=tuple(tables["pending"]))


class Walk:
    """A walk over orders in which actions of the critical path come a little sooner.

    Attributes:
      orders: the current orders.
      run: the replay of the current orders.
    """

    def __init__(self, problem: SearchProblem, orders: Sequence[Sequence[int]], rng: random.Random) -> None:
        run = replay(problem, orders)
        assert run is not None, "a walk starts from an order that can be met"
        self._problem, self._rng = problem, rng
        self.orders: Numbers = [list(row) for row in orders]
        self.run: Replayed = run
        self._path = run.critical_path()
        self._positions = [{n: at for at, n in enumerate(row)} for row in self.orders]

    def step(self) -> None:
        """Tries one change, and takes it unless the step takes longer by it."""
        problem, rng = self._problem, self._rng
        if not self._path:
            return
        n = rng.choice(self._path)
        place = problem.place[n]
        row, positions = self.orders[place], self._positions[place]
        at = positions[n]
        needed = [positions[other] for other, _ in problem.needs[n] if other in positions]
        least = max((*(p + 1 for p in needed), at - _FARTHEST, 0))
        if least >= at:
            return
        to = rng.randint(least, at - 1)
        moved = [n, *row[to:at]]
        old, row[to : at + 1] = row[to : at + 1], moved
        run = None if problem.limits and problem.broken(row) else replay(problem, self.orders)
        # Orders that take equally long are kept, too, or the walk would be stuck on the first plateau.
        if run is None or run.step_time > self.run.step_time:
            row[to : at + 1] = old
            return
        self.run = run
        self._path = run.critical_path()
        positions.update((other, to + k) for k, other in enumerate(moved))


def walk_rules(
    problem: SearchProblem, rules: Rules, rng: random.Random
) -> tuple[Rules, Numbers, Replayed] | None:
    """Returns one change of rules, with its orders and their replay; None when no order meets the rules."""
    tried = changed_rules(rules, rng)
    orders = construct(problem, tried)
    run = None if orders is None else replay(problem, orders)
    return None if orders is None or run is None else (tried, orders, run)
