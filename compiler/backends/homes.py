"""Where arguments live: the slices of arrays of this process and of hosts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from pathways.compiler.backends.placed_type import PlacedType
from pathways.compiler.frontend.interface import ArgumentHome
from pathways.runtime.hosts.cluster.array import Array
from pathways.runtime.local.devices import session
from pathways.runtime.resources.virtual import VirtualSlice


def homes_of(leaves: Sequence[Any]) -> tuple[ArgumentHome | None, ...]:
    """The slice that each argument lives on, and how it lies there; None for one that lives on none.

    Arguments may be arrays, or types that say where an array is to be. One whose rows replicas share lives on
    several slices, and is taken for one that lives on none.
    """
    manager = session.manager()
    islands = {device.id: device.island for device in manager.cluster.devices}
    slices: dict[Hashable, VirtualSlice] = {}
    for slice_, binding in manager.holders().items():
        ids = tuple(device.id for device in binding.devices)
        # Different programs may take turns on devices: then arrays do not tell whose they are.
        slices.setdefault((binding.island, ids, binding.shape, binding.axis_names), slice_)
    named: dict[str, VirtualSlice] = {}

    def home(leaf: Any) -> ArgumentHome | None:
        sharding = getattr(leaf, "sharding", None)
        if isinstance(leaf, Array | PlacedType):
            if not leaf.locations:
                return None
            where = leaf.locations[0]
            layout = where.placement
            # Of a part of an array no slice has this key.
            island = f"island{where.gang.number}" if where.part.count == 1 else None
            key = (island, layout.devices, layout.mesh, layout.axis_names)
        elif isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            mesh = sharding.mesh
            ids = tuple(device.id for device in mesh.devices.flat)
            key = (islands.get(ids[0]) if ids else None, ids, mesh.devices.shape, mesh.axis_names)
        else:
            return None
        slice_ = slices.get(key)
        # A module has slices by their names.
        if slice_ is None or named.setdefault(slice_.name, slice_) is not slice_:
            return None
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)
        return ArgumentHome(slice_, None if is_key or sharding is None else sharding.spec)

    return tuple(map(home, leaves))
