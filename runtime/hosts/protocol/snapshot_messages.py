"""Messages between workers that send each other copies of snapshots."""

from __future__ import annotations

import msgspec

from pathways.runtime.hosts.protocol.frames import decoded
from pathways.runtime.hosts.protocol.messages import Handshake, Message

SNAPSHOTS = "snapshots"
"""The connection of one worker to another on which it reads blocks of snapshots."""


class RequestBlocks(Message, frozen=True):
    """Requests blocks of a version.

    Attributes:
      run: the name of the run.
      step: the step of the version.
      attempt: its attempt.
      blocks: the names of the blocks.
    """

    run: str
    step: int
    attempt: int
    blocks: tuple[str, ...]


class BlocksFound(Message, frozen=True):
    """Announces a file of blocks of `count` bytes, which follow in `BlocksChunk`s."""

    count: int


class BlocksRefused(Message, frozen=True):
    """Reports why blocks are not sent; `is_corrupt` says whether no host can read them there."""

    why: str
    is_corrupt: bool


class BlocksChunk(Message, frozen=True):
    """Announces the next bytes of the file, which follow the message."""


ToSource = Handshake | RequestBlocks
FromSource = Handshake | BlocksFound | BlocksRefused | BlocksChunk

_to_source: msgspec.msgpack.Decoder[ToSource] = msgspec.msgpack.Decoder(ToSource)
_from_source: msgspec.msgpack.Decoder[FromSource] = msgspec.msgpack.Decoder(FromSource)


def decode_for_source(body: bytes | bytearray) -> ToSource:
    """Decodes a message to a worker that has copies.

    Raises:
      MessageError: it is none.
    """
    return decoded(_to_source, body)


def decode_from_source(body: bytes | bytearray) -> FromSource:
    """Decodes a message of a worker that has copies.

    Raises:
      MessageError: it is none.
    """
    return decoded(_from_source, body)
