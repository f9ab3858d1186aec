"""What controller and workers say to each other: messages of plain data, each with its types.

Each worker has three connections, so that nothing queues behind what is slower: `steps` has everything that
has an order, `arrays` the bytes of arrays, and `watch` what both sides ask of each other in the meantime.
"""

from __future__ import annotations

import importlib.metadata
import sys

import jaxlib
import msgspec

from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.plan.stored import StoredComputation, StoredConstant

PROTOCOL = 15
"""Raised whenever a message changes."""

CHANNELS = ("steps", "arrays", "watch")
"""The connections of a worker to the controller."""

PEER = "peer"
"""The connection of one worker to another, on which they ask whether they live."""


def versions() -> tuple[str, str, str]:
    """What controller and workers must have in common: pathways, jaxlib and Python."""
    python = ".".join(map(str, sys.version_info[:2]))
    return importlib.metadata.version("pathways-mlir"), jaxlib.__version__, python


class MessageError(ValueError):
    """Bytes that are no message of this protocol; says what is wrong."""


class DeviceLayout(msgspec.Struct, frozen=True):
    """How an array lies on devices of a host.

    Attributes:
      devices: the ids of the devices there, in the order of the mesh.
      mesh: the sizes of the axes of the mesh.
      axis_names: their names.
      dims: the axes that split each dimension.
    """

    devices: tuple[int, ...]
    mesh: tuple[int, ...]
    axis_names: tuple[str, ...]
    dims: tuple[tuple[str, ...], ...]


class Message(msgspec.Struct, frozen=True, tag=True):
    """Any message."""


# The handshake, see `handshake.py`.


class Purpose(msgspec.Struct, frozen=True):
    """What a connection is for.

    Attributes:
      channel: which of `CHANNELS` it is, or `PEER`, or what another file of this folder calls it.
      role: what the side that opens it is: `worker`, `client` or `admin`.
      host: the number of a worker.
      epoch: how often workers were started before it.
      to: whom it calls: `controller`, `host 3`, or `service`.
      name: that of a client.
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
    """Whoever opens a connection says what it is for; `nonce` is random."""

    purpose: Purpose
    nonce: bytes


class Challenge(Message, frozen=True):
    """The other side asks for proof; `nonce` is random."""

    nonce: bytes


class Proof(Message, frozen=True):
    """The proof of the side that opened the connection, and its versions of pathways, jaxlib and Python."""

    code: bytes
    versions: tuple[str, str, str]


class Welcome(Message, frozen=True):
    """The proof of the side that was called."""

    code: bytes


Handshake = Open | Challenge | Proof | Welcome


# The start of a worker, on `watch`.


class Coordinator(Message, frozen=True):
    """The first host of an island says where its other hosts find it: an address and a port."""

    address: str


class Join(Message, frozen=True):
    """The controller tells the hosts of an island where its first one is, as that one has said."""

    address: str


class Ready(Message, frozen=True):
    """A worker has its devices, and may be told to run programs.

    Attributes:
      platform: the platform of its devices.
      devices: their ids, which no other host of its island has.
      memory: bytes of memory of each, None where that is not known.
      data_address: where other workers pull arrays from.
      probe_address: where other workers ask whether it lives.
    """

    platform: str
    devices: tuple[int, ...]
    memory: tuple[int | None, ...]
    data_address: str
    probe_address: str


# From the controller.


class Load(Message, frozen=True):
    """Compiles the part of a program that a host runs.

    Attributes:
      request: the number of the request.
      program: the number of the program.
      name: its name.
      module: bytecode of the module in the form `host`, with the function of this host alone.
      computations: those that the module only declares, by name.
      constants: those that the module only declares, by name.
      island: the number of the island, whose function it is.
      devices: the ids of the devices of each slice.
      owners: the hosts of the devices of each slice.
      peers: the data address of each host, and after a `#` which of its workers that is.
      probes: where to ask whether each host lives.
      base: the number of what the program sends first; see `target.TransferIds`.
      crossing: how many transfers between islands a run has, on all islands together.
      stride: how many transfers of all kinds it has at most.
      argument_names: what the caller calls the arguments of the part, for messages.
      weak_results: for each result of the part whether it is weakly typed.
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


class Put(Message, frozen=True):
    """Announces an array; the bytes of its different shards follow in `Chunk`s.

    Attributes:
      array: its number.
      shape: its global shape.
      dtype: its dtype.
      placement: where it goes.
      shards: for each device the number of its shard among those that follow; -1 for those of other hosts.
    """

    array: int
    shape: tuple[int, ...]
    dtype: str
    placement: DeviceLayout
    shards: tuple[int, ...]


class Chunk(Message, frozen=True):
    """Some bytes of a shard: of an array that was announced, or as the answer to `Fetch`.

    They follow the message.

    Attributes:
      number: that of the array that was announced, or of the request that is answered.
      shard: that of its shard.
      offset: where in the shard they begin.
      size: how many they are.
    """

    number: int
    shard: int
    offset: int
    size: int


class Run(Message, frozen=True):
    """Runs a program: the one message of a step.

    Attributes:
      program: its number.
      run: the number of the step, higher than those before it.
      first: the number of the first array that its part makes; others follow it.
      arguments: the numbers of the arrays that its part takes, in order.
      free: the numbers of arrays that are no longer held.
    """

    program: int
    run: int
    first: int
    arguments: tuple[int, ...]
    free: tuple[int, ...] = ()


class Free(Message, frozen=True):
    """Forgets arrays."""

    arrays: tuple[int, ...]


class Fetch(Message, frozen=True):
    """Asks for the shards of an array, each once.

    Attributes:
      request: the number of the request, which the answers carry.
      array: the number of the array.
      devices: the positions of those that have them, among the devices of the array on this host.
      size: their bytes, all together.
      credit: how many bytes may be sent before there is a `Credit`; None for all.
    """

    request: int
    array: int
    devices: tuple[int, ...]
    size: int = 0
    credit: int | None = None


class Credit(Message, frozen=True):
    """So many more bytes of what was fetched may be sent; of none that is left, the rest is not wanted."""

    request: int
    bytes: int


class Unload(Message, frozen=True):
    """Forgets a program."""

    program: int


class Lost(Message, frozen=True):
    """Hosts are lost: nothing more comes from them, and what waits for it is an error.

    Attributes:
      addresses: where arrays were pulled from, as in `Load.peers`.
    """

    addresses: tuple[str, ...]


class Cancel(Message, frozen=True):
    """Hosts are lost: what was kept for them is not.

    Attributes:
      hosts: their numbers.
      runs: the program and the number of each run of which they may not have all that they need.
    """

    hosts: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]


class Ping(Message, frozen=True):
    """Asks whether the other side lives."""

    number: int


class Leave(Message, frozen=True):
    """The process may end: its island is not needed any more. The answer to `Leaving`, some time later."""


class ReleaseClient(Message, frozen=True):
    """A client of the service is gone: what its calls keep is not needed any more.

    Attributes:
      client: its number; see `records.step.SESSION_BITS`.
    """

    client: int


class RequestReport(Message, frozen=True):
    """Asks for a `Report`; the answer carries the number of the request."""

    request: int


# From a worker.


class LoadDone(Message, frozen=True):
    """A program is ready, or why it is not: the answer to `Load`, whose number it carries."""

    request: int
    error: str | None


class Done(Message, frozen=True):
    """A run is done on this host.

    Attributes:
      run: the number of the step.
      error: why all of it failed; None when it was issued.
      failed: what is wrong with single results, by their positions; all others are ready.
      took: seconds for which it had the devices: from its issue, or the end of the run before if that was
        later, to its end.
    """

    run: int
    error: str | None
    failed: dict[int, str]
    took: float


class Missed(Message, frozen=True):
    """Something that another host was to send did not come, and a run goes on without; before its `Done`.

    Of an island of several hosts alone, see `WorkerTarget.missed`.

    Attributes:
      run: the number of the step.
      why: why it did not come.
    """

    run: int
    why: str


class Report(Message, frozen=True):
    """How a worker is: the answer to `RequestReport`, whose number it carries."""

    request: int
    report: HostReport


class PeerLost(Message, frozen=True):
    """Another host does not answer this one; `address` is where it was asked whether it lives."""

    host: int
    address: str
    error: str


class PeerFound(Message, frozen=True):
    """Another host of which this one has said that it does not answer does again."""

    host: int
    address: str


class Leaving(Message, frozen=True):
    """The process was asked to end; it goes on until the controller says `Leave`."""


class Failed(Message, frozen=True):
    """An array cannot be fetched: the answer to `Fetch`, whose number it carries."""

    request: int
    error: str


class Pong(Message, frozen=True):
    """The answer to `Ping`."""

    number: int


# Traces.


class StartTrace(Message, frozen=True):
    """Records all steps from now on; `trace` is the number of the trace."""

    trace: int


class StopTrace(Message, frozen=True):
    """Records no more steps; what was recorded is told."""

    trace: int


class ReadClock(Message, frozen=True):
    """Asks for the time."""

    number: int


class TraceStarted(Message, frozen=True):
    """All steps from now on are recorded."""

    trace: int


class StepTimes(msgspec.Struct, frozen=True, array_like=True):
    """When a launch, transfer, send or receipt ran; nanoseconds of the clock of the host.

    Attributes:
      step: its number among those of the host's plan.
      dispatched: when it was passed to XLA.
      done: when it was seen to be done, None for what cannot be waited for.
      before: when what was watched before it was done, 0 for nothing.
      ran: from when to when a launch ran, None where no profile says so.
    """

    step: int
    dispatched: int
    done: int | None
    before: int
    ran: tuple[int, int] | None


class RunTimes(Message, frozen=True):
    """When some of the steps of a host's part of a run ran; `last` with the last of them."""

    trace: int
    program: int
    run: int
    steps: tuple[StepTimes, ...]
    last: bool


class TraceDone(Message, frozen=True):
    """All that was recorded is told."""

    trace: int


class ClockTime(Message, frozen=True):
    """The answer to `ReadClock`: nanoseconds of a clock that never goes back."""

    number: int
    time: int


# What XLA made of programs.


class Describe(Message, frozen=True):
    """Asks what XLA made of the part of a program, with the `text` of its modules or without."""

    request: int
    program: int
    text: bool


class Described(Message, frozen=True):
    """A piece of the answer to `Describe`, or why there is none; all of the text is that of all pieces.

    Attributes:
      request: the number of the question.
      memory: for each slice the fields of its `SliceMemory`, in their order.
      flops: of each computation on each slice its name, that of the slice, and its floating-point operations.
      text: some of the text.
      last: whether no other piece follows.
      error: why there is none.
    """

    request: int
    memory: dict[str, tuple[int, ...]]
    flops: tuple[tuple[str, str, float], ...]
    text: str
    last: bool
    error: str | None


# Calls of functions.


class KeptArray(msgspec.Struct, frozen=True):
    """An array of a call.

    Attributes:
      array: its number; known on all hosts of the island.
      key: which typed PRNG keys it holds the words of, such as `threefry2x32`; None for another array.
    """

    array: int
    key: str | None


class ResultArray(msgspec.Struct, frozen=True):
    """An array that a call makes.

    Attributes:
      shape: its global shape.
      dtype: its dtype; of typed PRNG keys that of their words.
      placement: where it goes.
    """

    shape: tuple[int, ...]
    dtype: str
    placement: DeviceLayout


class Call(Message, frozen=True):
    """Calls a function, in its place among steps, and beside those that follow.

    Attributes:
      call: the number of the call, higher than those of steps and calls before it.
      first: the number of the first array that it makes; others follow it.
      hosts: those that call it; all others of the island only learn that they have no part of what it makes.
      function: where it is, as in `package.module:name`.
      path: where modules are found.
      edition: how often files of modules of the caller have changed; of a higher one they are imported again.
      lane: calls of one lane are made one after the other.
      x64: whether JAX has 64 bits.
      arrays: those that it takes.
      arguments: JSON: the positional arguments, see `trees`, and the named ones.
      made: the arrays that it makes; None for a value.
      structure: JSON: how these lie in what it returns, see `trees`.
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
    made: tuple[ResultArray, ...] | None
    structure: bytes


class CallFailure(msgspec.Struct, frozen=True):
    """Why a call failed.

    Attributes:
      kind: `raised` for what the function raised, `import` where it was not found, `result` for something
        that it must not return, `argument` where it had no chance.
      type: the type of the exception, such as `ValueError`.
      text: its message, or what is wrong.
      traceback: from the function on; nothing where there is none.
      errno: the number of an error of the system; None for others.
      path: the file that it is about; None where it says none.
      about: what the call was at, as the end of a phrase.
    """

    kind: str
    type: str
    text: str
    traceback: str = ""
    errno: int | None = None
    path: str | None = None
    about: str = ""


class Called(Message, frozen=True):
    """A call has ended on this host.

    Attributes:
      call: its number.
      value: JSON: what it returned, or says besides the arrays that it makes; nothing when it failed.
      failure: why it failed; None when it did not.
    """

    call: int
    value: bytes
    failure: CallFailure | None


FromTracing = TraceStarted | RunTimes | TraceDone | ClockTime

ToWorker = (
    Handshake
    | Join
    | Load
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
