"""Turns messages of workers, and their ends, into events for the core."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Protocol

from pathways.runtime.control.records.errors import CallFailedError, Failure, failed
from pathways.runtime.control.records.events import (
    HostDisconnected,
    HostLost,
    InputMissed,
    LeaveRequested,
    PeerReached,
    PeerUnreachable,
    ReplyReceived,
)
from pathways.runtime.hosts.cluster.event_loop import EventLoop
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.reply_sinks import Answer, ReplySink
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.protocol.messages import (
    Called,
    CallFailure,
    Chunk,
    ClockTime,
    Described,
    Done,
    Failed,
    Leaving,
    LoadDone,
    MessageError,
    Missed,
    PeerFound,
    PeerLost,
    Pong,
    Report,
    RunTimes,
    TraceDone,
    TraceStarted,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.hosts.trace.host_traces import HostTraces
from pathways.runtime.resources.threads import start_thread

_END_SECONDS = 0.1
"""How long a process may take to end after its connections."""

FromTracing = ClockTime | RunTimes | TraceDone | TraceStarted


class WorkerSink(Protocol):
    """Hears what workers say of steps, beside the core; for a service, which passes it on to its clients."""

    def on_done(self, host: WorkerHandle, done: Done) -> None:
        """Handles that a host is done with a step, and nothing failed; in the thread that runs the loop."""

    def on_called(self, host: WorkerHandle, called: Called) -> None:
        """A host has ended its part of a call; in the thread that runs the loop."""

    def on_tracing(self, host: WorkerHandle, message: FromTracing) -> None:
        """A worker says something of a trace."""


class WorkerListener:
    """Listens to the workers of a cluster.

    Args:
      core: is told.
      pool: the workers.
      traces: takes what they say about traces, unless a sink does.
      loop: reads what they say about steps.
      sink: hears of steps, calls and traces. With one the loop has a thread of its own, which waits for
        nobody; without one it runs in the threads that wait for steps.

    Attributes:
      loop: see above.
    """

    def __init__(
        self,
        core: SharedCore,
        pool: WorkerPool,
        traces: HostTraces,
        loop: EventLoop,
        sink: WorkerSink | None = None,
    ) -> None:
        self._core = core
        self._pool = pool
        self._traces = traces
        self._sink = sink
        self.loop = loop

    def attach(self, gang: HostGang) -> None:
        """Listens to some workers from now on."""
        for host in gang.hosts:
            if self._sink is None:
                # Ctrl-C may end a thread that reads, and loses no message of these.
                read = functools.partial(
                    host.steps.process_available, functools.partial(self._on_message, host)
                )
            else:
                read = functools.partial(self._take_some, host)
            self.loop.add(
                host.steps, functools.partial(self._read, host, read), buffers=self._sink is not None
            )
            host.arrays.place = functools.partial(self._place, host)
            for connection in (host.arrays, host.watch):
                start_thread(functools.partial(self._listen, host, connection), "listen")

    def detach(self, gang: HostGang) -> None:
        """Stops listening to some workers, and wakes all who wait for them."""
        for host in gang.hosts:
            self.loop.remove(host.steps)
        self.loop.wake()

    def lose(self, host: WorkerHandle, error: ConnectionEnded) -> None:
        """A worker is gone whose connection has ended, which its process explains where it has ended, too."""
        self.loop.remove(host.steps)
        self._core.handle(HostDisconnected(host.gang.life.key, host.index))
        if self._sink is None:
            self._explain_loss(host, error)
        else:
            # The end of a process takes a while.
            start_thread(functools.partial(self._explain_loss, host, error), "lose")

    def _explain_loss(self, host: WorkerHandle, error: ConnectionEnded) -> None:
        if host.gang.is_lost():
            return
        how = host.describe_exit() or str(error)
        events = [HostLost(host.gang.life.key, host.index, how)]
        first = host.gang.hosts[0]
        # JAX aborts the hosts of an island whose first one is gone.
        if first is not host and (of_first := first.describe_exit(0)):
            events.insert(0, HostLost(host.gang.life.key, first.index, of_first))
        self._core.handle(*events)

    def find_exited(self, seconds: float = 0.0) -> None:
        """Finds workers that have just ended, which is why others fail.

        Args:
          seconds: how long to look for one: another worker may hear of the end of its connections first.
        """
        # The thread that runs the loop for a service waits for nobody.
        until = time.monotonic() + (seconds if self._sink is None else 0.0)
        while True:
            hosts = [host for host in [*self._pool.hosts] if not host.gang.is_lost()]
            ended = [host for host in hosts if host.describe_exit(0) or host.watch.has_ended()]
            for host in ended:
                self.lose(host, ConnectionEnded("the connection has ended"))
            if ended or time.monotonic() >= until:
                return
            time.sleep(0.005)

    def _listen(self, host: WorkerHandle, connection: Connection[Any]) -> None:
        """Handles what a worker sends that has no order among steps."""

        def read() -> None:
            while True:
                self._on_message(host, connection.receive())

        self._read(host, read)

    def _take_some(self, host: WorkerHandle) -> None:
        for message in host.steps.read_available():
            self._on_message(host, message)

    def _read(self, host: WorkerHandle, read: Callable[[], None]) -> None:
        try:
            read()
        except ConnectionEnded as error:
            self.lose(host, error)
        except MessageError as error:
            self._core.handle(HostLost(host.gang.life.key, host.index, str(error)))

    def _on_message(self, host: WorkerHandle, message: object) -> None:
        now = host.pulse.heard = time.monotonic()
        match message:
            case Done():
                if message.error is None and not message.failed:
                    self._core.done(host.gang.life, host.index, message.run, now)
                    if self._sink is not None:
                        self._sink.on_done(host, message)
                else:
                    of, took = host.gang.life, message.took
                    self._core.fail(of, host.index, message.run, message.error, message.failed, took)
            case Missed():
                self._find_cause(message.run)
                self._core.handle(InputMissed(host.gang.life.key, host.index, message.run, message.why))
            case LoadDone():
                what = None if message.error is None else failed(message.error)
                self._core.handle(ReplyReceived(host.index, message.request, what))
            case Chunk() | Failed() | Described() | Report():
                self._on_answer(host, message)
            case Called():
                self._on_called(host, message)
            case Pong():
                host.round_trip.note_pong(message.number, now)
            case PeerLost() | PeerFound():
                self._on_peer(host, message)
            case Leaving():
                self._core.handle(LeaveRequested(host.gang.life.key, host.index))
            case TraceStarted() | RunTimes() | TraceDone() | ClockTime():
                if self._sink is None:
                    self._traces.on_message(host.index, message)
                else:
                    self._sink.on_tracing(host, message)
            case _:
                raise MessageError(f"a worker does not say {type(message).__name__}")

    def _find_cause(self, run: int) -> None:
        """Reports the end of another worker, which may be why a step fails, before that."""
        step = self._core.core.steps.get(run)
        if step is not None:
            self.find_exited(_END_SECONDS if len(step.hosts) > 1 and not step.is_lost() else 0.0)

    def _on_called(self, host: WorkerHandle, said: Called) -> None:
        """Handles the end of a call."""
        failure = said.failure
        what = None if failure is None else Failure(CallFailedError, describe_failure(str(host), failure))
        self._core.called(host.index, said.call, said, what)
        if self._sink is not None:
            self._sink.on_called(host, said)

    def _on_peer(self, host: WorkerHandle, said: PeerLost | PeerFound) -> None:
        """Handles the report of a worker that another one cannot be reached, or can be again.

        Raises:
          MessageError: there is no such worker.
        """
        if not 0 <= said.host < len(self._pool.hosts) or said.host == host.index:
            raise MessageError(f"it reports on host {said.host}, which it is not connected to")
        peer = self._pool.hosts[said.host]
        # Another one may have taken the place of the one that is meant.
        if peer.ready.probe_address != said.address:
            return
        by, of = host.gang.life.key, peer.gang.life.key
        if isinstance(said, PeerFound):
            self._core.handle(PeerReached(by, host.index, of, peer.index))
        else:
            self._core.handle(PeerUnreachable(by, host.index, of, peer.index, said.error))

    def _sink_of(self, host: WorkerHandle, number: int) -> ReplySink | None:
        """Returns the sink of what a worker answers to a request; None where there is none."""
        request = self._core.core.replies.get(number)
        if request is None or host.index not in request.hosts:
            return None
        return request.sink if isinstance(request.sink, ReplySink) else None

    def _place(self, host: WorkerHandle, message: object, size: int) -> memoryview:
        """Returns where the bytes after a message of a worker go.

        Raises:
          MessageError: they are of no array.
        """
        if not isinstance(message, Chunk):
            raise MessageError(f"{type(message).__name__} comes with {size} bytes of an array")
        sink = self._sink_of(host, message.number)
        return memoryview(bytearray(size)) if sink is None else sink.place(message, size)

    def _on_answer(self, host: WorkerHandle, answer: Answer) -> None:
        """Handles an answer to a request, or a piece of it."""
        number = answer.number if isinstance(answer, Chunk) else answer.request
        sink = self._sink_of(host, number)
        if sink is not None and (sink.accepts_all or isinstance(answer, Chunk)):
            if sink.accept(host, answer):
                self._core.handle(ReplyReceived(host.index, number, None))
            return
        match answer:
            case Failed():
                self.find_exited()
                self._core.handle(ReplyReceived(host.index, number, failed(f"{host}: {answer.error}")))
            case Report():
                self._core.handle(ReplyReceived(host.index, number, answer.report))
            case Described():
                self._core.handle(ReplyReceived(host.index, number, answer, answer.last))


def describe_failure(host: str, failure: CallFailure) -> str:
    """Why a call failed on a host."""
    text = f"{failure.type}: {failure.text}" if failure.type else failure.text
    how = " raised " if failure.kind == "raised" else ": "
    return f"{host}{failure.about}{how}{text}\n{failure.traceback}".rstrip()
