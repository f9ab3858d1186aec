"""The islands of a cluster, and the workers that they have now: lost ones are started anew."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from pathways.runtime.hosts.host import Gang, HostError, HostProcess
from pathways.runtime.hosts.launching import START_SECONDS
from pathways.runtime.hosts.starting import Starter
from pathways.runtime.resources import cluster as resources
from pathways.runtime.resources.threads import Started, start_thread

_MOST_RESTARTS = 3
"""How often an island is started anew, one time after the other, without having done a step."""

log = logging.getLogger("pathways")


class Islands:
    """The islands of a cluster.

    Args:
      starter: starts their workers.
      count: how many there are.

    Attributes:
      gangs: the workers of each island; those that were lost last, while it starts anew.
      hosts: all of these, by their numbers.
      cluster: the devices of all islands, which stay the same.

    Raises:
      HostError: a worker does not start.
    """

    def __init__(self, starter: Starter, count: int) -> None:
        self._starter = starter
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._restarting: list[Started] = []
        started = starter.start(range(count), self._closed)
        self.gangs = [Gang(number, hosts) for number, hosts in enumerate(started)]
        self.hosts = [host for gang in self.gangs for host in gang.hosts]
        self.cluster = _cluster(self.gangs)

    def current(self, numbers: Iterable[int]) -> list[Gang]:
        """The workers of some islands; waits while these start anew.

        Raises:
          HostError: one of them does not start any more, or leaves.
        """
        numbers = list(numbers)

        def are_settled() -> bool:
            gangs = [self.gangs[number] for number in numbers]
            return self._closed.is_set() or all(gang.error is None or gang.fate is not None for gang in gangs)

        with self._changed:
            self._changed.wait_for(are_settled, 2 * START_SECONDS)
            gangs = [self.gangs[number] for number in numbers]
        for gang in gangs:
            gang.check_open()
        return gangs

    def restart(self, gang: Gang, mourn: Callable[[Gang], None], attend: Callable[[Gang], None]) -> None:
        """Starts the workers of an island anew, in a thread.

        Args:
          gang: those that are lost.
          mourn: is called first, in the thread: tells others of the loss.
          attend: is called with the new ones before anybody else gets them.
        """
        with self._changed:
            self._restarting = [other for other in self._restarting if not other.join(0)]
            work = functools.partial(self._restart, gang, mourn, attend)
            self._restarting.append(start_thread(work, "restart"))

    def close(self) -> None:
        """Starts nobody any more; all workers are lost. Waits until they have ended."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
            restarting = self._restarting
        for thread in restarting:
            thread.join(timeout=10)
        for host in self.hosts:
            if host.process.ending(2.0) is None:
                host.process.kill()
                host.process.ending(2.0)
        self._starter.close()

    def leave(self) -> None:
        """Starts nobody in a process that was forked from the one that the workers belong to."""
        self._closed, self._changed = threading.Event(), threading.Condition()
        self._closed.set()

    def _restart(self, gang: Gang, mourn: Callable[[Gang], None], attend: Callable[[Gang], None]) -> None:
        # At once: the others of an island may still tell each other what is wrong.
        for host in gang.hosts:
            host.process.kill()
        mourn(gang)
        for host in gang.hosts:
            host.process.ending(2.0)
        is_well = gang.has_done_something() or gang.leaving is not None
        restarts = 0 if is_well else gang.restarts + 1
        fate: str | None = None
        if restarts > _MOST_RESTARTS:
            fate = f"it is not started anew, for {_MOST_RESTARTS} times it was lost before it had done a step"
        elif not self._closed.is_set():
            log.info("%s starts anew", gang.name)
            fate = self._started_anew(gang, restarts, attend)
        if fate is not None:
            log.error("%s: %s", gang.name, fate)
        with self._changed:
            gang.fate = fate
            self._changed.notify_all()

    def _started_anew(self, gang: Gang, restarts: int, attend: Callable[[Gang], None]) -> str | None:
        """Starts the workers of an island anew; returns why that is not possible."""
        try:
            (hosts,) = self._starter.start([gang.number], self._closed)
        except HostError as error:
            return f"it does not start anew: {error}"
        new = Gang(gang.number, hosts, restarts)
        if [host.ready.devices for host in hosts] != [host.ready.devices for host in gang.hosts]:
            _end(hosts)
            return "it comes back with other devices"
        with self._changed:
            if self._closed.is_set():
                _end(hosts)
                return None
            attend(new)
            self.gangs[gang.number] = new
            for host in hosts:
                self.hosts[host.index] = host
            self._changed.notify_all()
        log.info("%s is back", gang.name)
        return None


def _end(hosts: Iterable[HostProcess]) -> None:
    for host in hosts:
        host.close()
        host.process.kill()


def _cluster(gangs: Sequence[Gang]) -> resources.Cluster:
    positions = itertools.count()
    return resources.Cluster(
        tuple(
            resources.DeviceIsland(
                gang.name,
                tuple(
                    resources.Device(
                        next(positions),
                        device,
                        host.ready.platform,
                        resources.Host(host.index),
                        gang.name,
                        memory,
                    )
                    for host in gang.hosts
                    for device, memory in zip(host.ready.devices, host.ready.memory, strict=True)
                ),
            )
            for gang in gangs
        )
    )
