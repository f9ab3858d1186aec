"""Workers of a cluster: those that each island has now."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Sequence

from pathways.runtime.control.records.events import GangKey
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.messages import Message, MessageError
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.resources import cluster as resources


class WorkerPool:
    """Workers of a cluster, by islands.

    Args:
      gangs: the workers of each.

    Attributes:
      gangs: the workers of each island; those that were lost last, while it starts anew.
      hosts: all of these, by their numbers.
      cluster: the devices of all islands, which stay the same.
      order: held from when the numbers of arrays are read until the step that takes them is issued, and while
        arrays are deleted: a worker would wait for ever for what it has freed.
    """

    def __init__(self, gangs: Sequence[HostGang]) -> None:
        self.gangs = [*gangs]
        self.hosts = [host for gang in self.gangs for host in gang.hosts]
        self.cluster = _cluster(self.gangs)
        self.reset_locks()

    def reset_locks(self) -> None:
        """Makes new locks in a forked process, where no thread would release them."""
        self._changed = threading.Condition()
        # Submission is atomic, so that every host sees one order of steps.
        self.order = threading.RLock()

    def send_to_all(self, *messages: Message) -> None:
        """Sends messages to all hosts that are left, to all of them between the same two steps."""
        with self.order:
            for host in [*self.hosts]:
                # Of a host that is lost, the listener hears.
                if not host.gang.is_lost():
                    with contextlib.suppress(ConnectionEnded), uninterrupted():
                        host.steps.send(*messages)

    def get(self, key: GangKey) -> HostGang | None:
        """The current workers of an island, unless the key is of earlier ones."""
        gang = self.gangs[key.island]
        return gang if gang.life.key == key else None

    def gang(self, number: int) -> HostGang:
        """The workers of an island, by the number that another process gives it.

        Raises:
          MessageError: there is no such island.
        """
        if not 0 <= number < len(self.gangs):
            raise MessageError(f"there is no island {number}")
        return self.gangs[number]

    def host(self, number: int) -> WorkerHandle:
        """A worker, by the number that another process gives it.

        Raises:
          MessageError: there is no such host.
        """
        if not 0 <= number < len(self.hosts):
            raise MessageError(f"there is no host {number}")
        return self.hosts[number]

    def current(self, numbers: Iterable[int]) -> list[HostGang]:
        """The workers of some islands; waits while these start anew.

        Raises:
          HostError: one of them does not start any more, or leaves.
        """
        numbers = list(numbers)
        with self._changed:
            # For as long as the core tries to start them.
            self._changed.wait_for(
                lambda: not any(self.gangs[number].life.is_replaced_soon() for number in numbers)
            )
            gangs = [self.gangs[number] for number in numbers]
        for gang in gangs:
            gang.life.check_open()
        return gangs

    def replace(self, gang: HostGang) -> None:
        """Replaces the workers of an island."""
        with self._changed:
            self.gangs[gang.number] = gang
            for host in gang.hosts:
                self.hosts[host.index] = host
            self._changed.notify_all()

    def wake(self) -> None:
        """Has all look again who wait for workers."""
        with self._changed:
            self._changed.notify_all()


def _cluster(gangs: Sequence[HostGang]) -> resources.Cluster:
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
