"""Encoding of messages: frames of known length, in MessagePack.

Nothing here is ever evaluated or unpickled: a frame is a struct of plain data, or an error. After the message
a frame may have the bytes of a piece of an array, as they are in memory.
"""

from __future__ import annotations

import functools
import struct

import msgspec

from pathways.runtime.hosts.protocol.messages import PROTOCOL, Message, MessageError, ToController, ToWorker

MAX_MESSAGE_BYTES = 1 << 30
"""Limit on the length of a message."""

CHUNK = 4 << 20
"""Limit on the array bytes in one frame."""

_HEADER = struct.Struct(">2sBxII")
_MAGIC = b"PW"
HEADER_BYTES = _HEADER.size

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_to_controller = msgspec.msgpack.Decoder(ToController)


def encode(message: Message, trailing: int = 0) -> bytes:
    """Returns the frame of a message, without the array bytes that are to follow it.

    Raises:
      MessageError: the message is too long.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise MessageError(f"a message of {len(body)} bytes is longer than {MAX_MESSAGE_BYTES}")
    return _HEADER.pack(_MAGIC, PROTOCOL, len(body), trailing) + body


def lengths(data: bytearray, at: int = 0, max_bytes: int = MAX_MESSAGE_BYTES) -> tuple[int, int]:
    """Returns the length of the message after a header, and the number of array bytes after the message.

    Raises:
      MessageError: these bytes do not begin a frame.
    """
    magic, protocol, length, trailing = _HEADER.unpack_from(data, at)
    if magic != _MAGIC:
        raise MessageError("these bytes are not a message of pathways")
    if protocol != PROTOCOL:
        raise MessageError(f"the peer speaks version {protocol} of the protocol, this side {PROTOCOL}")
    if length > max_bytes:
        raise MessageError(f"a message of {length} bytes is longer than {max_bytes}")
    if trailing > CHUNK:
        raise MessageError(f"{trailing} bytes after a message are more than {CHUNK}")
    return length, trailing


def decoded[T](decoder: msgspec.msgpack.Decoder[T], body: bytes | bytearray) -> T:
    """Decodes a message with a decoder.

    Raises:
      MessageError: the bytes are not a message of its types.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MessageError(f"a message cannot be read: {error}") from None


decode_for_worker = functools.partial(decoded, _to_worker)
"""Decoder of messages to a worker; see `decoded`."""

decode_for_controller = functools.partial(decoded, _to_controller)
"""Decoder of messages to the controller; see `decoded`."""
