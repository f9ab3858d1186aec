"""Plain values, which travel as JSON, and trees of arrays in them.

A tree is written with the numbers of its arrays: `{"d": {"w": 0, "b": 1}}` for a dictionary, `{"l": [0, 1]}`
for a list, `{"t": [0, 1]}` for a tuple, `null` for None. Whoever reads it makes these four and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

_DEEP = 64
"""How deep values may be."""

_LONG = 1024
"""The most bits of an integer: Python writes no longer ones than some thousands of digits."""


# `json.dumps` makes an encoder for each text.
_written = json.JSONEncoder(separators=(",", ":")).encode


class TooLargeError(TypeError):
    """A value has more JSON than it may."""


def encode(value: Any, where: str, most: int | None = None) -> bytes:
    """A value as JSON: None, bool, int, float, str, and lists, tuples and dictionaries of these.

    Args:
      value: the value; tuples become lists.
      where: what it is called in messages.
      most: how many bytes it may have; by default any number.

    Raises:
      TypeError: something in it is no such value; says where it is.
      TooLargeError: it is larger.
    """
    budget = _JsonBudget(where, most)
    _check(value, where, 0, budget)
    text = _written(value).encode()
    budget.take(len(text) - budget.taken)
    return text


class _JsonBudget:
    """Counts bytes while a value is looked through, so that none is written which is too large."""

    def __init__(self, where: str, most: int | None) -> None:
        self._where = where
        self._most = most
        self.taken = 0

    def take(self, size: int) -> None:
        """Counts some.

        Raises:
          TooLargeError: there are too many.
        """
        self.taken += size
        if self._most is not None and self.taken > self._most:
            raise TooLargeError(f"{self._where} is more than {self._most} bytes of JSON")


def decode(text: bytes) -> Any:
    """The reverse of `encode`."""
    return json.loads(text)


def _check_depth(where: str, depth: int) -> None:
    if depth > _DEEP:
        raise TypeError(f"{where[:100]}... is more than {_DEEP} levels deep")


def _check(value: Any, where: str, depth: int, budget: _JsonBudget) -> None:
    _check_depth(where, depth)
    # With the comma after it, or the brackets around it.
    budget.take(2 + len(value) if type(value) is str else 2)
    match value:
        case None | bool() | int() | float() | str():
            if type(value) is int and value.bit_length() > _LONG:
                raise TypeError(f"{where} is an integer of more than {_LONG} bits")
            # A subclass, as of an enumeration, would come back as another type.
            if type(value) in (type(None), bool, int, float, str):
                return
        case list() | tuple() if type(value) in (list, tuple):
            for n, each in enumerate(value):
                _check(each, f"{where}[{n}]", depth + 1, budget)
            return
        case dict() if type(value) is dict:
            for key, each in value.items():
                if type(key) is not str:
                    raise TypeError(f"{where} has the key {key!r}: JSON has only strings")
                budget.take(len(key))
                _check(each, f"{where}[{key!r}]", depth + 1, budget)
            return
    kind = type(value)
    number = "; say float(...) or .item()" if getattr(value, "shape", None) == () else ""
    raise TypeError(f"{where} is of type {kind.__module__}.{kind.__qualname__}, which is not JSON{number}")


def tree_of(value: Any, where: str, is_leaf: Callable[[Any], bool], leaves: list[Any], depth: int = 0) -> Any:
    """A tree as JSON; its leaves are appended to `leaves`.

    Raises:
      TypeError: there is something else in it; says where.
    """
    if is_leaf(value):
        leaves.append(value)
        return len(leaves) - 1
    _check_depth(where, depth)
    kind = type(value)
    if value is None:
        return None
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise TypeError(f"{where} has the key {key!r}: expected strings")
        # As JAX has them.
        items = ((key, value[key]) for key in sorted(value))
        return {
            "d": {key: tree_of(each, f"{where}[{key!r}]", is_leaf, leaves, depth + 1) for key, each in items}
        }
    if kind in (list, tuple):
        each_of = [tree_of(each, f"{where}[{n}]", is_leaf, leaves, depth + 1) for n, each in enumerate(value)]
        return {"l" if kind is list else "t": each_of}
    raise TypeError(
        f"{where} is of type {kind.__module__}.{kind.__qualname__}: expected arrays, or dictionaries, lists "
        "and tuples of them"
    )


def build(tree: Any, leaves: Sequence[Any]) -> Any:
    """The tree that `tree_of` was told."""
    if tree is None:
        return None
    if isinstance(tree, int):
        return leaves[tree]
    ((kind, parts),) = tree.items()
    if kind == "d":
        return {key: build(each, leaves) for key, each in parts.items()}
    made = [build(each, leaves) for each in parts]
    return tuple(made) if kind == "t" else made


def matched(tree: Any, value: Any, where: str) -> dict[int, tuple[str, Any]]:
    """What a value has where a tree has arrays, by their numbers, with what it is called.

    Raises:
      TypeError: it has another structure; says where.
    """
    if isinstance(tree, int):
        return {tree: (where, value)}
    if tree is None:
        if value is not None:
            raise TypeError(f"{where} is of type {type(value).__name__}: expected None")
        return {}
    ((kind, parts),) = tree.items()
    if kind == "d":
        if not isinstance(value, dict) or set(value) != set(parts):
            got = (
                f"keys {sorted(value, key=str)}"
                if isinstance(value, dict)
                else f"type {type(value).__name__}"
            )
            raise TypeError(f"{where} is of {got}: expected a dictionary with the keys {sorted(parts)}")
        pairs = [(each, value[key], f"{where}[{key!r}]") for key, each in parts.items()]
    else:
        if not isinstance(value, list | tuple) or len(value) != len(parts):
            got = (
                f"{len(value)} elements"
                if isinstance(value, list | tuple)
                else f"type {type(value).__name__}"
            )
            raise TypeError(f"{where} is of {got}: expected a tuple or list of {len(parts)}")
        pairs = [(each, value[n], f"{where}[{n}]") for n, each in enumerate(parts)]
    found: dict[int, tuple[str, Any]] = {}
    for each, part, name in pairs:
        found |= matched(each, part, name)
    return found
