"""Messages between a service and its clients.

A client has the same three connections to the service as a worker to its controller. Its messages to a worker
are wrapped in `ForHost`, and messages of a worker to it in `FromHost`, with the client's numbers. A step is
one message, `Submit`, which the service schedules among the steps of all clients.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Annotated

import msgspec

from pathways.runtime.control.records import errors
from pathways.runtime.control.records.errors import Failure, HostError
from pathways.runtime.hosts.protocol import messages as m
from pathways.runtime.hosts.protocol.frames import decoded
from pathways.runtime.hosts.protocol.programs import BoundProgram, IslandPort
from pathways.runtime.plan.plan import SliceSpec
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.resources.status import SpareStatus

MAX_TEXT_CHARS = 64
"""Limit on the characters of a text of a client in the status."""

MAX_REASON_CHARS = 200
"""Limit on the characters of a reason that a client states."""


class QuotaError(HostError, ResourceError):
    """Error of a step, or of an array, that exceeds the quota of its client."""

    # Tracebacks show the public name.
    __module__ = "pathways"


class RemoteError(msgspec.Struct, frozen=True):
    """Error that users see: the name of its class and its message."""

    kind: str
    text: str

    @classmethod
    def of(cls, failure: Failure) -> RemoteError:
        """Creates the message form of a failure."""
        return cls(failure.kind.__name__, failure.text)

    def failure(self) -> Failure:
        """Returns the failure.

        Raises:
          MessageError: there is no error class of this name.
        """
        kind = QuotaError if self.kind == QuotaError.__name__ else getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, HostError)):
            raise m.MessageError(f"{self.kind!r} is not an error of hosts")
        return Failure(kind, self.text)


def printable(text: str, most: int = MAX_TEXT_CHARS) -> str:
    """Returns the first characters of a text for status tables, with `?` for unprintable ones."""
    return "".join(each if each.isprintable() else "?" for each in text[:most])


# From a client.


class ClientOrigin(m.Message, frozen=True):
    """Notice of the user, machine and process of a client, for the status; a later one replaces it.

    Raises:
      ValueError: a text is too long, or has characters that do not print.
    """

    user: str
    machine: str
    process: Annotated[int, msgspec.Meta(ge=0)]

    def __post_init__(self) -> None:
        if printable(self.user) != self.user or printable(self.machine) != self.machine:
            raise ValueError(
                f"user and machine of a client must have at most {MAX_TEXT_CHARS} printable characters"
            )


class ForHost(m.Message, frozen=True):
    """Message for a worker.

    Attributes:
      start: how often the workers of its island were started before: messages for earlier workers are
        dropped.
      is_sent: whether it is about an array that the client has sent itself.
    """

    host: int
    start: int
    message: (
        m.Put
        | m.Chunk
        | m.Free
        | m.Fetch
        | m.Describe
        | m.RequestReport
        | m.ReadClock
        | m.StartTrace
        | m.StopTrace
    )
    is_sent: bool = False


class Submit(m.Message, frozen=True):
    """Request to run a step.

    Attributes:
      step: the number of the step, higher than those before it.
      arguments: for each island the numbers of its arguments, in order.
      sent: the numbers of those arrays here that the client sends itself.
      free: for each island the numbers of arrays that are no longer needed.
    """

    step: int
    program: int
    arguments: dict[int, tuple[int, ...]]
    sent: tuple[int, ...] = ()
    free: dict[int, tuple[int, ...]] = {}


class SubmitCall(m.Message, frozen=True):
    """Request to call a function.

    Attributes:
      start: as in `ForHost`.
      hosts: the numbers of the hosts that get the call.
      call: the call, with the client's number.
      sent: the numbers of those array arguments that the client sends itself.
    """

    island: int
    start: int
    hosts: tuple[int, ...]
    call: m.Call
    sent: tuple[int, ...] = ()


class ReleaseArrays(m.Message, frozen=True):
    """Request to free arrays.

    Attributes:
      start: as in `ForHost`.
      sent: the numbers of the arrays that the client has sent itself.
    """

    island: int
    start: int
    arrays: tuple[int, ...]
    sent: tuple[int, ...] = ()


class Collected(m.Message, frozen=True):
    """Reply to `CollectRequest`: the messages before have freed arrays without references."""


class SliceRequest(msgspec.Struct, frozen=True):
    """Slice of a program that needs devices; see `resources.virtual.VirtualSlice`.

    Attributes:
      number: its number, unique among all slices that the client has had.
      spec: its name and mesh.
      pinned: the devices that it must have.
      replica: the replica of the program that it belongs to.
      replicas: number of replicas of each slice of that set.
    """

    number: int
    spec: SliceSpec
    pinned: tuple[tuple[str, int], ...] | None
    replica: int
    device_set: int
    replicas: int


class RequestDevices(m.Message, frozen=True):
    """Request for devices of all slices of a program; the reply is `DevicesBound`.

    Attributes:
      slices: its slices; a slice that has devices already keeps them.
    """

    request: int
    program: str
    slices: tuple[SliceRequest, ...]


class ReleaseDevices(m.Message, frozen=True):
    """Request to release the devices of slices, by their numbers."""

    slices: tuple[int, ...]


class MoveSlices(m.Message, frozen=True):
    """Request to bind slices to the devices that were planned for them; the reply is `DevicesBound`.

    Attributes:
      slices: the positions of these devices, by the numbers of the slices.
    """

    request: int
    slices: dict[int, tuple[int, ...]]


class MoveReport(m.Message, frozen=True):
    """Report of a client whose island is drained, after its last step there if the move is over.

    Attributes:
      start: as in `ForHost`.
      is_over: whether the client needs nothing on the island any more.
      why: why it cannot move now; empty if it can.
    """

    island: int
    start: int
    is_over: bool = False
    why: str = ""

    def __post_init__(self) -> None:
        if printable(self.why, MAX_REASON_CHARS) != self.why:
            raise ValueError(f"a reason must have at most {MAX_REASON_CHARS} printable characters")


class LoadProgram(m.Message, frozen=True):
    """Request to load a program on the hosts of its slices; the reply is `ProgramLoaded`."""

    request: int
    program: BoundProgram

    @property
    def name(self) -> str:
        """Name of the program."""
        return self.program.name

    def islands(self) -> set[int]:
        """Returns the islands of its slices."""
        return {place.island for place in self.program.slices.values()}

    def digest(self) -> str:
        """Returns a digest of the program, whatever its devices."""
        return _digest(self.program.module, self.program.computations)


class LoadForeignProgram(m.Message, frozen=True):
    """Request to load a program of an extension on all hosts of an island; the reply is `ProgramLoaded`.

    Attributes:
      start: as in `ForHost`.
      kind: as in `LoadForeign`, like the fields that follow.
    """

    request: int
    island: int
    start: int
    name: str
    kind: str
    body: bytes
    about: int = 0

    def islands(self) -> set[int]:
        """Returns its island."""
        return {self.island}

    def digest(self) -> str:
        """Returns a digest of the program."""
        return _digest(self.kind, self.body)


def _digest(*contents: object) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(contents, order="deterministic")).hexdigest()


# From the service.


class WorkerFacts(msgspec.Struct, frozen=True):
    """Facts about a worker for clients.

    Attributes:
      pid: its process id.
      ready: its devices and addresses.
    """

    host: int
    pid: int
    ready: m.Ready


class IslandFacts(msgspec.Struct, frozen=True):
    """Facts about an island for clients.

    Attributes:
      start: how often its workers were started before.
      hosts: its workers.
      slices: the number of slices as which unmodified JAX programs see them.
    """

    start: int
    hosts: tuple[WorkerFacts, ...]
    slices: int


class Admitted(m.Message, frozen=True):
    """First message, on `watch`: the client is connected, and these are the islands.

    Attributes:
      heartbeat: seconds after which a silent service is lost.
      stall_report: seconds without progress after which a step is reported; None for never.
      step_deadline: seconds after which a step, or a loop without a known end, is cancelled; None for never.
    """

    client: int
    islands: tuple[IslandFacts, ...]
    heartbeat: float
    stall_report: float | None
    step_deadline: float | None


class ServicePong(m.Message, frozen=True):
    """Reply of a service to `Ping`.

    Attributes:
      number: the number of the `Ping`.
      round_trips: known round-trip times between the service and hosts, in seconds, by host.
      spares: the status of its spare workers; None if none are configured.
    """

    number: int
    round_trips: dict[int, float]
    spares: SpareStatus | None


class AdmissionDenied(m.Message, frozen=True):
    """Notice that the client is not admitted, or is disconnected by the service."""

    why: str


FromWorker = m.Done | m.Called | m.Chunk | m.Failed | m.Described | m.Report | m.FromTracing


class FromHost(m.Message, frozen=True):
    """Message of a worker; see `ForHost`."""

    host: int
    start: int
    message: FromWorker


class HostsDone(m.Message, frozen=True):
    """Notice that hosts have finished a step without errors."""

    step: int
    hosts: tuple[int, ...]


class DevicesBound(m.Message, frozen=True):
    """Reply to `RequestDevices` or `MoveSlices`, whose number it carries.

    Attributes:
      positions: for each slice, by its number, the positions of its devices in the cluster.
      error: why the slices got no devices; empty if they did.
    """

    request: int
    positions: dict[int, tuple[int, ...]]
    error: str = ""


class ProgramLoaded(m.Message, frozen=True):
    """Reply to `LoadProgram`, whose number it carries.

    Attributes:
      inputs: the arguments of the program of each island, in order.
      outputs: the results of the program of each island, in order.
      share: see `control.records.step.Step`.
      starts: for each of these islands how often its workers were started before.
      error: why the program is not loaded; None if it is.
      foreign: the replies of the hosts to `LoadForeignProgram`.
    """

    request: int
    program: int
    inputs: dict[int, tuple[IslandPort, ...]]
    outputs: dict[int, tuple[IslandPort, ...]]
    share: int
    starts: dict[int, int]
    error: RemoteError | None = None
    foreign: tuple[m.ForeignFacts, ...] = ()


class CollectRequest(m.Message, frozen=True):
    """Request to free arrays without references, since the client exceeds its quota."""


class StepRefusedNotice(m.Message, frozen=True):
    """Notice that a step was not issued, and will not be."""

    step: int
    why: RemoteError


class Indeterminate(m.Message, frozen=True):
    """Notice that the outcome of a step is unknown on all hosts."""

    step: int
    why: RemoteError


class StepCutOff(m.Message, frozen=True):
    """Notice that the results of a step on some hosts are errors, whether or not these finish it."""

    step: int
    hosts: tuple[int, ...]
    why: RemoteError


class IslandDrainingNotice(m.Message, frozen=True):
    """Notice that an island will leave, and accepts steps until its clients have moved to others.

    Attributes:
      moves: the positions to which slices of the client can move, by the numbers of the slices.
    """

    island: int
    start: int
    why: RemoteError
    moves: dict[int, tuple[int, ...]]


class IslandLeavingNotice(m.Message, frozen=True):
    """Notice that an island accepts no new steps."""

    island: int
    start: int
    why: RemoteError


class IslandLostNotice(m.Message, frozen=True):
    """Notice that the workers of an island are lost; see `GangLost`."""

    island: int
    start: int
    why: RemoteError
    is_dead: bool
    is_out: bool = False


class IslandReturnedNotice(m.Message, frozen=True):
    """Notice that the workers of an island have been replaced."""

    island: int
    facts: IslandFacts


class IslandAddedNotice(m.Message, frozen=True):
    """Notice that an island has joined the cluster; it has the next number."""

    island: int
    facts: IslandFacts


ToService = (
    m.Handshake
    | ClientOrigin
    | ForHost
    | Submit
    | SubmitCall
    | ReleaseArrays
    | RequestDevices
    | ReleaseDevices
    | MoveSlices
    | LoadProgram
    | LoadForeignProgram
    | Collected
    | MoveReport
    | m.Unload
    | m.Ping
)
ToClient = (
    m.Handshake
    | Admitted
    | AdmissionDenied
    | FromHost
    | HostsDone
    | DevicesBound
    | ProgramLoaded
    | CollectRequest
    | StepRefusedNotice
    | Indeterminate
    | StepCutOff
    | IslandDrainingNotice
    | IslandLeavingNotice
    | IslandLostNotice
    | IslandReturnedNotice
    | IslandAddedNotice
    | ServicePong
)

_to_service = msgspec.msgpack.Decoder(ToService)
_to_client = msgspec.msgpack.Decoder(ToClient)


decode_for_service = functools.partial(decoded, _to_service)
"""Decoder of messages of clients to a service; see `decoded`."""

decode_for_client = functools.partial(decoded, _to_client)
"""Decoder of messages of a service to a client; see `decoded`."""
