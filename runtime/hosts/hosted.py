"""Programs on hosts, as the controller sees them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from pathways.runtime.hosts.messages import DeclaredComputation, DeclaredConstant, DeviceLayout
from pathways.runtime.plan.lower import StoredComputation


@dataclasses.dataclass(frozen=True, eq=False)
class Location:
    """Where arrays lie. A cluster has one object for each, so that comparing them takes no time.

    Attributes:
      host: the host.
      placement: how they lie there.
      replica: which block of the rows of arrays is there; replicas have equal blocks.
      replicas: how many blocks there are; 1 where all rows are there.
    """

    host: int
    placement: DeviceLayout
    replica: int = 0
    replicas: int = 1

    def rows(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """What is there of an array."""
        if self.replicas == 1:
            return value
        rows = len(value) // self.replicas
        return value[self.replica * rows : (self.replica + 1) * rows]


@dataclasses.dataclass(frozen=True)
class HostPort:
    """Where one array enters or leaves a program on a host.

    Attributes:
      number: the number of the argument or result in the program.
      location: where it lies.
    """

    number: int
    location: Location


@dataclasses.dataclass(frozen=True)
class HostPart:
    """What a host gets of a program.

    Attributes:
      module: bytecode of the module in the form `host`, with the function of this host alone.
      inputs: what its function takes, in order.
      outputs: what it returns, in order.
      argument_names: what the caller calls its arguments, for messages.
      weak_results: for each of its results whether it is weakly typed.
      computations: those that the module only declares, by name.
      constants: the arrays of those that the module only declares, by name.
    """

    module: bytes
    inputs: tuple[HostPort, ...]
    outputs: tuple[HostPort, ...]
    argument_names: tuple[str, ...]
    weak_results: tuple[bool, ...]
    computations: Mapping[str, StoredComputation]
    constants: Mapping[str, np.ndarray[Any, Any]]

    def declared_computations(self) -> dict[str, DeclaredComputation]:
        """The computations that the module only declares, as they are sent."""
        return {
            name: DeclaredComputation(found.module, found.local, found.effects)
            for name, found in self.computations.items()
        }

    def declared_constants(self) -> dict[str, DeclaredConstant]:
        """The constants that the module only declares, as they are sent."""
        return {
            name: DeclaredConstant(value.dtype.name, value.shape, value.tobytes())
            for name, value in self.constants.items()
        }


@dataclasses.dataclass(frozen=True, eq=False)
class HostedProgram:
    """A program that is loaded on its hosts.

    Attributes:
      number: its number.
      name: its name.
      hosts: the hosts that have a part of it.
      inputs: what each part takes, in order.
      outputs: what each part returns, in order.
    """

    number: int
    name: str
    hosts: tuple[int, ...]
    inputs: Mapping[int, tuple[HostPort, ...]]
    outputs: Mapping[int, tuple[HostPort, ...]]

    @functools.cached_property
    def most_outputs(self) -> int:
        """How many arrays one part makes at most."""
        return max(map(len, self.outputs.values()), default=0)
