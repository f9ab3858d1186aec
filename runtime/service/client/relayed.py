"""Workers of a service as a client sees them; the service relays messages to them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, override

from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.protocol.messages import CHANNELS, Fetch, Message
from pathways.runtime.hosts.protocol.wire import Connection
from pathways.runtime.service.protocol.service_messages import ForHost, WorkerFacts


class RelayedConnection(Connection[Any]):
    """Connection to a worker, relayed by the service.

    Args:
      host: the number of the worker.
      start: the number of earlier starts of its island.
      sent: the numbers of arrays that this client has sent.
    """

    def __init__(self, service: Connection[Any], host: int, start: int, sent: Set[int]) -> None:
        # Without the base class's state: it has no socket, and only sends.
        self._service = service
        self._host = host
        self._start = start
        self._sent = sent

    @override
    def send(self, *messages: Message) -> None:
        self._service.send(*[self._for_host(message) for message in messages])

    @override
    def send_with(self, message: Message, data: memoryview) -> None:
        self._service.send_with(self._for_host(message), data)

    def _for_host(self, message: Any) -> ForHost:
        is_sent = isinstance(message, Fetch) and message.array in self._sent
        return ForHost(self._host, self._start, message, is_sent)

    def has_ended(self) -> bool:
        """Returns False: the service reports lost workers."""
        return False

    def leave(self) -> None:
        """No-op: it has no socket."""

    def close(self) -> None:
        """No-op: it has no socket."""


class RelayedProcess:
    """`WorkerProcess` of the service.

    Args:
      pid: its process id on its machine.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def exit_status(self, timeout: float) -> str | None:
        """Returns None: the service reports worker exits."""
        del timeout
        return None

    def kill(self) -> None:
        """No-op: the process belongs to the service."""

    def last_lines(self) -> Sequence[str]:
        """Returns no lines: they are in the log of the service."""
        return ()


def relayed_host(
    facts: WorkerFacts, island: str, start: int, service: dict[str, Connection[Any]], sent: Set[int]
) -> WorkerHandle:
    """Creates the handle of a worker of a service."""
    connections = {
        channel: RelayedConnection(service[channel], facts.host, start, sent) for channel in CHANNELS
    }
    return WorkerHandle(facts.host, island, RelayedProcess(facts.pid), connections, facts.ready)
