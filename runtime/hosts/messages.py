"""What controller and workers say to each other: typed messages in MessagePack, in frames of known length.

Nothing here is ever evaluated or unpickled: a frame is a struct of plain data, or an error.
"""

from __future__ import annotations

import importlib.metadata
import struct
import sys

import jaxlib
import msgspec

PROTOCOL = 1
"""Raised whenever a message changes."""

MOST_BYTES = 1 << 30
"""The longest frame."""

CHUNK = 4 << 20
"""Bytes of an array in one message."""

_HEADER = struct.Struct(">2sBxI")
_MAGIC = b"PW"
HEADER_BYTES = _HEADER.size


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


# The handshake.


class Challenge(Message, frozen=True):
    """The controller proves nothing yet, and asks for proof: `nonce` is random."""

    protocol: int
    nonce: bytes


class Hello(Message, frozen=True):
    """A worker answers with the code of the nonce under the shared secret, and says what it is.

    Attributes:
      proof: HMAC-SHA256 of the nonce.
      nonce: its own, for the controller to prove itself.
      versions: of pathways, jaxlib and Python.
      platform: the platform of its devices.
      devices: their ids.
      memory: bytes of memory of each, None where that is not known.
      data_address: where other workers pull arrays from.
      pid: its process.
    """

    proof: bytes
    nonce: bytes
    versions: tuple[str, str, str]
    platform: str
    devices: tuple[int, ...]
    memory: tuple[int | None, ...]
    data_address: str
    pid: int


class Welcome(Message, frozen=True):
    """The controller's proof, and the addresses of all workers by their hosts."""

    proof: bytes


# From the controller.


class Load(Message, frozen=True):
    """Compiles the part of a program that a host runs.

    Attributes:
      program: the number of the program.
      name: its name.
      module: bytecode of the module in the form `host`, with the function of this host alone.
      host: the number of the host.
      devices: the ids of the devices of each slice.
      peers: the data address of each host that it exchanges arrays with.
      base: the number of what the program sends first; run `r` begins `r * stride` behind it.
      stride: how many transfers between hosts a run has, on all hosts together.
      argument_names: what the caller calls the arguments of the part, for messages.
      weak_results: for each result of the part whether it is weakly typed.
    """

    program: int
    name: str
    module: bytes
    host: int
    devices: dict[str, tuple[int, ...]]
    peers: dict[int, str]
    base: int
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
      shards: for each device the number of its shard among those that follow.
    """

    array: int
    shape: tuple[int, ...]
    dtype: str
    placement: DeviceLayout
    shards: tuple[int, ...]


class Chunk(Message, frozen=True):
    """Some bytes of a shard: of an array that was announced, or as the answer to `Fetch`."""

    array: int
    shard: int
    offset: int
    data: bytes


class Run(Message, frozen=True):
    """Runs a program: the one message of a step.

    Attributes:
      program: its number.
      run: the number of the step.
      arguments: the numbers of the arrays that its part takes, in order.
      results: the numbers of those that it makes.
    """

    program: int
    run: int
    arguments: tuple[int, ...]
    results: tuple[int, ...]


class Free(Message, frozen=True):
    """Forgets arrays."""

    arrays: tuple[int, ...]


class Fetch(Message, frozen=True):
    """Asks for the shards of an array, each once; `devices` are the positions of those that have them."""

    array: int
    devices: tuple[int, ...]


class Unload(Message, frozen=True):
    """Forgets a program."""

    program: int


class Ping(Message, frozen=True):
    """Asks whether the other side lives."""

    number: int


# From a worker.


class LoadDone(Message, frozen=True):
    """A program is ready, or why it is not."""

    program: int
    error: str | None


class Done(Message, frozen=True):
    """All results of a run are ready on this host, or the first error."""

    run: int
    error: str | None


class Failed(Message, frozen=True):
    """An array cannot be fetched."""

    array: int
    error: str


class Pong(Message, frozen=True):
    """The answer to `Ping`."""

    number: int


ToWorker = Challenge | Welcome | Load | Put | Chunk | Run | Free | Fetch | Unload | Ping
ToController = Hello | LoadDone | Done | Failed | Chunk | Pong

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_to_controller = msgspec.msgpack.Decoder(ToController)


def encode(message: Message) -> bytes:
    """The frame of a message.

    Raises:
      MessageError: it would be longer than a frame may be.
    """
    body = _encoder.encode(message)
    if len(body) > MOST_BYTES:
        raise MessageError(f"a message of {len(body)} bytes is longer than {MOST_BYTES}")
    return _HEADER.pack(_MAGIC, PROTOCOL, len(body)) + body


def body_length(header: bytes) -> int:
    """The length of what follows a header.

    Raises:
      MessageError: these bytes do not begin a frame.
    """
    magic, protocol, length = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise MessageError("these bytes are no message of pathways")
    if protocol != PROTOCOL:
        raise MessageError(f"the other side speaks version {protocol} of the protocol, this one {PROTOCOL}")
    if length > MOST_BYTES:
        raise MessageError(f"a message of {length} bytes is longer than {MOST_BYTES}")
    return length


def decode_for_worker(body: bytes) -> ToWorker:
    """Reads a message to a worker.

    Raises:
      MessageError: it is none.
    """
    return _decoded(_to_worker, body)


def decode_for_controller(body: bytes) -> ToController:
    """Reads a message to the controller.

    Raises:
      MessageError: it is none.
    """
    return _decoded(_to_controller, body)


def _decoded[T](decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MessageError(f"a message cannot be read: {error}") from None
