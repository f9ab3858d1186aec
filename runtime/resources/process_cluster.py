"""What a process uses: its cluster, and which of its slices have which devices there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from pathways.runtime.resources.cluster import AFTER_DISCONNECT, Cluster
from pathways.runtime.resources.manager import Binding, ResourceManager
from pathways.runtime.resources.virtual import VirtualSlice

Discover = Callable[[], Cluster]
"""Finds the devices of a cluster."""

Manager = ResourceManager[VirtualSlice]


def still_bound(slices: Sequence[str]) -> str:
    """The message of a process that connects to another cluster while slices have devices of this one."""
    return (
        f"connect: slices {', '.join(slices)} are bound to devices of another cluster; call "
        "pathways.disconnect() first, which gives them back, or pathways.release(slice) for each"
    )


class ProcessCluster:
    """The current cluster, and who has what of it.

    Args:
      discover: finds the cluster of a session that was never connected to one, when it is first needed.
    """

    def __init__(self, discover: Discover) -> None:
        self._discover = discover
        # Reentrant: while devices are discovered the garbage collector may run, and with it anything.
        self._lock = threading.RLock()
        self._manager: Manager | None = None
        # Whether its devices are managed by this process alone.
        self._is_own = True
        self._leavers: list[Callable[[], None]] = []
        # Whether a user has connected to the cluster, and what to do when a found one has too few devices.
        self._is_connected = False
        self._remedy: str | None = None

    def when_left(self, act: Callable[[], None]) -> None:
        """Acts whenever a cluster is left for another one."""
        self._leavers.append(act)

    def connect(self, discover: Discover, manage: Callable[[Cluster], Manager] | None = None) -> Cluster:
        """Makes a cluster the current one, unless it is, and returns it.

        Args:
          discover: finds the cluster.
          manage: makes what binds slices to its devices, each time; by default this process alone does.

        Raises:
          RuntimeError: slices are bound to devices of the present cluster, which is another one.
        """
        with self._lock:
            wanted = discover()
            # The devices of hosts may look like those of this process.
            is_own = manage is None and self._is_own
            if is_own and self._manager is not None and self._manager.cluster == wanted:
                self._is_connected, self._manager.remedy = True, None
                return self._manager.cluster
            if bound := self.bound_slices():
                raise RuntimeError(still_bound(bound))
            self.disconnect()
            self._manager = (manage or ResourceManager)(wanted)
            self._is_own, self._is_connected, self._remedy = manage is None, True, None
            return wanted

    def disconnect(self) -> None:
        """Forgets the cluster, and who has what of it."""
        with self._lock:
            if self._manager is not None:
                for act in self._leavers:
                    act()
            if self._is_connected:
                self._remedy = AFTER_DISCONNECT
            self._manager, self._is_connected, self._is_own = None, False, True

    def manager(self) -> Manager:
        """The resource manager of the current cluster."""
        with self._lock:
            if self._manager is None:
                self._manager = ResourceManager(self._discover(), self._remedy)
            return self._manager

    def cluster(self) -> Cluster:
        """The current cluster."""
        return self.manager().cluster

    def bind(self, slices: Iterable[VirtualSlice], program: str) -> dict[VirtualSlice, Binding]:
        """`ResourceManager.bind` on the current cluster."""
        return self.manager().bind(slices, program)

    def release(self, slice: VirtualSlice) -> None:
        """`ResourceManager.release` on the current cluster."""
        self.manager().release(slice)

    def bound_slices(self) -> list[str]:
        """The names of the slices that have devices; asks for no cluster when there is none yet."""
        with self._lock:
            return [] if self._manager is None else [slice.name for slice in self._manager.holders()]
