"""Tokens of a service: the token of its cluster, and tokens that are bound to the name of one client.

The token of the cluster is its secret. The token of a client is the line `ann:<64 hexadecimal digits>`: the
name, and the HMAC-SHA256 of the name and its generation, with the secret of the cluster as the key. So the
service keeps no tokens, only the generations of the names whose tokens were revoked.
"""

from __future__ import annotations

import dataclasses
import hmac
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from pathways.runtime.hosts.launch.join_launcher import secret_of
from pathways.runtime.hosts.protocol.handshake import ServerHandshake
from pathways.runtime.hosts.protocol.messages import Purpose
from pathways.runtime.resources.folders import replace_file

_CLIENT_TOKEN = re.compile(rb"([\w.-]{1,64}):([0-9a-f]{64})")

_generations = msgspec.json.Decoder(dict[str, Annotated[int, msgspec.Meta(ge=1)]])


@dataclasses.dataclass(frozen=True)
class Credentials:
    """Content of a token.

    Attributes:
      name: the client to which the token is bound; empty for the token of a cluster.
      secret: the secret that the token proves.
    """

    name: str
    secret: bytes = dataclasses.field(repr=False)


def credentials_of(path: str) -> Credentials:
    """Returns the credentials in a token file.

    Raises:
      ValueError: other users may read the file, it is too short, or the path is not valid.
      OSError: it cannot be read.
    """
    content = secret_of(path, "token")
    token = _CLIENT_TOKEN.fullmatch(content)
    if token is None:
        return Credentials("", content)
    return Credentials(token[1].decode(), bytes.fromhex(token[2].decode()))


class ClientTokens:
    """Tokens of the clients of a service; any thread may call its methods.

    Args:
      secret: the secret of the cluster.
      file: the file with the generations of the names whose tokens were revoked.

    Raises:
      ValueError: the file is damaged.
      OSError: the file cannot be read.
    """

    def __init__(self, secret: bytes, file: Path) -> None:
        self.cluster_secret = secret
        self._file = file
        self._lock = threading.Lock()
        try:
            self._revoked = _generations.decode(file.read_bytes()) if file.exists() else {}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{file}, the list of revoked tokens, is damaged: {error}; restore it, or remove it with the "
                "token of the cluster, so that no revoked token is valid again"
            ) from None

    def secret_of(self, name: str) -> bytes:
        """Returns the secret of the tokens of a client."""
        message = b"client\0%s\0%d" % (name.encode(), self._revoked.get(name, 0))
        return hmac.digest(self.cluster_secret, message, "sha256")

    def token_of(self, name: str) -> str:
        """Returns the token of a client, without a line end."""
        return f"{name}:{self.secret_of(name).hex()}"

    def revoke(self, name: str) -> None:
        """Makes all tokens of a client invalid, also for later services in the folder.

        Raises:
          OSError: the file cannot be written; the tokens stay valid.
        """
        with self._lock:
            revoked = self._revoked | {name: self._revoked.get(name, 0) + 1}
            replace_file(self._file, msgspec.json.encode(revoked))
            self._revoked = revoked


class ServiceHandshake(ServerHandshake):
    """State of the handshake of a service, which accepts the tokens of clients, too.

    Args:
      tokens: the valid tokens.
      admits: see `ServerHandshake`.
      nonce: see `ServerHandshake`.
    """

    def __init__(self, tokens: ClientTokens, admits: Callable[[Purpose], bool], nonce: bytes) -> None:
        super().__init__(tokens.cluster_secret, admits, nonce)
        self._tokens = tokens

    def secrets(self, purpose: Purpose) -> Sequence[bytes]:
        """See `ServerHandshake.secrets`; a token of a client is valid under its name only."""
        return self._tokens.cluster_secret, self._tokens.secret_of(purpose.name)

    @property
    def token_of(self) -> str | None:
        """The name of the client whose token the peer has; None for the token of the cluster."""
        assert self.purpose is not None
        return None if self.secret == self._tokens.cluster_secret else self.purpose.name

    def is_revoked(self) -> bool:
        """Returns whether the token of the peer was revoked after the handshake."""
        return self.token_of is not None and self.secret != self._tokens.secret_of(self.token_of)
