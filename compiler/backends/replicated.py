"""What replicas have of an argument or result, as the one array that callers see."""

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
"""The axis of a mesh over the slices of all replicas."""


@dataclasses.dataclass(frozen=True)
class Replicated:
    """One array over the slices of all replicas: equal on all of them, or split among them.

    Attributes:
      sharding: its sharding, over a mesh with the leading axis `replica`.
      parts: the sharding of the part of each replica, on the first of its slices.
      others: the shardings of its copies on the other slices of each replica.
      replicas: which they are, and what each has.
    """

    sharding: NamedSharding
    parts: tuple[NamedSharding, ...]
    others: tuple[tuple[NamedSharding, ...], ...]
    replicas: Replicas

    @classmethod
    def of(cls, replicas: Replicas, shardings: Sequence[NamedSharding]) -> Replicated:
        """Of the shardings of all copies, replica by replica."""
        remaining = iter(shardings)
        groups = [tuple(next(remaining) for _ in slices) for slices in replicas.slices]
        parts = tuple(group[0] for group in groups)
        first, spec = parts[0].mesh, parts[0].spec
        mesh = Mesh(np.stack([part.mesh.devices for part in parts]), (AXIS, *first.axis_names))
        if replicas.split is not None:
            spec = _split(spec, replicas.split)
        whole = NamedSharding(mesh, spec)
        return cls(whole, parts, tuple(group[1:] for group in groups), replicas)

    def joiner(self, aval: Any) -> Callable[[Sequence[Any]], Any]:
        """A function from the part of each replica to the whole array; nothing is copied."""
        make = pjrt.put_together(aval, self.sharding)
        if is_key(aval):
            return lambda parts: make([s for part in parts for s in pjrt.take_apart(key_data(part))])
        return lambda parts: make([shard for part in parts for shard in pjrt.take_apart(part)])

    def cutter(self, aval: Any) -> Callable[[Any], list[Any]]:
        """A function from the whole array to the copies of replicas: the first of each, then the others.

        The first copies are the array's own buffers.
        """
        part = aval.update(shape=self.replicas.block(aval.shape))
        makers = [pjrt.put_together(part, sharding) for sharding in self.parts]
        size = self.parts[0].mesh.size

        def cut(array: Any) -> list[Any]:
            shards = pjrt.take_apart(array)
            copies = []
            for n, (make, others) in enumerate(zip(makers, self.others, strict=True)):
                first = make(shards[n * size : (n + 1) * size])
                copies.append(first)
                if others:
                    copies += pjrt.device_put([first] * len(others), list(others), may_alias=False)
            return copies

        return cut


def _split(spec: PartitionSpec, dim: int) -> PartitionSpec:
    """How an array lies whose replicas have blocks of a dimension that lie by `spec`."""
    dims = [*spec, *(None,) * (dim + 1 - len(spec))]
    axes = dims[dim] if isinstance(dims[dim], tuple) else (dims[dim],)
    dims[dim] = AXIS if axes == (None,) else (AXIS, *axes)
    return PartitionSpec(*dims)


def with_replicas(
    slices: Mapping[str, VirtualSlice], names: Sequence[tuple[str, str | None, int]]
) -> dict[str, VirtualSlice]:
    """The slices of all replicas, by their names in a program.

    Args:
      slices: those that the program was written for, by name.
      names: for each slice of the program its name, that of the slice that it stands for in its replica, and
        the number of that.
    """
    return {
        # A program that was read as a program of replicas has a slice for each already.
        name: slices[name] if name in slices else slices[of or name].replicas[replica]
        for name, of, replica in names
    }
