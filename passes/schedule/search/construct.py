"""Orders by rules: list scheduling with times, within limits."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Mapping

from pathways.passes.schedule.search.scheduling_problem import Alive, SearchProblem


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules for the next action of a slice.

    A stage does no forward while it is `ahead` of its backwards by so many, and does the half of the weights
    at once when so many of them are `pending`. Else backwards come first, and halves of weights last.

    Attributes:
      ahead: for each stage, the forwards that it may be ahead of its backwards.
      pending: for each stage, the halves of weights that may be left for later.
      forward_first: whether forwards come before backwards.
      deep: whether later stages of a slice come first.
      far_first: whether the action with the longest way to the end comes first, weights included.
      patience: the time, in forwards, for which a slice waits for a better action than the ready ones.
    """

    ahead: tuple[int, ...]
    pending: tuple[int, ...]
    forward_first: bool = False
    deep: bool = True
    far_first: bool = False
    patience: float = 0.0


def construct(problem: SearchProblem, rules: Rules) -> list[list[int]] | None:
    """Returns the order that rules give; None when it gets stuck at the limits."""
    return _Construction(problem, rules).orders()


class _Construction:
    def __init__(self, problem: SearchProblem, rules: Rules) -> None:
        self.problem, self.rules = problem, rules
        self.stages = {stage: k for k, stage in enumerate(sorted({s for s, _ in problem.letters}))}
        self.alive = Alive(problem)
        self.done = dict.fromkeys(problem.letters, 0)
        self.left = [len(needs) for needs in problem.needs]
        self.ready = [0.0] * len(problem.actions)
        self.free = [0.0] * len(problem.rows)
        self.on: list[list[tuple[int, str]]] = [[] for _ in problem.rows]
        self.first_backward: dict[int, str | None] = {}
        self.wait = [0.0] * len(problem.rows)
        for (stage, kind), numbers in problem.letters.items():
            place = problem.place[numbers[0]]
            self.on[place].append((stage, kind))
            if kind == "F":
                kinds = (k for k in "IBW" if (stage, k) in problem.letters)
                self.first_backward[stage] = next(kinds, None)
                self.wait[place] = max(self.wait[place], rules.patience * problem.durations[numbers[0]])

    def orders(self) -> list[list[int]] | None:
        problem = self.problem
        orders: list[list[int]] = [[] for _ in problem.rows]
        version = [0] * len(orders)
        heap: list[tuple[float, int, int, int]] = []

        def offer(place: int) -> None:
            version[place] += 1
            choice = self.choose(place)
            if choice is not None:
                heapq.heappush(heap, (choice[0], place, version[place], choice[1]))

        for place in range(len(orders)):
            offer(place)
        count = 0
        while heap:
            start, place, of, n = heapq.heappop(heap)
            # The slice has chosen anew since.
            if of != version[place]:
                continue
            orders[place].append(n)
            count += 1
            action = problem.actions[n]
            self.alive.run(n)
            self.done[action.stage, action.kind] += 1
            end = self.free[place] = start + problem.durations[n]
            # Limits and rules are of one slice each: another chooses anew only when an action became ready.
            touched = {place}
            for reader, delay in problem.readers[n]:
                self.ready[reader] = max(self.ready[reader], end + delay)
                self.left[reader] -= 1
                if not self.left[reader]:
                    touched.add(problem.place[reader])
            for other in touched:
                offer(other)
        return orders if count == len(problem.actions) else None

    def choose(self, place: int) -> tuple[float, int] | None:
        """Chooses the next action of a slice; returns it with its start."""
        problem, free = self.problem, self.free[place]
        choice: list[tuple[float, tuple[float, ...], int]] = []
        soonest = math.inf
        for letter in self.on[place]:
            numbers, at = problem.letters[letter], self.done[letter]
            if at == len(numbers):
                continue
            n = numbers[at]
            if self.left[n] or not self.may(letter) or not self.alive.fits(n):
                continue
            start = max(free, self.ready[n])
            soonest = min(soonest, start)
            choice.append((start, self.rank(letter, n), n))
        if not choice:
            return None
        latest = soonest + self.wait[place]
        start, _, n = min((c for c in choice if c[0] <= latest), key=lambda c: (c[1], c[0]))
        return start, n

    def may(self, letter: tuple[int, str]) -> bool:
        """Returns whether the rules allow an action."""
        stage, kind = letter
        backward = self.first_backward.get(stage)
        if kind != "F" or backward is None:
            return True
        return self.done[letter] - self.done[stage, backward] < self.rules.ahead[self.stages[stage]]

    def rank(self, letter: tuple[int, str], n: int) -> tuple[float, ...]:
        """Returns the rank of an action; the least comes first."""
        (stage, kind), rules = letter, self.rules
        microbatch = self.problem.actions[n].microbatch
        if rules.far_first:
            return (-self.problem.after[n] - self.problem.durations[n], microbatch)
        priority = {"F": 1 if rules.forward_first else 2, "B": 1.5, "I": 1.5, "W": 3}[kind]
        if kind == "W" and (stage, "I") in self.done:
            waiting = self.done[stage, "I"] - self.done[letter]
            priority = 0 if waiting > rules.pending[self.stages[stage]] else priority
        depth = -stage if rules.deep else stage
        return (priority, depth, microbatch) if rules.deep else (priority, microbatch, depth)


def usual_rules(problem: SearchProblem) -> Mapping[str, Rules]:
    """Returns rules that are known to be good for pipelines, by the policy or the idea behind them."""
    stages = sorted({stage for stage, _ in problem.letters})
    count, every = len(stages), max(map(len, problem.letters.values()), default=1)
    left = [problem.to_loss[stage] for stage in stages]
    longest = max(left, default=0)

    def same(number: int) -> tuple[int, ...]:
        return (number,) * count

    rules = {
        "1f1b": Rules(tuple(left), same(0)),
        "zb-h1": Rules(tuple(left), tuple(longest - n for n in left)),
        "zb-h2": Rules(tuple(2 * n - 1 for n in left), tuple(2 * (longest - n) for n in left)),
        "eager": Rules(same(every), same(every), far_first=True),
        "greedy": Rules(same(every), same(every)),
        "all": Rules(same(every), same(every), forward_first=True),
        "broad": Rules(same(every), same(every), deep=False),
        "halves": Rules(same(every), same(0), deep=False),
    }
    back = _way_back(problem, stages)
    # The time of the busiest slice for a microbatch: one forward for each fills the way to the loss and back.
    cycle = max((sum(problem.durations[n] for n in row) for row in problem.rows), default=0.0) / every
    if cycle > 0:
        ahead = tuple(1 + math.ceil(way / cycle) for way in back)
        rules["way"] = Rules(ahead, tuple(max(ahead) - a for a in ahead))
        rules["way2"] = Rules(tuple(2 * a - 1 for a in ahead), same(every))
    return rules


def _way_back(problem: SearchProblem, stages: list[int]) -> list[float]:
    """Returns for each stage the time from the end of a forward to the earliest start of its backward."""
    back: list[float] = []
    for stage in stages:
        forward = problem.letters.get((stage, "F"))
        backward = next((w for k in "IBW" if (w := problem.letters.get((stage, k)))), None)
        if forward is None or backward is None:
            back.append(0.0)
            continue
        n = forward[0]
        back.append(max(0.0, problem.before[backward[0]] - problem.before[n] - problem.durations[n]))
    return back
