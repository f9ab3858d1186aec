"""Listener that turns messages and exits of workers into events for the core."""

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
from pathways.runtime.hosts.cluster.reply_sinks import Reply, ReplySink
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.launch.launcher import is_crash
from pathways.runtime.hosts.protocol.messages import (
    Called,
    CallFailure,
    Chunk,
    Described,
    Done,
    Failed,
    Leaving,
    LoadDone,
    Message,
    MessageError,
    Missed,
    PeerFound,
    PeerLost,
    Pong,
    Report,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.threads import start_thread

_EXIT_TIMEOUT_S = 0.1
"""Timeout for the exit of a process after its connections are closed."""


class WorkerSink(Protocol):
    """Sink of messages about steps and calls, for a service, which relays them to its clients."""

    def on_done(self, host: WorkerHandle, done: Done) -> None:
        """Handles that a host completed a step without failures; in the thread that runs the loop."""

    def on_called(self, host: WorkerHandle, called: Called) -> None:
        """Handles that a host completed a call; in the thread that runs the loop."""

    def on_leaving(self, host: WorkerHandle) -> None:
        """Handles that the process of a host received SIGTERM; in the thread that listens to the host."""


class WorkerListener:
    """Listener to the workers of a cluster.

    An extension adds handlers of further messages to `handlers`.

    Args:
      core: the core that handles the events.
      pool: the workers.
      loop: the event loop that reads messages about steps.
      sink: the sink of messages about steps and calls. With a sink the loop has its own thread,
        which must not block; without a sink it runs in the threads that wait for steps.

    Attributes:
      loop: see above.
      handlers: the handlers of further messages, by their types; each gets the worker and the message.
    """

    def __init__(
        self, core: SharedCore, pool: WorkerPool, loop: EventLoop, sink: WorkerSink | None = None
    ) -> None:
        self._core = core
        self._pool = pool
        self.handlers: dict[type[Message], Callable[[WorkerHandle, Any], None]] = {}
        self._sink = sink
        self.loop = loop

    def attach(self, gang: HostGang) -> None:
        """Starts to listen to the workers of an island."""
        for host in gang.hosts:
            if self._sink is None:
                # Ctrl-C may interrupt the thread that reads; `process_available` loses no message then.
                read = functools.partial(
                    host.steps.process_available, functools.partial(self._on_message, host)
                )
            else:
                read = functools.partial(self._process_available, host)
            self.loop.add(
                host.steps, functools.partial(self._read, host, read), buffers=self._sink is not None
            )
            host.arrays.place = functools.partial(self._place, host)
            for connection in (host.arrays, host.watch):
                start_thread(functools.partial(self._listen, host, connection), "listen")

    def detach(self, gang: HostGang) -> None:
        """Stops listening to the workers of an island, and wakes the threads that wait for them."""
        for host in gang.hosts:
            self.loop.remove(host.steps)
        self.loop.wake()

    def lose(self, host: WorkerHandle, error: ConnectionEnded) -> None:
        """Handles a closed connection; reports the exit status if the process exited."""
        self.loop.remove(host.steps)
        self._core.handle(HostDisconnected(host.gang.life.key, host.index))
        if self._sink is None:
            self._explain_loss(host, error)
        else:
            # The exit of the process takes a while, and the thread that runs the loop must not block.
            start_thread(functools.partial(self._explain_loss, host, error), "lose")

    def _explain_loss(self, host: WorkerHandle, error: ConnectionEnded) -> None:
        if host.gang.is_lost():
            return
        cause = host.describe_exit() or str(error)
        first = host.gang.hosts[0]
        has_crashed = is_crash(host.process.exit_status(0) or "", is_first=host is first)
        events = [HostLost(host.gang.life.key, host.index, cause, is_crash=has_crashed)]
        # JAX aborts all hosts of an island when it loses the first one, so that one is the cause.
        if first is not host and (of_first := first.describe_exit(0)):
            has_crashed = is_crash(first.process.exit_status(0) or "")
            events.insert(0, HostLost(host.gang.life.key, first.index, of_first, is_crash=has_crashed))
        self._core.handle(*events)

    def find_exited(self, seconds: float = 0.0) -> None:
        """Reports workers that have just exited, since that may be the cause of another failure.

        Args:
          seconds: the time to wait for an exit: a peer may detect closed connections before this process.
        """
        # The thread that runs the loop of a service must not block.
        until = time.monotonic() + (seconds if self._sink is None else 0.0)
        while True:
            hosts = [host for host in [*self._pool.hosts] if not host.gang.is_lost()]
            exited = [host for host in hosts if host.describe_exit(0) or host.watch.has_ended()]
            for host in exited:
                self.lose(host, ConnectionEnded("the connection has ended"))
            if exited or time.monotonic() >= until:
                return
            time.sleep(0.005)

    def _listen(self, host: WorkerHandle, connection: Connection[Any]) -> None:
        """Handles messages of a worker that have no order among steps."""

        def read() -> None:
            while True:
                self._on_message(host, connection.receive())

        self._read(host, read)

    def _process_available(self, host: WorkerHandle) -> None:
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
                loaded = message.foreign or message.memory
                reply = loaded if message.error is None else failed(message.error)
                self._core.handle(ReplyReceived(host.index, message.request, reply))
            case Chunk() | Failed() | Described() | Report():
                self._on_reply(host, message)
            case Called():
                self._on_called(host, message)
            case Pong():
                host.round_trip.note_pong(message.number, now)
            case PeerLost() | PeerFound():
                self._on_peer(host, message)
            case Leaving():
                if self._sink is not None:
                    self._sink.on_leaving(host)
                else:
                    self._core.handle(LeaveRequested(host.gang.life.key, host.index))
            case Message() if handle := self.handlers.get(type(message)):
                handle(host, message)
            case _:
                raise MessageError(f"unexpected message {type(message).__name__} from a worker")

    def _find_cause(self, run: int) -> None:
        """Reports the exit of another worker first, if that is why a step fails."""
        step = self._core.core.steps.get(run)
        if step is not None:
            self.find_exited(_EXIT_TIMEOUT_S if len(step.hosts) > 1 and not step.is_lost() else 0.0)

    def _on_called(self, host: WorkerHandle, called: Called) -> None:
        """Handles the completion of a call on a host."""
        error = called.failure
        failure = None if error is None else Failure(CallFailedError, describe_failure(str(host), error))
        self._core.called(host.index, called.call, called, failure)
        if self._sink is not None:
            self._sink.on_called(host, called)

    def _on_peer(self, host: WorkerHandle, report: PeerLost | PeerFound) -> None:
        """Handles the report of a worker that it lost the connection to a peer, or has it again.

        Raises:
          MessageError: there is no such peer.
        """
        if not 0 <= report.host < len(self._pool.hosts) or report.host == host.index:
            raise MessageError(f"it reports on host {report.host}, to which it is not connected")
        peer = self._pool.hosts[report.host]
        # The report may be about an earlier worker of that number.
        if peer.ready.probe_address != report.address:
            return
        by, of = host.gang.life.key, peer.gang.life.key
        if isinstance(report, PeerFound):
            self._core.handle(PeerReached(by, host.index, of, peer.index))
        else:
            self._core.handle(PeerUnreachable(by, host.index, of, peer.index, report.error))

    def _sink_of(self, host: WorkerHandle, number: int) -> ReplySink | None:
        """Returns the sink of a worker's reply to a request; None if there is none."""
        request = self._core.core.replies.get(number)
        if request is None or host.index not in request.hosts:
            return None
        return request.sink if isinstance(request.sink, ReplySink) else None

    def _place(self, host: WorkerHandle, message: object, size: int) -> memoryview:
        """Returns the buffer for the bytes that follow a message of a worker.

        Raises:
          MessageError: the message is not a chunk of an array.
        """
        if not isinstance(message, Chunk):
            raise MessageError(f"unexpected {size} bytes of an array after {type(message).__name__}")
        sink = self._sink_of(host, message.number)
        # Without a sink the request was dropped; the bytes still have to be read.
        return memoryview(bytearray(size)) if sink is None else sink.place(message, size)

    def _on_reply(self, host: WorkerHandle, reply: Reply) -> None:
        """Handles a reply to a request, or a chunk of it."""
        number = reply.number if isinstance(reply, Chunk) else reply.request
        sink = self._sink_of(host, number)
        if sink is not None and (sink.accepts_all or isinstance(reply, Chunk)):
            if sink.accept(host, reply):
                self._core.handle(ReplyReceived(host.index, number, None))
            return
        match reply:
            case Failed():
                self.find_exited()
                self._core.handle(ReplyReceived(host.index, number, failed(f"{host}: {reply.error}")))
            case Report():
                self._core.handle(ReplyReceived(host.index, number, reply.report))
            case Described():
                self._core.handle(ReplyReceived(host.index, number, reply, reply.last))


def describe_failure(host: str, failure: CallFailure) -> str:
    """Returns the error message of a call that failed on a host."""
    text = f"{failure.type}: {failure.text}" if failure.type else failure.text
    separator = " raised " if failure.kind == "raised" else ": "
    return f"{host}{failure.about}{separator}{text}\n{failure.traceback}".rstrip()
