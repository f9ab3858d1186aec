"""Attaches to a service: three connections, of which the first says which islands there are."""

from __future__ import annotations

import dataclasses
import getpass
import os
import re

from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.client.client import Client
from pathways.runtime.hosts.client.remote_session import RemoteSession
from pathways.runtime.hosts.client.service_listener import AttachedService
from pathways.runtime.hosts.launch.folders import call_service, check_name, find_service
from pathways.runtime.hosts.launch.sockets import Address
from pathways.runtime.hosts.protocol.messages import CHANNELS, MessageError, Purpose
from pathways.runtime.hosts.protocol.service_messages import AdmissionDenied, Admitted, decode_for_client
from pathways.runtime.hosts.protocol.wire import ConnectionEnded

_ADMISSION_TIMEOUT_S = 10.0
"""How long a service may take to say whether it lets a client in."""

_MAX_USER_CHARS = 50
"""How many characters of the name of the user are in that of a client."""


@dataclasses.dataclass(frozen=True)
class Attachment:
    """Which service a process is a client of.

    Attributes:
      where: the name of the cluster, or where its service listens.
      client: the name of the client.
      token: the path of the token; None for that in the folder of the cluster.

    Raises:
      ValueError: the client cannot be called so.
    """

    where: str
    client: str
    token: str | None = None

    def __post_init__(self) -> None:
        check_name(self.client, "a client")


def attachment_of(where: str, client: str | None, token: str | os.PathLike[str] | None) -> Attachment:
    """What a user asks for; by default the client has the name of the user and the number of the process."""
    if not isinstance(where, str):
        raise TypeError(f"connect: attach must be the name or the address of a cluster, got {where!r}")
    if not isinstance(token, str | os.PathLike | None):
        raise TypeError(f"connect: token must be the path of a file, got {token!r}")
    name = f"{_user()}-{os.getpid()}" if client is None else client
    return Attachment(where, name, None if token is None else os.fspath(token))


def _user() -> str:
    """The name of the user as a client may be called."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # As in containers, where nobody has given it one.
        name = f"uid{os.getuid()}"
    return re.sub(r"^[.-]|[^a-zA-Z0-9_.-]", "_", name)[:_MAX_USER_CHARS]


def attach(attachment: Attachment) -> Client:
    """Opens a session with a service, and returns its client.

    Raises:
      HostError: there is no such service, or it does not let the client in; says why.
      OSError: the token cannot be read.
      ValueError: it can be read by others.
    """
    address, secret = find_service(attachment.where, attachment.token)
    return attach_at(address, secret, attachment)


def attach_at(address: Address, secret: bytes, attachment: Attachment) -> Client:
    """See `attach`; of a service whose address and secret are known."""
    service = f"the service of {attachment.where}"
    connections = {}
    number = 0
    try:
        for channel in ("watch", *(channel for channel in CHANNELS if channel != "watch")):
            purpose = Purpose(channel, "client", 0, number, "service", attachment.client)
            connections[channel] = call_service(address, secret, purpose, decode_for_client)
            if channel == "watch":
                connections[channel].set_timeout(_ADMISSION_TIMEOUT_S)
                said = connections[channel].receive()
                connections[channel].set_timeout(None)
                if isinstance(said, AdmissionDenied):
                    raise HostError(f"{service} rejects this process: {said.why}")
                if not isinstance(said, Admitted):
                    raise MessageError(f"it says {type(said).__name__}")
                admitted, number = said, said.client
    except BaseException as error:
        for connection in connections.values():
            connection.close()
        if isinstance(error, ConnectionEnded | MessageError):
            raise HostError(f"{service} rejects this process: {error}") from None
        raise
    return Client(RemoteSession(AttachedService(attachment.where, connections), admitted))
