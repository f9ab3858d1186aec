"""Where a loss may be cut: the nodes in their order, what they do, and what is alive between them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pathways.compiler.auto.flat_loss import FlatLoss
from pathways.compiler.auto.node_work import NodeWork, is_product

_NEAR = 8
"""Positions are near each other that are less than this part of the work of a stage apart."""


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """A loss as a line of units, which may be cut before any of them.

    Attributes:
      before: the work of all units before each position; one longer than there are units.
      alive: the bytes that are alive at each position: made before it and read behind it.
      products: the numbers of the units that are, or hold, products of matrices.
      turns: the numbers of those that are turns of loops over layers.
    """

    before: np.ndarray[Any, np.dtype[np.float64]]
    alive: np.ndarray[Any, np.dtype[np.int64]]
    products: tuple[int, ...]
    turns: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of units."""
        return len(self.before) - 1

    @property
    def work(self) -> float:
        """That of all units together."""
        return float(self.before[-1])

    def candidates(self, stages: int) -> tuple[int, ...]:
        """The positions where cuts are worth a try.

        None is behind the last product, so that logits do not cross, nor where a position near has less than
        half of the bytes. Of positions without work between them, one with the fewest bytes is enough.

        Args:
          stages: how many stages there are to be, of which near is a part.
        """
        last = self.products[-1] if self.products else self.count - 1
        near = self.work / max(1, stages) / _NEAR
        inner = [p for p in range(1, last + 1) if self.before[p] > 0]
        groups: dict[float, int] = {}
        for position in inner:
            work = float(self.before[position])
            if work not in groups or self.alive[position] < self.alive[groups[work]]:
                groups[work] = position
        kept = []
        for position in groups.values():
            work = self.before[position]
            first = int(np.searchsorted(self.before, work - near, "right"))
            end = int(np.searchsorted(self.before, work + near, "left"))
            around = self.alive[max(1, first) : min(self.count, max(end, first + 1))]
            if around.size == 0 or 2 * around.min() >= self.alive[position]:
                kept.append(position)
        return tuple(kept)

    def even(self, stages: int) -> tuple[int, ...] | None:
        """The positions that split the layers evenly: turns of loops, or else products; None if too few."""
        layers = self.turns if len(self.turns) >= stages else self.products
        if len(layers) < stages:
            return None
        positions = []
        for n in range(1, stages):
            place = round(n * len(layers) / stages)
            first, end = layers[place - 1] + 1, layers[place]
            positions.append(min(range(first, end + 1), key=lambda p: int(self.alive[p])))
        return tuple(positions)

    def reweighed(self, work: Sequence[float]) -> Units:
        """The same units with other work."""
        return dataclasses.replace(self, before=np.concatenate([[0.0], np.cumsum(np.asarray(work, float))]))


def units_of(flat: FlatLoss) -> Units:
    """The units of a loss, by floating point operations."""
    work = NodeWork(flat)
    before = np.concatenate([[0.0], np.cumsum([work.of(node) for node in flat.nodes])])
    count = len(flat.nodes)
    made = {v: n for n, node in enumerate(flat.nodes) for v in node.results}
    last = {}
    for n, node in enumerate(flat.nodes):
        last.update(dict.fromkeys((v for v in node.reads if v in made), n))
    alive = np.zeros(count + 1, np.int64)
    for variable, end in last.items():
        # At the positions behind the unit that makes it, up to the one before its last reader.
        alive[made[variable] + 1 : end + 1] += nbytes(variable.aval)
    products = tuple(n for n, node in enumerate(flat.nodes) if is_product(node))
    turns = tuple(n for n, node in enumerate(flat.nodes) if node.turn is not None)
    return Units(before, alive, products, turns)


def nbytes(aval: Any) -> int:
    """The bytes of an array of a type."""
    if not hasattr(aval, "shape"):
        return 0
    size = getattr(aval.dtype, "itemsize", 8)
    return math.prod(aval.shape) * size
