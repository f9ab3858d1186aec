"""Traces of many clients: a worker records one at a time, and each client receives its own programs.

When a client starts or stops a trace, the worker stops its current trace and starts another one, so that all
messages about one trace are for the same clients.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Sequence

import msgspec

from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.protocol.messages import (
    RunTimes,
    SpanTimes,
    StartTrace,
    StopTrace,
    TraceDone,
    TraceStarted,
)
from pathways.runtime.hosts.protocol.wire import ConnectionEnded

Worker = tuple[int, int]
"""The number of a host, and how often workers of its island were started before."""

FromRecording = RunTimes | SpanTimes | TraceDone | TraceStarted
"""Messages of a worker about one trace."""

ForClient = tuple[int, FromRecording]
"""The number of a client, and a message for it."""


class RelayedTraces:
    """Table of the clients for which each worker records traces. Any thread may call its methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        # For each worker its unfinished traces: the clients of each, with the numbers that they gave it.
        self._traces: dict[Worker, dict[int, dict[int, int]]] = {}
        # The trace that each worker records now.
        self._current: dict[Worker, int] = {}
        # Clients whose start or stop changed the trace, until the worker confirms that.
        self._started: dict[tuple[Worker, int], set[int]] = {}
        self._stopped: dict[tuple[Worker, int], dict[int, int]] = {}

    def start(self, worker: Worker, client: int, trace: int) -> list[StartTrace | StopTrace]:
        """Adds a client to the trace of a worker; returns the messages for the worker."""
        with self._lock:
            clients = {**self._clients(worker), client: trace}
            return self._change(worker, clients, starter=client)

    def stop(self, worker: Worker, client: int) -> list[StartTrace | StopTrace]:
        """Removes a client from the trace of a worker; returns the messages for the worker."""
        with self._lock:
            clients = dict(self._clients(worker))
            if client not in clients:
                return []
            trace = clients.pop(client)
            # Before the change: the client gets the end of the trace that includes it.
            self._stopped.setdefault((worker, self._current[worker]), {})[client] = trace
            return self._change(worker, clients)

    def change(self, host: WorkerHandle, client: int, trace: StartTrace | StopTrace) -> None:
        """Starts or stops a trace of a client on a worker, after all its earlier steps were issued."""
        worker = host.index, host.gang.life.key.start
        is_start = isinstance(trace, StartTrace)
        messages = self.start(worker, client, trace.trace) if is_start else self.stop(worker, client)
        with contextlib.suppress(ConnectionEnded):
            host.steps.send(*messages)

    def remove_client(self, client: int, hosts: Sequence[WorkerHandle]) -> None:
        """Stops the traces of a client on all workers that record one."""
        with self._lock:
            workers = [worker for worker in self._current if client in self._clients(worker)]
        for number, start in workers:
            if hosts[number].gang.life.key.start == start:
                with contextlib.suppress(ConnectionEnded):
                    hosts[number].steps.send(*self.stop((number, start), client))

    def route(self, worker: Worker, message: FromRecording) -> list[ForClient]:
        """Returns the messages for clients that follow from a message of a worker."""
        with self._lock:
            key = worker, message.trace
            clients = self._traces.get(worker, {}).get(message.trace, {})
            match message:
                case TraceStarted():
                    started = self._started.pop(key, set())
                    return [(c, TraceStarted(n)) for c, n in clients.items() if c in started]
                case SpanTimes(client=client):
                    # A client gets the work that was done for it only.
                    return [
                        (c, msgspec.structs.replace(message, trace=n))
                        for c, n in clients.items()
                        if c == client
                    ]
                case RunTimes():
                    return [(c, msgspec.structs.replace(message, trace=n)) for c, n in clients.items()]
                case TraceDone():
                    self._traces.get(worker, {}).pop(message.trace, None)
                    return [(c, TraceDone(n)) for c, n in self._stopped.pop(key, {}).items()]

    def _clients(self, worker: Worker) -> dict[int, int]:
        current = self._current.get(worker)
        return {} if current is None else self._traces[worker][current]

    def _change(
        self, worker: Worker, clients: dict[int, int], starter: int | None = None
    ) -> list[StartTrace | StopTrace]:
        """Replaces the current trace of a worker by one for these clients; returns the messages for it."""
        messages: list[StartTrace | StopTrace] = []
        before = self._current.pop(worker, None)
        if before is not None:
            messages.append(StopTrace(before))
        if clients:
            number = self._current[worker] = next(self._numbers)
            self._traces.setdefault(worker, {})[number] = clients
            if starter is not None:
                # Clients of the trace before may still wait for its start: they get the start of this one.
                self._started[worker, number] = {starter, *self._started.pop((worker, before or 0), set())}
            messages.append(StartTrace(number))
        return messages
