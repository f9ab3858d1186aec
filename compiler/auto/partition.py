"""Dynamic programming over the units of a loss: finds cuts by closed bounds, without tracing.

As in Alpa (Zheng et al., OSDI 2022, section 5): for each bound on the longest stage, the least sum of the
stages under that bound; the best of sum + (M - 1) longest wins.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from pathways.compiler.auto.units import Units
from pathways.passes.analysis.links import Link

Array = np.ndarray[Any, np.dtype[np.float64]]

NO_LINK = Link()
"""A link on which transfers take no time."""

_BALANCE = 1e-3
"""Weight of the squares of stages beside their sum: of equal partitions the most even one wins."""

_STEPS, _STEPS_OF_V = 48, 12
"""Number of bounds on the longest slice that are tried, between the least and the largest that can pay."""

_ROUNDS = 8
"""Number of rounds over the neighbours of the best partitions."""

_MAX_POSITIONS_OF_V = 28
"""Limit of the positions at which a V is cut: the effort grows with their fourth power."""


@dataclasses.dataclass(frozen=True, order=True)
class Partition:
    """Positions at which units are cut.

    Attributes:
      bound: the closed estimate of the step: sum + (M - 1) longest.
      positions: the first unit of each stage but the first.
      v: whether each slice has two stages, from the outermost to the innermost, instead of one.
    """

    bound: float
    positions: tuple[int, ...]
    v: bool = False

    def slices(self) -> tuple[int, ...]:
        """Returns the slice of each stage, by its place among the slices."""
        stages = len(self.positions) + 1
        return tuple(min(n, stages - 1 - n) for n in range(stages)) if self.v else tuple(range(stages))


@dataclasses.dataclass(frozen=True)
class Machine:
    """Machine that units are cut for.

    Attributes:
      speeds: the work of each slice in a unit of time.
      link: the links between slices.
    """

    speeds: tuple[float, ...]
    microbatches: int
    link: Link = NO_LINK

    def uneven(self, work: Any, units: Units) -> Any:
        """Returns the penalty of stages of some work for their squares."""
        return _BALANCE * work**2 * sum(self.speeds) / max(units.work, 1e-30)

    def loads(self, units: Units, positions: Sequence[int], slices: Sequence[int]) -> list[float]:
        """Returns the time of each stage."""
        edges = [0, *positions, units.count]
        return [
            float(units.before[end] - units.before[first]) / self.speeds[slice]
            for first, end, slice in zip(edges, edges[1:], slices, strict=False)
        ]

    def bound(self, units: Units, positions: Sequence[int], slices: Sequence[int]) -> float:
        """Returns sum + (M - 1) longest; transfers add to the sum, and bound stages from below."""
        stages = self.loads(units, positions, slices)
        loads = [0.0] * len(self.speeds)
        for load, slice in zip(stages, slices, strict=True):
            loads[slice] += load
        on_links = [units.alive[p] / self.link.bandwidth for p in positions]
        crossing = sum(2 * (self.link.latency + time) for time in on_links)
        return float(sum(loads) + crossing + (self.microbatches - 1) * max([*loads, *on_links]))


def best_partitions(
    units: Units, candidates: Sequence[int], machine: Machine, *, v: bool, limit: int
) -> list[Partition]:
    """Returns the partitions with the least closed bounds, best first; none for too few candidates."""
    stages = len(machine.speeds) * (2 if v else 1)
    if len(candidates) < stages - 1:
        return []
    by_cut: dict[tuple[int, ...], Partition] = {}

    def add(positions: Iterable[int]) -> None:
        cut = tuple(positions)
        if cut not in by_cut and all(a < b for a, b in itertools.pairwise(cut)):
            partition = Partition(0.0, cut, v)
            by_cut[cut] = dataclasses.replace(partition, bound=machine.bound(units, cut, partition.slices()))

    table = _CostsOfV(units, candidates, machine) if v else _RowCosts(units, candidates, machine)
    for solution in _solutions(units, table, machine):
        add(solution)
    # Partitions that differ from the best in one cut, or in two adjacent ones.
    for _ in range(_ROUNDS):
        count = len(by_cut)
        for partition in ranked(by_cut.values(), units, machine)[:limit]:
            for positions in _neighbours(partition.positions, candidates):
                add(positions)
        if len(by_cut) == count:
            break
    return ranked(by_cut.values(), units, machine)[:limit]


def ranked(partitions: Iterable[Partition], units: Units, machine: Machine) -> list[Partition]:
    """Returns partitions, best first: by bound, then by evenness of the stages, then by bytes that cross."""

    def rank(partition: Partition) -> tuple[float, int]:
        stages = machine.loads(units, partition.positions, partition.slices())
        uneven = sum(machine.uneven(load, units) for load in stages)
        return partition.bound + uneven, int(sum(units.alive[list(partition.positions)]))

    return sorted(partitions, key=rank)


def _neighbours(positions: tuple[int, ...], candidates: Sequence[int]) -> Iterator[tuple[int, ...]]:
    place = {position: n for n, position in enumerate(candidates)}
    for n, position in enumerate(positions):
        for other in (place[position] - 1, place[position] + 1):
            if 0 <= other < len(candidates):
                yield (*positions[:n], candidates[other], *positions[n + 1 :])


def _solutions(units: Units, table: _RowCosts | _CostsOfV, machine: Machine) -> Iterator[list[int]]:
    """Yields the partition of least sum for each bound on the longest slice, the smallest first."""
    least = table.least_longest()
    tightest, loosest = table.solve(least), table.solve(math.inf)
    if tightest is None or loosest is None:
        return
    yield tightest
    yield loosest
    # A longer longest slice pays only as far as the sum gets smaller for it.
    weight = max(1, machine.microbatches - 1)
    slices = Partition(0.0, tuple(tightest), table.v).slices()
    least_sum = dataclasses.replace(machine, microbatches=1).bound(units, loosest, slices)
    gain = machine.bound(units, tightest, slices) - least_sum - weight * least
    if gain <= 0:
        return
    for bound in np.linspace(least, least + gain / weight, table.steps):
        solution = table.solve(float(bound))
        if solution is not None:
            yield solution


class _RowCosts:
    """Time of each run of units on each slice, and the least sums under a bound."""

    v = False
    steps = _STEPS

    def __init__(self, units: Units, candidates: Sequence[int], machine: Machine) -> None:
        self.edges = [0, *candidates, units.count]
        before = units.before[self.edges]
        self.work = before[None, :] - before[:, None]
        self.machine = machine
        self.units = units
        self.on_link = units.alive[self.edges] / machine.link.bandwidth
        self.on_link[[0, -1]] = 0.0
        self.crossing = 2 * (self.on_link + machine.link.latency)
        self.crossing[[0, -1]] = 0.0

    def solve(self, bound: float) -> list[int] | None:
        """Returns the positions of least sum with no stage longer than a bound; None if there are none."""
        count = len(self.edges)
        speeds = self.machine.speeds
        # sums[e] is the least sum of the slices so far, if their units end at edge e.
        sums = np.full(count, math.inf)
        sums[0] = 0.0
        choices = []
        # A bound is often the time of a stage itself, which rounding must not exclude.
        slack = bound * (1 + 1e-12)
        follows = np.triu(np.ones((count, count), bool), 1) & (self.on_link <= slack)[:, None]
        for speed in speeds:
            time = self.work / speed
            total = np.where(follows & (time <= slack), sums[:, None] + time + self.extra(time), math.inf)
            choices.append(total.argmin(0))
            sums = total.min(0)
        if not math.isfinite(sums[-1]):
            return None
        place, positions = count - 1, []
        for choice in reversed(choices):
            place = int(choice[place])
            positions.append(self.edges[place])
        # Found from the last cut to the first, and then edge 0, where nothing is cut.
        return positions[-2::-1]

    def extra(self, time: Array) -> Array:
        """Returns the costs besides stage times: the transfer before each, the penalty of uneven ones."""
        return self.crossing[:, None] + self.machine.uneven(time, self.units)

    def least_longest(self) -> float:
        """Returns the least time that the longest stage can have."""
        # As in `solve`, with the longest stage so far in place of the sum.
        longest = np.zeros(len(self.edges))
        longest[1:] = math.inf
        follows = np.triu(np.ones_like(self.work, bool), 1)
        for speed in self.machine.speeds:
            time = np.maximum(self.work / speed, self.on_link[:, None])
            longest = np.where(follows, np.maximum(longest[:, None], time), math.inf).min(0)
        return float(longest[-1])


def _spread(units: Units, candidates: Sequence[int], limit: int) -> list[int]:
    """Returns candidates at equal distances of work, up to a limit."""
    if len(candidates) <= limit:
        return list(candidates)
    work = units.before[list(candidates)]
    targets = np.linspace(work[0], work[-1], limit)
    return [candidates[n] for n in sorted({int(np.abs(work - w).argmin()) for w in targets})]


class _CostsOfV:
    """Least sums of a V: a state is the progress of the outer slices from both ends."""

    v = True
    steps = _STEPS_OF_V

    def __init__(self, units: Units, candidates: Sequence[int], machine: Machine) -> None:
        edges = np.array([0, *_spread(units, candidates, _MAX_POSITIONS_OF_V), units.count])
        self.edges = edges
        self.before = units.before[edges]
        self.machine = machine
        self.units = units
        on_link = units.alive[edges] / machine.link.bandwidth
        self.crossing = 2 * (on_link + machine.link.latency)
        self.crossing[[0, -1]] = 0.0

    def least_longest(self) -> float:
        """Returns the least time of the slice with most work."""
        lowest = self.before[-1] / sum(self.machine.speeds)
        high = self.before[-1] / min(self.machine.speeds)
        if self.solve(high) is None:
            return math.inf
        # Bisection, to a thousandth of the range: larger bounds are never harder to meet.
        for _ in range(10):
            middle = (lowest + high) / 2
            lowest, high = (lowest, middle) if self.solve(middle) is not None else (middle, high)
        return float(high)

    def solve(self, bound: float) -> list[int] | None:
        """Returns the positions of least sum in which no slice has more work than a bound."""
        count = len(self.edges)
        sums = np.full((count, count), math.inf)
        # sums[l, r] is the least sum of the outer slices so far, if the units from edge l to r are left.
        sums[0, count - 1] = 0.0
        trail = []
        *outer, inner = self.machine.speeds
        for speed in outer:
            reached = np.full_like(sums, math.inf)
            came = np.zeros((count, count, 2), int)
            for left, right in zip(*np.nonzero(np.isfinite(sums)), strict=True):
                here = (self.before[left + 1 : right] - self.before[left])[:, None]
                back = (self.before[right] - self.before[left + 1 : right])[None, :]
                time = (here + back) / speed
                total = sums[left, right] + time
                total = total + self.machine.uneven(here / speed, self.units)
                total = total + self.machine.uneven(back / speed, self.units)
                total = total + self.crossing[left + 1 : right, None] + self.crossing[None, left + 1 : right]
                # At least two stages are left in between, for the last slice.
                room = np.triu(np.ones(time.shape, bool), 2)
                total = np.where(room & (time <= bound * (1 + 1e-12)), total, math.inf)
                block = reached[left + 1 : right, left + 1 : right]
                # The comparison precedes the update of `block`, which is a view of `reached`.
                came[left + 1 : right, left + 1 : right][total < block] = left, right
                np.minimum(block, total, out=block)
            trail.append(came)
            sums = reached
        middle = (self.before[None, :] - self.before[:, None]) / inner
        total = np.where(middle <= bound * (1 + 1e-12), sums + middle, math.inf)
        if not np.isfinite(total).any():
            return None
        left, right = map(int, np.unravel_index(int(total.argmin()), total.shape))
        between = range(left + 1, right)
        half = (self.before[left] + self.before[right]) / 2
        # Where the last slice is cut changes none of the loads: fewest bytes first, then equal halves.
        cut = min(between, key=lambda n: (self.crossing[n], abs(self.before[n] - half)))
        positions = [left, cut, right]
        state = (left, right)
        # The first of the trail leads to both ends, where nothing is cut.
        for came in reversed(trail[1:]):
            state = (int(came[state][0]), int(came[state][1]))
            positions = [state[0], *positions, state[1]]
        return [int(self.edges[n]) for n in positions]
