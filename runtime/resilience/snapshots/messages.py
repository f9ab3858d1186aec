"""Messages between workers that read blocks of snapshots from each other."""

from __future__ import annotations

import msgspec

from pathways.runtime.hosts.protocol.frames import decoded
from pathways.runtime.hosts.protocol.messages import Handshake, Message

SNAPSHOTS = "snapshots"
"""Name of the connection on which a worker reads snapshot blocks of another worker."""


class RequestBlocks(Message, frozen=True):
    """Request for blocks of a version."""

    run: str
    step: int
    attempt: int
    blocks: tuple[str, ...]


class BlocksFound(Message, frozen=True):
    """Header of a file of blocks of `count` bytes, which follow in `BlocksChunk`s."""

    count: int


class BlocksRefused(Message, frozen=True):
    """Error reply; `is_corrupt` if the host cannot read the blocks itself."""

    why: str
    is_corrupt: bool


class BlocksChunk(Message, frozen=True):
    """Header of the next bytes of the file, which follow the message."""


ToSource = Handshake | RequestBlocks
FromSource = Handshake | BlocksFound | BlocksRefused | BlocksChunk

_to_source: msgspec.msgpack.Decoder[ToSource] = msgspec.msgpack.Decoder(ToSource)
_from_source: msgspec.msgpack.Decoder[FromSource] = msgspec.msgpack.Decoder(FromSource)


def decode_for_source(body: bytes | bytearray) -> ToSource:
    """Decodes a message to a worker with copies.

    Raises:
      MessageError: the bytes are not such a message.
    """
    return decoded(_to_source, body)


def decode_from_source(body: bytes | bytearray) -> FromSource:
    """Decodes a message from a worker with copies.

    Raises:
      MessageError: the bytes are not such a message.
    """
    return decoded(_from_source, body)
