"""Messages as bytes: frames of known length, in MessagePack.

Nothing here is ever evaluated or unpickled: a frame is a struct of plain data, or an error. Behind the
message a frame may have the bytes of a piece of an array, as they are in memory.
"""

from __future__ import annotations

import struct

import msgspec

from pathways.runtime.hosts.protocol.messages import PROTOCOL, Message, MessageError, ToController, ToWorker

MOST_BYTES = 1 << 30
"""The longest message."""

CHUNK = 4 << 20
"""The most bytes of an array in one frame."""

_HEADER = struct.Struct(">2sBxII")
_MAGIC = b"PW"
HEADER_BYTES = _HEADER.size

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_to_controller = msgspec.msgpack.Decoder(ToController)


def encode(message: Message, trailing: int = 0) -> bytes:
    """The frame of a message, without the bytes of an array that are to follow it.

    Raises:
      MessageError: it would be longer than a frame may be.
    """
    body = _encoder.encode(message)
    if len(body) > MOST_BYTES:
        raise MessageError(f"a message of {len(body)} bytes is longer than {MOST_BYTES}")
    return _HEADER.pack(_MAGIC, PROTOCOL, len(body), trailing) + body


def lengths(data: bytearray, at: int = 0, most: int = MOST_BYTES) -> tuple[int, int]:
    """The lengths of the message after a header, and of the bytes of an array after it.

    Raises:
      MessageError: these bytes do not begin a frame.
    """
    magic, protocol, length, trailing = _HEADER.unpack_from(data, at)
    if magic != _MAGIC:
        raise MessageError("these bytes are not a message of pathways")
    if protocol != PROTOCOL:
        raise MessageError(f"the other side speaks version {protocol} of the protocol, this one {PROTOCOL}")
    if length > most:
        raise MessageError(f"a message of {length} bytes is longer than {most}")
    if trailing > CHUNK:
        raise MessageError(f"{trailing} bytes after a message are more than {CHUNK}")
    return length, trailing


def decode_for_worker(body: bytes | bytearray) -> ToWorker:
    """Reads a message to a worker.

    Raises:
      MessageError: it is none.
    """
    return decoded(_to_worker, body)


def decode_for_controller(body: bytes | bytearray) -> ToController:
    """Reads a message to the controller.

    Raises:
      MessageError: it is none.
    """
    return decoded(_to_controller, body)


def decoded[T](decoder: msgspec.msgpack.Decoder[T], body: bytes | bytearray) -> T:
    """Reads a message of those that a decoder knows.

    Raises:
      MessageError: it is none.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MessageError(f"a message cannot be read: {error}") from None
