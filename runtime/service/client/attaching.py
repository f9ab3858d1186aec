"""Attachment to a service over three connections; the first one receives the islands."""

from __future__ import annotations

import dataclasses
import getpass
import os
import re
import socket

from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.launch.sockets import Address
from pathways.runtime.hosts.protocol.messages import CHANNELS, MessageError, Purpose
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.resources.paths import absolute_path
from pathways.runtime.service.client.remote_session import RemoteSession
from pathways.runtime.service.client.service_listener import AttachedService
from pathways.runtime.service.protocol.folders import call_service, check_name, find_service
from pathways.runtime.service.protocol.service_messages import (
    AdmissionDenied,
    Admitted,
    ClientOrigin,
    decode_for_client,
    printable,
)
from pathways.runtime.service.protocol.tokens import credentials_of

_ADMISSION_TIMEOUT_S = 10.0
"""Timeout for the service to admit or reject a client."""

_MAX_USER_CHARS = 50
"""Limit of the characters of the user's name in the default name of a client."""


@dataclasses.dataclass(frozen=True)
class Attachment:
    """Service and name of a client.

    Attributes:
      cluster: the name of the cluster, or the address of its service.
      token: the path of the token; None for the one in the folder of the cluster.

    Raises:
      ValueError: the name of the client is invalid.
    """

    cluster: str
    client: str
    token: str | None = None

    def __post_init__(self) -> None:
        check_name(self.client, "a client")


def attachment_of(cluster: str, client: str | None, token: str | os.PathLike[str] | None) -> Attachment:
    """Returns the attachment that a user requests.

    By default a client is named by its token, and with the token of a cluster by user and process id.

    Raises:
      TypeError: an argument has another type.
      ValueError: the name is invalid, the token belongs to another client, or other users can read it.
      OSError: the token cannot be read.
    """
    if not isinstance(cluster, str):
        raise TypeError(f"connect: expected the name or the address of a cluster, got {cluster!r}")
    if not isinstance(token, str | os.PathLike | None):
        raise TypeError(f"connect: token must be the path of a file, got {token!r}")
    path = None if token is None else absolute_path(token)
    name = "" if path is None else credentials_of(path).name
    if client is None:
        client = name or f"{_user_part(_user())}-{os.getpid()}"
    if name and client != name:
        raise ValueError(
            f"{path} is a token of client {name!r}, not of {client!r}: "
            f"connect as {name!r}, or use a token of {client!r}"
        )
    return Attachment(cluster, client, path)


def _user() -> str:
    """Returns the name of the user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # Such as in containers, where user ids may have no name.
        return f"uid{os.getuid()}"


def _user_part(user: str) -> str:
    """Returns the name of a user with the characters that are valid in the name of a client."""
    return re.sub(r"^[.-]|[^a-zA-Z0-9_.-]", "_", user)[:_MAX_USER_CHARS]


def origin_of(process: int) -> ClientOrigin:
    """Returns the user and the machine of this process, with the process that users know as the client."""
    return ClientOrigin(printable(_user()), printable(socket.gethostname()), process)


def attach(attachment: Attachment) -> RemoteSession:
    """Opens a session with a service.

    Raises:
      HostError: there is no such service, or it rejects the client; the message has the reason.
      OSError: the token cannot be read.
      ValueError: other users can read the token.
    """
    address, credentials = find_service(attachment.cluster, attachment.token)
    return attach_at(address, credentials.secret, attachment)


def attach_at(address: Address, secret: bytes, attachment: Attachment) -> RemoteSession:
    """Opens a session as `attach` does, with a service whose address and secret are known."""
    service = f"the service of {attachment.cluster}"
    connections = {}
    number = 0
    try:
        for channel in ("watch", *(channel for channel in CHANNELS if channel != "watch")):
            purpose = Purpose(channel, "client", 0, number, "service", attachment.client)
            connections[channel] = call_service(address, secret, purpose, decode_for_client)
            if channel == "watch":
                connections[channel].set_timeout(_ADMISSION_TIMEOUT_S)
                reply = connections[channel].receive()
                connections[channel].set_timeout(None)
                if isinstance(reply, AdmissionDenied):
                    raise HostError(f"{service} rejects this process: {reply.why}")
                if not isinstance(reply, Admitted):
                    raise MessageError(f"unexpected message {type(reply).__name__}")
                admitted, number = reply, reply.client
        connections["steps"].send(origin_of(os.getpid()))
    except BaseException as error:
        for connection in connections.values():
            connection.close()
        if isinstance(error, ConnectionEnded | MessageError):
            raise HostError(f"{service} rejects this process: {error}") from None
        raise
    return RemoteSession(AttachedService(attachment.cluster, connections), admitted)
