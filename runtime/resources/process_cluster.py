"""The cluster that a process uses, and the bindings of its slices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from pathways.runtime.resources.cluster import AFTER_DISCONNECT, Cluster
from pathways.runtime.resources.manager import Binding, ResourceManager
from pathways.runtime.resources.virtual import VirtualSlice

Discover = Callable[[], Cluster]
"""Function that discovers the devices of a cluster."""

Manager = ResourceManager[VirtualSlice]


def bound_elsewhere(slices: Sequence[str]) -> str:
    """Returns the error message for slices that are bound to another cluster than the one to connect to."""
    return (
        f"connect: slices {', '.join(slices)} are bound to devices of another cluster; call "
        "pathways.disconnect() first, which releases them, or pathways.release(slice) for each"
    )


class ProcessCluster:
    """Current cluster of a process, and the manager that binds slices to its devices.

    Args:
      discover: discovers the default cluster, at its first use, if the process never connected to one.
    """

    def __init__(self, discover: Discover) -> None:
        self._discover = discover
        # Reentrant: the garbage collector may run during discovery, and call finalizers that need the lock.
        self._lock = threading.RLock()
        self._manager: Manager | None = None
        # Whether this process alone manages the devices.
        self._is_sole_manager = True
        self._disconnect_callbacks: list[Callable[[], None]] = []
        # Whether a user has connected to the cluster, and the remedy if the default one has too few devices.
        self._is_connected = False
        self._remedy: str | None = None

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Registers a function that is called whenever the process disconnects from a cluster."""
        self._disconnect_callbacks.append(callback)

    def connect(self, discover: Discover, manage: Callable[[Cluster], Manager] | None = None) -> Cluster:
        """Connects to a cluster, unless it is the current one, and returns it.

        Args:
          discover: discovers the cluster.
          manage: returns the manager of its devices; by default a manager of this process alone.

        Raises:
          RuntimeError: slices are bound to devices of the current cluster, which is another one.
        """
        with self._lock:
            cluster = discover()
            # Equal clusters are not enough: devices of other hosts may equal those of this process.
            is_sole_manager = manage is None and self._is_sole_manager
            if is_sole_manager and self._manager is not None and self._manager.cluster == cluster:
                self._is_connected, self._manager.remedy = True, None
                return self._manager.cluster
            if bound := self.bound_slices():
                raise RuntimeError(bound_elsewhere(bound))
            self.disconnect()
            self._manager = (manage or ResourceManager)(cluster)
            self._is_sole_manager, self._is_connected, self._remedy = manage is None, True, None
            return cluster

    def disconnect(self) -> None:
        """Disconnects from the cluster, and removes all bindings."""
        with self._lock:
            if self._manager is not None:
                for callback in self._disconnect_callbacks:
                    callback()
            if self._is_connected:
                self._remedy = AFTER_DISCONNECT
            self._manager, self._is_connected, self._is_sole_manager = None, False, True

    def manager(self) -> Manager:
        """Returns the resource manager of the current cluster."""
        with self._lock:
            if self._manager is None:
                self._manager = ResourceManager(self._discover(), self._remedy)
            return self._manager

    def cluster(self) -> Cluster:
        """Returns the current cluster."""
        return self.manager().cluster

    def bind(self, slices: Iterable[VirtualSlice], program: str) -> dict[VirtualSlice, Binding]:
        """Binds slices to devices of the current cluster; see `ResourceManager.bind`."""
        return self.manager().bind(slices, program)

    def release(self, slice: VirtualSlice) -> None:
        """Releases the devices of a slice; see `ResourceManager.release`."""
        self.manager().release(slice)

    def bound_slices(self) -> list[str]:
        """Returns the names of the slices that have devices, without discovering a cluster."""
        with self._lock:
            return [] if self._manager is None else [slice.name for slice in self._manager.holders()]
