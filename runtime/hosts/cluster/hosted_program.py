"""Programs on hosts, as the controller sees them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from pathways.runtime.control.gang import GangView
from pathways.runtime.hosts.cluster.host import HostGang, Location, WorkerHandle
from pathways.runtime.hosts.protocol.frames import encode
from pathways.runtime.hosts.protocol.messages import Run
from pathways.runtime.hosts.protocol.programs import IslandPort


@dataclasses.dataclass(frozen=True)
class HostPort:
    """Where one array enters or leaves a program on an island.

    Attributes:
      number: the number of the argument or result in the program.
      location: where it lies.
      donated: whether the program consumes what enters here.
    """

    number: int
    location: Location
    donated: bool = False

    def plain(self) -> IslandPort:
        """The same, as it is sent."""
        return IslandPort(self.number, self.location.placement, self.location.block, self.donated)


@dataclasses.dataclass(frozen=True, eq=False)
class HostedProgram:
    """A program that is loaded on its hosts.

    Attributes:
      number: its number.
      name: its name.
      gangs: the workers that have a part of it, by islands.
      inputs: what the part of each island takes, in order.
      outputs: what the part of each island returns, in order.
      share: see `control.records.step.Step`.
    """

    number: int
    name: str
    gangs: tuple[HostGang, ...]
    inputs: Mapping[int, tuple[HostPort, ...]]
    outputs: Mapping[int, tuple[HostPort, ...]]
    share: int = 1

    @classmethod
    def of(
        cls,
        number: int,
        name: str,
        gangs: Sequence[HostGang],
        inputs: Mapping[int, Sequence[IslandPort]],
        outputs: Mapping[int, Sequence[IslandPort]],
        share: int,
    ) -> HostedProgram:
        """A program whose parts take and return arrays at these ports, by islands."""
        return cls(
            number,
            name,
            tuple(gangs),
            {gang.number: _ports(gang, inputs[gang.number]) for gang in gangs},
            {gang.number: _ports(gang, outputs[gang.number]) for gang in gangs},
            share,
        )

    def frames(self, run: int, first: int, arguments: Mapping[int, Sequence[int]]) -> list[bytes]:
        """What its hosts are sent for a step, and with it which arrays there are no longer held.

        Args:
          run: the number of the step.
          first: that of the first array that each part makes.
          arguments: for each island the numbers of the arrays that its part takes.
        """
        frames: list[bytes] = []
        # Islands that take and free nothing are told the same.
        plain: bytes | None = None
        for gang in self.gangs:
            own, unused = tuple(arguments[gang.number]), gang.life.unused.take_all()
            if own or unused:
                frame = encode(Run(self.number, run, first, own, unused))
            else:
                frame = plain = plain or encode(Run(self.number, run, first, ()))
            frames += [frame] * len(gang.hosts)
        return frames

    def is_ready(self) -> bool:
        """Whether all workers that have a part of it are."""
        return not any(gang.is_lost() for gang in self.gangs)

    @functools.cached_property
    def hosts(self) -> tuple[WorkerHandle, ...]:
        """The workers that have a part of it."""
        return tuple(host for gang in self.gangs for host in gang.hosts)

    @functools.cached_property
    def host_numbers(self) -> frozenset[int]:
        """The numbers of these workers."""
        return frozenset(host.index for host in self.hosts)

    @functools.cached_property
    def lives(self) -> tuple[GangView, ...]:
        """What becomes of the workers that have a part of it, by islands."""
        return tuple(gang.life for gang in self.gangs)

    @functools.cached_property
    def max_outputs(self) -> int:
        """How many arrays one part makes at most."""
        return max(map(len, self.outputs.values()), default=0)


def _ports(gang: HostGang, ports: Sequence[IslandPort]) -> tuple[HostPort, ...]:
    return tuple(
        HostPort(port.number, gang.location(port.layout, port.block), port.donated) for port in ports
    )
