"""Programs for hosts: with bound slices, and split into one program for each island."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from pathways.dialect.attributes.blocks import block_bounds, block_shape
from pathways.runtime.hosts.protocol.messages import DeviceLayout
from pathways.runtime.plan.stored import StoredComputation, StoredConstant
from pathways.runtime.resources.manager import Binding


class SlicePlace(msgspec.Struct, frozen=True):
    """Devices of a slice.

    Attributes:
      devices: their ids there, in the order of the mesh.
      owners: the host of each.
      memory: bytes of memory of each, None where that is not known.
      mesh: the sizes of the axes of the mesh.
    """

    island: int
    devices: tuple[int, ...]
    owners: tuple[int, ...]
    memory: int | None
    mesh: tuple[int, ...]
    axis_names: tuple[str, ...]

    @classmethod
    def of(cls, binding: Binding) -> SlicePlace:
        """Returns the place of a slice that is bound to devices of hosts."""
        return cls(
            int(binding.island.removeprefix("island")),
            tuple(device.id for device in binding.devices),
            tuple(device.host.index for device in binding.devices),
            binding.device_memory,
            binding.shape,
            binding.axis_names,
        )


class BoundProgram(msgspec.Struct, frozen=True):
    """Scheduled program whose slices are bound to devices, to be loaded on hosts.

    Attributes:
      module: bytecode of the module, in the form `scheduled`.
      slices: the devices of each of its slices, by the name of the slice.
      computations: the computations that the module only declares, by name.
      constants: the constants that the module only declares, by name.
      weak_results: for each of its results whether it is weakly typed.
    """

    name: str
    module: bytes
    slices: dict[str, SlicePlace]
    computations: dict[str, StoredComputation]
    constants: dict[str, StoredConstant]
    argument_names: tuple[str, ...]
    weak_results: tuple[bool, ...]


class ReplicaBlock(msgspec.Struct, frozen=True):
    """Block of an array that a replica holds.

    Attributes:
      number: the index of the block.
      count: number of blocks; 1 if the replica holds the whole array.
      dim: the dimension that is split.
    """

    number: int
    count: int
    dim: int

    def of(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the block of an array."""
        if self.count == 1:
            return value
        block = slice(*block_bounds(value.shape[self.dim], self.number, self.count))
        return value[(*(slice(None),) * self.dim, block)]

    def shape(self, array_shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the block of an array of some shape."""
        if self.count == 1:
            return tuple(array_shape)
        return block_shape(array_shape, self.dim, self.count)


WHOLE_ARRAY = ReplicaBlock(0, 1, 0)


class IslandPort(msgspec.Struct, frozen=True):
    """Argument or result of an island's program.

    Attributes:
      number: the number of the argument or result in the whole program.
      block: the block of it on the island, if replicas share its rows.
      donated: whether the program consumes the argument.
    """

    number: int
    layout: DeviceLayout
    block: ReplicaBlock
    donated: bool = False


class IslandProgram(msgspec.Struct, frozen=True):
    """Program of an island.

    Attributes:
      module: bytecode of the module in the form `host`, with the function of this island only.
      inputs: the arguments of its function, in order.
      outputs: the results of its function, in order.
      weak_results: for each of its results whether it is weakly typed.
      computations: the computations that the module only declares, by name.
      constants: the constants that the module only declares, by name.
      moved: the bytes that a step receives from other islands.
    """

    module: bytes
    inputs: tuple[IslandPort, ...]
    outputs: tuple[IslandPort, ...]
    argument_names: tuple[str, ...]
    weak_results: tuple[bool, ...]
    computations: dict[str, StoredComputation]
    constants: dict[str, StoredConstant]
    moved: int = 0


class SplitProgram(msgspec.Struct, frozen=True):
    """Program that is split by islands.

    Attributes:
      crossing: number of transfers between islands in a run, on all islands together.
      inner: maximum number of transfers within an island.
      share: number of steps in flight that each of its steps counts for, see `control.records.step.Step`.
    """

    by_island: dict[int, IslandProgram]
    crossing: int
    inner: int
    share: int

    @property
    def inputs(self) -> dict[int, tuple[IslandPort, ...]]:
        """Arguments of the program of each island, in order."""
        return {island: program.inputs for island, program in self.by_island.items()}

    @property
    def outputs(self) -> dict[int, tuple[IslandPort, ...]]:
        """Results of the program of each island, in order."""
        return {island: program.outputs for island, program in self.by_island.items()}
