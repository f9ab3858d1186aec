"""State of a version as hosts write it to disk from their memory, without arrays on devices."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from pathways.compiler.data.host_checkpoints import SnapshotArray, SnapshotBlock, SnapshotVersion
from pathways.compiler.resilience.host_layouts import HostArrayLayout, Rows
from pathways.runtime.hosts.protocol.programs import WHOLE


def stored_leaves(
    leaves: Sequence[Any], version: SnapshotVersion, owners: Mapping[str, Sequence[int]]
) -> list[Any]:
    """Returns the leaves of a state with arrays in the memory of hosts in place of their layouts.

    Layouts stay of arrays that a file cannot have as they are: keys, and those in blocks of several shapes.

    Args:
      leaves: the layout of each array on hosts; any other leaf itself.
      version: the version.
      owners: the hosts that have each block.

    Raises:
      KeyError: a block is in no memory any more.
    """
    loads: collections.Counter[int] = collections.Counter()
    return [_stored(leaf, version, owners, loads) for leaf in leaves]


def _stored(
    leaf: Any, version: SnapshotVersion, owners: Mapping[str, Sequence[int]], loads: collections.Counter[int]
) -> Any:
    if not isinstance(leaf, HostArrayLayout) or not leaf.sizes:
        return leaf
    blocks = _cover(leaf)
    shapes = {tuple(stop - start for start, stop in rows) for rows in blocks.values()}
    is_key = jax.dtypes.issubdtype(leaf.aval.dtype, jax.dtypes.extended)
    if is_key or len(shapes) != 1 or not leaf.aval.size:
        return leaf
    (shape,) = shapes
    found = []
    for name, rows in blocks.items():
        if not owners.get(name):
            raise KeyError(f"{name} is in no memory any more")
        # Of the hosts that have a block, the one with least to write.
        host = min(owners[name], key=lambda host: loads[host])
        loads[host] += leaf.dtype.itemsize * math.prod(shape)
        found.append(SnapshotBlock(host, name, tuple(start for start, _ in rows)))
    return SnapshotArray(version, leaf.aval.shape, leaf.dtype, shape, tuple(found))


def _cover(layout: HostArrayLayout) -> dict[str, Rows]:
    """Returns blocks that are all of an array, by their names, and do not overlap."""
    whole = [place for place in layout.places if place.part == WHOLE][:1]
    first = layout.places[0].part
    # Replicas may have cut it differently.
    cut = {
        place.part: place
        for place in layout.places
        if (place.part.count, place.part.dim) == (first.count, first.dim)
    }
    return {block.name: block.rows for place in whole or cut.values() for block in place.blocks}
