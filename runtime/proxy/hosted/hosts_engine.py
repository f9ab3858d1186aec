"""Arrays on hosts of a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, override

import jax
import numpy as np

from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.client.relocation import relocate
from pathways.runtime.hosts.cluster.host import HostGang, Location, WorkerHandle
from pathways.runtime.hosts.protocol.messages import DeviceLayout
from pathways.runtime.proxy.arrays.array_engine import ArrayEngine
from pathways.runtime.proxy.arrays.placements import STRING, ArraySpec, on_device
from pathways.runtime.proxy.hosted.hosted_device import HostedDevice
from pathways.runtime.proxy.hosted.hosted_values import FrontValue, HostedShard, HostedValue, JoinedValue
from pathways.runtime.proxy.hosted.views import ViewPrograms
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.proxy.worker.tile_layouts import layout_of
from pathways.runtime.proxy.worker.view_programs import MemoryOrder
from pathways.runtime.xla import ifrt


class HostsEngine(ArrayEngine):
    """Engine whose values are arrays on hosts.

    Shards and joined arrays are bookkeeping here, until an execution or a copy needs them on the hosts.

    Args:
      session: the session with the hosts.

    Attributes:
      default_memory: the kind of the memory that arrays are in by default.
    """

    def __init__(self, session: HostSession) -> None:
        self.session = session
        self.default_memory: str | None = None
        self._views = ViewPrograms(session)

    def location_of(self, spec: ArraySpec) -> Location:
        """Returns the location of an array.

        Raises:
          StatusError: its devices are on several islands, or it has no sharding.
          HostError: the island is lost.
        """
        placement = spec.placement
        devices: Sequence[HostedDevice] = placement.devices
        ids = [device.worker_id for device in devices]
        gang = self.gang_of(devices)
        # One location for both names of the default: identity compares locations.
        kind = None if placement.memory_kind == self.default_memory else placement.memory_kind
        return gang.location(
            layout_of(ids, placement.hlo, len(spec.shape), kind), is_private=self.session.owns_workers
        )

    def public_location_of(self, spec: ArraySpec) -> Location:
        """Returns the location of an array that all hosts of its island know of.

        Raises:
          StatusError, HostError: see `location_of`.
        """
        private = self.location_of(spec)
        return private.gang.location(private.placement)

    def gang_of(self, devices: Sequence[HostedDevice]) -> HostGang:
        """Returns the workers of the island of devices.

        Raises:
          StatusError: the devices are on several islands.
          HostError: the island is lost, or leaves.
        """
        islands = sorted({device.island for device in devices})
        if len(islands) > 1:
            names = ", ".join(f"island{island}" for island in islands)
            raise StatusError(
                StatusCode.UNIMPLEMENTED,
                f"an array or a program cannot be on {len(islands)} islands ({names}) that are not joined; "
                "use one (pw-proxy --islands 1, pw-cluster run --islands island0), or join them "
                "(pw-proxy --joined, joined in the file of the cluster)",
            )
        # Not `pool.current`, which waits while the island restarts.
        gang = self.session.pool.gangs[islands[0]]
        gang.life.check_open()
        return gang

    def hosts_of(self, devices: Sequence[HostedDevice]) -> tuple[WorkerHandle, ...]:
        """Returns the workers that a program on devices of an island is sent to.

        Raises:
          StatusError: the devices are on several islands.
          HostError: the island is lost, or leaves.
        """
        gang, numbers = self.gang_of(devices), {device.host for device in devices}
        # A service knows arrays and programs of islands, not of single hosts.
        return tuple(host for host in gang.hosts if host.index in numbers or not self.session.owns_workers)

    def operand(self, value: Any) -> HostedValue:
        """Returns a value as an array that its hosts have; a view becomes one."""
        if isinstance(value, HostedValue):
            return value
        if isinstance(value, HostedShard):
            if value.alone is None:
                kind = value.source.location.placement.memory_kind
                spec = ArraySpec(value.dtype, value.shape, on_device(value.device, kind))
                value.alone = self._view(spec, [value])
            return value.alone
        if value.joined is None:
            value.joined = self._view(value.spec, value.shards)
        return value.joined

    def arranged(self, spec: ArraySpec, value: HostedValue, placement: DeviceLayout) -> HostedValue:
        """Returns an array with its shards in the order of the devices of a placement, without a copy.

        XLA takes the shards of an array in the order of the array's devices: here the order of the tiles of a
        sharding, and in a program of Pathways the order of the mesh.
        """
        if value.location.placement.devices == placement.devices:
            return value
        gang = self.gang_of(value.devices)
        location = gang.location(placement, is_private=self.session.owns_workers)
        return self._views.join(spec, location, self.shards_in(spec, value))

    def copy_of(self, spec: ArraySpec, value: Any) -> HostedValue:
        """Returns a copy of an array, on the same devices."""
        return self._view(spec, self.shards_in(spec, self.operand(value)), copied=True)

    def _view(self, spec: ArraySpec, shards: Sequence[Any], *, copied: bool = False) -> HostedValue:
        location = self.location_of(spec)
        return self._views.join(spec, location, shards, copied=copied)

    @override
    def read(self, shard: Any) -> np.ndarray:
        if isinstance(shard, FrontValue):
            return shard.shards[0]
        if isinstance(shard, JoinedValue):
            shard = shard.shards[0]
        value, index = (shard.source, shard.index) if isinstance(shard, HostedShard) else (shard, 0)
        session, location = self.session, value.location
        position = value.positions[index]
        host, held = next((host, held) for host, held in location.holders.items() if position in held)
        size = shard.nbytes
        with session.fetching:
            request = session.request_bytes(
                location, host.index, value.number(), [held.index(position)], [size]
            )
        try:
            (data,) = session.fetch(request) if size else (b"",)
        except HostError:
            # The error of its step names the host at fault.
            value.block_until_ready()
            raise
        return np.frombuffer(data, shard.dtype).reshape(shard.shape)

    @override
    def _put(self, spec: ArraySpec, shards: Sequence[np.ndarray]) -> Any:
        if spec.dtype == STRING:
            return FrontValue(shards)
        location = self.location_of(spec)
        array = Array(self.session, _aval(spec))
        value = HostedValue(array, location, spec.placement.devices)
        by_position = dict(zip(value.positions, shards, strict=True))

        def cut(held: Sequence[int]) -> tuple[list[np.ndarray], tuple[int, ...]]:
            # Equal buffers travel once.
            different = {id(by_position[position]): by_position[position] for position in held}
            numbers = {key: number for number, key in enumerate(different)}
            order = (numbers[id(by_position[n])] if n in held else -1 for n in range(len(by_position)))
            return [*different.values()], tuple(order)

        number = self.session.take_numbers()
        self.session.put_shards(spec.shape, spec.dtype, location, number, cut)
        array.add_copy(location, number)
        return value

    @override
    def _shards(self, spec: ArraySpec, value: Any) -> list[Any]:
        if value.is_deleted():
            raise RuntimeError("Array has been deleted.")
        if isinstance(value, JoinedValue):
            return value.shards
        if isinstance(value, FrontValue):
            return [FrontValue([shard]) for shard in value.shards]
        shape = spec.placement.shard_shape_of(spec.shape)
        assert shape is not None, spec
        return [HostedShard(value, index, shape) for index in range(len(spec.placement.devices))]

    @override
    def _join(self, spec: ArraySpec, shards: Sequence[Any]) -> Any:
        if spec.dtype == STRING:
            return FrontValue([shard.shards[0] for shard in shards])
        first = shards[0]
        if isinstance(first, HostedShard):
            source = first.source
            if source.consists_of(shards) and source.shape == spec.shape:
                return source
        self.gang_of(spec.placement.devices)
        return first if len(shards) == 1 else JoinedValue(spec, shards)

    @override
    def _copy(self, specs: Sequence[ArraySpec], values: Sequence[Any]) -> list[Any]:
        return [self._move(spec, value) for spec, value in zip(specs, values, strict=True)]

    @override
    def _copy_to_layout(self, spec: ArraySpec, value: Any) -> Any:
        layout = spec.layout
        order = MemoryOrder() if layout is None else MemoryOrder(layout.major_to_minor, layout.tiling or ())
        location = self.location_of(spec)
        return self._views.join(spec, location, self.shards_in(spec, value), copied=True, order=order)

    def shards_in(self, spec: ArraySpec, value: Any) -> list[Any]:
        """Returns the shards of the value of an array."""
        return [value] if len(spec.placement.devices) == 1 else self._shards(spec, value)

    @override
    def _reshard(self, before: ArraySpec, after: ArraySpec, value: Any) -> Any:
        if before.placement.hlo != after.placement.hlo:
            return self._relocate(before, after, value)
        return self._move(after, value)

    def _move(self, spec: ArraySpec, value: Any) -> HostedValue | FrontValue:
        """Copies an array to other devices with the same sharding."""
        if isinstance(value, FrontValue):
            return FrontValue(value.shards)
        old = self.operand(value)
        devices: Sequence[HostedDevice] = spec.placement.devices
        if [device.host for device in devices] != [device.host for device in old.devices]:
            # A copy has the sharding of its source.
            return self._relocate(spec, spec, old)
        return self._view(spec, self.shards_in(spec, old), copied=True)

    def _relocate(self, before: ArraySpec, spec: ArraySpec, value: Any) -> HostedValue:
        """Copies an array to other hosts, or into another sharding, from worker to worker.

        Raises:
          StatusError: each device has summands of the elements.
        """
        shardings = before.placement.hlo, spec.placement.hlo
        if any(hlo is not None and ifrt.is_unreduced(hlo) for hlo in shardings):
            raise StatusError(
                StatusCode.UNIMPLEMENTED, "an array that is not reduced cannot be copied to other hosts"
            )
        source = self.operand(value)
        target = self.public_location_of(spec)
        array = Array(self.session, _aval(spec))
        if relocate(self.session, [(source.array, array, target)]):
            array.put(target, source.array.fetch())
        return HostedValue(array, target, spec.placement.devices)


def _aval(spec: ArraySpec) -> Any:
    return jax.core.ShapedArray(spec.shape, spec.dtype)
