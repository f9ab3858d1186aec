"""Attachment to a service over three connections; the first one receives the islands."""

from __future__ import annotations

import dataclasses
import getpass
import os
import re

from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.launch.sockets import Address
from pathways.runtime.hosts.protocol.messages import CHANNELS, MessageError, Purpose
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.resources.paths import absolute_path
from pathways.runtime.service.client.remote_session import RemoteSession
from pathways.runtime.service.client.service_listener import AttachedService
from pathways.runtime.service.protocol.folders import call_service, check_name, find_service
from pathways.runtime.service.protocol.service_messages import AdmissionDenied, Admitted, decode_for_client

_ADMISSION_TIMEOUT_S = 10.0
"""Timeout for the service to admit or reject a client."""

_MAX_USER_CHARS = 50
"""Limit of the characters of the user's name in the default name of a client."""


@dataclasses.dataclass(frozen=True)
class Attachment:
    """Service and name of a client.

    Attributes:
      where: the name of the cluster, or the address of its service.
      token: the path of the token; None for the one in the folder of the cluster.

    Raises:
      ValueError: the name of the client is invalid.
    """

    where: str
    client: str
    token: str | None = None

    def __post_init__(self) -> None:
        check_name(self.client, "a client")


def attachment_of(where: str, client: str | None, token: str | os.PathLike[str] | None) -> Attachment:
    """Returns the attachment that a user requests; by default a client is named by user and process id."""
    if not isinstance(where, str):
        raise TypeError(f"connect: attach must be the name or the address of a cluster, got {where!r}")
    if not isinstance(token, str | os.PathLike | None):
        raise TypeError(f"connect: token must be the path of a file, got {token!r}")
    name = f"{_user()}-{os.getpid()}" if client is None else client
    return Attachment(where, name, None if token is None else absolute_path(token))


def _user() -> str:
    """Returns the name of the user, with the characters that are valid in the name of a client."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # Such as in containers, where user ids may have no name.
        name = f"uid{os.getuid()}"
    return re.sub(r"^[.-]|[^a-zA-Z0-9_.-]", "_", name)[:_MAX_USER_CHARS]


def attach(attachment: Attachment) -> RemoteSession:
    """Opens a session with a service.

    Raises:
      HostError: there is no such service, or it rejects the client; the message has the reason.
      OSError: the token cannot be read.
      ValueError: other users can read the token.
    """
    address, secret = find_service(attachment.where, attachment.token)
    return attach_at(address, secret, attachment)


def attach_at(address: Address, secret: bytes, attachment: Attachment) -> RemoteSession:
    """Opens a session as `attach` does, with a service whose address and secret are known."""
    service = f"the service of {attachment.where}"
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
    except BaseException as error:
        for connection in connections.values():
            connection.close()
        if isinstance(error, ConnectionEnded | MessageError):
            raise HostError(f"{service} rejects this process: {error}") from None
        raise
    return RemoteSession(AttachedService(attachment.where, connections), admitted)
