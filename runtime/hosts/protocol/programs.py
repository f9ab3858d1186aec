"""Programs on their way to hosts: as the compiler leaves them, and cut into the parts of islands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from pathways.dialect.attributes.blocks import block_bounds, block_shape
from pathways.runtime.hosts.protocol.messages import DeviceLayout
from pathways.runtime.plan.stored import StoredComputation, StoredConstant


class SlicePlace(msgspec.Struct, frozen=True):
    """The devices of a slice.

    Attributes:
      island: the number of the island that they lie on.
      devices: their ids there, in the order of the mesh.
      owners: the host of each.
      memory: bytes of memory of each, None where that is not known.
      mesh: the sizes of the axes of the mesh.
      axis_names: their names.
    """

    island: int
    devices: tuple[int, ...]
    owners: tuple[int, ...]
    memory: int | None
    mesh: tuple[int, ...]
    axis_names: tuple[str, ...]


class BoundProgram(msgspec.Struct, frozen=True):
    """A program that is to be loaded on hosts.

    Attributes:
      name: its name.
      module: bytecode of the module, in the form `scheduled`.
      slices: the devices of each of its slices, by the name of the slice.
      computations: those that the module only declares, by name.
      constants: those that the module only declares, by name.
      argument_names: what the caller calls its arguments, for messages.
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
    """Block that a replica has of arrays that replicas share.

    Attributes:
      number: which block.
      count: into how many blocks they are cut; 1 where all is there.
      dim: the dimension that is cut.
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

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the block of an array of some shape."""
        return block_shape(whole, self.dim, self.count)


WHOLE = ReplicaBlock(0, 1, 0)


class IslandPort(msgspec.Struct, frozen=True):
    """Where one array enters or leaves a part.

    Attributes:
      number: the number of the argument or result in the program.
      layout: how it lies on the island.
      part: which block of it lies there, where replicas share its rows.
      donated: whether the program consumes what enters here.
    """

    number: int
    layout: DeviceLayout
    part: ReplicaBlock
    donated: bool = False


class IslandProgram(msgspec.Struct, frozen=True):
    """What the hosts of an island get of a program.

    Attributes:
      module: bytecode of the module in the form `host`, with the function of this island alone.
      inputs: what its function takes, in order.
      outputs: what it returns, in order.
      argument_names: what the caller calls its arguments, for messages.
      weak_results: for each of its results whether it is weakly typed.
      computations: those that the module only declares, by name.
      constants: those that the module only declares, by name.
    """

    module: bytes
    inputs: tuple[IslandPort, ...]
    outputs: tuple[IslandPort, ...]
    argument_names: tuple[str, ...]
    weak_results: tuple[bool, ...]
    computations: dict[str, StoredComputation]
    constants: dict[str, StoredConstant]


class SplitProgram(msgspec.Struct, frozen=True):
    """A program, cut into the parts of islands.

    Attributes:
      parts: what each island gets, by its number.
      crossing: how many transfers between islands a run has, on all islands together.
      inner: how many within an island it has at most.
      share: for how many steps under way each of its steps counts, see `control.records.step.Step`.
    """

    parts: dict[int, IslandProgram]
    crossing: int
    inner: int
    share: int

    @property
    def inputs(self) -> dict[int, tuple[IslandPort, ...]]:
        """What the part of each island takes, in order."""
        return {island: part.inputs for island, part in self.parts.items()}

    @property
    def outputs(self) -> dict[int, tuple[IslandPort, ...]]:
        """What the part of each island returns, in order."""
        return {island: part.outputs for island, part in self.parts.items()}
