"""The types of arrays on hosts, with their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from pathways.runtime.hosts.client.array import abstract_sharding
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import Location


class PlacedType(jax.ShapeDtypeStruct):
    """Type of an array on hosts, with their controller and its locations there."""

    def __init__(self, aval: Any, controller: HostSession, locations: Sequence[Location]) -> None:
        # Locations hold the words of typed PRNG keys, which have one more dimension.
        is_key = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
        sharding = abstract_sharding(locations[0]) if locations and not is_key else None
        super().__init__(aval.shape, aval.dtype, sharding=sharding, weak_type=bool(aval.weak_type))
        self.controller = controller
        self.locations = tuple(locations)
