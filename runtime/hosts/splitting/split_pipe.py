"""What a service and the process that cuts programs for it say: MessagePack, each after its length."""

from __future__ import annotations

import struct
from typing import IO

import msgspec

from pathways.runtime.hosts.protocol.programs import BoundProgram, SplitProgram

_LENGTH = struct.Struct(">I")


class SplitRequest(msgspec.Struct, frozen=True):
    """A program, and how many steps of it may be under way; see `splitting.split`."""

    program: BoundProgram
    ahead: int | str
    together: bool


class SplitAnswer(msgspec.Struct, frozen=True):
    """The parts, or what is wrong."""

    parts: SplitProgram | None
    error: str | None = None


def write(stream: IO[bytes], message: object) -> None:
    """Writes a message."""
    body = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()


def read[T](stream: IO[bytes], kind: type[T]) -> T | None:
    """Reads a message; None where the stream ends."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    body = stream.read(length)
    return msgspec.msgpack.decode(body, type=kind) if len(body) == length else None
