"""Values of clients' arrays on hosts: whole arrays there, and shards of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.proxy.arrays.placements import ArraySpec
from pathways.runtime.proxy.hosted.hosted_device import HostedDevice


class HostedValue:
    """Value of an array that hosts have, with the methods of a `jax.Array` that engines require.

    Args:
      array: the array.
      location: where it is.
      devices: its devices, in the order of the client's shards.
    """

    def __init__(self, array: Array, location: Location, devices: Sequence[HostedDevice]) -> None:
        self.array = array
        self.location = location
        self.devices = tuple(devices)
        self.dtype: np.dtype[Any] = array.dtype
        self.shape = array.shape

    @property
    def positions(self) -> tuple[int, ...]:
        """The position at the location of each of its devices."""
        return tuple(self.location.placement.devices.index(device.worker_id) for device in self.devices)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole array."""
        return self.array.nbytes

    def delete(self) -> None:
        """Frees the array."""
        self.array.delete()

    def is_deleted(self) -> bool:
        """Returns whether the array was deleted or donated."""
        return self.array.is_deleted()

    def is_ready(self) -> bool:
        """Returns whether `block_until_ready` would not wait."""
        return self.array.is_ready()

    def block_until_ready(self) -> HostedValue:
        """Waits until the array is computed.

        Raises:
          HostError: the computation failed, or a host is lost.
        """
        self.array.block_until_ready()
        return self

    def consists_of(self, shards: Sequence[Any]) -> bool:
        """Returns whether some shards are all shards of this array, in their order."""
        return len(shards) == len(self.devices) and all(
            isinstance(shard, HostedShard) and shard.source is self and shard.index == index
            for index, shard in enumerate(shards)
        )

    def number(self) -> int:
        """Returns the number of the array at its location.

        Raises:
          RuntimeError: it was deleted.
        """
        return self.array.number_at(self.location)


class HostedShard:
    """Shard of an array on hosts, which keeps the array alive.

    Args:
      source: the array.
      index: the position of the shard among the shards of the client.
      shape: the shape of the shard.

    Attributes:
      alone: the array of the shard that its host has; None until one is needed.
    """

    def __init__(self, source: HostedValue, index: int, shape: tuple[int, ...]) -> None:
        self.source = source
        self.index = index
        self.shape = shape
        self.dtype = source.dtype
        self.alone: HostedValue | None = None
        self._is_deleted = False

    @property
    def device(self) -> HostedDevice:
        """The device that has the shard."""
        return self.source.devices[self.index]

    @property
    def nbytes(self) -> int:
        """The bytes of the shard."""
        return math.prod(self.shape) * self.dtype.itemsize

    def delete(self) -> None:
        """Deletes the shard; its memory is free when the array is."""
        self._is_deleted = True

    def is_deleted(self) -> bool:
        """Returns whether the shard, or its array, was deleted."""
        return self._is_deleted or self.source.is_deleted()

    def is_ready(self) -> bool:
        """Returns whether `block_until_ready` would not wait."""
        return self.source.is_ready()

    def block_until_ready(self) -> HostedShard:
        """Waits until the array is computed: only all hosts of it know that it is right."""
        self.source.block_until_ready()
        return self


class JoinedValue:
    """Array of shards of other arrays, which its hosts do not have as one.

    Args:
      spec: its type and placement.
      shards: its shards, in the order of the client's: `HostedShard`s, or `HostedValue`s of one device.

    Attributes:
      joined: the array of them that hosts have; None until one is needed.
    """

    def __init__(self, spec: ArraySpec, shards: Sequence[Any]) -> None:
        self.joined: HostedValue | None = None
        self.spec = spec
        self.shape = spec.shape
        self.shards = list(shards)
        self.dtype = shards[0].dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def delete(self) -> None:
        """Deletes its shards."""
        for shard in self.shards:
            shard.delete()

    def is_deleted(self) -> bool:
        """Returns whether a shard was deleted."""
        return any(shard.is_deleted() for shard in self.shards)

    def is_ready(self) -> bool:
        """Returns whether `block_until_ready` would not wait."""
        return all(shard.is_ready() for shard in self.shards)

    def block_until_ready(self) -> JoinedValue:
        """Waits until all shards are computed.

        Raises:
          HostError: a computation failed, or a host is lost.
        """
        for shard in self.shards:
            shard.block_until_ready()
        return self


class FrontValue:
    """Array that this process has itself: one of strings, which no program computes with.

    Args:
      shards: the shards, in the order of the client's.
    """

    def __init__(self, shards: Sequence[np.ndarray]) -> None:
        self.shards = list(shards)
        self.shape = shards[0].shape
        self.dtype = shards[0].dtype
        self._is_deleted = False

    @property
    def nbytes(self) -> int:
        """The bytes of the shards."""
        return sum(shard.nbytes for shard in self.shards)

    def delete(self) -> None:
        """Frees the array."""
        self._is_deleted = True

    def is_deleted(self) -> bool:
        """Returns whether the array was deleted."""
        return self._is_deleted

    def is_ready(self) -> bool:
        """Returns that the array is computed."""
        return True

    def block_until_ready(self) -> FrontValue:
        """Returns the array."""
        return self
