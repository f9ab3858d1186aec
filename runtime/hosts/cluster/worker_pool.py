"""Pool of the current workers of a cluster."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Protocol

from pathways.runtime.control.records.events import GangKey
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.messages import Message, MessageError
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.plan.host_program import Owners
from pathways.runtime.plan.plan import Plan
from pathways.runtime.resources import cluster as resources
from pathways.runtime.resources.threads import Condition


class PoolObserver(Protocol):
    """Interface of an extension that follows the workers of a pool and their programs."""

    def load(self, program: HostedProgram, plan: Plan, owners: Owners) -> None:
        """Handles that a program was loaded.

        Args:
          plan: the plan of the whole program.
          owners: for each of its slices the host of each device.
        """

    def attach(self, host: WorkerHandle) -> None:
        """Handles that a worker is new, instead of a lost one or on a new island, before it gets a step."""

    def lose(self, host: int) -> None:
        """Handles that a worker is lost."""

    def close(self) -> None:
        """Handles that the pool is about to be closed, while its workers still answer."""


class WorkerPool:
    """Pool of the current workers of a cluster, by islands.

    Args:
      gangs: the workers of each island.

    Attributes:
      gangs: the workers of each island; while an island restarts, its lost workers.
      hosts: all workers, by their numbers.
      cluster: the devices of all islands. Islands may join; the devices of the others stay the same.
      order: the lock of the order of steps, held from reading the numbers of arrays until the step that
        consumes them is issued, and while arrays are deleted: a worker would wait for ever for an array that
        it has freed.
      observers: see `PoolObserver`.
    """

    def __init__(self, gangs: Sequence[HostGang]) -> None:
        self.observers: list[PoolObserver] = []
        self.gangs = [*gangs]
        self.hosts = [host for gang in self.gangs for host in gang.hosts]
        self.cluster = resources.Cluster(())
        for gang in self.gangs:
            self._add_devices(gang)
        self.reset_locks()

    def reset_locks(self) -> None:
        """Creates new locks in a forked process, where no thread would release the old ones."""
        self._changed = Condition()
        # Submission is atomic, so that every host sees one order of steps.
        self.order = threading.RLock()

    def send_to_all(self, *messages: Message) -> None:
        """Sends messages to all hosts that are not lost, at one place in the order of steps."""
        with self.order:
            for host in [*self.hosts]:
                # The listener detects lost hosts.
                if not host.gang.is_lost():
                    with contextlib.suppress(ConnectionEnded), uninterrupted():
                        host.steps.send(*messages)

    def get(self, key: GangKey) -> HostGang | None:
        """Returns the current workers of an island; None if the key belongs to earlier workers."""
        gang = self.gangs[key.island]
        return gang if gang.life.key == key else None

    def gang(self, number: int) -> HostGang:
        """Returns the workers of an island, for a number from another process.

        Raises:
          MessageError: there is no such island.
        """
        if not 0 <= number < len(self.gangs):
            raise MessageError(f"island {number} does not exist")
        return self.gangs[number]

    def host(self, number: int) -> WorkerHandle:
        """Returns a worker, for a number from another process.

        Raises:
          MessageError: there is no such host.
        """
        if not 0 <= number < len(self.hosts):
            raise MessageError(f"there is no host {number}")
        return self.hosts[number]

    def current(self, numbers: Iterable[int]) -> list[HostGang]:
        """Returns the current workers of some islands, and waits while these restart.

        Raises:
          HostError: one of them does not restart, or leaves.
        """
        numbers = list(numbers)
        with self._changed:
            # Without a timeout: the core limits the time that a restart may take.
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

    def add(self, gang: HostGang) -> None:
        """Adds the workers of a new island, which has the next number."""
        with self._changed:
            assert gang.number == len(self.gangs), gang.name
            self.hosts.extend(gang.hosts)
            self.gangs.append(gang)
            # Last: a thread that reads the cluster without a lock finds the workers of all its islands.
            self._add_devices(gang)
            self._changed.notify_all()

    def wait_for_island(self, number: int) -> HostGang:
        """Waits until an island is added, and returns its workers."""
        with self._changed:
            self._changed.wait_for(lambda: number < len(self.gangs))
        return self.gangs[number]

    def _add_devices(self, gang: HostGang) -> None:
        """Adds the devices of an island to the cluster, at the next positions."""
        positions = itertools.count(len(self.cluster.devices))
        devices = tuple(
            resources.Device(
                next(positions), device, host.ready.platform, resources.Host(host.index), gang.name, memory
            )
            for host in gang.hosts
            for device, memory in zip(host.ready.devices, host.ready.memory, strict=True)
        )
        island = resources.DeviceIsland(gang.name, devices, gang.slices)
        self.cluster = resources.Cluster((*self.cluster.islands, island))

    def wake(self) -> None:
        """Makes all threads that wait for workers check again."""
        with self._changed:
            self._changed.notify_all()
