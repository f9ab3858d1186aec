"""Plain values, which are sent as JSON, and trees of arrays.

A tree is written with the indices of its arrays: `{"d": {"w": 0, "b": 1}}` for a dictionary, `{"l": [0, 1]}`
for a list, `{"t": [0, 1]}` for a tuple, `null` for None. The reader builds these four types and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

_MAX_DEPTH = 64
"""Limit on the nesting of values."""

_MAX_BITS = 1024
"""Limit on the bits of an integer: Python converts no more than some thousands of digits."""


# `json.dumps` with separators would create an encoder for each call.
_written = json.JSONEncoder(separators=(",", ":")).encode


class TooLargeError(TypeError):
    """Error of a value whose JSON is too long."""


def encode(value: Any, name: str, max_bytes: int | None = None) -> bytes:
    """Encodes a value as JSON: None, bool, int, float, str, and lists, tuples and dictionaries of these.

    Args:
      value: the value; tuples become lists.
      name: the name of the value in messages.
      max_bytes: limit on its JSON; by default there is none.

    Raises:
      TypeError: something in it is not such a value; the message says where.
      TooLargeError: its JSON is too long.
    """
    budget = _JsonBudget(name, max_bytes)
    _check(value, name, 0, budget)
    text = _written(value).encode()
    budget.add(len(text) - budget.used)
    return text


class _JsonBudget:
    """Lower bound on the bytes of a value's JSON, counted before it is written, so that no huge text is."""

    def __init__(self, name: str, max_bytes: int | None) -> None:
        self._name = name
        self._max_bytes = max_bytes
        self.used = 0

    def add(self, size: int) -> None:
        """Counts bytes.

        Raises:
          TooLargeError: there are too many.
        """
        self.used += size
        if self._max_bytes is not None and self.used > self._max_bytes:
            raise TooLargeError(f"{self._name} is more than {self._max_bytes} bytes of JSON")


def decode(text: bytes) -> Any:
    """Decodes a value that `encode` wrote."""
    return json.loads(text)


def _check_depth(name: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise TypeError(f"{name[:100]}... is more than {_MAX_DEPTH} levels deep")


def _check(value: Any, name: str, depth: int, budget: _JsonBudget) -> None:
    _check_depth(name, depth)
    # Two bytes at least: a digit and a comma, brackets, or quotes.
    budget.add(2 + len(value) if type(value) is str else 2)
    match value:
        case None | bool() | int() | float() | str():
            if type(value) is int and value.bit_length() > _MAX_BITS:
                raise TypeError(f"{name} is an integer of more than {_MAX_BITS} bits")
            # A subclass, such as a member of an enumeration, would be decoded as another type.
            if type(value) in (type(None), bool, int, float, str):
                return
        case list() | tuple() if type(value) in (list, tuple):
            for n, each in enumerate(value):
                _check(each, f"{name}[{n}]", depth + 1, budget)
            return
        case dict() if type(value) is dict:
            for key, each in value.items():
                if type(key) is not str:
                    raise TypeError(f"{name} has the key {key!r}: JSON has only strings")
                budget.add(len(key))
                _check(each, f"{name}[{key!r}]", depth + 1, budget)
            return
    kind = type(value)
    number = "; use float(...) or .item()" if getattr(value, "shape", None) == () else ""
    raise TypeError(f"{name} is of type {kind.__module__}.{kind.__qualname__}, which is not JSON{number}")


def tree_of(value: Any, name: str, is_leaf: Callable[[Any], bool], leaves: list[Any], depth: int = 0) -> Any:
    """Returns a tree as JSON; its leaves are appended to `leaves`.

    Raises:
      TypeError: something in it is neither a leaf nor a tree; the message says where.
    """
    if is_leaf(value):
        leaves.append(value)
        return len(leaves) - 1
    _check_depth(name, depth)
    kind = type(value)
    if value is None:
        return None
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise TypeError(f"{name} has the key {key!r}: expected strings")
        # In JAX's order of leaves.
        items = ((key, value[key]) for key in sorted(value))
        return {
            "d": {key: tree_of(each, f"{name}[{key!r}]", is_leaf, leaves, depth + 1) for key, each in items}
        }
    if kind in (list, tuple):
        each_of = [tree_of(each, f"{name}[{n}]", is_leaf, leaves, depth + 1) for n, each in enumerate(value)]
        return {"l" if kind is list else "t": each_of}
    raise TypeError(
        f"{name} is of type {kind.__module__}.{kind.__qualname__}: expected arrays, or dictionaries, lists "
        "and tuples of them"
    )


def build(tree: Any, leaves: Sequence[Any]) -> Any:
    """Builds the tree that `tree_of` described."""
    if tree is None:
        return None
    if isinstance(tree, int):
        return leaves[tree]
    ((kind, children),) = tree.items()
    if kind == "d":
        return {key: build(child, leaves) for key, child in children.items()}
    built = [build(child, leaves) for child in children]
    return tuple(built) if kind == "t" else built


def matched(tree: Any, value: Any, name: str) -> dict[int, tuple[str, Any]]:
    """Returns the leaves of a value at the arrays of a tree: names in messages and values, by index.

    Raises:
      TypeError: the value has another structure; the message says where.
    """
    if isinstance(tree, int):
        return {tree: (name, value)}
    if tree is None:
        if value is not None:
            raise TypeError(f"{name} is of type {type(value).__name__}: expected None")
        return {}
    ((kind, children),) = tree.items()
    if kind == "d":
        if not isinstance(value, dict) or set(value) != set(children):
            got = (
                f"keys {sorted(value, key=str)}"
                if isinstance(value, dict)
                else f"type {type(value).__name__}"
            )
            raise TypeError(f"{name} is of {got}: expected a dictionary with the keys {sorted(children)}")
        items = [(child, value[key], f"{name}[{key!r}]") for key, child in children.items()]
    else:
        if not isinstance(value, list | tuple) or len(value) != len(children):
            got = (
                f"{len(value)} elements"
                if isinstance(value, list | tuple)
                else f"type {type(value).__name__}"
            )
            raise TypeError(f"{name} is of {got}: expected a tuple or list of {len(children)}")
        items = [(child, value[n], f"{name}[{n}]") for n, child in enumerate(children)]
    leaves: dict[int, tuple[str, Any]] = {}
    for child, element, child_name in items:
        leaves |= matched(child, element, child_name)
    return leaves
