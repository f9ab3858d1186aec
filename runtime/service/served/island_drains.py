"""Islands that a user takes out of a running service, and that return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from pathways.runtime.control.gang import SIGNALED
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.events import DrainRequested, GangKey, LeaveRequested, ReturnRequested
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.shared_core import SharedCore
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.service.protocol.admin import DrainReply, DrainRequest
from pathways.runtime.service.protocol.service_messages import MoveReport
from pathways.runtime.service.served.bound_slices import BoundSlices
from pathways.runtime.service.served.served_client import ServedClient
from pathways.runtime.service.sharing.scheduler_events import ClientMoved
from pathways.runtime.service.sharing.service_core import ServiceCore

_POLL_SECONDS = 0.05
_REPORT_SECONDS = 1.0
"""Interval of the replies to a request that waits."""

_OUT = "drained"
"""Reason why an island leaves that a user takes out."""


class DispatchThread(Protocol):
    """Thread that alone changes the scheduler."""

    def __call__[T](self, function: Callable[[], T], default: T) -> T:
        """Returns the result of a function there; the default if it does not return in time."""


class IslandDrains:
    """Drains of islands: each client moves to other islands before the workers of one exit.

    The core decides when these exit, `BoundSlices` where slices move, and the library of a client moves them.

    Args:
      core: the core, with the lock that protects it.
      service_core: the same core.
      clients: the admitted clients, by their numbers.
      compute: runs functions that read the scheduler.
    """

    def __init__(
        self,
        core: SharedCore,
        service_core: ServiceCore,
        pool: WorkerPool,
        slices: BoundSlices,
        clients: Mapping[int, ServedClient],
        compute: DispatchThread,
    ) -> None:
        self._core = core
        self._service_core = service_core
        self._pool = pool
        self._slices = slices
        self._clients = clients
        self._compute = compute
        # Held while a drain begins, so that two plans never are for the same devices.
        self._lock = threading.Lock()
        # Why clients cannot move, by their numbers.
        self._reasons: dict[tuple[GangKey, int], str] = {}

    def drain(self, request: DrainRequest) -> Iterator[DrainReply]:
        """Takes an island out, and yields who still needs it, at the end with `is_over`.

        Raises:
          HostError: the island does not exist, or does not run.
          ResourceError: a slice on it fits nowhere else, and none shall be left.
        """
        gang = self._gang(request.island)
        self._begin(gang, _OUT, request.seconds, is_forced=request.force, stays_out=True)
        shown: tuple[str, ...] | None = None
        reported = time.monotonic()
        while gang.life.failure is None or any(host.process.exit_status(0) is None for host in gang.hosts):
            clients, now = self._clients_on(gang), time.monotonic()
            if clients != shown or now - reported >= _REPORT_SECONDS:
                shown, reported = clients, now
                yield DrainReply(False, clients)
            time.sleep(_POLL_SECONDS)
        yield DrainReply(True, self._clients_on(gang))

    def on_leaving(self, host: WorkerHandle) -> None:
        """Drains an island whose worker received SIGTERM; clients move off it if there is room for all.

        Otherwise it refuses steps at once, which leaves clients time to read their arrays.
        """
        gang = host.gang
        grace = self._service_core.gangs[gang.number].grace
        try:
            if self._begin(gang, SIGNALED, grace, is_forced=False, stays_out=False, host=host.index):
                return
        except (HostError, ResourceError):
            pass
        self._core.handle(LeaveRequested(gang.life.key, host.index))

    def return_island(self, name: str) -> None:
        """Returns a drained island to the cluster, and waits until it runs.

        Raises:
          HostError: it does not exist, was not taken out, or does not start.
        """
        gang = self._gang(name)
        if not gang.life.is_out:
            raise HostError(f"{gang.name} is {gang.life.state_name()}: only a drained island returns")
        self._core.handle(ReturnRequested(gang.life.key))
        while (current := self._pool.gangs[gang.number]) is gang:
            if gang.life.is_out or gang.life.is_dead():
                raise HostError(f"{gang.name} does not return: see the log of the cluster")
            time.sleep(_POLL_SECONDS)
        current.life.check_open()

    def moves_of(self, client: ServedClient, island: int) -> dict[int, tuple[int, ...]]:
        """Returns the positions to which slices of a client on an island can move, by their numbers."""
        planned, name = self._slices.planned(client), f"island{island}"
        numbers = self._slices.numbers_on(client, name)
        return {number: positions for number, positions in planned.items() if number in numbers}

    def report(self, client: ServedClient, report: MoveReport) -> list[ClientMoved]:
        """Notes the report of a client; returns the event for the scheduler if it needs nothing more.

        Raises:
          MessageError: the island does not exist.
        """
        key = GangKey(self._pool.gang(report.island).number, report.start)
        self._reasons.pop((key, client.number), None)
        if report.why and len(self._reasons) < len(self._clients) * len(self._pool.gangs):
            self._reasons[key, client.number] = report.why
        return [ClientMoved(client.number, *key)] if report.is_over else []

    def _begin(
        self,
        gang: HostGang,
        why: str,
        seconds: float,
        *,
        is_forced: bool,
        stays_out: bool,
        host: int | None = None,
    ) -> bool:
        """Begins a drain; returns whether it did: by a signal it does only if there is something to move.

        Raises:
          HostError: the island does not run.
          ResourceError: a slice fits nowhere else, and the drain is not forced.
        """
        key = gang.life.key
        with self._lock:
            if (state := gang.life.state_name()) != "running":
                raise HostError(f"{gang.name} is {state}: only a running island can be drained")
            self._slices.close_island(gang.name, moves_all=not is_forced)
            self._reasons = {pair: why for pair, why in self._reasons.items() if pair[0].island != key.island}
            if stays_out or self._slices.has_plans(gang.name):
                movers = self._compute(lambda: self._users(gang), None)
                if movers is not None:
                    self._core.handle(DrainRequested(key, why, seconds, stays_out, movers, host))
            if gang.life.leaving is not None:
                return True
            self._slices.open_island(gang.name)
            if stays_out:
                raise HostError(f"{gang.name} is {gang.life.state_name()}: it cannot be drained now")
            return False

    def _users(self, gang: HostGang) -> frozenset[int] | None:
        """Returns the clients that have slices, arrays, programs or steps on an island."""
        waiting = self._service_core.scheduler.users(gang.number)
        users = {
            client.number
            for client in [*self._clients.values()]
            if self._slices.numbers_on(client, gang.name)
            or any(gang in program.hosted.gangs for program in [*client.programs.values()])
        }
        return frozenset(users.union(waiting))

    def _clients_on(self, gang: HostGang) -> tuple[str, ...]:
        """Returns for each client that has not moved off an island a text with its slices there."""
        texts = []
        for number in sorted(self._service_core.movers(gang.life.key)):
            if (client := self._clients.get(number)) is None:
                continue
            reason = self._reasons.get((gang.life.key, number))
            named = ", ".join(self._slices.states_on(client, gang.name)) or "arrays"
            texts.append(f"{client}: {named}{f': {reason}' if reason else ''}")
        return tuple(texts)

    def _gang(self, name: str) -> HostGang:
        """Returns the workers of an island.

        Raises:
          HostError: there is no such island.
        """
        gangs = [*self._pool.gangs]
        for gang in gangs:
            if gang.name == name:
                return gang
        raise HostError(f"{name!r} is no island: the islands are {', '.join(gang.name for gang in gangs)}")
