"""Checkpoints of arrays on hosts.

Orbax does the common work of all checkpoints: folders, metadata, the merge of the hosts' files, and the
commit. For leaves on hosts it calls a handler of `orbax_handlers`, which has hosts write and read their
shards.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from pathways.compiler.backends.placed_type import PlacedType
from pathways.runtime.data.host_files import HostSave, RestoredLeaf, SnapshotArray, StoredSave
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.protocol.shards import different_shards
from pathways.runtime.xla.pjrt import memory_space


@dataclasses.dataclass(frozen=True)
class SavedLeaf:
    """Stand-in for an array on hosts that Orbax saves."""

    save: HostSave
    number: int


def _is_even(array: Array) -> bool:
    """Returns whether all shards of an array have one shape, as the file format requires."""
    for location in array.locations:
        shards = different_shards(location.block.shape(array.shape), location.placement)
        if len({tuple(bounds.stop - bounds.start for bounds in dims) for _, dims in shards}) > 1:
            return False
    return True


def wanted_on_hosts(leaf: Any, controller: HostSession | None) -> RestoredLeaf | None:
    """Returns the request to Orbax for a leaf that is restored on hosts; None for others."""
    if controller is None:
        return None
    if isinstance(leaf, Array):
        is_there = leaf.is_of(controller) and not leaf.is_deleted()
    else:
        is_there = isinstance(leaf, PlacedType) and leaf.controller is controller
    if not is_there:
        return None
    locations = leaf.locations
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended) or not locations:
        return None
    aval = jax.core.ShapedArray(
        leaf.shape,
        leaf.dtype,
        weak_type=bool(getattr(leaf, "weak_type", False)),
        memory_space=memory_space(locations[0].placement.memory_kind),
    )
    return RestoredLeaf(aval, controller, tuple(locations))


def is_written_there(leaf: Any, controller: HostSession | None) -> bool:
    """Returns whether hosts write a leaf themselves; typed PRNG keys are small, and the file format lacks
    them."""
    if controller is None or not isinstance(leaf, Array) or not leaf.is_of(controller):
        return False
    return not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended) and _is_even(leaf)


def saved_by_hosts(tree: Any, controller: HostSession | None) -> tuple[Any, HostSave | None]:
    """Copies the arrays of a tree that hosts write themselves; returns the tree with stand-ins for them.

    A tree with arrays of a version in the memory of hosts has no other ones that hosts write.

    Raises:
      HostError: a host was lost.
      RuntimeError: an array was deleted.
    """
    named, structure = jax.tree.flatten_with_path(tree)
    leaves = [leaf for _, leaf in named]
    save: HostSave
    if stored := [n for n, leaf in enumerate(leaves) if isinstance(leaf, SnapshotArray)]:
        numbers = stored
        save = StoredSave([leaves[n] for n in numbers])
    else:
        numbers = [n for n, leaf in enumerate(leaves) if is_written_there(leaf, controller)]
        if controller is None or not numbers:
            return tree, None
        names = [f"state{jax.tree_util.keystr(named[n][0])}" for n in numbers]
        save = HostSave(controller, [leaves[n] for n in numbers], names)
    for number, n in enumerate(numbers):
        leaves[n] = SavedLeaf(save, number)
    return jax.tree.unflatten(structure, leaves), save
