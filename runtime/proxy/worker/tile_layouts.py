"""Shardings of XLA as layouts of arrays on hosts."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pathways.runtime.hosts.protocol.messages import DeviceLayout
from pathways.runtime.xla import ifrt


def layout_of(
    devices: Sequence[int], sharding: ifrt.HloSharding | None, rank: int, memory_kind: str | None
) -> DeviceLayout:
    """Returns the layout of arrays with a sharding of XLA, over devices by their ids.

    Each dimension has one axis, as large as the number of its parts. The devices are in the order of these
    axes, which may differ from the order of the sharding. Summands of elements look like copies here.

    Args:
      sharding: None for arrays that each device has as a whole.

    Raises:
      ValueError: it is a sharding of no array of that rank, as of a manual computation.
    """
    if len(devices) == 1 or sharding is None or ifrt.is_replicated(sharding) or sharding.is_unreduced():
        return DeviceLayout(tuple(devices), (len(devices),), ("all",), ((),) * rank, memory_kind)
    order, sizes = _tiles(ifrt.serialize_sharding(sharding))
    if len(sizes) < rank or len(order) != len(devices):
        raise ValueError(f"the sharding {sharding} is not one of {rank} dimensions"[:1000])
    names = tuple(f"d{n}" for n in range(len(sizes)))
    dims = tuple((name,) for name in names[:rank])
    return DeviceLayout(tuple(devices[n] for n in order), sizes, names, dims, memory_kind)


@functools.lru_cache(maxsize=1024)
def _tiles(serialized: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the positions of devices in the order of tiles, and the sizes of the axes of tiles."""
    sharding = ifrt.hlo_sharding(serialized)
    if sharding.is_manual():
        raise ValueError("an array cannot have a manual sharding")
    order, sizes = ifrt.tiles_of(sharding)
    return tuple(order), tuple(sizes)
