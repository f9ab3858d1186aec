"""Client of a service: its connections, programs, steps, calls and traces."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any

from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.messages import Call, ForeignFacts, StartTrace, StepMemory, StopTrace
from pathways.runtime.hosts.protocol.wire import Connection
from pathways.runtime.service.protocol.service_messages import ClientOrigin, FromHost, ProgramLoaded
from pathways.runtime.service.relaying.array_sender import ArraySender, RelayedFetch, Sender
from pathways.runtime.service.sharing.accounts import Accounts, StepUse
from pathways.runtime.service.sharing.memory import DeviceBytes, StepBytes
from pathways.runtime.service.sharing.program_charges import ProgramIdentity
from pathways.runtime.service.sharing.scheduler_events import OrderedRequest, QueuedStep


class ServedProgram:
    """Program of a client.

    Args:
      hosted: the program.
      foreign: the replies of its hosts, if an extension has loaded it.
      needs: the memory of its steps on islands with limits.
      result_sizes: for each island, the bytes of each result there, all shards together.
      moved: for each island, the bytes that each step moves there from other islands.

    Attributes:
      hosted: the program.
      queued: the number of its steps that wait in the scheduler.
      is_unwanted: whether to unload it when none waits.
      starts: for each of its islands, how often workers were started before its own.
      results: for each island, the number of its results there.
      donated: for each island with donated arguments, their positions.
      identity: the identity of its contents, which is charged with the losses that it causes.
      uses: the use of each island by its steps, see `open_accounts`.
    """

    def __init__(
        self,
        hosted: HostedProgram,
        foreign: tuple[ForeignFacts, ...] = (),
        needs: Mapping[int, StepBytes] = types.MappingProxyType({}),
        result_sizes: Mapping[int, tuple[int, ...]] = types.MappingProxyType({}),
        moved: Mapping[int, int] = types.MappingProxyType({}),
    ) -> None:
        self.hosted = hosted
        self.needs = needs
        self._foreign = foreign
        self.queued = 0
        self.is_unwanted = False
        self.identity = ProgramIdentity()
        self.uses: Mapping[int, StepUse] = {}
        self._result_sizes = result_sizes
        self._moved = moved
        # What all of its steps have in common.
        self.starts = {gang.number: gang.life.key.start for gang in hosted.gangs}
        self.results = {island: len(ports) for island, ports in hosted.outputs.items()}
        self.donated = {
            island: donated
            for island, ports in hosted.inputs.items()
            if (donated := tuple(n for n, port in enumerate(ports) if port.donated))
        }

    def open_accounts(self, accounts: Accounts, client: str, now: float) -> None:
        """Opens the accounts of the program."""
        name = self.hosted.name
        self.uses = {
            gang.number: StepUse(
                accounts.open(client, name, gang.number, now),
                self._result_sizes.get(gang.number, (0,) * self.results[gang.number]),
                self._moved.get(gang.number, 0),
            )
            for gang in self.hosted.gangs
        }

    @property
    def is_foreign(self) -> bool:
        """Whether an extension has loaded it."""
        return bool(self._foreign)

    @property
    def is_loaded(self) -> bool:
        """Whether hosts have a program, and not only replied to a request of an extension."""
        return all(reply.is_loaded for reply in self._foreign)

    def describe(self, request: int) -> ProgramLoaded:
        """Returns the reply to the request of its client to load it."""
        hosted = self.hosted
        inputs, outputs = (
            {island: tuple(port.plain() for port in island_ports) for island, island_ports in ports.items()}
            for ports in (hosted.inputs, hosted.outputs)
        )
        return ProgramLoaded(
            request, hosted.number, inputs, outputs, hosted.share, self.starts, foreign=self._foreign
        )


def step_bytes(reports: Sequence[StepMemory | None], count: int) -> StepBytes:
    """Returns the memory of a step on an island.

    Args:
      reports: the reports of its hosts; None from those without devices of the program.
      count: the number of its results there.
    """
    allocated: collections.Counter[int] = collections.Counter()
    temporaries: collections.Counter[int] = collections.Counter()
    results: dict[int, DeviceBytes] = {}
    received = [report for report in reports if report is not None]
    for report in received:
        for devices, new, beside in zip(report.devices, report.allocated, report.temporaries, strict=True):
            allocated.update(dict.fromkeys(devices, new))
            temporaries.update(dict.fromkeys(devices, beside))
        for position, slice, of_device in report.results:
            of_devices = tuple((device, of_device) for device in report.devices[slice])
            results[position] = (*results.get(position, ()), *of_devices)
    return StepBytes(
        tuple((device, count) for device, count in allocated.items() if count),
        tuple((device, count) for device, count in temporaries.items() if count),
        tuple(results.get(position, ()) for position in range(count)),
        any(report.is_view for report in received),
    )


class ServedStep(QueuedStep):
    """Step of a client, with its reports to the client.

    Attributes:
      owner: the client.
      served: the program.
      durations: for each island the seconds that the step had its devices.
      failed_islands: the islands on whose hosts it has failed.
      unreported: the hosts that are done, as the client does not know yet.
      failed: the failures on hosts that the client does not know yet.
      is_cut: whether the client was notified of the hosts that do not reach each other.
    """

    __slots__ = ("durations", "failed", "failed_islands", "is_cut", "owner", "served", "unreported")

    def __init__(
        self,
        owner: ServedClient,
        number: int,
        served: ServedProgram,
        arguments: Mapping[int, Sequence[int]],
        sent: frozenset[int],
    ) -> None:
        hosted, first = served.hosted, number + 1
        super().__init__(
            owner.number,
            number,
            hosted.number,
            arguments,
            {island: range(first, first + served.results[island]) for island in arguments},
            sent and sent.intersection(itertools.chain(*arguments.values())),
            hosted.share,
            {island: [arguments[island][n] for n in numbers] for island, numbers in served.donated.items()},
            served.starts,
            hosted.name,
            hosted.host_numbers,
            is_foreign=served.is_foreign,
            memory=served.needs,
            identity=served.identity,
            uses=served.uses,
        )
        self.owner = owner
        self.served = served
        self.durations: dict[int, float] = {}
        self.failed_islands: frozenset[int] = frozenset()
        self.unreported: list[int] = []
        self.failed: list[FromHost] = []
        self.is_cut = False


@dataclasses.dataclass(eq=False)
class ServedCall:
    """Call of a function for a client.

    Attributes:
      gang: the workers of its island.
      hosts: the hosts that get the message.
      call: the message.
      left: the hosts that have not finished the call.
      queued: the call as the scheduler knows it.
    """

    client: ServedClient
    gang: HostGang
    hosts: frozenset[int]
    call: Call
    left: set[int]
    queued: OrderedRequest | None = None


@dataclasses.dataclass(frozen=True)
class ServedTrace:
    """Request of a client to start or stop a trace on a host."""

    host: WorkerHandle
    message: StartTrace | StopTrace


class ServedClient:
    """Client of a service.

    Args:
      number: its number, which no client had before.
      watch: the first of its connections.
      starts: for each island the start of its workers, as the client was admitted with it.
      has_client_token: whether it has attached with a token of its name, not with the token of the cluster.

    Attributes:
      connections: its connections, by the names of `messages.CHANNELS`.
      steps: the connection of its ordered requests, which the event loop reads.
      arrays: sender of the arrays that it fetches.
      watch: sender of replies without an order.
      last: the number of its last step or call.
      loading: the number of programs that are being compiled for it.
      loads: the identities of these programs, by the numbers of its requests.
      fetches: its fetches in flight, by the numbers of the requests to workers.
      is_joined: whether it has opened all its connections.
      since: the time when it was admitted, in seconds since the epoch.
      origin: its user, machine and process; None until it has sent them.
      disconnected: event that is set when it has disconnected.
    """

    steps: Connection[Any]
    arrays: ArraySender
    watch: Sender

    def __init__(
        self,
        number: int,
        name: str,
        watch: Connection[Any],
        starts: tuple[int, ...] = (),
        has_client_token: bool = False,
    ) -> None:
        self.number = number
        self.name = name
        self.starts = starts
        self.has_client_token = has_client_token
        self.connections: dict[str, Connection[Any]] = {"watch": watch}
        self.programs: dict[int, ServedProgram] = {}
        self.last = 0
        self.loading = 0
        self.loads: dict[int, ProgramIdentity] = {}
        self.fetches: dict[int, RelayedFetch] = {}
        self.is_joined = False
        self.since = time.time()
        self.origin: ClientOrigin | None = None
        self.disconnected = threading.Event()

    def __str__(self) -> str:
        return f"client {self.name!r}"

    def has_number(self, number: int) -> bool:
        """Returns whether an array or a step with this number is its own."""
        return number >> SESSION_BITS == self.number
