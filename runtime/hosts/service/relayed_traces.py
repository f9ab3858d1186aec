"""Traces of many clients: a worker makes one at a time, and each client hears of its own programs.

When a client begins or ends a trace, the worker ends the one that it makes and begins another one, so that
what it says of one is for the same clients from its beginning to its end.
"""

from __future__ import annotations

import itertools
import threading

import msgspec

from pathways.runtime.hosts.protocol.messages import (
    RunTimes,
    StartTrace,
    StopTrace,
    TraceDone,
    TraceStarted,
)

Worker = tuple[int, int]
"""The number of a host, and how often workers of its island were started before."""

ForClient = tuple[int, RunTimes | TraceDone | TraceStarted]
"""The number of a client, and what it is told."""


class RelayedTraces:
    """Which clients hear what workers say of traces. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        # Of each worker the traces that it has not ended: the clients of each, with their own numbers.
        self._traces: dict[Worker, dict[int, dict[int, int]]] = {}
        # The one that it makes.
        self._current: dict[Worker, int] = {}
        # Who has begun or ended a trace with one of them, and has not been told.
        self._begun: dict[tuple[Worker, int], set[int]] = {}
        self._ended: dict[tuple[Worker, int], dict[int, int]] = {}

    def begin(self, worker: Worker, client: int, trace: int) -> list[StartTrace | StopTrace]:
        """A client begins a trace; what the worker is told."""
        with self._lock:
            clients = {**self._clients(worker), client: trace}
            return self._change(worker, clients, begun=client)

    def end(self, worker: Worker, client: int) -> list[StartTrace | StopTrace]:
        """A client ends its trace, or is gone; what the worker is told."""
        with self._lock:
            clients = dict(self._clients(worker))
            if client not in clients:
                return []
            trace = clients.pop(client)
            self._ended.setdefault((worker, self._current[worker]), {})[client] = trace
            return self._change(worker, clients)

    def workers(self, client: int) -> list[Worker]:
        """The workers that make a trace for a client."""
        with self._lock:
            return [worker for worker in self._current if client in self._clients(worker)]

    def take(self, worker: Worker, message: RunTimes | TraceDone | TraceStarted) -> list[ForClient]:
        """What clients are told of what a worker says."""
        with self._lock:
            key = worker, message.trace
            clients = self._traces.get(worker, {}).get(message.trace, {})
            match message:
                case TraceStarted():
                    begun = self._begun.pop(key, set())
                    return [(c, TraceStarted(n)) for c, n in clients.items() if c in begun]
                case RunTimes():
                    return [(c, msgspec.structs.replace(message, trace=n)) for c, n in clients.items()]
                case TraceDone():
                    self._traces.get(worker, {}).pop(message.trace, None)
                    return [(c, TraceDone(n)) for c, n in self._ended.pop(key, {}).items()]

    def _clients(self, worker: Worker) -> dict[int, int]:
        current = self._current.get(worker)
        return {} if current is None else self._traces[worker][current]

    def _change(
        self, worker: Worker, clients: dict[int, int], begun: int | None = None
    ) -> list[StartTrace | StopTrace]:
        messages: list[StartTrace | StopTrace] = []
        before = self._current.pop(worker, None)
        if before is not None:
            messages.append(StopTrace(before))
        if clients:
            number = self._current[worker] = next(self._numbers)
            self._traces.setdefault(worker, {})[number] = clients
            if begun is not None:
                self._begun[worker, number] = {begun, *self._begun.pop((worker, before or 0), set())}
            messages.append(StartTrace(number))
        return messages
