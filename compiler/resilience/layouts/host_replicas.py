"""Layouts of arrays on slices of replicas on hosts; the counterpart of `array_layouts.ReplicaLayouts`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from pathways.compiler.resilience.layouts.array_layouts import SharedDimensions
from pathways.compiler.resilience.layouts.step_replicas import StepReplicas
from pathways.runtime.hosts.protocol.messages import DeviceLayout
from pathways.runtime.hosts.protocol.programs import WHOLE_ARRAY, ReplicaBlock
from pathways.runtime.plan.block_rows import Rows
from pathways.runtime.resources.manager import Binding
from pathways.runtime.resources.virtual import VirtualSlice


@dataclasses.dataclass(frozen=True)
class SliceDevices:
    """Devices of a slice.

    Attributes:
      devices: the ids of the devices there, in the order of the mesh.
      axis_names: its axes.
      hosts: the number of the host of each device.
    """

    island: int
    devices: tuple[int, ...]
    mesh: tuple[int, ...]
    axis_names: tuple[str, ...]
    hosts: tuple[int, ...] = dataclasses.field(compare=False)

    def placement(self, dims: tuple[tuple[str, ...], ...], part: ReplicaBlock) -> SlicePlacement:
        """Returns the placement of an array on the slice.

        Args:
          dims: the axes that each dimension of the slice's block is sharded over.
          part: this block.
        """
        holders: dict[int, tuple[int, ...]] = {}
        for position, host in enumerate(self.hosts):
            holders[host] = (*holders.get(host, ()), position)
        layout = DeviceLayout(self.devices, self.mesh, self.axis_names, dims)
        return SlicePlacement(self.island, layout, part, holders)


@dataclasses.dataclass(frozen=True)
class SlicePlacement:
    """Placement of an array on a slice.

    Attributes:
      layout: the layout of the block that the slice has.
      part: this block.
      holders: the positions in the mesh of the devices of each host.
    """

    island: int
    layout: DeviceLayout
    part: ReplicaBlock
    holders: Mapping[int, tuple[int, ...]] = dataclasses.field(compare=False)

    def is_on(self, slice: SliceDevices) -> bool:
        """Returns whether the placement is on the devices of a slice."""
        layout = self.layout
        return (self.island, layout.devices, layout.mesh, layout.axis_names) == (
            slice.island,
            slice.devices,
            slice.mesh,
            slice.axis_names,
        )

    def first_row(self, shape: Sequence[int]) -> Rows:
        """Returns an empty block at the first row of the slice's block of an array."""
        first = [0] * len(shape)
        if self.part.count > 1:
            first[self.part.dim] = self.part.number * self.part.shape(shape)[self.part.dim]
        return tuple((at, at) for at in first)


@dataclasses.dataclass(frozen=True)
class HostReplicaLayout:
    """Layout of an array on the slices of replicas.

    Attributes:
      slices: the devices of the slice of each replica, by its number.
      dims: the axes that each dimension of a replica's block is sharded over.
      splits: for each number of replicas the dimension that they share; None where each has the whole array.
    """

    slices: tuple[SliceDevices, ...]
    dims: tuple[tuple[str, ...], ...]
    splits: tuple[tuple[int, int | None], ...]

    def placements(self, replicas: Sequence[int]) -> Iterator[SlicePlacement]:
        """Yields the placement on each slice for running replicas."""
        split = dict(self.splits)[len(replicas)]
        for position, number in enumerate(replicas):
            part = WHOLE_ARRAY if split is None else ReplicaBlock(position, len(replicas), split)
            yield self.slices[number].placement(self.dims, part)


class HostReplicaLayouts:
    """Layouts of arrays on the slices of replicas, see `SharedDimensions`."""

    def __init__(self, replicas: StepReplicas) -> None:
        self._replicas = replicas
        self._shared = SharedDimensions(replicas.counts)
        # The name of each slice of the first replica, and the devices of this slice in all replicas.
        self._slices: list[tuple[str, tuple[SliceDevices, ...]]] = []
        self._bindings: Mapping[VirtualSlice, Binding] = {}

    @property
    def running(self) -> tuple[int, ...]:
        """The replicas that run."""
        return self._replicas.running

    def islands(self, replicas: Sequence[int]) -> frozenset[int]:
        """Returns the islands of some replicas."""
        return frozenset().union(*(self._replicas.islands[number] for number in replicas))

    def find(
        self, name: str, shape: Sequence[int], placements: Sequence[SlicePlacement]
    ) -> tuple[HostReplicaLayout, ...]:
        """Returns the layouts of an array on slices where each running replica has a block of it.

        Args:
          name: the name of the array, under which its layouts for other numbers of replicas are stored.
          placements: the placements of the array.
        """
        bindings = self._replicas.bindings
        if bindings is not self._bindings:
            self._bindings = bindings
            self._slices = [
                (slice.name, tuple(_devices(bindings[replica]) for replica in slice.replicas))
                for slice in bindings
                if not slice.replica
            ]
        left = set(placements)
        layouts = []
        for placement in placements:
            split = None if placement.part.count == 1 else placement.part.dim
            for name_of_slice, slices in self._slices:
                if not placement.is_on(slices[self.running[0]]):
                    continue
                layout = HostReplicaLayout(slices, placement.layout.dims, ((len(self.running), split),))
                on_slices = set(layout.placements(self.running))
                # Slices on the same devices share one copy.
                if placement in on_slices and on_slices <= left:
                    left -= on_slices
                    shared = self._shared.find(
                        f"{name} on {name_of_slice}",
                        shape,
                        _shard_counts(placement.layout, shape),
                        len(self.running),
                        split,
                    )
                    layouts.append(dataclasses.replace(layout, splits=tuple(shared.items())))
        return tuple(layouts)

    def check_islands(self, name: str, placements: Sequence[SlicePlacement]) -> None:
        """Checks that an array is on islands that have a replica.

        Raises:
          ValueError: the array is on an island without a replica.
        """
        everywhere = self.islands(self._replicas.all)
        elsewhere = next(
            (placement.island for placement in placements if placement.island not in everywhere), None
        )
        if elsewhere is not None:
            raise ValueError(
                f"pw.resilient: {name} is on island{elsewhere}, on which no replica runs, so that "
                "min_replicas= cannot restore it; keep it on slices of the replicas, or leave "
                "min_replicas out"
            )

    def on_one_device(self, replicas: Sequence[int], ndim: int) -> SlicePlacement:
        """Returns the placement of an array on one device of the first running replica."""
        binding = next(
            binding for slice, binding in self._replicas.bindings.items() if slice.replica == replicas[0]
        )
        alone = dataclasses.replace(binding, devices=binding.devices[:1], shape=(1,), axis_names=("x",))
        return _devices(alone).placement(((),) * ndim, WHOLE_ARRAY)


def _devices(binding: Binding) -> SliceDevices:
    return SliceDevices(
        int(binding.island.removeprefix("island")),
        tuple(device.id for device in binding.devices),
        binding.shape,
        binding.axis_names,
        tuple(device.host.index for device in binding.devices),
    )


def _shard_counts(layout: DeviceLayout, shape: Sequence[int]) -> list[int]:
    """Returns the number of shards of each dimension."""
    sizes = dict(zip(layout.axis_names, layout.mesh, strict=True))
    counts = [math.prod(sizes[axis] for axis in axes) for axes in layout.dims]
    return counts + [1] * (len(shape) - len(counts))
