"""Trees for tracing, which build registered nodes of users from arrays and tracers only.

JAX takes the structure of a traced tree and rebuilds it with metadata of each leaf, such as `ArgInfo`. But a
node may compute with its children when it is created, or reject a child that is not an array.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from pathways.compiler.frontend.jax_internals import comparable_errors

KeyPath = tuple[Any, ...]
"""Path of a leaf in its tree, as of `jax.tree_util.tree_leaves_with_path`."""


def name_of(path: KeyPath) -> str:
    """Returns the name of a leaf from its path, as JAX names arguments: `['w'][0]`."""
    return re.sub("<flat index ([0-9]+)>", r"\1", jax.tree_util.keystr(path))


def keys_of(structure: Any) -> tuple[KeyPath, ...]:
    """Returns the path of each leaf in a structure of nodes that accept any child: dicts, lists, tuples."""
    numbered = structure.unflatten(range(structure.num_leaves))
    return tuple(path for path, _ in jax.tree_util.tree_leaves_with_path(numbered))


def flat_prefix(prefix: Any, tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Returns the leaf of a prefix that applies to each leaf of a tree.

    Args:
      prefix: a tree whose leaves each represent a subtree of the other one.
      is_leaf: a predicate of leaves of the prefix, besides the usual ones.

    Raises:
      ValueError: it is not a prefix.
    """
    structure: Any
    leaves, structure = jax.tree.flatten(prefix, is_leaf=is_leaf)
    below = structure.flatten_up_to(tree)
    return [leaf for leaf, subtree in zip(leaves, below, strict=True) for _ in jax.tree.leaves(subtree)]


@dataclasses.dataclass(frozen=True)
class _Skeleton:
    """Structure that builds a tree from its leaves."""

    structure: Any
    names: tuple[str, ...]
    keys: tuple[KeyPath, ...] = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class _Name:
    """Path of a leaf in a sealed tree, as one step of a path."""

    text: str

    def __str__(self) -> str:
        return self.text


class Sealed:
    """Tree as one node, whose children are the leaves, named by their paths in the tree."""

    def __init__(self, leaves: Sequence[Any], form: _Skeleton) -> None:
        self.leaves = leaves
        self.form = form

    def opened(self) -> Any:
        """Returns the tree."""
        return self.form.structure.unflatten(self.leaves)


def _of_children(form: _Skeleton, leaves: Iterable[Any]) -> Sealed:
    return Sealed(tuple(leaves), form)


def _children(node: Sealed) -> tuple[list[tuple[_Name, Any]], _Skeleton]:
    return [(_Name(n), leaf) for n, leaf in zip(node.form.names, node.leaves, strict=True)], node.form


jax.tree_util.register_pytree_with_keys(
    Sealed, _children, _of_children, lambda node: (node.leaves, node.form)
)


def sealed(structure: Any, keys: Sequence[KeyPath], leaves: Sequence[Any]) -> Sealed:
    """Returns a sealed tree of some structure, from its paths and leaves."""
    names = tuple(map(name_of, keys))
    return Sealed(leaves, _Skeleton(structure, names, tuple(keys)))


def of_sealed(fun: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a function that accepts and returns sealed trees, to be traced instead of another."""

    def traced(*args: Any, **kwargs: Any) -> Sealed:
        result = fun(*map(_opened, args), **{name: _opened(arg) for name, arg in kwargs.items()})
        result = comparable_errors(result)
        pairs, structure = jax.tree_util.tree_flatten_with_path(result)
        return sealed(structure, [path for path, _ in pairs], [leaf for _, leaf in pairs])

    traced.__name__ = name
    # Without the attributes of `fun`, which would make this a placed function if `fun` is one.
    return functools.wraps(fun, updated=())(traced)


def _opened(argument: Any) -> Any:
    return argument.opened() if isinstance(argument, Sealed) else argument


def unsealed(structure: Any) -> tuple[Any, tuple[KeyPath, ...]]:
    """Returns the structure in a sealed one, and the paths of its leaves."""
    _, form = structure.node_data()
    return form.structure, form.keys
