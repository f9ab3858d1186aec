"""Binding of the slices of all clients to devices."""

from __future__ import annotations

import dataclasses
import threading

from pathways.runtime.hosts.protocol.messages import MessageError
from pathways.runtime.plan.plan import SliceSpec
from pathways.runtime.resources.cluster import SERVICE_REMEDY, Cluster
from pathways.runtime.resources.manager import ResourceError, ResourceManager
from pathways.runtime.resources.status import SliceStatus
from pathways.runtime.service.protocol.service_messages import (
    DevicesBound,
    RequestDevices,
    SliceRequest,
    printable,
)
from pathways.runtime.service.served_client import ServedClient

MAX_SLICES = 512
"""Limit on the slices of a program of a client."""


@dataclasses.dataclass(eq=False)
class ServedSet:
    """A device set of a client; see `VirtualDeviceSet`."""

    replicas: int


@dataclasses.dataclass(eq=False)
class ServedSlice:
    """A slice of a client; see `VirtualSlice`."""

    spec: SliceSpec
    pinned: tuple[tuple[str, int], ...] | None
    replica: int
    device_set: ServedSet


class BoundSlices:
    """Slices of all clients and their devices: free devices come first, then those with the fewest slices.

    Args:
      cluster: the devices.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._manager: ResourceManager[ServedSlice] = ResourceManager(cluster, SERVICE_REMEDY)
        self._lock = threading.Lock()
        self._sets: dict[tuple[ServedClient, int], ServedSet] = {}
        # The manager holds a slice weakly: its devices are free when its entry here is removed.
        self._slices: dict[tuple[ServedClient, int], ServedSlice] = {}

    def bind(self, client: ServedClient, request: RequestDevices) -> DevicesBound:
        """Binds the slices of a program of a client.

        Raises:
          MessageError: the request is invalid.
        """
        if len(request.slices) > MAX_SLICES:
            raise MessageError(f"program '{request.program}' has more than {MAX_SLICES} slices")
        with self._lock:
            if client.disconnected.is_set():
                # Its slices were removed already, so nothing would release these devices.
                return DevicesBound(request.request, {}, f"{client} has disconnected")
            slices = {slice.number: self._slice(client, slice) for slice in request.slices}
            try:
                bound = self._manager.bind(slices.values(), request.program)
            except ResourceError as error:
                return DevicesBound(request.request, {}, str(error))
            self._slices.update(((client, number), slice) for number, slice in slices.items())
        return DevicesBound(
            request.request, {number: bound[slice].positions for number, slice in slices.items()}
        )

    def release(self, client: ServedClient, numbers: tuple[int, ...]) -> None:
        """Releases the devices of slices of a client."""
        with self._lock:
            for number in numbers:
                self._slices.pop((client, number), None)

    def remove_client(self, client: ServedClient) -> None:
        """Releases the devices of all slices of a client."""
        with self._lock:
            self._slices = {key: slice for key, slice in self._slices.items() if key[0] is not client}
            self._sets = {key: known for key, known in self._sets.items() if key[0] is not client}

    def statuses(self) -> dict[ServedClient, tuple[SliceStatus, ...]]:
        """Returns the status of the slices of each client that has some, in the order of their numbers."""
        statuses: dict[ServedClient, tuple[SliceStatus, ...]] = {}
        with self._lock:
            bound = self._manager.holders()
            for client, number in sorted(self._slices, key=lambda key: (key[0].number, key[1])):
                slice = self._slices[client, number]
                binding = bound[slice]
                status = SliceStatus(
                    printable(slice.spec.name), binding.island, binding.positions, printable(binding.program)
                )
                statuses[client] = (*statuses.get(client, ()), status)
        return statuses

    def _slice(self, client: ServedClient, request: SliceRequest) -> ServedSlice:
        if (known := self._slices.get((client, request.number))) is not None:
            return known
        spec = request.spec
        if not spec.shape or len(spec.shape) != len(spec.axis_names):
            raise MessageError(f"slice '{spec.name}' has shape {spec.shape} and axes {spec.axis_names}")
        served_set = self._sets.setdefault((client, request.device_set), ServedSet(request.replicas))
        return ServedSlice(spec, request.pinned, request.replica, served_set)
