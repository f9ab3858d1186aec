"""Trees of arrays with named leaves: the structure of arguments and results in a bundle.

A tree is a dict, an `OrderedDict`, a list, a tuple, None, or a number, which represents a leaf. The name of a
leaf is the name of its root and then, for each level, a dot and one of

- a word, for a key that is one: `params.w`;
- a number, for a position in a list or tuple, and for a key that is a number: `blocks.0`;
- a JSON string, for every other key: `params."linear/~/w"`.

So no two leaves of a tree have the same name, and the name alone finds the leaf. Never imports jax.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

Tree = Any
"""A tree with a number for each leaf."""

MAX_DEPTH = 64
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KINDS: dict[Any, str] = {OrderedDict: "record", dict: "dict", list: "list", tuple: "tuple"}


class TreeError(ValueError):
    """Error of JSON that describes no tree."""


def step(key: str | int) -> str:
    """Returns the text of a key or a position in a name, with the dot in front of it."""
    if isinstance(key, str) and not _WORD.fullmatch(key):
        return f".{json.dumps(key)}"
    return f".{key}"


def leaf_names(root: str, tree: Tree) -> Iterator[tuple[str, int]]:
    """Yields the name and the number of each leaf, in the order of the tree."""
    if isinstance(tree, dict):
        for key, child in tree.items():
            yield from leaf_names(root + step(key), child)
    elif isinstance(tree, (list, tuple)):
        for n, child in enumerate(tree):
            yield from leaf_names(root + step(n), child)
    elif tree is not None:
        yield root, tree


def to_json(tree: Tree) -> Any:
    """Returns the tree as JSON: a number, null, or an object of one entry that names the kind of node."""
    if tree is None or isinstance(tree, int):
        return tree
    kind = _KINDS[type(tree)]
    if isinstance(tree, dict):
        return {kind: [[key, to_json(child)] for key, child in tree.items()]}
    return {kind: [to_json(child) for child in tree]}


def from_json(value: Any, depth: int = 0) -> Tree:
    """Reads the output of `to_json`.

    Raises:
      TreeError: it describes no tree; the message continues "the tree ...".
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if depth == MAX_DEPTH:
        raise TreeError(f"is nested more than {MAX_DEPTH} levels deep")
    if not isinstance(value, dict) or len(value) != 1:
        raise TreeError("has a node that is neither a number, nor null, nor an object of one entry")
    ((kind, children),) = value.items()
    if kind not in _KINDS.values() or not isinstance(children, list):
        raise TreeError("has a node of a kind that is not record, dict, list or tuple")
    if kind in ("list", "tuple"):
        nodes = [from_json(child, depth + 1) for child in children]
        return nodes if kind == "list" else tuple(nodes)
    return _keyed(children, OrderedDict() if kind == "record" else {}, depth)


def _keyed(children: list[Any], tree: dict[str | int, Tree], depth: int) -> Tree:
    for pair in children:
        match pair:
            case [str() | int() as key, child] if not isinstance(key, bool):
                if key in tree:
                    raise TreeError("has a dictionary with a duplicate key")
                tree[key] = from_json(child, depth + 1)
            case _:
                raise TreeError("has a dictionary with an entry that is not a pair of a key and a tree")
    if len({type(key) for key in tree}) > 1:
        raise TreeError("has a dictionary with keys of different types")
    # JAX flattens plain dictionaries in the order of their keys, and ordered ones in their own.
    if not isinstance(tree, OrderedDict) and list(tree) != sorted(tree):
        raise TreeError("has a dictionary with keys out of order")
    return tree
