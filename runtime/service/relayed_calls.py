"""Calls of functions on hosts for clients, from their dispatch to the last answer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pathways.runtime.control.records.errors import Failure
from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.protocol.messages import Called, Message
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.service.protocol.service_messages import FromHost, RemoteError, StepRefusedNotice
from pathways.runtime.service.served.served_client import ServedCall, ServedClient
from pathways.runtime.service.sharing.scheduler_events import CallFinished


class RelayedCalls:
    """Calls in flight on hosts, each of one client.

    Args:
      send_client: sends a client a message that has an order.
      lose: is called with a worker whose connection has ended.
      add_event: passes an event to the scheduler.
    """

    def __init__(
        self,
        send_client: Callable[[ServedClient, Message], None],
        lose: Callable[[WorkerHandle, ConnectionEnded], None],
        add_event: Callable[[CallFinished], None],
    ) -> None:
        self._calls: dict[int, ServedCall] = {}
        self._send_client = send_client
        self._lose = lose
        self._add_event = add_event

    def send(self, served: ServedCall, why: Failure | None) -> None:
        """Sends a call to its hosts; `why` is the reason if none may run it."""
        gang, call = served.gang, served.call
        if gang.is_lost():
            return
        if why is not None:
            # No host runs it: its results exist nowhere, and are errors to programs that use them.
            call = msgspec.structs.replace(call, hosts=())
            self._send_client(served.client, StepRefusedNotice(call.call, RemoteError.of(why)))
            self._end_call(served)
        else:
            self._calls[call.call] = served
        # Each client numbers its own lanes, which are separate from those of other clients.
        lane = served.client.number << SESSION_BITS | call.lane
        for host in gang.hosts:
            if host.index in served.hosts:
                try:
                    host.steps.send(msgspec.structs.replace(call, lane=lane))
                except ConnectionEnded as error:
                    self._lose(host, error)

    def on_called(self, host: WorkerHandle, called: Called) -> None:
        """Relays that a host has finished a call."""
        served = self._calls.get(called.call)
        if served is None:
            return
        self._send_client(served.client, FromHost(host.index, served.gang.life.key.start, called))
        served.left.discard(host.index)
        if not served.left:
            del self._calls[called.call]
            self._end_call(served)

    def _end_call(self, served: ServedCall) -> None:
        """Notifies the scheduler that all hosts have finished a call."""
        assert served.queued is not None
        self._add_event(CallFinished(served.queued))

    def remove_ended(self) -> None:
        """Removes calls that ended with lost hosts."""
        self._calls = {n: served for n, served in self._calls.items() if not served.gang.is_lost()}
