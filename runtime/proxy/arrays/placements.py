"""Types of the arrays of clients, and their placements on devices."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.experimental.layout import Layout

from pathways.runtime.plan.block_rows import Rows
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.xla import ifrt

STRING = np.dtype(np.dtypes.StringDType())

DTYPES: Mapping[str, np.dtype[Any]] = {
    "PRED": np.dtype(bool),
    **{f"S{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "C64": np.dtype(np.complex64),
    "C128": np.dtype(np.complex128),
    **{
        f"{letter}{bits}": np.dtype(getattr(ml_dtypes, f"{name}{bits}"))
        for letter, name in (("S", "int"), ("U", "uint"))
        for bits in (1, 2, 4)
        if hasattr(ml_dtypes, f"{name}{bits}")
    },
    **{
        f"F{name}": np.dtype(getattr(ml_dtypes, f"float{name[0]}_{name[1:].lower()}"))
        for name in (
            "8E3M4",
            "8E4M3",
            "8E4M3FN",
            "8E4M3B11FNUZ",
            "8E4M3FNUZ",
            "8E5M2",
            "8E5M2FNUZ",
            "8E8M0FNU",
            "4E2M1FN",
            "6E2M3FN",
            "6E3M2FN",
        )
    },
    "STRING": STRING,
}
"""Types of elements by their names in the protocol."""

_MAX_RANK = 64
_MAX_SIZE = 1 << 56
"""Elements of an array: XLA counts bytes with 63 bits."""


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayPlacement:
    """Placement of an array: devices, and the division into a shard for each of them.

    Attributes:
      devices: the devices, in the order of the shards.
      memory_kind: a kind of memory of these devices; None for their default.
      hlo: the sharding; None for a client that gives the shapes of shards alone.
      shard_shape: the shape of each shard, from such a client.
    """

    devices: tuple[jax.Device, ...]
    memory_kind: str | None
    hlo: ifrt.HloSharding | None
    shard_shape: tuple[int, ...] | None = None

    @functools.cached_property
    def sharding(self) -> jax.sharding.Sharding:
        """The sharding for JAX; a replicated placeholder if only the shapes of shards are known."""
        return ifrt.sharding_on(self.devices, self.hlo or ifrt.replicated(), self.memory_kind)

    def shard_shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Returns the shape of each shard of an array; None if the client has not given it.

        Raises:
          ValueError: the sharding does not divide the shape.
          StatusError: the sharding has another number of dimensions.
        """
        if len(self.devices) == 1:
            return shape
        return self.shard_shape if self.hlo is None else _shard_shape(self.hlo, shape)

    def rows_of(self, shape: tuple[int, ...]) -> list[Rows]:
        """Returns the rows of the shard of each device; the sharding must be known.

        Raises:
          ValueError: the sharding does not divide the shape.
          StatusError: the sharding has another number of dimensions.
        """
        sizes = self.shard_shape_of(shape)
        assert sizes is not None
        if self.is_replicated:
            return [tuple((0, size) for size in shape)] * len(self.devices)
        order, counts = ifrt.tiles_of(self.hlo)
        tiles = dict(zip(order, np.ndindex(*counts), strict=True))
        return [
            tuple((at * size, (at + 1) * size) for at, size in zip(tiles[n], sizes, strict=False))
            for n in range(len(self.devices))
        ]

    @property
    def is_replicated(self) -> bool:
        """Whether each shard is the whole array."""
        return len(self.devices) == 1 or (self.hlo is not None and ifrt.is_replicated(self.hlo))


def same_place(left: ArrayPlacement, right: ArrayPlacement, default_memory: str | None = None) -> bool:
    """Returns whether two placements have the same devices and memory, and an equivalent sharding.

    Args:
      default_memory: the kind of the memory of a placement whose kind is None.
    """
    return (
        left.devices == right.devices
        and (left.memory_kind or default_memory) == (right.memory_kind or default_memory)
        and (
            len(left.devices) == 1
            or (left.hlo is not None and right.hlo is not None and ifrt.are_equivalent(left.hlo, right.hlo))
        )
    )


@functools.lru_cache(maxsize=4096)
def _shard_shape(sharding: ifrt.HloSharding, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of each shard of an array."""
    try:
        parts = ifrt.parts_of(sharding) or [1] * len(shape)
        sizes = list(zip(shape, parts, strict=True))
    except (AssertionError, NotImplementedError, ValueError):  # JAX itself never creates such a sharding.
        raise StatusError(
            StatusCode.INVALID_ARGUMENT,
            f"the sharding {sharding} is not one of {len(shape)} dimensions"[:1000],
        ) from None
    for dim, (size, count) in enumerate(sizes):
        if size % count:
            raise ValueError(f"dimension {dim} of {list(shape)} cannot be divided into {count} equal parts")
    return tuple(size // count for size, count in sizes)


@functools.lru_cache(maxsize=1024)
def on_device(device: jax.Device, memory_kind: str | None) -> ArrayPlacement:
    """Returns the placement on one device. It is one object, so that its sharding is created once."""
    return ArrayPlacement((device,), memory_kind, None)


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Type and placement of an array.

    Attributes:
      dtype: the type of its elements.
      placement: its devices and sharding.
      layout: the layout of each shard in memory; None for the default.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    placement: ArrayPlacement
    layout: Layout | None = None

    @functools.cached_property
    def shard_bytes(self) -> int:
        """The bytes of each shard; the mean if the shapes of shards are unknown."""
        placement = self.placement
        if placement.shard_shape is not None:
            return math.prod(placement.shard_shape) * self.dtype.itemsize
        array_bytes = math.prod(self.shape) * self.dtype.itemsize
        if placement.is_replicated:
            return array_bytes
        try:
            return math.prod(placement.shard_shape_of(self.shape) or self.shape) * self.dtype.itemsize
        except ValueError:  # The devices do not divide the shape.
            return -(-array_bytes // len(placement.devices))


def checked_shape(dims: Iterable[int]) -> tuple[int, ...]:
    """Checks the dimensions of an array, and returns them.

    Raises:
      StatusError: they are too many or too large, or one is negative.
    """
    shape = tuple(dims)
    if len(shape) > _MAX_RANK or min(shape, default=0) < 0 or math.prod(max(n, 1) for n in shape) > _MAX_SIZE:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"invalid shape: {shape[:_MAX_RANK]}")
    return shape
