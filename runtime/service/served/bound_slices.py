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
    MoveSlices,
    RequestDevices,
    SliceRequest,
    printable,
)
from pathways.runtime.service.served.served_client import ServedClient

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

    def close_island(self, island: str, *, moves_all: bool) -> None:
        """Binds no slice on an island from now on, and plans where the slices that are there can move.

        Raises:
          ResourceError: a slice can move nowhere, and all shall; then nothing is changed.
        """
        with self._lock:
            self._manager.close_island(island, moves_all=moves_all)

    def open_island(self, island: str) -> None:
        """Binds slices on an island again."""
        with self._lock:
            self._manager.open_island(island)

    def has_plans(self, island: str) -> bool:
        """Returns whether slices on an island can move to other ones."""
        with self._lock:
            bound, planned = self._manager.holders(), self._manager.planned()
            return any(bound[slice].island == island for slice in planned if slice in bound)

    def numbers_on(self, client: ServedClient, island: str) -> set[int]:
        """Returns the numbers of the slices of a client on an island."""
        with self._lock:
            bound = self._manager.holders()
            return {
                number
                for (owner, number), slice in self._slices.items()
                if owner is client and bound[slice].island == island
            }

    def states_on(self, client: ServedClient, island: str) -> list[str]:
        """Returns the slices of a client on an island with their states, as in `slice s0 (moves)`."""
        with self._lock:
            bound, planned = self._manager.holders(), self._manager.planned()
            slices = [slice for (owner, _), slice in self._slices.items() if owner is client]
        states = []
        for slice in slices:
            if bound[slice].island != island:
                continue
            is_pinned = slice.pinned is not None or slice.spec.island is not None
            state = "moves" if slice in planned else "pinned" if is_pinned else "fits nowhere else"
            states.append(f"slice {printable(slice.spec.name)} ({state})")
        return states

    def planned(self, client: ServedClient) -> dict[int, tuple[int, ...]]:
        """Returns the positions to which slices of a client can move, by the numbers of the slices."""
        with self._lock:
            planned = self._manager.planned()
            return {
                number: planned[slice].positions
                for (owner, number), slice in self._slices.items()
                if owner is client and slice in planned
            }

    def move(self, client: ServedClient, request: MoveSlices) -> DevicesBound:
        """Binds slices of a client to the devices that were planned for them, all or none."""
        with self._lock:
            planned = self._manager.planned()
            moved = {}
            for number, positions in request.slices.items():
                slice = self._slices.get((client, number))
                if slice is None:
                    # It was released meanwhile.
                    continue
                if slice not in planned or planned[slice].positions != positions:
                    why = f"the devices of slice '{printable(slice.spec.name)}' were planned anew"
                    return DevicesBound(request.request, {}, why)
                moved[slice] = planned[slice]
            self._manager.move(moved)
        return DevicesBound(request.request, request.slices)

    def extend(self, cluster: Cluster) -> None:
        """Replaces the cluster by one that has further islands."""
        with self._lock:
            self._manager.cluster = cluster

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
            self._sets = {key: served_set for key, served_set in self._sets.items() if key[0] is not client}

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
        if (served := self._slices.get((client, request.number))) is not None:
            return served
        spec = request.spec
        if not spec.shape or len(spec.shape) != len(spec.axis_names):
            raise MessageError(f"slice '{spec.name}' has shape {spec.shape} and axes {spec.axis_names}")
        served_set = self._sets.setdefault((client, request.device_set), ServedSet(request.replicas))
        return ServedSlice(spec, request.pinned, request.replica, served_set)
