"""Reader of checkpoints with Orbax alone, in a process without pathways; prints their contents.

  python read_checkpoints.py FOLDER ...

Each folder is read in all ways of users. The output is a JSON line for each: the names of the leaves
with dtype, shape and a checksum of the bytes.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as v1


def description(tree) -> dict:
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = "/".join(jax.tree_util.keystr((key,), simple=True) for key in path)
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if isinstance(leaf, str):
            leaves[name] = leaf
            continue
        array = np.asarray(leaf)
        leaves[name] = [array.dtype.name, list(array.shape), zlib.crc32(array.tobytes())]
    return leaves


def main() -> None:
    for folder in map(Path, sys.argv[1:]):
        wanted = ocp.args.Composite(state=ocp.args.StandardRestore())
        seen = {
            "v1": v1.load(folder),
            "StandardCheckpointer": ocp.StandardCheckpointer().restore(folder / "state"),
            "PyTreeCheckpointer": ocp.PyTreeCheckpointer().restore(folder / "state"),
            "CheckpointManager": ocp.CheckpointManager(folder.parent).restore(int(folder.name), args=wanted)[
                "state"
            ],
        }
        first = description(seen["v1"])
        for name, tree in seen.items():
            assert description(tree) == first, (name, description(tree), first)
        print(json.dumps(first))
    assert "pathways" not in sys.modules


if __name__ == "__main__":
    main()
