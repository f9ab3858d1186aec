"""Layouts of arrays of this process: the blocks on each device, also when fewer replicas run."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pathways.compiler.backends.replicated import AXIS
from pathways.compiler.frontend.specs import dims_of
from pathways.compiler.resilience.layouts.step_replicas import StepReplicas
from pathways.runtime.local.devices import mesh_of
from pathways.runtime.plan.block_rows import Bounds, Rows, block_name, blocks_in, common_bounds, rows_of
from pathways.runtime.resources.manager import Binding
from pathways.runtime.resources.virtual import VirtualSlice


@dataclasses.dataclass(frozen=True)
class ReplicaLayout:
    """Layout of an array on the slices of replicas.

    Attributes:
      meshes: the devices of each replica, by its number.
      dims: the axes that each dimension is sharded over, without the axis of replicas.
      split: for each number of replicas the dimension that they share; None where each has the whole array.
    """

    meshes: Sequence[Mesh]
    dims: tuple[tuple[str, ...], ...]
    split: Mapping[int, int | None]

    def sharding(self, replicas: Sequence[int]) -> NamedSharding:
        """Returns the sharding of the array when these replicas run."""
        first = self.meshes[replicas[0]]
        mesh = first
        if len(replicas) > 1:
            devices = np.stack([self.meshes[n].devices for n in replicas])
            mesh = Mesh(devices, (AXIS, *first.axis_names))
        split = self.split[len(replicas)]
        spec = [(AXIS, *axes) if n == split else axes for n, axes in enumerate(self.dims)]
        return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in spec)))


class SharedDimensions:
    """Dimensions along which replicas share arrays, by the number of replicas.

    Fewer replicas share the same dimension if its size allows it; otherwise each has the whole array. Once
    the program has returned the array on a number of replicas, the dimension is as it was then.

    Args:
      counts: the numbers of replicas that may run, ascending.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts
        self._seen: dict[tuple[str, int], int | None] = {}

    def find(
        self, name: str, shape: Sequence[int], shards: Sequence[int], running: int, split: int | None
    ) -> dict[int, int | None]:
        """Returns for each number of replicas the dimension that they share; None where they share none.

        Args:
          shards: the number of shards of each dimension on the slice of one replica.
          running: the number of replicas that run.
          split: the dimension that the running replicas share.
        """
        self._seen[name, running] = split
        earlier = [n for count in reversed(self._counts) if (n := self._seen.get((name, count))) is not None]

        def split_of(count: int) -> int | None:
            if (name, count) in self._seen or count == 1:
                return self._seen.get((name, count))
            return next((n for n in earlier if shape[n] % (count * shards[n]) == 0), None)

        return {count: split_of(count) for count in self._counts}


class ReplicaLayouts:
    """Layouts of arrays on the slices of replicas, see `SharedDimensions`."""

    def __init__(self, replicas: StepReplicas) -> None:
        self._replicas = replicas
        self._shared = SharedDimensions(replicas.counts)
        # The devices of each slice, by replica.
        self._meshes: list[list[Mesh]] = []
        self._bindings: Mapping[VirtualSlice, Binding] = {}

    def find(self, name: str, array: jax.Array) -> ReplicaLayout | None:
        """Returns the layout of an array; None if the array is not on the slices of the running replicas.

        Args:
          name: the name of the array, under which its layouts for other numbers of replicas are stored.
        """
        running, sharding = self._replicas.running, array.sharding
        if not isinstance(sharding, NamedSharding):
            return None
        bindings = self._replicas.bindings
        if bindings is not self._bindings:
            self._bindings = bindings
            self._meshes = [
                [mesh_of(bindings[replica]) for replica in slice.replicas]
                for slice in bindings
                if not slice.replica
            ]
        meshes = next(
            (candidate for candidate in self._meshes if _has_mesh(sharding, candidate, running)), None
        )
        if meshes is None:
            return None
        dims = [tuple(axes) for axes in dims_of(sharding.spec).dims]
        dims += [()] * (array.ndim - len(dims))
        split = next((n for n, axes in enumerate(dims) if AXIS in axes), None)
        plain = tuple(tuple(axis for axis in axes if axis != AXIS) for axes in dims)
        sizes = dict(zip(meshes[0].axis_names, meshes[0].devices.shape, strict=True))
        shards = [math.prod(sizes[axis] for axis in axes) for axes in plain]
        shared = self._shared.find(name, array.shape, shards, len(running), split)
        return ReplicaLayout(meshes, plain, shared)


def _has_mesh(sharding: NamedSharding, meshes: Sequence[Mesh], running: Sequence[int]) -> bool:
    """Returns whether a sharding is over the devices of one slice of all running replicas."""
    devices = [device for n in running for device in meshes[n].devices.flat]
    names = meshes[0].axis_names if len(running) == 1 else (AXIS, *meshes[0].axis_names)
    return sharding.mesh.axis_names == names and [*sharding.mesh.devices.flat] == devices


@dataclasses.dataclass(frozen=True)
class ArrayLayout:
    """Layout of an array, from which its blocks can be assembled.

    Attributes:
      name: the prefix of the names of its blocks.
      aval: its type; for typed PRNG keys the type of the keys.
      is_committed: whether it is committed to its devices.
      replicas: its layout on the slices of replicas; None if it is elsewhere.
    """

    name: str
    aval: Any
    sharding: jax.sharding.Sharding
    shape: tuple[int, ...]
    dtype: Any
    is_committed: bool
    replicas: ReplicaLayout | None

    @functools.cached_property
    def bounds(self) -> Bounds:
        """The bounds of the blocks along each dimension."""
        shardings = [self.sharding]
        if self.replicas is not None:
            # Blocks depend on the number of replicas alone.
            shardings += [self.replicas.sharding(range(count)) for count in self.replicas.split]
        shards = (
            rows_of(index, self.shape)
            for sharding in shardings
            for index in sharding.devices_indices_map(self.shape).values()
        )
        return common_bounds(len(self.shape), shards)

    def sharding_of(self, replicas: Sequence[int] | None) -> jax.sharding.Sharding:
        """Returns the sharding of the data when other replicas run; the present one for None."""
        if replicas is None or self.replicas is None:
            return self.sharding
        return self.replicas.sharding(replicas)

    def blocks_of(self, sharding: jax.sharding.Sharding) -> Iterator[tuple[jax.Device, Rows, list[Rows]]]:
        """Yields each device with the rows of its shard and of the blocks in it."""
        for device, index in sharding.devices_indices_map(self.shape).items():
            shard = rows_of(index, self.shape)
            yield device, shard, blocks_in(shard, self.bounds)

    def block(self, rows: Rows) -> str:
        """Returns the name of a block, such as `state['w'][0:4, :]`; without rows for a whole array."""
        return block_name(self.name, rows, self.shape)
