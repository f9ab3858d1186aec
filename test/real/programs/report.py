"""Report of the values of a program: one line each, floats as text that is equal iff their bits are."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np


def report(name: str, tree: Any) -> None:
    """Prints the sum of each array of a tree, and a digest of its bits."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        value = np.asarray(leaf)
        total = float(np.sum(value, dtype=np.float64))
        digest = hashlib.sha256(value.tobytes()).hexdigest()[:16]
        print(f"value {name}{jax.tree_util.keystr(path)} = {total!r} {digest}", flush=True)
