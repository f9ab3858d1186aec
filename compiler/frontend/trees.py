"""Trees as they are traced: nodes that users register are built from arrays and tracers, from nothing else.

JAX takes the structure of what it traces and rebuilds it with whatever it has to say of each leaf, such as
`ArgInfo`. A node may compute with its children when it is made, or refuse what is no array.
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
"""Where a leaf is in its tree, as `jax.tree_util.tree_leaves_with_path` says."""


def name_of(path: KeyPath) -> str:
    """What to call a leaf by its path, as JAX does where it names arguments: `['w'][0]`."""
    return re.sub("<flat index ([0-9]+)>", r"\1", jax.tree_util.keystr(path))


def keys_of(structure: Any) -> tuple[KeyPath, ...]:
    """Where each leaf is in a structure of nodes that take anything: dicts, lists, tuples."""
    numbered = structure.unflatten(range(structure.num_leaves))
    return tuple(path for path, _ in jax.tree_util.tree_leaves_with_path(numbered))


def flat_prefix(prefix: Any, tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """What a prefix of a tree says of each of its leaves.

    Args:
      prefix: a tree whose leaves each stand for all that is there in the other one.
      tree: the whole tree.
      is_leaf: what is a leaf of the prefix, besides what always is.

    Raises:
      ValueError: it is no prefix.
    """
    structure: Any
    said, structure = jax.tree.flatten(prefix, is_leaf=is_leaf)
    below = structure.flatten_up_to(tree)
    return [one for one, part in zip(said, below, strict=True) for _ in jax.tree.leaves(part)]


@dataclasses.dataclass(frozen=True)
class _Skeleton:
    """How to build a tree of its leaves."""

    structure: Any
    names: tuple[str, ...]
    keys: tuple[KeyPath, ...] = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class _Name:
    """Where a leaf is in a sealed tree, as one step of a path."""

    text: str

    def __str__(self) -> str:
        return self.text


class Sealed:
    """A tree as one node, whose children are the leaves; these have the names that they have in the tree."""

    def __init__(self, leaves: Sequence[Any], form: _Skeleton) -> None:
        self.leaves = leaves
        self.form = form

    def opened(self) -> Any:
        """The tree."""
        return self.form.structure.unflatten(self.leaves)


def _of_children(form: _Skeleton, leaves: Iterable[Any]) -> Sealed:
    return Sealed(tuple(leaves), form)


def _children(node: Sealed) -> tuple[list[tuple[_Name, Any]], _Skeleton]:
    return [(_Name(n), leaf) for n, leaf in zip(node.form.names, node.leaves, strict=True)], node.form


jax.tree_util.register_pytree_with_keys(
    Sealed, _children, _of_children, lambda node: (node.leaves, node.form)
)


def sealed(structure: Any, keys: Sequence[KeyPath], leaves: Sequence[Any]) -> Sealed:
    """A tree of some structure, where its leaves are, and what there is of each."""
    names = tuple(map(name_of, keys))
    return Sealed(leaves, _Skeleton(structure, names, tuple(keys)))


def of_sealed(fun: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function whose arguments and result may be sealed trees, to be traced in the place of another."""

    def traced(*args: Any, **kwargs: Any) -> Sealed:
        result = fun(*map(_opened, args), **{name: _opened(arg) for name, arg in kwargs.items()})
        result = comparable_errors(result)
        pairs, structure = jax.tree_util.tree_flatten_with_path(result)
        return sealed(structure, [path for path, _ in pairs], [leaf for _, leaf in pairs])

    traced.__name__ = name
    # Without the attributes of `fun`: those of a placed function would say that this is one.
    return functools.wraps(fun, updated=())(traced)


def _opened(argument: Any) -> Any:
    return argument.opened() if isinstance(argument, Sealed) else argument


def unsealed(structure: Any) -> tuple[Any, tuple[KeyPath, ...]]:
    """The structure in a sealed one, and where its leaves are."""
    _, form = structure.node_data()
    return form.structure, form.keys
