"""Units of a loss: its nodes in order, their work, and the bytes alive at the positions between them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pathways.compiler.auto.flat_loss import FlatLoss
from pathways.compiler.auto.node_work import NodeWork, is_product
from pathways.compiler.auto.stage_bodies import stage_bodies

_NEAR = 1 / 8
"""Tolerance between near positions, as a fraction of a stage's work."""

_LIVE_MICROBATCHES = 4
"""Number of microbatches that a stage is assumed to keep, for its memory."""

_ALIKE = 1 / 100
"""Tolerance between positions that count as one, as a fraction of a stage's work."""


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """Loss as a sequence of units, which may be cut before any of them.

    Attributes:
      before: the work of all units before each position; one longer than there are units.
      alive: the bytes alive at each position: produced before it and read after it.
      kinds: a number for each unit, equal for equal ones.
      products: the numbers of the units that are, or contain, products of matrices.
      iterations: the numbers of the units that are iterations of loops over layers.
    """

    before: np.ndarray[Any, np.dtype[np.float64]]
    alive: np.ndarray[Any, np.dtype[np.int64]]
    kinds: tuple[int, ...]
    products: tuple[int, ...]
    iterations: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of units."""
        return len(self.before) - 1

    @property
    def work(self) -> float:
        """The work of all units."""
        return float(self.before[-1])

    def candidates(self, stages: int) -> tuple[int, ...]:
        """Returns the positions at which cuts are worth a try.

        None is after the last product, so that logits do not cross, nor at a position with a near one of less
        than half of the bytes. Of positions with almost no work between them, the one with the fewest bytes
        suffices.


        Args:
          stages: the number of stages, to which tolerances are relative.
        """
        last = self.products[-1] if self.products else self.count - 1
        stage = self.work / max(1, stages)
        best: dict[int, int] = {}
        for position in range(1, last + 1):
            group = math.floor(self.before[position] / (stage * _ALIKE)) if stage else 0
            # A cut in group 0 would give almost no work to the first stage.
            if group and (group not in best or self.alive[position] < self.alive[best[group]]):
                best[group] = position
        near = stage * _NEAR
        positions = []
        for position in best.values():
            work = self.before[position]
            first = int(np.searchsorted(self.before, work - near, "right"))
            end = int(np.searchsorted(self.before, work + near, "left"))
            around = self.alive[max(1, first) : min(self.count, max(end, first + 1))]
            if around.size == 0 or 2 * around.min() >= self.alive[position]:
                positions.append(position)
        return tuple(positions)

    def even(self, stages: int) -> tuple[int, ...] | None:
        """Returns the positions that split the layers (iterations, or products) evenly; None if too few."""
        layers = self.iterations if len(self.iterations) >= stages else self.products
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
    producers = {v: n for n, node in enumerate(flat.nodes) for v in node.results}
    last = {}
    for n, node in enumerate(flat.nodes):
        last.update(dict.fromkeys((v for v in node.reads if v in producers), n))
    alive = np.zeros(count + 1, np.int64)
    for variable, end in last.items():
        # At the positions from behind its producer to the one before its last reader.
        alive[producers[variable] + 1 : end + 1] += nbytes(variable.aval)
    products = tuple(n for n, node in enumerate(flat.nodes) if is_product(node))
    iterations = tuple(n for n, node in enumerate(flat.nodes) if node.iteration is not None)
    kinds = work.kinds(flat.nodes)
    return Units(before, alive, kinds, products, iterations)


def bytes_kept(flat: FlatLoss) -> list[float]:
    """Returns the bytes that each unit keeps, approximately.

    These are parameters that it is the first to read, with their gradients, and its results, for a few
    microbatches.
    """
    held = [0.0] * len(flat.nodes)
    seen: set[int] = set()
    bodies = stage_bodies(flat, range(1, len(flat.nodes)))
    for n, (node, body) in enumerate(zip(flat.nodes, bodies, strict=True)):
        for leaf, (first, end) in body.leaves:
            aval = flat.parameters[leaf].aval
            # An iteration keeps its own rows of a leaf, which no earlier unit has counted.
            if node.iteration is not None or leaf not in seen:
                held[n] += 2 * nbytes(aval) * (end - first) / max(1, (aval.shape or (1,))[0])
            if node.iteration is None:
                seen.add(leaf)
        held[n] += _LIVE_MICROBATCHES * sum(nbytes(v.aval) for v in node.results)
    return held


def nbytes(aval: Any) -> int:
    """Returns the bytes of an array of a type."""
    if not hasattr(aval, "shape"):
        return 0
    size = getattr(aval.dtype, "itemsize", 8)
    return math.prod(aval.shape) * size
