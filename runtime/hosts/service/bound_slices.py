"""Which devices the slices of all clients have."""

from __future__ import annotations

import dataclasses
import threading

from pathways.runtime.hosts.protocol.messages import MessageError
from pathways.runtime.hosts.protocol.service_messages import DevicesBound, RequestDevices, SliceRequest
from pathways.runtime.hosts.service.served_client import ServedClient
from pathways.runtime.plan.plan import SliceSpec
from pathways.runtime.resources.cluster import SERVICE_REMEDY, Cluster
from pathways.runtime.resources.manager import ResourceError, ResourceManager

MOST_SLICES = 512
"""How many slices a program of a client may have."""


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
    """Binds slices of all clients: free devices come first, then those with the fewest slices of anybody.

    Args:
      cluster: the devices that there are.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._manager: ResourceManager[ServedSlice] = ResourceManager(cluster, SERVICE_REMEDY)
        self._lock = threading.Lock()
        self._sets: dict[tuple[ServedClient, int], ServedSet] = {}
        # As long as they are here, they have their devices.
        self._slices: dict[tuple[ServedClient, int], ServedSlice] = {}

    def bind(self, client: ServedClient, asked: RequestDevices) -> DevicesBound:
        """Binds the slices of a program of a client.

        Raises:
          MessageError: what it asks for makes no sense.
        """
        if len(asked.slices) > MOST_SLICES:
            raise MessageError(f"program '{asked.program}' has more than {MOST_SLICES} slices")
        with self._lock:
            if client.disconnected.is_set():
                # What it had is forgotten, and nobody would give back what it got now.
                return DevicesBound(asked.request, {}, f"{client} has left")
            slices = {slice.number: self._slice(client, slice) for slice in asked.slices}
            try:
                bound = self._manager.bind(slices.values(), asked.program)
            except ResourceError as error:
                return DevicesBound(asked.request, {}, str(error))
            self._slices.update(((client, number), slice) for number, slice in slices.items())
        return DevicesBound(
            asked.request, {number: bound[slice].positions for number, slice in slices.items()}
        )

    def release(self, client: ServedClient, numbers: tuple[int, ...]) -> None:
        """Some slices of a client need their devices no more."""
        with self._lock:
            for number in numbers:
                self._slices.pop((client, number), None)

    def forget(self, client: ServedClient) -> None:
        """A client is gone."""
        with self._lock:
            self._slices = {key: slice for key, slice in self._slices.items() if key[0] is not client}
            self._sets = {key: known for key, known in self._sets.items() if key[0] is not client}

    def _slice(self, client: ServedClient, asked: SliceRequest) -> ServedSlice:
        if (known := self._slices.get((client, asked.number))) is not None:
            return known
        spec = asked.spec
        if not spec.shape or len(spec.shape) != len(spec.axis_names):
            raise MessageError(f"slice {spec.name} has shape {spec.shape} and axes {spec.axis_names}")
        served_set = self._sets.setdefault((client, asked.device_set), ServedSet(asked.replicas))
        return ServedSlice(spec, asked.pinned, asked.replica, served_set)
