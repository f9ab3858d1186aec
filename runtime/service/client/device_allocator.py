"""Allocation of devices to a client's slices by its service, which knows the devices of other clients."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import override

from pathways.runtime.control.records.pending_frees import PendingFrees
from pathways.runtime.resources.cluster import Cluster
from pathways.runtime.resources.manager import Binding, ResourceManager
from pathways.runtime.resources.virtual import VirtualDeviceSet, VirtualSlice
from pathways.runtime.service.protocol.service_messages import SliceRequest

Bind = Callable[[str, Sequence[SliceRequest]], Mapping[int, Sequence[int]]]
"""Request of devices for the slices of a program; returns their positions by the numbers of slices."""


class DeviceAllocator(ResourceManager[VirtualSlice]):
    """`ResourceManager` that requests the devices of slices from a service.

    Args:
      cluster: the devices of the service.
      bind: sends the request.
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

    @override
    def _note_partners(self, slices: Sequence[VirtualSlice], program: str) -> None:
        # The service plans where they can move together.
        self._bind(program, [self._request_of(slice) for slice in slices])
        super()._note_partners(slices, program)

    def bindings_of(self, positions: Mapping[int, Sequence[int]]) -> dict[VirtualSlice, Binding]:
        """Returns the bindings of slices, by their numbers, to devices at some positions."""
        devices, bindings = self.cluster.devices, {}
        for slice, binding in self.holders().items():
            if slice.number in positions:
                bound = tuple(devices[position] for position in positions[slice.number])
                bindings[slice] = dataclasses.replace(binding, devices=bound)
        return bindings

    @override
    def release(self, slice: VirtualSlice) -> None:
        with self._lock:
            if self._bound.pop(slice, None) is not None:
                self._released.add(slice.number)

    def take_released(self) -> tuple[int, ...]:
        """Returns the numbers of slices that were released since the last call, to notify the service."""
        return self._released.take_all()

    def _request_of(self, slice: VirtualSlice) -> SliceRequest:
        # A set has the number of the first of its slices that is bound.
        number = self._sets.setdefault(slice.device_set, slice.number)
        replicas = slice.device_set.replicas
        return SliceRequest(slice.number, slice.spec, slice.pinned, slice.replica, number, replicas)
