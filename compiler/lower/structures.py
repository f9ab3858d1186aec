"""Conversion of JAX's structures and abstract values to the named trees and leaves of a bundle."""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from pathways.compiler.frontend import jax_internals
from pathways.compiler.frontend.trees import KeyPath, name_of
from pathways.runtime.bundle import trees
from pathways.runtime.bundle.manifest import BundleError, Leaf, Root
from pathways.runtime.xla.pjrt import memory_space


def argument_roots(
    tree: Any, keys: Sequence[KeyPath], paths: Sequence[str]
) -> tuple[tuple[Root, ...], tuple[Root, ...]]:
    """Returns the arguments by position and by name, of the structure of `(args, kwargs)`."""
    args, kwargs = tree.children()
    inside = [path[2:] for path in keys]
    positional, named, first = [], [], 0
    for n, child in enumerate(args.children()):
        name = _root_name(paths[first], inside[first], n) if child.num_leaves else f"args.{n}"
        positional.append(Root.of(name, tree_of(child, inside[first : first + child.num_leaves], first)))
        first += child.num_leaves
    for name, child in zip(kwargs.node_data()[1], kwargs.children(), strict=True):
        named.append(Root.of(name, tree_of(child, inside[first : first + child.num_leaves], first)))
        first += child.num_leaves
    return tuple(positional), tuple(named)


def _root_name(path: str, keys: Sequence[Any], n: int) -> str:
    """Returns the name of a parameter, from JAX's name of the first leaf of its argument: `params['w']`."""
    root = path.removesuffix(name_of(tuple(keys)))
    if parameter := re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[([0-9]+)\])?", root):
        return parameter[1] if parameter[2] is None else parameter[1] + trees.step(int(parameter[2]))
    return f"args.{n}"


def tree_of(structure: Any, keys: Sequence[KeyPath], first: int = 0) -> trees.Tree:
    """Returns a structure of JAX's as a tree of dicts, lists and tuples, with leaves numbered from `first`.

    A node of another type becomes a record of the names that JAX gives its children, or a tuple if it numbers
    them; `keys` are the paths of the leaves.
    """
    return _node(structure, keys, 0, itertools.count(first))


def _node(structure: Any, paths: Sequence[Any], depth: int, numbers: Iterator[int]) -> trees.Tree:
    data = structure.node_data()
    if data is None:
        return next(numbers)
    if depth == trees.MAX_DEPTH:
        raise BundleError(f"arguments or results are nested more than {trees.MAX_DEPTH} levels deep")
    kind, about = data
    if kind is type(None):
        return None
    children, first = [], 0
    for child in structure.children():
        inner = paths[first : first + child.num_leaves]
        key = key_of(inner[0][depth]) if inner else None
        children.append((key, _node(child, inner, depth + 1, numbers)))
        first += child.num_leaves
    if kind in (list, tuple):
        return kind(tree for _, tree in children)
    if kind is dict:
        return dict(zip(map(_plain_key, about), (tree for _, tree in children), strict=True))
    named = [(key, tree) for key, tree in children if key is not None]
    if named and all(isinstance(key, int) for key, _ in named):
        return tuple(tree for _, tree in children)
    return OrderedDict(named)


def key_of(step: Any) -> str | int:
    """Returns the name or the number of a child, from one step of a path of JAX's."""
    match step:
        case jax.tree_util.SequenceKey():
            return step.idx
        case jax.tree_util.GetAttrKey():
            return step.name
        case jax.tree_util.DictKey() | jax.tree_util.FlattenedIndexKey():
            return _plain_key(step.key)
    raise BundleError(f"a node of its arguments or results has keys of type {type(step).__name__}")


def _plain_key(key: Any) -> str | int:
    if type(key) not in (str, int):
        raise BundleError(
            f"a dictionary has the key {key!r}; in a bundle the keys of dictionaries are strings and integers"
        )
    return key


def is_key(array: Any) -> bool:
    """Returns whether an array, or an abstract value, holds typed PRNG keys."""
    return jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)


def dtype_of(aval: Any) -> str:
    """Returns the dtype of an abstract value as a bundle names it: numpy's name, or `key<kind>`."""
    return f"key<{jax_internals.key_kind(aval.dtype)}>" if is_key(aval) else aval.dtype.name


def aval_of(leaf: Leaf) -> Any:
    """Returns the abstract value of a leaf; the inverse of `dtype_of`."""
    if leaf.dtype.startswith("key<"):
        dtype = jax.eval_shape(lambda: jax.random.key(0, impl=leaf.dtype[4:-1])).dtype
        return jax.core.ShapedArray(leaf.shape, dtype, memory_space=memory_space(leaf.memory_kind))
    return jax.core.ShapedArray(
        leaf.shape,
        jax.numpy.dtype(leaf.dtype),
        weak_type=leaf.weak_type,
        memory_space=memory_space(leaf.memory_kind),
    )
