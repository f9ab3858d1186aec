"""Nodes of trees as users register them, with many leaves."""

from __future__ import annotations

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pathways as pw

strangers: set[str] = set()
"""Types of children of nodes that are neither arrays nor numbers."""


@jax.tree_util.register_pytree_with_keys_class
class Node:
    """Node that adds the types of its children to `strangers`, and keeps a note as its structure."""

    def __init__(self, children: Any, note: str) -> None:
        self.children = children
        self.note = note

    def tree_flatten_with_keys(self) -> tuple[Any, str]:
        return ((jax.tree_util.GetAttrKey("children"), self.children),), self.note

    @classmethod
    def tree_unflatten(cls, note: str, children: Any) -> Node:
        (inner,) = children
        for leaf in jax.tree.leaves(inner):
            if not isinstance(leaf, jax.Array | np.ndarray | numbers.Number | pw.Array):
                strangers.add(type(leaf).__name__)
        return cls(inner, note)


def node_of(leaves: int) -> Node:
    """Returns a tree with a number of leaves, always the same."""
    arrays = [jnp.full((n % 3,) if n % 5 else (), n % 7, jnp.float32) for n in range(leaves)]
    half = leaves // 2
    return Node({"a": arrays[:half], "b": Node(tuple(arrays[half:]), "inner")}, "outer")


def changed(node: Node) -> Node:
    """Returns a node with changed leaves: some unchanged, some left out."""

    def of(leaves: Any) -> list[Any]:
        kinds = (lambda x: x + 1, lambda x: x, None, lambda x: jnp.sin(x) * 2)
        pairs = [(kinds[n % 4], leaf) for n, leaf in enumerate(leaves)]
        return [kind(leaf) for kind, leaf in pairs if kind is not None]

    return Node({"a": of(node.children["a"]), "b": Node(of(node.children["b"].children), "inner")}, "outer")
