"""Events of calls: what a connection says that a client did."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

Buffer = bytes | bytearray | memoryview

Message = Buffer | Sequence[Buffer]
"""A message, whole or as consecutive buffers, which must not change until they are sent."""

StreamId = int


@dataclasses.dataclass(frozen=True)
class CallStarted:
    """A client called a method.

    Attributes:
      stream: the call.
      method: the path, `/package.Service/Method`.
      metadata: the headers that end in `-bin`, decoded.
    """

    stream: StreamId
    method: str
    metadata: Mapping[str, bytes]


@dataclasses.dataclass(frozen=True)
class MessageReceived:
    """A whole message of a call; `GrpcConnection.handled` has to be called for its bytes."""

    stream: StreamId
    data: Buffer


@dataclasses.dataclass(frozen=True)
class RequestsEnded:
    """The client sends no further messages in a call, and expects the rest of the replies."""

    stream: StreamId


@dataclasses.dataclass(frozen=True)
class CallCancelled:
    """A call ended without a status: the client cancelled it, or broke the protocol."""

    stream: StreamId


@dataclasses.dataclass(frozen=True)
class ConnectionLost:
    """The connection ended; so did all of its calls."""

    reason: str


Event = CallStarted | MessageReceived | RequestsEnded | CallCancelled | ConnectionLost
