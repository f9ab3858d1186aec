"""Programs of views: arrays of shards of others, which hosts join, and copies of arrays within a host."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.proxy.arrays.placements import ArraySpec
from pathways.runtime.proxy.hosted.foreign_programs import ForeignProgram, ResultPlace
from pathways.runtime.proxy.hosted.hosted_values import HostedShard, HostedValue
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.proxy.worker.kinds import VIEW
from pathways.runtime.proxy.worker.view_programs import MemoryOrder, ShardSource, ViewProgram

_MAX_LOADED = 256
"""Limit of loaded programs; the oldest are unloaded first."""

_Key = tuple[ViewProgram, Location, tuple[Location, ...]]


class ViewPrograms:
    """Programs of views that are loaded on hosts.

    Args:
      session: the session with the hosts.
    """

    def __init__(self, session: HostSession) -> None:
        self._session = session
        self._programs: collections.OrderedDict[_Key, ForeignProgram] = collections.OrderedDict()

    def join(
        self,
        spec: ArraySpec,
        location: Location,
        shards: Sequence[Any],
        *,
        copied: bool = False,
        order: MemoryOrder | None = None,
    ) -> HostedValue:
        """Returns an array at a location of shards on the hosts of its devices.

        Args:
          spec: the type and placement of the array.
          shards: for each device of the placement a `HostedShard`, or the `HostedValue` of one device.
          copied: whether the shards are copied, also to other devices of their hosts.
          order: the layout in memory to copy them into; None for the layout of the sources.

        Raises:
          StatusError: a shard is on another device, or on another host.
          HostError: a host is lost.
        """
        parts = [
            shard if isinstance(shard, HostedShard) else HostedShard(shard, 0, shard.shape)
            for shard in shards
        ]
        devices = spec.placement.devices
        for part, device in zip(parts, devices, strict=True):
            if part.device.host != device.host or not (copied or part.device == device):
                raise StatusError(StatusCode.INVALID_ARGUMENT, "a shard is not on the device of its place")
        values = list({id(part.source): part.source for part in parts}.values())
        numbers = {id(value): number for number, value in enumerate(values)}
        by_device = {
            device.worker_id: ShardSource(numbers[id(part.source)], part.device.worker_id)
            for part, device in zip(parts, devices, strict=True)
        }
        sources = tuple(by_device[device] for device in location.placement.devices)
        view = ViewProgram(spec.shape, spec.dtype.name, location.placement, sources, copied, order)
        program = self._program(view, spec, location, tuple(value.location for value in values))
        (joined,) = program.run(values)
        return joined

    def _program(
        self, view: ViewProgram, spec: ArraySpec, location: Location, locations: tuple[Location, ...]
    ) -> ForeignProgram:
        key = view, location, locations
        program = self._programs.get(key)
        if program is not None and program.is_ready():
            self._programs.move_to_end(key)
            return program
        name = "copy" if view.copied else "view"
        place = ResultPlace(spec, location)
        hosts = location.receivers
        program = ForeignProgram.load(self._session, name, hosts, VIEW, view, lambda _: [place])
        self._programs[key] = program
        while len(self._programs) > _MAX_LOADED:
            self._programs.popitem(last=False)
        return program
