"""The devices of a client's slices: the service binds them, which knows what other clients have."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence

from pathways.runtime.control.records.pending_frees import PendingFrees
from pathways.runtime.hosts.protocol.service_messages import SliceRequest
from pathways.runtime.resources.cluster import Cluster
from pathways.runtime.resources.manager import Binding, ResourceManager
from pathways.runtime.resources.virtual import VirtualDeviceSet, VirtualSlice

Bind = Callable[[str, Sequence[SliceRequest]], Mapping[int, Sequence[int]]]
"""Asks for devices of the slices of a program; returns their positions by the numbers of slices."""


class DeviceAllocator(ResourceManager[VirtualSlice]):
    """A `ResourceManager` that asks a service which devices slices have.

    Args:
      cluster: the devices of the service.
      bind: asks it.
    """

    def __init__(self, cluster: Cluster, bind: Bind) -> None:
        super().__init__(cluster)
        self._bind = bind
        self._released: PendingFrees[int] = PendingFrees()
        self._sets: weakref.WeakKeyDictionary[VirtualDeviceSet, int] = weakref.WeakKeyDictionary()

    def _choose(
        self, slices: Sequence[VirtualSlice], held: Mapping[VirtualSlice, Binding], program: str
    ) -> dict[VirtualSlice, Binding]:
        bound = self._bind(program, [self._request_of(slice) for slice in slices])
        chosen = {}
        for slice in slices:
            if slice in held:
                continue
            devices = tuple(self.cluster.devices[position] for position in bound[slice.number])
            chosen[slice] = Binding(devices, slice.shape, slice.axis_names, program)
            weakref.finalize(slice, self._released.add, slice.number).atexit = False
        return chosen

    def release(self, slice: VirtualSlice) -> None:
        """See `ResourceManager.release`."""
        with self._lock:
            if self._bound.pop(slice, None) is not None:
                self._released.add(slice.number)

    def take_released(self) -> tuple[int, ...]:
        """The numbers of slices that the service has not been told of yet that they need no devices."""
        return self._released.take_all()

    def _request_of(self, slice: VirtualSlice) -> SliceRequest:
        # The number of a set is that of the first slice that asked.
        number = self._sets.setdefault(slice.device_set, slice.number)
        replicas = slice.device_set.replicas
        return SliceRequest(slice.number, slice.spec, slice.pinned, slice.replica, number, replicas)
