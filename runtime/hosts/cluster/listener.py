"""Turns messages of workers, and their ends, into events for the core."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from pathways.runtime.control.errors import CallFailedError, Failure, failed
from pathways.runtime.control.events import (
    Answered,
    HostEnded,
    InputMissed,
    LeaveAsked,
    PeerReached,
    PeerUnreachable,
)
from pathways.runtime.hosts.cluster.answers import Answers
from pathways.runtime.hosts.cluster.fetching import Fetched
from pathways.runtime.hosts.cluster.host import HostGang, HostProcess
from pathways.runtime.hosts.cluster.islands import Islands
from pathways.runtime.hosts.cluster.shared_core import SharedCore
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


class Listener:
    """Listens to the workers of a cluster.

    Args:
      core: is told.
      islands: the workers.
      traces: takes what they say about traces.
      answers: makes what reads what they say about steps, of what reads one of them.

    Attributes:
      answers: what they say about steps; read by those who wait for it.
    """

    def __init__(
        self,
        core: SharedCore,
        islands: Islands,
        traces: HostTraces,
        answers: Callable[[Callable[[Any], None]], Answers] = Answers,
    ) -> None:
        self._core = core
        self._islands = islands
        self._traces = traces
        self.answers = answers(self._on_step_messages)

    def attach(self, gang: HostGang) -> None:
        """Listens to some workers from now on."""
        for host in gang.hosts:
            self.answers.add(host)
            host.arrays.place = functools.partial(self._place, host)
            for connection in (host.arrays, host.watch):
                start_thread(functools.partial(self._listen, host, connection), "listen")

    def detach(self, gang: HostGang) -> None:
        """Stops listening to some workers, and wakes all who wait for them."""
        for host in gang.hosts:
            self.answers.forget(host)
        self.answers.wake()

    def lose(self, host: HostProcess, error: ConnectionEnded) -> None:
        """A worker is gone whose connection has ended, which its process explains where it has ended, too."""
        self.answers.forget(host)
        if host.gang.is_lost():
            return
        how = host.ending() or str(error)
        events = [HostEnded(host.gang.life.key, host.index, how)]
        first = host.gang.hosts[0]
        # JAX aborts the hosts of an island whose first one is gone.
        if first is not host and (of_first := first.ending(0)):
            events.insert(0, HostEnded(host.gang.life.key, first.index, of_first))
        self._core.tell(*events)

    def find_ended(self, seconds: float = 0.0) -> None:
        """Finds workers that have just ended, which is why others fail.

        Args:
          seconds: how long to look for one: another worker may hear of the end of its connections first.
        """
        until = time.monotonic() + seconds
        while True:
            hosts = [host for host in [*self._islands.hosts] if not host.gang.is_lost()]
            ended = [host for host in hosts if host.ending(0) or host.watch.has_ended()]
            for host in ended:
                self.lose(host, ConnectionEnded("the connection has ended"))
            if ended or time.monotonic() >= until:
                return
            time.sleep(0.005)

    def _on_step_messages(self, host: HostProcess) -> None:
        """Handles what a worker has sent about steps."""
        try:
            host.steps.act_on_some(functools.partial(self._on_message, host))
        except ConnectionEnded as error:
            self.lose(host, error)
        except MessageError as error:
            self._core.tell(HostEnded(host.gang.life.key, host.index, str(error)))

    def _listen(self, host: HostProcess, connection: Connection[Any]) -> None:
        """Handles all other messages of a worker."""
        try:
            while True:
                self._on_message(host, connection.receive())
        except ConnectionEnded as error:
            self.lose(host, error)
        except MessageError as error:
            self._core.tell(HostEnded(host.gang.life.key, host.index, str(error)))

    def _on_message(self, host: HostProcess, message: object) -> None:
        now = host.pulse.heard = time.monotonic()
        match message:
            case Done():
                if message.error is None and not message.failed:
                    self._core.done(host.gang.life, host.index, message.run, now)
                else:
                    self._on_failure(host, message)
            case Missed():
                self._find_cause(message.run)
                self._core.tell(InputMissed(host.gang.life.key, host.index, message.run, message.why))
            case LoadDone():
                what = None if message.error is None else failed(message.error)
                self._core.tell(Answered(host.index, message.request, what))
            case Chunk():
                self._take(host, message)
            case Failed():
                self.find_ended()
                self._core.tell(Answered(host.index, message.request, failed(f"{host}: {message.error}")))
            case Called():
                self._on_called(host, message)
            case Pong():
                host.round_trip.answered(message.number, now)
            case Report():
                self._core.tell(Answered(host.index, message.request, message.report))
            case Described():
                self._core.tell(Answered(host.index, message.request, message, message.last))
            case PeerLost() | PeerFound():
                self._on_peer(host, message)
            case Leaving():
                self._core.tell(LeaveAsked(host.gang.life.key, host.index))
            case TraceStarted() | RunTimes() | TraceDone() | ClockTime():
                self._traces.on_message(host.index, message)
            case _:
                raise MessageError(f"a worker does not say {type(message).__name__}")

    def _on_failure(self, host: HostProcess, done: Done) -> None:
        """Handles a failed step."""
        self._find_cause(done.run)
        self._core.failed(host.gang.life, host.index, done.run, done.error, done.failed)

    def _find_cause(self, run: int) -> None:
        """Reports the end of another worker, which may be why a step fails, before that."""
        step = self._core.core.steps.get(run)
        if step is not None:
            self.find_ended(_END_SECONDS if len(step.hosts) > 1 and not step.is_lost() else 0.0)

    def _on_called(self, host: HostProcess, said: Called) -> None:
        """Handles the end of a call."""
        failure = said.failure
        what = None if failure is None else Failure(CallFailedError, described(str(host), failure))
        self._core.called(host.index, said.call, said, what)

    def _on_peer(self, host: HostProcess, said: PeerLost | PeerFound) -> None:
        """Handles the report of a worker that another one cannot be reached, or can be again.

        Raises:
          MessageError: there is no such worker.
        """
        if not 0 <= said.host < len(self._islands.hosts) or said.host == host.index:
            raise MessageError(f"it reports on host {said.host}, which it is not connected to")
        peer = self._islands.hosts[said.host]
        # Another one may have taken the place of the one that is meant.
        if peer.ready.probe_address != said.address:
            return
        by, of = host.gang.life.key, peer.gang.life.key
        if isinstance(said, PeerFound):
            self._core.tell(PeerReached(by, host.index, of, peer.index))
        else:
            self._core.tell(PeerUnreachable(by, host.index, of, peer.index, said.error))

    def _fetched(self, host: HostProcess, number: int) -> Fetched | None:
        request = self._core.core.replies.get(number)
        if request is None or host.index not in request.hosts:
            return None
        return request.sink if isinstance(request.sink, Fetched) else None

    def _place(self, host: HostProcess, message: object, size: int) -> memoryview:
        """Where the bytes after a message of a worker go.

        Raises:
          MessageError: they are of no array.
        """
        if not isinstance(message, Chunk):
            raise MessageError(f"{type(message).__name__} comes with {size} bytes of an array")
        fetched = self._fetched(host, message.number)
        # It may no longer be wanted.
        return memoryview(bytearray(size)) if fetched is None else fetched.reassembly.place(message, size)

    def _take(self, host: HostProcess, chunk: Chunk) -> None:
        fetched = self._fetched(host, chunk.number)
        if fetched is None:
            return
        fetched.reassembly.take(chunk)
        if fetched.reassembly.is_complete():
            self._core.tell(Answered(host.index, chunk.number, None))


def described(host: str, failure: CallFailure) -> str:
    """Why a call failed on a host."""
    text = f"{failure.type}: {failure.text}" if failure.type else failure.text
    how = " raised " if failure.kind == "raised" else ": "
    return f"{host}{failure.about}{how}{text}\n{failure.traceback}".rstrip()
