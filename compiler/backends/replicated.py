"""Arrays of callers that are assembled from arguments or results of replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pathways.compiler.frontend.jax_internals import key_data
from pathways.compiler.lower.structures import is_key
from pathways.runtime.plan.plan import Replicas
from pathways.runtime.resources.virtual import VirtualSlice
from pathways.runtime.xla import pjrt

AXIS = "replica"
"""The axis over replicas in a mesh over the slices of all of them."""


@dataclasses.dataclass(frozen=True)
class Replicated:
    """Array over the slices of all replicas: equal on all of them, or divided among them.

    Attributes:
      sharding: its sharding, over a mesh with the leading axis `replica`.
      blocks: the sharding of the block of each replica, on the first of its slices.
      copies: the shardings of its copies on the other slices of each replica.
      replicas: the dimension that is divided among replicas, and their number.
    """

    sharding: NamedSharding
    blocks: tuple[NamedSharding, ...]
    copies: tuple[tuple[NamedSharding, ...], ...]
    replicas: Replicas

    @classmethod
    def of(cls, replicas: Replicas, shardings: Sequence[NamedSharding]) -> Replicated:
        """Returns the array of replicas, from the shardings of all copies, replica by replica."""
        remaining = iter(shardings)
        groups = [tuple(next(remaining) for _ in slices) for slices in replicas.slices]
        blocks = tuple(group[0] for group in groups)
        first, spec = blocks[0].mesh, blocks[0].spec
        mesh = Mesh(np.stack([block.mesh.devices for block in blocks]), (AXIS, *first.axis_names))
        if replicas.split is not None:
            spec = _split(spec, replicas.split)
        sharding = NamedSharding(mesh, spec, memory_kind=blocks[0].memory_kind)
        return cls(sharding, blocks, tuple(group[1:] for group in groups), replicas)

    def joiner(self, aval: Any) -> Callable[[Sequence[Any]], Any]:
        """Returns a function from the block of each replica to the whole array; nothing is copied."""
        make = pjrt.shard_joiner(aval, self.sharding)
        if is_key(aval):
            return lambda blocks: make([s for block in blocks for s in pjrt.shards_of(key_data(block))])
        return lambda blocks: make([shard for block in blocks for shard in pjrt.shards_of(block)])

    def cutter(self, aval: Any) -> Callable[[Any], list[Any]]:
        """Returns a function from the whole array to all copies of replicas: the first of each, then the
        rest.

        The first copies are the array's own buffers.
        """
        block = aval.update(shape=self.replicas.block(aval.shape))
        makers = [pjrt.shard_joiner(block, sharding) for sharding in self.blocks]
        size = self.blocks[0].mesh.size

        def cut(array: Any) -> list[Any]:
            shards = pjrt.shards_of(array)
            copies = []
            for n, (make, more) in enumerate(zip(makers, self.copies, strict=True)):
                # Replicas are the major axis of the mesh, so the shards of each are adjacent.
                first = make(shards[n * size : (n + 1) * size])
                copies.append(first)
                if more:
                    copies += pjrt.device_put([first] * len(more), list(more), may_alias=False)
            return copies

        return cut


def _split(spec: PartitionSpec, dim: int) -> PartitionSpec:
    """Returns the sharding of an array whose replicas hold blocks of a dimension with sharding `spec`."""
    dims = [*spec, *(None,) * (dim + 1 - len(spec))]
    axes = dims[dim] if isinstance(dims[dim], tuple) else (dims[dim],)
    dims[dim] = AXIS if axes == (None,) else (AXIS, *axes)
    return PartitionSpec(*dims)


def with_replicas(
    slices: Mapping[str, VirtualSlice],
    names: Sequence[tuple[str, str | None, int]],
    running: Sequence[int] | None = None,
) -> dict[str, VirtualSlice]:
    """Returns the slices of the replicas that run, by their names in a program.

    Args:
      slices: the slices that the program was written for, by name.
      names: for each slice of the program its name, the name of the replica-0 slice that it represents, and
        its replica number in the program.
      running: the numbers of the replicas that run; by default the running replicas of these slices.
    """

    def slices_of(name: str) -> tuple[VirtualSlice, ...]:
        return slices[name].running if running is None else slices[name].of_replicas(running)

    return {
        # A program that was read as a program of replicas already has a slice for each.
        name: slices_of(name)[0] if name in slices else slices_of(of or name)[replica]
        for name, of, replica in names
    }
