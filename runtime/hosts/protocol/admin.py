"""What `pw-cluster` and a service say to each other, on a connection of its own."""

from __future__ import annotations

import msgspec

from pathways.runtime.hosts.protocol.frames import decoded
from pathways.runtime.hosts.protocol.messages import Handshake, Message, Purpose
from pathways.runtime.resources.status import ServiceStatus

ADMIN = "admin"
"""The channel, and the role of whoever opens it."""

SERVICE = "service"
"""Whom clients and `pw-cluster` call."""

ADMIN_PURPOSE = Purpose(ADMIN, ADMIN, 0, 0, SERVICE)


class StatusRequest(Message, frozen=True):
    """Asks what the service is at; the answer is `StatusReply`."""


class DisconnectRequest(Message, frozen=True):
    """Ends a client, and frees all that it owns; the answer is `DisconnectReply`."""

    name: str


class ShutdownRequest(Message, frozen=True):
    """Ends the service with its workers; the answer is `ShutdownReply`."""


class StatusReply(Message, frozen=True):
    """What the service is at."""

    status: ServiceStatus


class DisconnectReply(Message, frozen=True):
    """A client is ended; false: there was none of this name."""

    was_there: bool


class ShutdownReply(Message, frozen=True):
    """The service ends from now on."""


FromAdmin = Handshake | StatusRequest | DisconnectRequest | ShutdownRequest
ToAdmin = Handshake | StatusReply | DisconnectReply | ShutdownReply

_greeting: msgspec.msgpack.Decoder[Handshake] = msgspec.msgpack.Decoder(Handshake)
_from_admin: msgspec.msgpack.Decoder[FromAdmin] = msgspec.msgpack.Decoder(FromAdmin)
_to_admin: msgspec.msgpack.Decoder[ToAdmin] = msgspec.msgpack.Decoder(ToAdmin)


def decode_greeting(body: bytes | bytearray) -> Handshake:
    """Reads a message of somebody who has not said yet who he is.

    Raises:
      MessageError: it is none of the handshake.
    """
    return decoded(_greeting, body)


def decode_from_admin(body: bytes | bytearray) -> FromAdmin:
    """Reads a message to a service.

    Raises:
      MessageError: it is none.
    """
    return decoded(_from_admin, body)


def decode_for_admin(body: bytes | bytearray) -> ToAdmin:
    """Reads a message of a service.

    Raises:
      MessageError: it is none.
    """
    return decoded(_to_admin, body)
