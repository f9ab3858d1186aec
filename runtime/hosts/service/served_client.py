"""A client of a service: its connections, its programs, and what it sends."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.control.sharing.scheduler_events import OrderedRequest, QueuedStep
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram, HostPort
from pathways.runtime.hosts.protocol.messages import Call, StartTrace, StopTrace
from pathways.runtime.hosts.protocol.service_messages import FromHost
from pathways.runtime.hosts.protocol.wire import Connection
from pathways.runtime.hosts.service.array_sender import ArraySender, RelayedFetch, Sender


@dataclasses.dataclass(eq=False)
class ServedProgram:
    """A program of a client.

    Attributes:
      hosted: the program.
      queued: how many steps of it wait for their turn.
      is_unwanted: whether it is to be unloaded when there is none.
    """

    hosted: HostedProgram
    queued: int = 0
    is_unwanted: bool = False


class ServedStep(QueuedStep):
    """A step of a client, for the service.

    Attributes:
      owner: the client.
      served: the program.
      took: for each island how long it had the devices.
      unsaid: the hosts that are done, which the client does not know.
      failed: what failed on hosts, which the client does not know.
      is_cut: whether the client knows of all hosts that do not reach each other.
    """

    __slots__ = ("failed", "is_cut", "owner", "served", "took", "unsaid")

    def __init__(
        self,
        owner: ServedClient,
        number: int,
        served: ServedProgram,
        takes: Mapping[int, Sequence[int]],
        sent: frozenset[int],
    ) -> None:
        hosted, first = served.hosted, number + 1
        super().__init__(
            owner.number,
            number,
            hosted.number,
            takes,
            {island: range(first, first + len(hosted.outputs[island])) for island in takes},
            sent and sent.intersection(itertools.chain(*takes.values())),
            hosted.share,
            _donated(takes, hosted.inputs),
            {gang.number: gang.life.key.start for gang in hosted.gangs},
            hosted.name,
            hosted.host_numbers,
        )
        self.owner = owner
        self.served = served
        self.took: dict[int, float] = {}
        self.unsaid: list[int] = []
        self.failed: list[FromHost] = []
        self.is_cut = False


def _donated(
    takes: Mapping[int, Sequence[int]], inputs: Mapping[int, Sequence[HostPort]]
) -> dict[int, tuple[int, ...]]:
    """Returns those of the arrays that a step takes that it donates, for each island that has any."""
    return {
        island: donated
        for island, ports in inputs.items()
        if (donated := tuple(n for n, port in zip(takes[island], ports, strict=True) if port.donated))
    }


@dataclasses.dataclass(eq=False)
class ServedCall:
    """A call of a function for a client.

    Attributes:
      client: the client.
      gang: the workers of its island.
      hosts: those that are told.
      call: what they are told.
      left: those that have not ended it.
      queued: the same for the scheduler.
    """

    client: ServedClient
    gang: HostGang
    hosts: frozenset[int]
    call: Call
    left: set[int]
    queued: OrderedRequest | None = None


@dataclasses.dataclass(frozen=True)
class ServedTrace:
    """A trace that a client begins or ends on a host."""

    host: WorkerHandle
    message: StartTrace | StopTrace


class ServedClient:
    """A client.

    Args:
      number: its number, which no other client has had.
      name: its name.
      weight: its share.
      watch: the first of its connections.
      starts: what it was told of islands first: how often workers of each were started before.

    Attributes:
      connections: to it, by the names of `messages.CHANNELS`.
      steps: the one that has an order, which the event loop reads.
      programs: its programs, by their numbers.
      last: the number of the last step that it has asked for.
      fetches: what it fetches, by the numbers of requests to workers.
      is_joined: whether it has opened all its connections.
      disconnected: is set when it has disconnected.
    """

    steps: Connection[Any]
    arrays: ArraySender
    watch: Sender

    def __init__(
        self, number: int, name: str, weight: float, watch: Connection[Any], starts: tuple[int, ...] = ()
    ) -> None:
        self.number = number
        self.name = name
        self.weight = weight
        self.starts = starts
        self.connections: dict[str, Connection[Any]] = {"watch": watch}
        self.programs: dict[int, ServedProgram] = {}
        self.last = 0
        self.loading = 0
        self.fetches: dict[int, RelayedFetch] = {}
        self.is_joined = False
        self.disconnected = threading.Event()

    def __str__(self) -> str:
        return f"client {self.name}"

    def owns(self, number: int) -> bool:
        """Whether a number of an array or a step is one of its own."""
        return number >> SESSION_BITS == self.number
