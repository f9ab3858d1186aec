"""Who may speak to whom: the handshake of every connection of a cluster, without sockets or clock.

All processes of a cluster know one secret. Whoever opens a connection says who wants it and what for, is
challenged, and proves first that it knows the secret; only then does the other side, the keeper, prove the
same:

    opener                                   keeper
      Open(purpose, nonce)          ->
                                    <-         Challenge(nonce)
      Proof(code, versions)         ->
                                    <-         Welcome(code)

A code is the HMAC-SHA256 (RFC 2104) of all that was said: the purpose, which has the channel, the role, the
host, its epoch, whom it calls and the name of a client, both nonces, and the versions; and of the side that
it is of. So a code is good for one connection, in one direction, for one purpose. A keeper's code is no
opener's, and it is given only to an opener that has proved itself: one that relays what it receives learns
nothing that helps it with another connection. What follows is not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

import msgspec

from pathways.runtime.hosts.protocol.messages import (
    Challenge,
    Message,
    MessageError,
    Open,
    Proof,
    Purpose,
    Welcome,
    versions,
)

NONCE_BYTES = 32

_STRANGER = "an unauthenticated peer tried to connect"


class ClientHandshake:
    """The side that opens a connection.

    Args:
      secret: what all processes of the cluster know.
      purpose: what the connection is for.
      nonce: random bytes that were never used.

    Attributes:
      first: what to send first.
    """

    def __init__(self, secret: bytes, purpose: Purpose, nonce: bytes) -> None:
        self.first = Open(purpose, nonce)
        self._secret = secret
        self._transcript = b""

    def on_message(self, message: object) -> Message | None:
        """Takes what the keeper says; what to answer, None when all is proved.

        Raises:
          MessageError: it does not know the secret, or says something else.
        """
        match message:
            case Challenge() if not self._transcript:
                said = versions()
                self._transcript = _transcript(self.first, message.nonce, said)
                return Proof(_code(self._secret, b"opener", self._transcript), said)
            case Welcome() if self._transcript:
                if not hmac.compare_digest(message.code, _code(self._secret, b"keeper", self._transcript)):
                    raise MessageError(f"{self.first.purpose.to} does not know the secret of this cluster")
                return None
        raise MessageError(f"{self.first.purpose.to} says {type(message).__name__} while it is greeted")


class ServerHandshake:
    """The side that was called.

    Args:
      secret: what all processes of the cluster know.
      admits: whether connections are for a purpose of which somebody says that it is his.
      nonce: random bytes that were never used.

    Attributes:
      purpose: what the connection is for, which is proved when `is_proved`.
      versions: of the opener's pathways, jaxlib and Python.
    """

    def __init__(self, secret: bytes, admits: Callable[[Purpose], bool], nonce: bytes) -> None:
        self._secret = secret
        self._admits = admits
        self._nonce = nonce
        self._open: Open | None = None
        self.purpose: Purpose | None = None
        self.versions = ("", "", "")

    def on_message(self, message: object) -> Message:
        """Takes what the opener says; what to answer. With a `Welcome` all is proved.

        Raises:
          MessageError: it does not know the secret, wants what is not allowed, or says something else.
        """
        match message:
            case Open() if self._open is None:
                if len(message.nonce) != NONCE_BYTES:
                    raise MessageError(f"{_STRANGER}: its nonce has {len(message.nonce)} bytes")
                self._open = message
                return Challenge(self._nonce)
            case Proof() if self._open is not None and self.purpose is None:
                transcript = _transcript(self._open, self._nonce, message.versions)
                if not hmac.compare_digest(message.code, _code(self._secret, b"opener", transcript)):
                    raise MessageError(f"{_STRANGER}: it does not know the secret of this cluster")
                if not self._admits(self._open.purpose):
                    raise MessageError(f"nothing here answers for {self._open.purpose}")
                self.purpose, self.versions = self._open.purpose, message.versions
                return Welcome(_code(self._secret, b"keeper", transcript))
        raise MessageError(f"{_STRANGER}: it says {type(message).__name__} while it is greeted")


def _transcript(opened: Open, nonce: bytes, said: tuple[str, str, str]) -> bytes:
    """All that was said, so that no two different talks are the same bytes."""
    return msgspec.msgpack.encode((opened, nonce, said))


def _code(secret: bytes, side: bytes, transcript: bytes) -> bytes:
    return hmac.new(secret, side + b"\0" + transcript, hashlib.sha256).digest()
