"""What a process uses: its cluster, and which of its slices have which devices there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pathways.runtime.resources.cluster import Cluster
from pathways.runtime.resources.manager import Binding, ResourceManager
from pathways.runtime.resources.virtual import VirtualSlice

Discover = Callable[[], Cluster]
"""Finds the devices of a cluster."""

Manager = ResourceManager[VirtualSlice]


class Session:
    """The current cluster, and who has what of it.

    Args:
      discover: finds the cluster of a session that was never connected to one, when it is first needed.
    """

    def __init__(self, discover: Discover) -> None:
        self._discover = discover
        # Reentrant: while devices are discovered the garbage collector may run, and with it anything.
        self._lock = threading.RLock()
        self._manager: Manager | None = None
        self._leavers: list[Callable[[], None]] = []

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
            if manage is None and self._manager is not None and self._manager.cluster == wanted:
                return self._manager.cluster
            if bound := self.bound_slices():
                raise RuntimeError(
                    f"connect: slices {', '.join(bound)} are bound to devices; release them with "
                    "pathways.release(slice), or connect first"
                )
            self.disconnect()
            self._manager = (manage or ResourceManager)(wanted)
            return wanted

    def disconnect(self) -> None:
        """Forgets the cluster, and who has what of it."""
        with self._lock:
            if self._manager is not None:
                for act in self._leavers:
                    act()
            self._manager = None

    def manager(self) -> Manager:
        """The resource manager of the current cluster."""
        with self._lock:
            if self._manager is None:
                self._manager = ResourceManager(self._discover())
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
