"""State of a version as hosts write it to disk from their memory, without arrays on devices."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from pathways.compiler.data.host_checkpoints import SnapshotArray, SnapshotBlock, SnapshotVersion
from pathways.compiler.resilience.host_layouts import HostArrayLayout, Rows
from pathways.runtime.hosts.protocol.programs import WHOLE

_MAX_CHUNKS = 64
"""Limit on chunks of a file per block of an array."""


def stored_leaves(
    leaves: Sequence[Any], version: SnapshotVersion, owners: Mapping[str, Sequence[int]]
) -> list[Any]:
    """Returns the leaves of a state with arrays in the memory of hosts in place of their layouts.

    Layouts stay of arrays that a file cannot have as they are: keys, and those in blocks that would be in too
    many chunks of one shape.

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
    is_key = jax.dtypes.issubdtype(leaf.aval.dtype, jax.dtypes.extended)
    if is_key or not leaf.aval.size:
        return leaf
    # Hosts write to no chunk together, and a file has chunks of one shape alone.
    chunk = tuple(math.gcd(*itertools.chain(*sides)) for sides in zip(*blocks.values(), strict=True))
    if leaf.aval.size > math.prod(chunk) * len(blocks) * _MAX_CHUNKS:
        return leaf
    found = []
    for name, rows in blocks.items():
        if not owners.get(name):
            raise KeyError(f"{name} is in no memory any more")
        # Of the hosts that have a block, the one with least to write.
        host = min(owners[name], key=lambda host: loads[host])
        loads[host] += leaf.dtype.itemsize * math.prod(stop - start for start, stop in rows)
        found.append(SnapshotBlock(host, name, tuple(start for start, _ in rows)))
    return SnapshotArray(version, leaf.aval.shape, leaf.dtype, chunk, tuple(found))


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
