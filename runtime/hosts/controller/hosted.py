"""Programs on hosts, as the controller sees them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from pathways.runtime.control.gang import Gang
from pathways.runtime.hosts.controller.host import HostGang, HostProcess, Location
from pathways.runtime.hosts.protocol.messages import DeclaredComputation, DeclaredConstant
from pathways.runtime.plan.lower import StoredComputation


@dataclasses.dataclass(frozen=True)
class HostPort:
    """Where one array enters or leaves a program on an island.

    Attributes:
      number: the number of the argument or result in the program.
      location: where it lies.
    """

    number: int
    location: Location


@dataclasses.dataclass(frozen=True)
class HostPart:
    """What the hosts of an island get of a program.

    Attributes:
      module: bytecode of the module in the form `host`, with the function of this island alone.
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
      gangs: the workers that have a part of it, by islands.
      inputs: what the part of each island takes, in order.
      outputs: what the part of each island returns, in order.
      share: see `control.step.Step`.
    """

    number: int
    name: str
    gangs: tuple[HostGang, ...]
    inputs: Mapping[int, tuple[HostPort, ...]]
    outputs: Mapping[int, tuple[HostPort, ...]]
    share: int = 1

    def is_there(self) -> bool:
        """Whether all workers that have a part of it are."""
        return not any(gang.is_lost() for gang in self.gangs)

    @functools.cached_property
    def hosts(self) -> tuple[HostProcess, ...]:
        """The workers that have a part of it."""
        return tuple(host for gang in self.gangs for host in gang.hosts)

    @functools.cached_property
    def host_numbers(self) -> frozenset[int]:
        """The numbers of these workers."""
        return frozenset(host.index for host in self.hosts)

    @functools.cached_property
    def lives(self) -> tuple[Gang, ...]:
        """What becomes of the workers that have a part of it, by islands."""
        return tuple(gang.life for gang in self.gangs)

    @functools.cached_property
    def most_outputs(self) -> int:
        """How many arrays one part makes at most."""
        return max(map(len, self.outputs.values()), default=0)
