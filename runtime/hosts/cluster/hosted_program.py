"""Programs on hosts as the controller sees them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from pathways.runtime.control.gang import GangView
from pathways.runtime.hosts.cluster.host import HostGang, Location, WorkerHandle
from pathways.runtime.hosts.protocol.frames import encode
from pathways.runtime.hosts.protocol.messages import Run, StepMemory
from pathways.runtime.hosts.protocol.programs import IslandPort


@dataclasses.dataclass(frozen=True)
class HostPort:
    """Port of an island's sub-program: an argument or a result.

    Attributes:
      number: the number of the argument or result in the program.
      donated: whether the program consumes the argument.
    """

    number: int
    location: Location
    donated: bool = False

    def plain(self) -> IslandPort:
        """Returns the port as it is sent to workers."""
        return IslandPort(self.number, self.location.placement, self.location.block, self.donated)


@dataclasses.dataclass(frozen=True, eq=False)
class HostedProgram:
    """Program that is loaded on its hosts.

    Attributes:
      gangs: the gangs that run a sub-program of it.
      inputs: the inputs of each island's sub-program, in order.
      outputs: the outputs of each island's sub-program, in order.
      share: see `control.records.step.Step`.
      some_hosts: the hosts that run it, of the one gang, if these are not all.
      memory: the memory of a step on each of its hosts, as the hosts report it; empty for programs of
        extensions.
    """

    number: int
    name: str
    gangs: tuple[HostGang, ...]
    inputs: Mapping[int, tuple[HostPort, ...]]
    outputs: Mapping[int, tuple[HostPort, ...]]
    share: int = 1
    some_hosts: tuple[WorkerHandle, ...] = ()
    memory: tuple[StepMemory | None, ...] = ()

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
        """Returns a program whose sub-programs have these ports, by islands."""
        return cls(
            number,
            name,
            tuple(gangs),
            {gang.number: _ports(gang, inputs[gang.number]) for gang in gangs},
            {gang.number: _ports(gang, outputs[gang.number]) for gang in gangs},
            share,
        )

    def frames(self, run: int, first: int, arguments: Mapping[int, Sequence[int]]) -> list[bytes]:
        """Returns the messages of a step, one for each host, with the numbers of arrays to free there.

        Args:
          run: the number of the step.
          first: the number of the first output of each sub-program.
          arguments: for each island the numbers of the arrays that its sub-program consumes.
        """
        if self.some_hosts:
            (numbers,) = map(tuple, arguments.values())
            return [encode(Run(self.number, run, first, numbers))] * len(self.some_hosts)
        # Taken before anything is encoded: it is lost if encoding fails, but cannot.
        free = [gang.life.unused.take_all() for gang in self.gangs]
        frames: list[bytes] = []
        # Islands without arguments and arrays to free share one encoded message.
        plain: bytes | None = None
        for gang, unused in zip(self.gangs, free, strict=True):
            numbers = tuple(arguments[gang.number])
            if numbers or unused:
                frame = encode(Run(self.number, run, first, numbers, unused))
            else:
                frame = plain = plain or encode(Run(self.number, run, first, ()))
            frames += [frame] * len(gang.hosts)
        return frames

    def is_ready(self) -> bool:
        """Returns whether no worker that runs it is lost."""
        return all(life.failure is None for life in self.lives)

    @functools.cached_property
    def hosts(self) -> tuple[WorkerHandle, ...]:
        """Workers that run it, by islands."""
        return self.some_hosts or tuple(host for gang in self.gangs for host in gang.hosts)

    @functools.cached_property
    def host_numbers(self) -> frozenset[int]:
        """Numbers of these workers."""
        return frozenset(host.index for host in self.hosts)

    @functools.cached_property
    def lives(self) -> tuple[GangView, ...]:
        """States in the core of the gangs that run it."""
        return tuple(gang.life for gang in self.gangs)

    @functools.cached_property
    def max_outputs(self) -> int:
        """Largest number of outputs of a sub-program."""
        return max(map(len, self.outputs.values()), default=0)


def _ports(gang: HostGang, ports: Sequence[IslandPort]) -> tuple[HostPort, ...]:
    return tuple(
        HostPort(port.number, gang.location(port.layout, port.block), port.donated) for port in ports
    )
