"""Messages between controller and workers: typed plain data.

Each worker has three connections, so that no message queues behind slower ones: `steps` carries everything
that is ordered, `arrays` the bytes of arrays, and `watch` the requests and heartbeats of both sides.
"""

from __future__ import annotations

import sys

import jaxlib
import msgspec

from pathways.dialect.version import __version__
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.plan.stored import StoredComputation, StoredConstant

PROTOCOL = 18
"""Version of the messages, increased whenever one changes."""

CHANNELS = ("steps", "arrays", "watch")
"""Names of the connections of a worker to the controller."""

PEER = "peer"
"""Name of the heartbeat connection of a worker to another."""


def versions() -> tuple[str, str, str]:
    """Returns the versions that controller and workers must have in common: pathways, jaxlib and Python."""
    python = ".".join(map(str, sys.version_info[:2]))
    return __version__, jaxlib.__version__, python


class MessageError(ValueError):
    """Error of bytes that are not a message of this protocol, or of an unexpected message."""


class DeviceLayout(msgspec.Struct, frozen=True):
    """Layout of an array on devices of an island.

    Attributes:
      devices: the ids of the devices, in the order of the mesh.
      mesh: the sizes of the axes of the mesh.
      dims: the axes that split each dimension.
      memory_kind: the memory of the devices, as JAX names it; None for their default memory.
    """

    devices: tuple[int, ...]
    mesh: tuple[int, ...]
    axis_names: tuple[str, ...]
    dims: tuple[tuple[str, ...], ...]
    memory_kind: str | None = None


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base class of all messages."""


# The handshake, see `handshake.py`.


class Purpose(msgspec.Struct, frozen=True):
    """Purpose of a connection.

    Attributes:
      channel: one of `CHANNELS`, `PEER`, or a channel of another module here.
      role: the role of the side that opens it: `worker`, `client` or `admin`.
      host: the number of a worker.
      epoch: how often workers were started before it.
      to: the side that it connects to: `controller`, `host 3`, or `service`.
    """

    channel: str
    role: str
    host: int
    epoch: int
    to: str
    name: str = ""

    def __str__(self) -> str:
        return f"connection {self.channel!r} of {self.role} {self.name or self.host} to {self.to}"


class Open(Message, frozen=True):
    """First message of the side that opens a connection; `nonce` is random."""

    purpose: Purpose
    nonce: bytes


class Challenge(Message, frozen=True):
    """Request of the other side for a proof; `nonce` is random."""

    nonce: bytes


class Proof(Message, frozen=True):
    """Proof of the side that opened the connection, and its versions of pathways, jaxlib and Python."""

    code: bytes
    versions: tuple[str, str, str]


class Welcome(Message, frozen=True):
    """Proof of the side that accepted the connection."""

    code: bytes


Handshake = Open | Challenge | Proof | Welcome


# The start of a worker, on `watch`.


class Coordinator(Message, frozen=True):
    """Address and port of the first host of an island, for its other hosts."""

    address: str


class JoinCoordinator(Message, frozen=True):
    """Request to the hosts of an island to join the first one, at the address of its `Coordinator`."""

    address: str


class Ready(Message, frozen=True):
    """Notice that a worker has its devices, and can run programs.

    Attributes:
      devices: their ids, unique in its island.
      memory: bytes of memory of each, None if unknown.
      data_address: the address from which other workers pull arrays.
      probe_address: the address to which other workers send heartbeats.
      machine: the name of its machine.
    """

    platform: str
    devices: tuple[int, ...]
    memory: tuple[int | None, ...]
    data_address: str
    probe_address: str
    machine: str = ""


# From the controller.


class Load(Message, frozen=True):
    """Request to compile the program of an island; the reply is `LoadDone`.

    Attributes:
      module: bytecode of the module in the form `host`, with the function of this island only.
      computations: the computations that the module only declares, by name.
      constants: the constants that the module only declares, by name.
      devices: the ids of the devices of each slice.
      owners: the hosts of the devices of each slice.
      peers: the data address of each host, followed by a `#` and an id of the worker process.
      probes: the address for heartbeats of each host.
      base: the random number from which ids of transfers are computed, see `worker_target.TransferIds`.
      crossing: number of transfers between islands in a run, on all islands together.
      stride: maximum number of transfers in a run.
      weak_results: for each of its results whether it is weakly typed.
    """

    request: int
    program: int
    name: str
    module: bytes
    computations: dict[str, StoredComputation]
    constants: dict[str, StoredConstant]
    island: int
    devices: dict[str, tuple[int, ...]]
    owners: dict[str, tuple[int, ...]]
    peers: dict[int, str]
    probes: dict[int, str]
    base: int
    crossing: int
    stride: int
    argument_names: tuple[str, ...]
    weak_results: tuple[bool, ...]


class LoadForeign(Message, frozen=True):
    """Request to load a program that an extension of the workers runs; the reply is `LoadDone`.

    Attributes:
      kind: the name of the loader among the loaders of the extension.
      body: the program, as the loader reads it.
      about: the number of a loaded program that the loader reads; 0 for none.
    """

    request: int
    program: int
    name: str
    kind: str
    body: bytes
    about: int = 0


class StepMemory(msgspec.Struct, frozen=True):
    """Memory that a step needs on the devices of a host, in bytes.

    Attributes:
      devices: for each slice of the program the ids of its devices on this host.
      allocated: for each slice the bytes of new arrays on each device: of results, without donated arguments
        whose memory they reuse.
      temporaries: for each slice the bytes on each device beside arguments and results while a step runs.
      results: for each result here its position among the results of the island, its slice, and its bytes on
        each device.
      is_view: whether the results share the memory of the arguments.
    """

    devices: tuple[tuple[int, ...], ...]
    allocated: tuple[int, ...]
    temporaries: tuple[int, ...]
    results: tuple[tuple[int, int, int], ...]
    is_view: bool = False


class ForeignFacts(msgspec.Struct, frozen=True):
    """Reply of a loader of an extension.

    Attributes:
      facts: facts that the extension reads.
      is_loaded: whether the worker has a program now.
      operands: the number of its operands.
      results: the number of its results.
      donated: the operands that it consumes.
      memory: the memory of a step; None for a program without devices on this host.
    """

    facts: bytes
    is_loaded: bool = False
    operands: int = 0
    results: int = 0
    donated: tuple[int, ...] = ()
    memory: StepMemory | None = None


class Put(Message, frozen=True):
    """Announcement of an array; the bytes of its different shards follow in `Chunk`s.

    Attributes:
      shape: its global shape.
      placement: its layout.
      shards: for each device the number of its shard among the shards that follow; -1 for devices of other
        hosts.
    """

    array: int
    shape: tuple[int, ...]
    dtype: str
    placement: DeviceLayout
    shards: tuple[int, ...]


class Chunk(Message, frozen=True):
    """Header of bytes of a shard, which follow the message: after a `Put`, or in reply to a `Fetch`.

    Attributes:
      number: the number of the array of the `Put`, or of the request of the `Fetch`.
      offset: the offset of the bytes in the shard.
      size: number of bytes.
    """

    number: int
    shard: int
    offset: int
    size: int


class Run(Message, frozen=True):
    """Request to run a program: the one message of a step.

    Attributes:
      run: the number of the step, higher than those before it.
      first: the number of the first result; the other results follow it.
      arguments: the numbers of the arguments, in order.
      free: the numbers of arrays that are no longer needed.
    """

    program: int
    run: int
    first: int
    arguments: tuple[int, ...]
    free: tuple[int, ...] = ()


class Free(Message, frozen=True):
    """Request to free arrays."""

    arrays: tuple[int, ...]


class Fetch(Message, frozen=True):
    """Request for the different shards of an array.

    Attributes:
      request: the number of the request, which the replies carry.
      devices: a device for each shard, by its position among the devices of the array on this host.
      size: total bytes of the shards.
      credit: number of bytes that may be sent before the first `Credit`; None for all.
    """

    request: int
    array: int
    devices: tuple[int, ...]
    size: int = 0
    credit: int | None = None


class Credit(Message, frozen=True):
    """Permission to send more bytes of a fetched array; a negative number cancels the fetch."""

    request: int
    bytes: int


class Unload(Message, frozen=True):
    """Request to free a program."""

    program: int


class Lost(Message, frozen=True):
    """Notice that hosts are lost: pending receives from them become errors.

    Attributes:
      addresses: their data addresses, as in `Load.peers`.
    """

    addresses: tuple[str, ...]


class Cancel(Message, frozen=True):
    """Request to free the arrays that were sent to lost hosts.

    Attributes:
      runs: the program and the number of each run whose arrays they may not have fetched.
    """

    hosts: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]


class Ping(Message, frozen=True):
    """Heartbeat; the reply is `Pong`."""

    number: int


class Leave(Message, frozen=True):
    """Permission to exit, because the island is not needed any more: the later reply to `Leaving`."""


class ReleaseClient(Message, frozen=True):
    """Notice that a client of the service has disconnected: objects that its calls keep may be freed.

    Attributes:
      client: the number of the client; see `records.step.SESSION_BITS`.
    """

    client: int


class KeepClients(Message, frozen=True):
    """Notice to a new worker of a service: it removes files of other clients by earlier workers of its host.

    Attributes:
      clients: the numbers of the clients that are connected.
    """

    clients: tuple[int, ...]


class RequestReport(Message, frozen=True):
    """Request for a `Report`, which carries the number of the request."""

    request: int


# From a worker.


class LoadDone(Message, frozen=True):
    """Reply to `Load` or `LoadForeign`, whose number it carries.

    Attributes:
      error: why the program is not loaded; None if it is.
      foreign: the reply of the loader of an extension; None for `Load`.
      memory: the memory of a step of the program of a `Load`.
    """

    request: int
    error: str | None
    foreign: ForeignFacts | None = None
    memory: StepMemory | None = None


class Done(Message, frozen=True):
    """Notice that a run is done on this host.

    Attributes:
      run: the number of the step.
      error: the error of the whole run; None if it was issued.
      failed: the errors of single results, by their positions; all others are ready.
      took: seconds for which it had the devices: from its issue, or the end of the run before if that was
        later, to its end.
    """

    run: int
    error: str | None
    failed: dict[int, str]
    took: float


class Missed(Message, frozen=True):
    """Notice, before `Done`, that a run continues without an array that another host did not send.

    Only islands of several hosts send it, see `WorkerTarget.missed`.

    Attributes:
      run: the number of the step.
      why: the error of the array.
    """

    run: int
    why: str


class Report(Message, frozen=True):
    """State of a worker: the reply to `RequestReport`, whose number it carries."""

    request: int
    report: HostReport


class PeerLost(Message, frozen=True):
    """Notice that another host does not answer heartbeats of this one at `address`."""

    host: int
    address: str
    error: str


class PeerFound(Message, frozen=True):
    """Notice that a host for which `PeerLost` was sent answers again."""

    host: int
    address: str


class Leaving(Message, frozen=True):
    """Notice that the process got SIGTERM; it continues until the controller sends `Leave`."""


class Failed(Message, frozen=True):
    """Error reply to `Fetch`, whose number it carries: the array cannot be sent."""

    request: int
    error: str


class Pong(Message, frozen=True):
    """Reply to `Ping`."""

    number: int


# Traces.


class StartTrace(Message, frozen=True):
    """Request to record all steps from now on; `trace` is the number of the trace."""

    trace: int


class StopTrace(Message, frozen=True):
    """Request to record no more steps, and to send the recorded ones."""

    trace: int


class ReadClock(Message, frozen=True):
    """Request for the time; the reply is `ClockTime`."""

    number: int


class TraceStarted(Message, frozen=True):
    """Notice that all steps from now on are recorded."""

    trace: int


class StepTimes(msgspec.Struct, frozen=True, array_like=True):
    """Times of a launch, transfer, send or receive; nanoseconds of the host's clock.

    Attributes:
      step: its number among the steps of the host's plan.
      dispatched: when it was passed to XLA.
      done: when it was observed to be done; None if it cannot be waited for.
      before: when the previously observed step was done; 0 if there is none.
      ran: start and end of a launch according to a profile; None without one.
    """

    step: int
    dispatched: int
    done: int | None
    before: int
    ran: tuple[int, int] | None


class RunTimes(Message, frozen=True):
    """Times of some of the steps of a run on a host; `last` is set in the last such message of the run."""

    trace: int
    program: int
    run: int
    steps: tuple[StepTimes, ...]
    last: bool


class SpanTimes(Message, frozen=True):
    """Times of work on a host that belongs to no run; nanoseconds of its clock.

    Attributes:
      client: the number of the client for which it was done.
      row: the name of its row; see `TraceSpan`.
      name: the name of the work.
      start: when it began.
      end: when it ended.
    """

    trace: int
    client: int
    row: str
    name: str
    start: int
    end: int


class TraceDone(Message, frozen=True):
    """Notice that all recorded times were sent."""

    trace: int


class ClockTime(Message, frozen=True):
    """Reply to `ReadClock`: nanoseconds of a monotonic clock."""

    number: int
    time: int


# Facts about compiled programs.


class Describe(Message, frozen=True):
    """Request for memory and FLOPs of a compiled program, and for the `text` of its modules if set."""

    request: int
    program: int
    text: bool


class Described(Message, frozen=True):
    """Reply to `Describe`, in pieces whose texts are to be concatenated.

    Attributes:
      memory: for each slice the fields of its `SliceMemory`, in their order.
      flops: for each computation on each slice both names and its floating-point operations.
      last: whether this is the last piece.
      error: why the program cannot be described; None if it can.
    """

    request: int
    memory: dict[str, tuple[int, ...]]
    flops: tuple[tuple[str, str, float], ...]
    text: str
    last: bool
    error: str | None


# Calls of functions.


class KeptArray(msgspec.Struct, frozen=True):
    """Array argument of a call.

    Attributes:
      array: the number of the array, known on all hosts of the island.
      key: the implementation of typed PRNG keys whose words it holds, such as `threefry2x32`; None for
        another array.
    """

    array: int
    key: str | None


class ResultArray(msgspec.Struct, frozen=True):
    """Array result of a call.

    Attributes:
      shape: its global shape.
      dtype: its dtype; for typed PRNG keys the dtype of their words.
      placement: its layout.
    """

    shape: tuple[int, ...]
    dtype: str
    placement: DeviceLayout


class Call(Message, frozen=True):
    """Request to call a function: it is ordered after the steps before it, and runs beside those after it.

    Attributes:
      call: the number of the call, higher than the numbers of steps and calls before it.
      first: the number of the first array result; the other results follow it.
      hosts: the hosts that run it; on the other hosts of the island its results have no shards.
      function: the name of the function, as in `package.module:name`.
      path: the `sys.path` of the client.
      edition: how often the client's modules have changed on disk; with a higher one they are imported again.
      lane: calls of one lane run one after the other.
      x64: whether JAX has 64-bit types enabled.
      arguments: JSON: the positional arguments, the tree of the array arguments, and the keyword arguments;
        see `plain`.
      results: the array results; None for a plain value.
      structure: JSON: the tree of the array results, see `plain`.
    """

    call: int
    first: int
    hosts: tuple[int, ...]
    function: str
    path: tuple[str, ...]
    edition: int
    lane: int
    x64: bool
    arrays: tuple[KeptArray, ...]
    arguments: bytes
    results: tuple[ResultArray, ...] | None
    structure: bytes


class CallFailure(msgspec.Struct, frozen=True):
    """Failure of a call.

    Attributes:
      kind: `raised` for an exception of the function, `import` if it was not found, `result` if it must not
        return such a value, `argument` if an argument was not available.
      type: the type of the exception, such as `ValueError`.
      text: the message.
      traceback: the traceback from the function on; empty if there is none.
      errno: the number of an operating system error; None for others.
      path: the file that such an error names; None if it names none.
      about: the operation of the call, as the end of a phrase.
    """

    kind: str
    type: str
    text: str
    traceback: str = ""
    errno: int | None = None
    path: str | None = None
    about: str = ""


class Called(Message, frozen=True):
    """Notice that a call has ended on this host.

    Attributes:
      value: JSON: the value that it returned, or a value beside its array results; empty if it failed.
      failure: the failure; None if it succeeded.
    """

    call: int
    value: bytes
    failure: CallFailure | None


FromTracing = TraceStarted | RunTimes | SpanTimes | TraceDone | ClockTime

ToWorker = (
    Handshake
    | JoinCoordinator
    | Load
    | LoadForeign
    | Put
    | Chunk
    | Run
    | Free
    | Fetch
    | Credit
    | Unload
    | Lost
    | Cancel
    | Ping
    | StartTrace
    | StopTrace
    | ReadClock
    | RequestReport
    | Describe
    | Leave
    | Call
    | ReleaseClient
    | KeepClients
)
ToController = (
    Handshake
    | Coordinator
    | Ready
    | LoadDone
    | Done
    | Missed
    | Failed
    | Chunk
    | Pong
    | FromTracing
    | Report
    | PeerLost
    | PeerFound
    | Described
    | Leaving
    | Called
)
