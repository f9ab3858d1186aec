"""What a service and its clients say to each other.

A client has the same three connections to the service as a worker to its controller. What it says to a worker
goes in `ForHost`, and what a worker says to it comes in `FromHost`, with the numbers that the client gave; a
step is one message, `Submit`, and the service says when it is its turn.
"""

from __future__ import annotations

import msgspec

from pathways.runtime.control.records import errors
from pathways.runtime.control.records.errors import Failure, HostError
from pathways.runtime.hosts.protocol import messages as m
from pathways.runtime.hosts.protocol.frames import decoded
from pathways.runtime.hosts.protocol.programs import BoundProgram, IslandPort
from pathways.runtime.plan.plan import SliceSpec


class RemoteError(msgspec.Struct, frozen=True):
    """Why something is not there: an error that users see, by name, and its text."""

    kind: str
    text: str

    @classmethod
    def of(cls, failure: Failure) -> RemoteError:
        """A failure, as it is sent."""
        return cls(failure.kind.__name__, failure.text)

    def failure(self) -> Failure:
        """The failure.

        Raises:
          MessageError: no error is called so.
        """
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, HostError)):
            raise m.MessageError(f"no error of hosts is called {self.kind!r}")
        return Failure(kind, self.text)


# From a client.


class ForHost(m.Message, frozen=True):
    """For a worker.

    Attributes:
      host: its number.
      start: how often the workers of its island were started before: what was meant for earlier ones is
        for nobody.
      message: what it is told.
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
    """Asks for a step.

    Attributes:
      step: its number, higher than those before it.
      program: the number of the program.
      arguments: for each island the numbers of the arrays that its part takes, in order.
      sent: those of all arrays that are named here that the client sends itself.
      free: for each island the numbers of arrays that are no longer held.
    """

    step: int
    program: int
    arguments: dict[int, tuple[int, ...]]
    sent: tuple[int, ...] = ()
    free: dict[int, tuple[int, ...]] = {}


class SubmitCall(m.Message, frozen=True):
    """Asks for a call of a function.

    Attributes:
      island: the number of the island.
      start: as in `ForHost`.
      hosts: the numbers of the hosts that are told.
      call: what they are told, with the number that the client gives it.
      sent: those of the arrays that it takes that the client sends itself.
    """

    island: int
    start: int
    hosts: tuple[int, ...]
    call: m.Call
    sent: tuple[int, ...] = ()


class ReleaseArrays(m.Message, frozen=True):
    """Arrays are no longer held.

    Attributes:
      island: the number of the island.
      start: as in `ForHost`.
      arrays: their numbers.
      sent: those of them that the client has sent itself.
    """

    island: int
    start: int
    arrays: tuple[int, ...]
    sent: tuple[int, ...] = ()


class SliceRequest(msgspec.Struct, frozen=True):
    """A slice of a program; see `resources.virtual.VirtualSlice`.

    Attributes:
      number: its number, which no other slice of the client has had.
      spec: what it is.
      pinned: the devices that it must have.
      replica: which replica of the program it is of.
      device_set: the number of its set.
      replicas: how many times each slice of that set exists.
    """

    number: int
    spec: SliceSpec
    pinned: tuple[tuple[str, int], ...] | None
    replica: int
    device_set: int
    replicas: int


class RequestDevices(m.Message, frozen=True):
    """Asks for devices of all slices of a program.

    Attributes:
      request: the number of the request.
      program: the name of the program.
      slices: its slices; those that have devices already keep them.
    """

    request: int
    program: str
    slices: tuple[SliceRequest, ...]


class ReleaseDevices(m.Message, frozen=True):
    """Slices, by their numbers, need their devices no more."""

    slices: tuple[int, ...]


class LoadProgram(m.Message, frozen=True):
    """Loads a program on the hosts of its slices."""

    request: int
    program: BoundProgram


# From the service.


class WorkerFacts(msgspec.Struct, frozen=True):
    """A worker, as clients see it.

    Attributes:
      host: its number.
      pid: its process.
      ready: what it said of itself.
    """

    host: int
    pid: int
    ready: m.Ready


class IslandFacts(msgspec.Struct, frozen=True):
    """An island, as clients see it.

    Attributes:
      start: how often its workers were started before.
      hosts: its workers.
    """

    start: int
    hosts: tuple[WorkerFacts, ...]


class Admitted(m.Message, frozen=True):
    """The first message, on `watch`: the islands that there are.

    Attributes:
      client: the number of the client.
      islands: the islands.
      heartbeat: seconds that the service may say nothing.
      stall_report: seconds without progress after which a step is reported; None for never.
      step_deadline: seconds after which a step, or a loop without a known end, is ended; None for never.
    """

    client: int
    islands: tuple[IslandFacts, ...]
    heartbeat: float
    stall_report: float | None
    step_deadline: float | None


class ServicePong(m.Message, frozen=True):
    """The answer of a service to `Ping`.

    Attributes:
      number: that of the `Ping`.
      round_trips: how long a message of the service to a host and its answer take, in seconds, where known.
    """

    number: int
    round_trips: dict[int, float]


class AdmissionDenied(m.Message, frozen=True):
    """Instead of `Admitted`: why the client is not let in, or does not stay."""

    why: str


FromWorker = m.Done | m.Called | m.Chunk | m.Failed | m.Described | m.Report | m.FromTracing


class FromHost(m.Message, frozen=True):
    """A worker says something; see `ForHost`."""

    host: int
    start: int
    message: FromWorker


class HostsDone(m.Message, frozen=True):
    """Workers are done with their parts of a step, and nothing went wrong.

    Attributes:
      step: the number of the step.
      hosts: theirs.
    """

    step: int
    hosts: tuple[int, ...]


class DevicesBound(m.Message, frozen=True):
    """The answer to `RequestDevices`, whose number it carries.

    Attributes:
      request: the number of the request.
      positions: for each slice, by its number, the positions of its devices in the cluster.
      error: why they have none; empty if they have.
    """

    request: int
    positions: dict[int, tuple[int, ...]]
    error: str = ""


class ProgramLoaded(m.Message, frozen=True):
    """The answer to `LoadProgram`, whose number it carries.

    Attributes:
      request: the number of the request.
      program: the number of the program.
      inputs: what the part of each island takes, in order.
      outputs: what the part of each island returns, in order.
      share: see `control.records.step.Step`.
      starts: for each of these islands how often its workers were started before.
      error: why it is not loaded; None if it is.
    """

    request: int
    program: int
    inputs: dict[int, tuple[IslandPort, ...]]
    outputs: dict[int, tuple[IslandPort, ...]]
    share: int
    starts: dict[int, int]
    error: RemoteError | None = None


class StepRefusedNotice(m.Message, frozen=True):
    """A step was not issued, and will not be."""

    step: int
    why: RemoteError


class Indeterminate(m.Message, frozen=True):
    """It is unknown what any host has made of a step."""

    step: int
    why: RemoteError


class StepCutOff(m.Message, frozen=True):
    """What some hosts make of a step is an error, whether they are done with it some time or not."""

    step: int
    hosts: tuple[int, ...]
    why: RemoteError


class IslandLeavingNotice(m.Message, frozen=True):
    """An island takes nothing new any more."""

    island: int
    start: int
    why: RemoteError


class IslandLostNotice(m.Message, frozen=True):
    """The workers of an island are gone; `is_dead` says whether none take their place."""

    island: int
    start: int
    why: RemoteError
    is_dead: bool


class IslandReturnedNotice(m.Message, frozen=True):
    """Other workers have taken the place of those of an island."""

    island: int
    facts: IslandFacts


ToService = (
    m.Handshake
    | ForHost
    | Submit
    | SubmitCall
    | ReleaseArrays
    | RequestDevices
    | ReleaseDevices
    | LoadProgram
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
    | StepRefusedNotice
    | Indeterminate
    | StepCutOff
    | IslandLeavingNotice
    | IslandLostNotice
    | IslandReturnedNotice
    | ServicePong
)

_to_service = msgspec.msgpack.Decoder(ToService)
_to_client = msgspec.msgpack.Decoder(ToClient)


def decode_for_service(body: bytes | bytearray) -> ToService:
    """Reads a message to a service.

    Raises:
      MessageError: it is none.
    """
    return decoded(_to_service, body)


def decode_for_client(body: bytes | bytearray) -> ToClient:
    """Reads a message to a client.

    Raises:
      MessageError: it is none.
    """
    return decoded(_to_client, body)
