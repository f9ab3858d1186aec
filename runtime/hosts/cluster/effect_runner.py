"""Execution of the effects of a cluster's core, with connections, processes and threads."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from pathways.runtime.control.effects import (
    AttachGang,
    Disconnect,
    Effect,
    Log,
    PingGang,
    RequestExit,
    RequestReports,
    RestartGang,
    StepFailed,
    TerminateGang,
    WakeWaiters,
)
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.events import (
    GangClosed,
    GangKey,
    GangStarted,
    GangStartFailed,
    GangTerminated,
)
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.cluster.starter import Starter
from pathways.runtime.hosts.cluster.worker_listener import WorkerListener
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.launch.exit_monitor import kill_all
from pathways.runtime.hosts.launch.settings import Island
from pathways.runtime.hosts.protocol.messages import Cancel, Leave, Lost, Message, Ping, RequestReport
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.resources.threads import RunningThread, start_thread

_EXIT_TIMEOUT_S = 2.0
"""Timeout for the exit of a process that was killed."""

_CLOSE_TIMEOUT_S = 10.0
"""Timeout for the end of each start that is in flight when the cluster is closed."""

log = logging.getLogger("pathways")


class EffectRunner:
    """Runner of the effects of a core.

    Args:
      core: the core; handles the events that result.
      pool: the workers.
      starter: the starter of new workers.
      closed: is set when the cluster is closed.
    """

    def __init__(
        self,
        core: SharedCore,
        pool: WorkerPool,
        listener: WorkerListener,
        starter: Starter,
        closed: threading.Event,
    ) -> None:
        self._core = core
        self._pool = pool
        self._listener = listener
        self._starter = starter
        self._closed = closed
        self._lock = threading.Lock()
        self._restarting: list[RunningThread] = []
        # Held while an island is added, whose start the event cancels.
        self._adding = threading.Lock()
        self._stop_adding = threading.Event()
        # New workers that are not attached yet, by their island.
        self._new: dict[int, Sequence[WorkerHandle]] = {}

    def run(self, effect: Effect) -> None:
        """Carries out an effect, a slow one in a separate thread; ignores effects for clients."""
        match effect:
            case Log():
                log.log(effect.level, "%s", effect.text)
            case PingGang():
                # Never blocks: the socket's buffer holds all pings that are sent to a worker that does not
                # read before its heartbeat times out.
                self._ping(effect.gang, effect.number)
            case RequestReports():
                for number in effect.hosts:
                    _try_to_send(self._pool.hosts[number].watch, RequestReport(effect.request))
            case RequestExit():
                self._send_to_gang(effect.gang, Leave())
            case Disconnect():
                self._disconnect(self._pool.get(effect.gang))
            case WakeWaiters() | StepFailed():
                self._listener.loop.wake()
            case TerminateGang():
                self._run_in_thread(functools.partial(self._terminate, effect))
            case RestartGang():
                self._run_in_thread(functools.partial(self._restart, effect))
            case AttachGang():
                self._attach(effect.gang)

    def add_island(
        self,
        island: Island,
        stop: threading.Event,
        join: Callable[[Sequence[int], float], Sequence[Effect]],
    ) -> HostGang:
        """Starts the workers of a new island, and returns them once the pool has them.

        Args:
          stop: cancels the start when it is set, by the caller or by `close`.
          join: adds an island with hosts of these numbers to the core, at this time; returns the effects.

        Raises:
          HostError: a worker does not start; then nothing has changed.
          ValueError: the island cannot be added; then nothing has changed.
        """
        if not self._adding.acquire(blocking=False):
            raise HostError("another island is being added, and only one is at a time: try again later")
        try:
            self._stop_adding = stop
            if self._closed.is_set():
                stop.set()
            number = self._starter.add_island(island)
            try:
                (hosts,) = self._starter.start([number], stop)
                # Before the event, whose effect `AttachGang` takes them from there.
                self._new[number] = hosts
                try:
                    self._core.change(functools.partial(join, [host.index for host in hosts]))
                except BaseException:
                    _terminate_workers(self._new.pop(number))
                    raise
            except BaseException as error:
                self._starter.remove_last_island()
                if isinstance(error, HostError) and stop.is_set():
                    raise HostError(f"the start of island{number} was cancelled") from None
                raise
            gang = self._pool.wait_for_island(number)
            if self._closed.is_set():
                # `close` may have closed all islands before this one had joined.
                self._core.handle(GangClosed(self._core.core.gangs[number].key, "is closed"))
                raise HostError(f"the start of {gang.name} was cancelled")
            return gang
        finally:
            self._adding.release()

    def close(self) -> None:
        """Waits for starts in flight, and terminates all workers."""
        self._pool.wake()
        self._stop_adding.set()
        with self._lock:
            restarting = [*self._restarting]
        for thread in restarting:
            thread.join(timeout=_CLOSE_TIMEOUT_S)
        # Never released: no island is added from here on.
        self._adding.acquire(timeout=_CLOSE_TIMEOUT_S)
        kill_all((host.process for host in self._pool.hosts), _EXIT_TIMEOUT_S, grace=_EXIT_TIMEOUT_S)
        self._starter.close()

    def _ping(self, key: GangKey, number: int) -> None:
        gang = self._pool.get(key)
        for host in () if gang is None else gang.hosts:
            host.round_trip.note_ping(number, time.monotonic())
            _try_to_send(host.watch, Ping(number))

    def _run_in_thread(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._restarting = [thread for thread in self._restarting if not thread.join(0)]
            self._restarting.append(start_thread(work, "restart"))

    def _send_to_gang(self, key: GangKey, message: Message) -> None:
        gang = self._pool.get(key)
        for host in () if gang is None else gang.hosts:
            _try_to_send(host.watch, message)

    def _disconnect(self, gang: HostGang | None) -> None:
        # None: the gang was closed before it was attached; `_attach` disconnects it.
        if gang is None:
            return
        for host in gang.hosts:
            for observer in self._pool.observers:
                observer.lose(host.index)
            host.close()
        self._listener.detach(gang)
        self._pool.wake()

    def _terminate(self, effect: TerminateGang) -> None:
        gang = self._pool.get(effect.gang)
        assert gang is not None, effect
        # All before any is waited for: hosts of an island still report each other's failures.
        for host in gang.hosts:
            host.process.kill()
        self._announce_loss(gang, effect.cancelled)
        for host in gang.hosts:
            host.process.exit_status(_EXIT_TIMEOUT_S)
        self._core.handle(GangTerminated(effect.gang))
        self._pool.wake()

    def _announce_loss(self, gang: HostGang, cancelled: Mapping[int, tuple[tuple[int, int], ...]]) -> None:
        """Notifies all other hosts that an island is lost."""
        addresses = tuple(host.data_address for host in gang.hosts)
        numbers = tuple(host.index for host in gang.hosts)
        remaining = [host for host in [*self._pool.hosts] if not host.gang.is_lost()]
        for host in remaining:
            _try_to_send(host.watch, Lost(addresses))
        # After all steps that have a sub-program on the island: `order` is held while steps are sent.
        with self._pool.order:
            for host in remaining:
                if host.index in cancelled:
                    _try_to_send(host.steps, Cancel(numbers, cancelled[host.index]))

    def _restart(self, effect: RestartGang) -> None:
        key = effect.gang
        before = self._pool.gangs[key.island]
        try:
            (hosts,) = self._starter.start([key.island], self._closed, effect.seconds)
        except HostError as error:
            self._core.handle(GangStartFailed(key, f"it cannot be restarted: {error}"))
            self._pool.wake()
            return
        if [host.ready.devices for host in hosts] != [host.ready.devices for host in before.hosts]:
            _terminate_workers(hosts)
            self._core.handle(GangStartFailed(key, "it came back with different devices", is_final=True))
            self._pool.wake()
            return
        # Before the event, whose effect `AttachGang` takes them from there.
        self._new[key.island] = hosts
        self._core.handle(GangStarted(key))
        if self._core.core.gangs[key.island].key == key:
            # The core closed the island in the meantime, and does not attach the new workers.
            _terminate_workers(self._new.pop(key.island))

    def _attach(self, key: GangKey) -> None:
        is_new = key.island == len(self._pool.gangs)
        slices = 1 if is_new else self._pool.gangs[key.island].slices
        gang = HostGang(self._core.core.gangs[key.island], self._new.pop(key.island), slices)
        self._listener.attach(gang)
        for observer in self._pool.observers:
            for host in gang.hosts:
                observer.attach(host)
        # After all else: from here on threads send it steps.
        if is_new:
            self._pool.add(gang)
        else:
            self._pool.replace(gang)
        self._listener.loop.wake()
        # Lost before the pool had it, so that `Disconnect` did not find it.
        if gang.is_lost():
            self._disconnect(gang)


def _try_to_send(connection: Connection[object], message: Message) -> None:
    """Sends a message to a worker that may be lost, which the listener reports to the core."""
    with contextlib.suppress(ConnectionEnded):
        connection.send(message)


def _terminate_workers(hosts: Sequence[WorkerHandle]) -> None:
    for host in hosts:
        host.close()
    kill_all((host.process for host in hosts), _EXIT_TIMEOUT_S)
