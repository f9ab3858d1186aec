"""Types of arguments as a tree: neighbours of equal types are one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pathways.dialect.operations.operation import counted
from pathways.runtime.resources.tables import size

_PART = re.compile(r"\['(?:[^'\\]|\\.)*'\]|\[[^\]]*\]|\.?[^.\[]+")
"""Part of the name of an argument, such as `state`, `[0]`, `['kernel']` or `.mu`."""

_Node = dict[str, Any]
"""The nodes below a node by their parts of names; at the end a type and its bytes."""


def type_tree(types: Mapping[str, tuple[str, int]]) -> list[tuple[str, str]]:
    """Returns the lines of a tree, each with the type of an array, or the number of arrays and their size.

    Args:
      types: the type and the bytes of each array, by its name, such as `params[0]['kernel']`.
    """
    root: _Node = {}
    for name, of in types.items():
        *above, last = _PART.findall(name) or [name]
        node = root
        for part in above:
            node = node.setdefault(part, {})
        node[last] = of
    return list(_lines(root, ""))


def _lines(node: _Node, indent: str) -> Iterator[tuple[str, str]]:
    """Yields the lines below a node."""
    for parts, below in _groups(node):
        label, times = _label(parts), len(parts)
        # A node with one group below needs no separate line.
        while isinstance(below, dict) and len(inner := _groups(below)) == 1:
            parts, below = inner[0]
            label += _label(parts)
            times *= len(parts)
        if not isinstance(below, dict):
            yield f"{indent}{label}", below[0]
            continue
        arrays, nbytes = _total(below)
        each = f"{times} x " if times > 1 else ""
        yield f"{indent}{label}", f"{each}{counted(arrays, 'array')}, {size(nbytes * times)}"
        yield from _lines(below, f"{indent}  ")


def _groups(node: _Node) -> list[tuple[list[str], Any]]:
    """Returns runs of neighbours that are equal, each with the entries below it."""
    groups: list[tuple[list[str], Any]] = []
    for part, below in node.items():
        if groups and groups[-1][1] == below:
            groups[-1][0].append(part)
        else:
            groups.append(([part], below))
    return groups


def _label(parts: Sequence[str]) -> str:
    """Returns the name of neighbours: `[0..11]`, `{.mu, .nu}`, or the first and the last."""
    numbers = [int(part[1:-1]) for part in parts if part[1:-1].isdecimal()]
    if len(parts) > 1 and numbers and numbers == [*range(numbers[0], numbers[0] + len(parts))]:
        return f"[{numbers[0]}..{numbers[-1]}]"
    if len(parts) == 1:
        return parts[0]
    return f"{{{', '.join(parts) if len(parts) < 4 else f'{parts[0]} to {parts[-1]}'}}}"


def _total(node: Any) -> tuple[int, int]:
    """Returns the number of arrays below a node, and their bytes."""
    if not isinstance(node, dict):
        return 1, node[1]
    totals = [_total(below) for below in node.values()]
    return sum(arrays for arrays, _ in totals), sum(nbytes for _, nbytes in totals)
