"""Workers of a service, as a client sees them: what they are told goes through the service."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.protocol.messages import CHANNELS, Fetch, Message
from pathways.runtime.hosts.protocol.service_messages import ForHost, WorkerFacts
from pathways.runtime.hosts.protocol.wire import Connection


class RelayedConnection(Connection[Any]):
    """A connection to a worker, by way of that to the service.

    Args:
      service: that to the service.
      host: the number of the worker.
      start: how often workers of its island were started before.
      sent: the numbers of arrays that this client has sent.
    """

    def __init__(self, service: Connection[Any], host: int, start: int, sent: Set[int]) -> None:
        # Nothing of its own: no socket, and nobody receives on it.
        self._service = service
        self._host = host
        self._start = start
        self._sent = sent

    def send(self, *messages: Message) -> None:
        """See `Connection.send`."""
        self._service.send(*[self._for_host(message) for message in messages])

    def send_with(self, message: Message, data: memoryview) -> None:
        """See `Connection.send_with`."""
        self._service.send_with(self._for_host(message), data)

    def _for_host(self, message: Any) -> ForHost:
        is_sent = isinstance(message, Fetch) and message.array in self._sent
        return ForHost(self._host, self._start, message, is_sent)

    def has_ended(self) -> bool:
        """What becomes of workers, the service says."""
        return False

    def leave(self) -> None:
        """There is nothing to forget."""

    def close(self) -> None:
        """There is nothing to end."""


class RelayedProcess:
    """A `WorkerProcess` that the service has.

    Args:
      pid: its number on its machine.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def exit_status(self, timeout: float) -> str | None:
        """What becomes of workers, the service says."""
        del timeout
        return None

    def kill(self) -> None:
        """It is not this client's."""

    def last_lines(self) -> Sequence[str]:
        """They are in the log of the service."""
        return ()


def relayed_host(
    facts: WorkerFacts, island: str, start: int, service: dict[str, Connection[Any]], sent: Set[int]
) -> WorkerHandle:
    """A worker of a service."""
    connections = {
        channel: RelayedConnection(service[channel], facts.host, start, sent) for channel in CHANNELS
    }
    return WorkerHandle(facts.host, island, RelayedProcess(facts.pid), connections, facts.ready)
