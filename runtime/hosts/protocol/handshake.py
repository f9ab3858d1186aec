"""Handshake that authenticates every connection of a cluster, without sockets or clock.

All processes of a cluster know one secret. The client, which opens a connection, sends its role and purpose,
is challenged, and proves first that it knows the secret; only then does the server prove the same:

    client                                   server
      Open(purpose, nonce)          ->
                                    <-         Challenge(nonce)
      Proof(code, versions)         ->
                                    <-         Welcome(code)

A code is the HMAC-SHA256 (RFC 2104) of all messages before it and of the side that sends it. The messages
contain the purpose (channel, role, host, epoch, called side, and name of a client), both nonces, and the
versions. So a code is valid for one connection, in one direction, for one purpose. The code of a server
differs from the code of a client, and is only sent to a client that has proved itself: a peer that relays
messages learns nothing that helps it with another connection. Later messages are not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence

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

# Labels of the two sides. They are part of the protocol: if they changed, a peer of another version would be
# refused for its secret, and not for its version.
_CLIENT, _SERVER = b"opener", b"keeper"


class ClientHandshake:
    """State of the side that opens a connection.

    Args:
      purpose: the purpose of the connection.
      nonce: random bytes that were never used before.

    Attributes:
      first: the first message to send.
    """

    def __init__(self, secret: bytes, purpose: Purpose, nonce: bytes) -> None:
        self.first = Open(purpose, nonce)
        self._secret = secret
        self._transcript = b""

    def on_message(self, message: object) -> Message | None:
        """Handles a message of the server; returns the reply, None when both sides are authenticated.

        Raises:
          MessageError: the server does not know the secret, or the message is unexpected.
        """
        match message:
            case Challenge() if not self._transcript:
                own_versions = versions()
                self._transcript = _transcript(self.first, message.nonce, own_versions)
                return Proof(_code(self._secret, _CLIENT, self._transcript), own_versions)
            case Welcome() if self._transcript:
                if not hmac.compare_digest(message.code, _code(self._secret, _SERVER, self._transcript)):
                    raise MessageError(f"{self.first.purpose.to} does not know the secret of this cluster")
                return None
        raise MessageError(
            f"{self.first.purpose.to} sent unexpected {type(message).__name__} during the handshake"
        )


class ServerHandshake:
    """State of the side that accepted a connection.

    Args:
      admits: returns whether connections for a purpose are accepted.
      nonce: random bytes that were never used before.

    Attributes:
      purpose: the purpose of the connection; None until the client is authenticated.
      versions: the client's versions of pathways, jaxlib and Python.
      secret: the secret of the cluster; once the client is authenticated, the one that it knows.
    """

    def __init__(self, secret: bytes, admits: Callable[[Purpose], bool], nonce: bytes) -> None:
        self.secret = secret
        self._admits = admits
        self._nonce = nonce
        self._open: Open | None = None
        self.purpose: Purpose | None = None
        self.versions = ("", "", "")

    def on_message(self, message: object) -> Message:
        """Handles a message of the client; returns the reply. With a `Welcome` the client is authenticated.

        Raises:
          MessageError: the client does not know the secret, its purpose is not admitted, or the message is
            unexpected.
        """
        match message:
            case Open() if self._open is None:
                if len(message.nonce) != NONCE_BYTES:
                    raise MessageError(f"{_STRANGER}: its nonce has {len(message.nonce)} bytes")
                self._open = message
                return Challenge(self._nonce)
            case Proof() if self._open is not None and self.purpose is None:
                transcript = _transcript(self._open, self._nonce, message.versions)
                for secret in self.secrets(self._open.purpose):
                    if hmac.compare_digest(message.code, _code(secret, _CLIENT, transcript)):
                        break
                else:
                    raise MessageError(f"{_STRANGER}: it does not know the secret of this cluster")
                if not self._admits(self._open.purpose):
                    raise MessageError(f"no handler for {self._open.purpose}")
                self.purpose, self.versions = self._open.purpose, message.versions
                self.secret = secret
                return Welcome(_code(secret, _SERVER, transcript))
        raise MessageError(f"{_STRANGER}: unexpected {type(message).__name__} during the handshake")

    def secrets(self, purpose: Purpose) -> Sequence[bytes]:
        """Returns the secrets that are valid for a purpose; the client has to know one of them."""
        return (self.secret,)


def _transcript(opened: Open, nonce: bytes, versions: tuple[str, str, str]) -> bytes:
    """Returns the handshake as bytes, which differ for any two different handshakes."""
    return msgspec.msgpack.encode((opened, nonce, versions))


def _code(secret: bytes, side: bytes, transcript: bytes) -> bytes:
    return hmac.new(secret, side + b"\0" + transcript, hashlib.sha256).digest()
