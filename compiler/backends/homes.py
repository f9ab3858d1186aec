"""Homes of arguments: the slices of arrays of this process and of hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from pathways.compiler.backends.placed_type import PlacedType
from pathways.compiler.backends.replicated import AXIS
from pathways.compiler.frontend.arguments import ArgumentHome
from pathways.compiler.frontend.specs import dims_of
from pathways.runtime.clusters.connect import controller
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.local.devices import process_cluster
from pathways.runtime.resources.manager import Binding
from pathways.runtime.resources.virtual import VirtualSlice


def homes_of(leaves: Sequence[Any]) -> tuple[ArgumentHome | None, ...]:
    """Returns the slice and the layout of each argument; None for one that is on no slice.

    Arguments may be arrays, or types with a sharding. One whose rows replicas share is on two or more slices,
    and counts as one that is on none.
    """
    hosts = controller()
    # Slices and arrays that move to another island do so while the lock is held.
    with contextlib.nullcontext() if hosts is None else hosts.order:
        return _homes_of(leaves)


def _homes_of(leaves: Sequence[Any]) -> tuple[ArgumentHome | None, ...]:
    manager = process_cluster.manager()
    islands = {device.id: device.island for device in manager.cluster.devices}
    slices: dict[Hashable, VirtualSlice] = {}
    holders = manager.holders()
    for slice_ in holders:
        running = slice_.running
        replicas = [holders[replica] for replica in running if replica in holders]
        # First: if a single replica runs, its slice represents the slice of replica 0.
        if len(slice_.replicas) > 1 and len(replicas) == len(running):
            slices.setdefault(_mesh_key(replicas), slice_)
    # Programs may share devices: then the devices of an array do not determine its slice. Slices of one
    # replica are last, since arrays of replicas are on all of them.
    for slice_, binding in sorted(holders.items(), key=lambda holder: len(holder[0].replicas) > 1):
        slices.setdefault(_mesh_key([binding]), slice_)
    named: dict[str, VirtualSlice] = {}

    def home(leaf: Any) -> ArgumentHome | None:
        sharding = getattr(leaf, "sharding", None)
        if isinstance(leaf, Array | PlacedType):
            if not leaf.locations:
                return None
            location = leaf.locations[0]
            layout = location.placement
            # No slice has the key of a block of an array.
            island = f"island{location.gang.number}" if location.block.count == 1 else None
            key = (island, layout.devices, layout.mesh, layout.axis_names)
        elif isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            mesh = sharding.mesh
            ids = tuple(device.id for device in mesh.devices.flat)
            key = (islands.get(ids[0]) if ids else None, ids, mesh.devices.shape, mesh.axis_names)
        else:
            return None
        slice_ = slices.get(key)
        # A module names its slices.
        if slice_ is None or named.setdefault(slice_.name, slice_) is not slice_:
            return None
        if sharding is not None and any(AXIS in axes for axes in dims_of(sharding.spec).dims):
            return None
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)
        return ArgumentHome(slice_, None if is_key or sharding is None else sharding.spec)

    return tuple(map(home, leaves))


def _mesh_key(replicas: Sequence[Binding]) -> Hashable:
    """Returns the key of a slice: island, device ids, shape and axes of the mesh as callers see it."""
    first = replicas[0]
    ids = tuple(device.id for binding in replicas for device in binding.devices)
    if len(replicas) == 1:
        return first.island, ids, first.shape, first.axis_names
    return first.island, ids, (len(replicas), *first.shape), (AXIS, *first.axis_names)
