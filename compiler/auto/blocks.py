"""Conversion of the user's parameters to a plan's: stacked leaves become a block for each stage."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pathways.compiler.auto.flat_loss import FlatLoss
from pathways.compiler.auto.stage_bodies import Rows, StageBody, whole_rows


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blocks of the leaves of a tree of parameters.

    Attributes:
      edges: for each leaf the rows at which its blocks begin, and the end; two for a leaf that is not cut.
      readers: for each leaf and block the stages that read it.
    """

    structure: Any
    edges: tuple[tuple[int, ...], ...]
    readers: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def cut_structure(self) -> Any:
        """The structure of the parameters of the plan: a tuple of blocks where a leaf is cut."""
        leaves = [0 if len(edges) == 2 else (0,) * (len(edges) - 1) for edges in self.edges]
        return jax.tree.structure(self.structure.unflatten(leaves))

    @property
    def homes(self) -> tuple[int, ...]:
        """The stage that each leaf of the plan is placed on: the first that reads it."""
        return tuple(stages[0] if stages else 0 for leaf in self.readers for stages in leaf)

    def numbers(self, leaf: int, rows: Rows) -> list[int]:
        """Returns the numbers, among the leaves of the plan, of the blocks that hold rows of a leaf."""
        before = sum(len(edges) - 1 for edges in self.edges[:leaf])
        edges = self.edges[leaf]
        return [before + n for n in range(len(edges) - 1) if edges[n] < rows[1] and rows[0] < edges[n + 1]]

    def split(self, tree: Any) -> Any:
        """Returns a tree with the parameters of the plan in place of each subtree of the user's."""
        return self._replaced(
            tree, self.structure, lambda subtree: self._split(self.structure.flatten_up_to(subtree))
        )

    def merge(self, tree: Any) -> Any:
        """Returns the opposite of `split`."""
        structure = self.cut_structure
        return self._replaced(tree, structure, lambda subtree: self._merge(structure.flatten_up_to(subtree)))

    def _split(self, leaves: Sequence[Any]) -> Any:
        cut = [
            leaf if len(edges) == 2 else tuple(_rows(leaf, a, b) for a, b in itertools.pairwise(edges))
            for leaf, edges in zip(leaves, self.edges, strict=True)
        ]
        return self.structure.unflatten(cut)

    def _merge(self, blocks: Sequence[Any]) -> Any:
        left = iter(blocks)
        leaves = [_joined([next(left) for _ in edges[1:]]) for edges in self.edges]
        return self.structure.unflatten(leaves)

    def _replaced(self, tree: Any, structure: Any, replace: Callable[[Any], Any]) -> Any:
        if jax.tree_util.treedef_is_leaf(structure):
            return jax.tree.map(replace, tree)

        def fits(subtree: Any) -> bool:
            return bool(jax.tree.structure(subtree) == structure)

        replaced = False

        def visit(subtree: Any) -> Any:
            nonlocal replaced
            if not fits(subtree):
                return subtree
            replaced = True
            return replace(subtree)

        result = jax.tree.map(visit, tree, is_leaf=fits)
        if not replaced:
            raise TypeError(f"expected a tree with {structure} in it, got {jax.tree.structure(tree)}")
        return result


def blocks_of(flat: FlatLoss, structure: Any, bodies: Sequence[StageBody]) -> Blocks:
    """Returns the blocks of the leaves of a loss for its stages."""
    edges: list[set[int]] = [set(whole_rows(leaf)) for leaf in flat.parameters]
    for body in bodies:
        for leaf, rows in body.leaves:
            edges[leaf].update(rows)
    # The bounds of all stages together: each stage then reads whole blocks.
    cut = tuple(tuple(sorted(of_leaf)) for of_leaf in edges)
    readers = []
    for leaf, of_leaf in enumerate(cut):
        stages: list[list[int]] = [[] for _ in of_leaf[1:]]
        for n, body in enumerate(bodies):
            for number, (first, end) in body.leaves:
                if number == leaf:
                    for block in range(bisect.bisect_left(of_leaf, first), bisect.bisect_left(of_leaf, end)):
                        stages[block].append(n)
        readers.append(tuple(map(tuple, stages)))
    return Blocks(structure, cut, tuple(readers))


def _rows(leaf: Any, first: int, end: int) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((end - first, *leaf.shape[1:]), leaf.dtype)
    return leaf[first:end]


def _joined(blocks: Sequence[Any]) -> Any:
    if len(blocks) == 1:
        return blocks[0]
    if all(isinstance(block, jax.ShapeDtypeStruct) for block in blocks):
        rows = sum(block.shape[0] for block in blocks)
        return jax.ShapeDtypeStruct((rows, *blocks[0].shape[1:]), blocks[0].dtype)
    # On the host: the blocks are on different slices.
    return np.concatenate([np.asarray(block) for block in blocks])
