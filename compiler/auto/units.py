"""Where a loss may be cut: the nodes in their order, what they do, and what is alive between them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pathways.compiler.auto.flat_loss import FlatLoss
from pathways.compiler.auto.node_work import NodeWork, is_product
from pathways.compiler.auto.stage_parts import stage_parts

_NEAR = 1 / 8
"""Positions are near each other that are less than this part of the work of a stage apart."""

_KEPT = 4
"""How many microbatches a stage is taken to keep, where it is about memory."""

_ALIKE = 1 / 100
"""Of positions that differ by less than this part of the work of a stage, one is enough."""


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """A loss as a line of units, which may be cut before any of them.

    Attributes:
      before: the work of all units before each position; one longer than there are units.
      alive: the bytes that are alive at each position: made before it and read behind it.
      kinds: a number for each unit, equal for equal ones.
      products: the numbers of the units that are, or hold, products of matrices.
      turns: the numbers of those that are turns of loops over layers.
    """

    before: np.ndarray[Any, np.dtype[np.float64]]
    alive: np.ndarray[Any, np.dtype[np.int64]]
    kinds: tuple[int, ...]
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
        """Returns the positions where cuts are worth a try.

        None is behind the last product, so that logits do not cross, nor where a position near has less than
        half of the bytes. Of positions with next to no work between them, that with the fewest bytes is
        enough.

        Args:
          stages: how many stages there are to be, of which near is a part.
        """
        last = self.products[-1] if self.products else self.count - 1
        stage = self.work / max(1, stages)
        best: dict[int, int] = {}
        for position in range(1, last + 1):
            group = math.floor(self.before[position] / (stage * _ALIKE)) if stage else 0
            if group and (group not in best or self.alive[position] < self.alive[best[group]]):
                best[group] = position
        near = stage * _NEAR
        kept = []
        for position in best.values():
            work = self.before[position]
            first = int(np.searchsorted(self.before, work - near, "right"))
            end = int(np.searchsorted(self.before, work + near, "left"))
            around = self.alive[max(1, first) : min(self.count, max(end, first + 1))]
            if around.size == 0 or 2 * around.min() >= self.alive[position]:
                kept.append(position)
        return tuple(kept)

    def even(self, stages: int) -> tuple[int, ...] | None:
        """Returns the positions that split the layers evenly: turns of loops, or else products; None if too
        few."""
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
        """Returns the same units with other work."""
        return dataclasses.replace(self, before=np.concatenate([[0.0], np.cumsum(np.asarray(work, float))]))


def units_of(flat: FlatLoss) -> Units:
    """Returns the units of a loss, by floating point operations."""
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
    kinds = work.kinds(flat.nodes)
    return Units(before, alive, kinds, products, turns)


def bytes_kept(flat: FlatLoss) -> list[float]:
    """Returns the bytes that each unit keeps, about.

    These are parameters that it is the first to read, with their gradients, and what it makes, for a few
    microbatches.
    """
    held = [0.0] * len(flat.nodes)
    seen: set[int] = set()
    parts = stage_parts(flat, range(1, len(flat.nodes)))
    for n, (node, part) in enumerate(zip(flat.nodes, parts, strict=True)):
        for leaf, (first, end) in part.leaves:
            aval = flat.parameters[leaf].aval
            if node.turn is not None or leaf not in seen:
                held[n] += 2 * nbytes(aval) * (end - first) / max(1, (aval.shape or (1,))[0])
            if node.turn is None:
                seen.add(leaf)
        held[n] += _KEPT * sum(nbytes(v.aval) for v in node.results)
    return held


def nbytes(aval: Any) -> int:
    """Returns the bytes of an array of a type."""
    if not hasattr(aval, "shape"):
        return 0
    size = getattr(aval.dtype, "itemsize", 8)
    return math.prod(aval.shape) * size
