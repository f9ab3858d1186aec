"""Messages between `pw-cluster` and a service, on a separate connection."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pathways.runtime.hosts.protocol.frames import decoded
from pathways.runtime.hosts.protocol.messages import Handshake, Message, Purpose
from pathways.runtime.resources.accounts import AccountRecord
from pathways.runtime.resources.status import ServiceStatus

Weight = Annotated[float, Meta(ge=1e-3, le=1e3, description="a number from 0.001 to 1000")]
MAX_COUNT = 1 << 16
"""Limit on each count, and on the hosts of a cluster."""

Count = Annotated[int, Meta(ge=1, le=MAX_COUNT, description=f"a whole number from 1 to {MAX_COUNT}")]
Priority = Annotated[int, Meta(ge=-100, le=100, description="a whole number from -100 to 100")]

ADMIN = "admin"
"""Name of the channel, and of the role of the side that opens it."""

SERVICE = "service"
"""Name of the side that clients and `pw-cluster` connect to."""

ADMIN_PURPOSE = Purpose(ADMIN, ADMIN, 0, 0, SERVICE)
"""Purpose of a connection of `pw-cluster`; with the token of a client it has the client's name, too."""


class StatusRequest(Message, frozen=True):
    """Request for the state of the service; the reply is `StatusReply`."""


class DisconnectRequest(Message, frozen=True):
    """Request to disconnect a client and free everything it owns; the reply is `DisconnectReply`."""

    name: str


class ShutdownRequest(Message, frozen=True):
    """Request to stop the service and its workers; the reply is `ShutdownReply`."""


class TokenRequest(Message, frozen=True):
    """Request for a token of a client; the reply is `TokenReply`.

    Attributes:
      revoke: whether to make all tokens of the client so far invalid before.
    """

    name: str
    revoke: bool


class ChangeRequest(Message, frozen=True):
    """Request to change the rules of a client until the service ends; the reply is `ChangeReply`.

    Attributes:
      weight, priority, memory, is_suspended: see `ClientRules`; None for no change.
    """

    name: str
    weight: Weight | None = None
    priority: Priority | None = None
    memory: Annotated[int, Meta(ge=1)] | None = None
    is_suspended: bool | None = None


class ChangeReply(Message, frozen=True):
    """Reply to `ChangeRequest`: the rules hold from now on."""


class DrainRequest(Message, frozen=True):
    """Request to take an island out; the replies are `DrainReply`s until one says that it is.

    Attributes:
      island: its name.
      seconds: the time after which it leaves, whatever is there.
      force: whether slices that fit nowhere else are left there.
    """

    island: str
    seconds: Annotated[float, Meta(ge=0, le=1e6)]
    force: bool = False


class DrainReply(Message, frozen=True):
    """State of an island that is taken out.

    Attributes:
      is_over: whether its workers have exited.
      clients: for each client that needs something there, or did when it left, a text that names it.
    """

    is_over: bool
    clients: tuple[str, ...]


class ReturnRequest(Message, frozen=True):
    """Request that an island that was taken out returns; the reply is `ReturnReply`, when it runs."""

    island: str


class AddRequest(Message, frozen=True):
    """Request to add an island; the reply is `AddReply` once it runs. It ends with the connection.

    Attributes:
      hosts, devices_per_host, cores: see `Island`.
      memory, pool: see `DeviceLimits`; None for the limits of island0.
    """

    hosts: Annotated[
        Count | Annotated[tuple[str, ...], Meta(min_length=1)],
        Meta(description="a number of hosts, or names of machines"),
    ]
    devices_per_host: Count = 1
    cores: Count | None = None
    memory: Annotated[int, Meta(ge=1)] | None = None
    pool: Annotated[int, Meta(ge=1)] | None = None


class AddReply(Message, frozen=True):
    """Reply to `AddRequest`: an island of this name runs."""

    island: str


class ReturnReply(Message, frozen=True):
    """Reply to `ReturnRequest`: the island runs."""


class AccountsRequest(Message, frozen=True):
    """Request for the accounts of clients; the reply is `AccountsReply`."""


class AccountsReply(Message, frozen=True):
    """Accounts of all clients since the start of the service."""

    accounts: tuple[AccountRecord, ...]


class StatusReply(Message, frozen=True):
    """State of the service."""

    status: ServiceStatus


class DisconnectReply(Message, frozen=True):
    """Reply to `DisconnectRequest`; `was_connected` is false if no client has this name."""

    was_connected: bool


class ShutdownReply(Message, frozen=True):
    """Reply to `ShutdownRequest`: the service shuts down from now on."""


class TokenReply(Message, frozen=True):
    """Reply to `TokenRequest`: the content of a token file."""

    token: str


class AdminDenied(Message, frozen=True):
    """Reply to a request that the service does not carry out; `why` is a sentence."""

    why: str


FromAdmin = (
    Handshake
    | StatusRequest
    | AccountsRequest
    | DisconnectRequest
    | ShutdownRequest
    | TokenRequest
    | ChangeRequest
    | DrainRequest
    | ReturnRequest
    | AddRequest
)
ToAdmin = (
    Handshake
    | StatusReply
    | AccountsReply
    | DisconnectReply
    | ShutdownReply
    | TokenReply
    | ChangeReply
    | DrainReply
    | ReturnReply
    | AddReply
    | AdminDenied
)

_handshake: msgspec.msgpack.Decoder[Handshake] = msgspec.msgpack.Decoder(Handshake)
_from_admin: msgspec.msgpack.Decoder[FromAdmin] = msgspec.msgpack.Decoder(FromAdmin)
_to_admin: msgspec.msgpack.Decoder[ToAdmin] = msgspec.msgpack.Decoder(ToAdmin)


def decode_handshake(body: bytes | bytearray) -> Handshake:
    """Decodes a message of a peer that is not authenticated yet.

    Raises:
      MessageError: the bytes are not a message of the handshake.
    """
    return decoded(_handshake, body)


def decode_from_admin(body: bytes | bytearray) -> FromAdmin:
    """Decodes a message of `pw-cluster` to a service.

    Raises:
      MessageError: the bytes are not such a message.
    """
    return decoded(_from_admin, body)


def decode_for_admin(body: bytes | bytearray) -> ToAdmin:
    """Decodes a message of a service to `pw-cluster`.

    Raises:
      MessageError: the bytes are not such a message.
    """
    return decoded(_to_admin, body)
