"""Events of calls on a connection."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

Buffer = bytes | bytearray | memoryview

Message = Buffer | Sequence[Buffer]
"""Message, whole or as consecutive buffers, which must not change until they are sent."""

StreamId = int


@dataclasses.dataclass(frozen=True)
class CallStarted:
    """Event: a client called a method.

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
    """Event: a message of a call has arrived; `GrpcConnection.handled` must be called for its bytes."""

    stream: StreamId
    data: Buffer


@dataclasses.dataclass(frozen=True)
class RequestsEnded:
    """Event: the client sends no further messages in a call, and expects the rest of the replies."""

    stream: StreamId


@dataclasses.dataclass(frozen=True)
class CallCancelled:
    """Event: a call ended without a status, since the client cancelled it or broke the protocol."""

    stream: StreamId


@dataclasses.dataclass(frozen=True)
class ConnectionLost:
    """Event: the connection ended, and with it all of its calls."""

    reason: str


Event = CallStarted | MessageReceived | RequestsEnded | CallCancelled | ConnectionLost
