"""Devices that the server offers, and the placements of arrays on them that clients describe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Layout

from pathways.runtime.proxy.arrays.island_states import IslandStates
from pathways.runtime.proxy.arrays.layouts import make_layout, parse_layout
from pathways.runtime.proxy.arrays.memory_account import MemoryAccount
from pathways.runtime.proxy.arrays.placements import (
    DTYPES,
    ArrayPlacement,
    ArraySpec,
    checked_shape,
    on_device,
)
from pathways.runtime.proxy.arrays.shardings import check_op_sharding
from pathways.runtime.proxy.loading.backend import Backend, OfferedDevice
from pathways.runtime.proxy.loading.call_traces import CallTraces, MakeRecorder
from pathways.runtime.proxy.loading.mpmd_source import MpmdSource
from pathways.runtime.proxy.loading.program_cache import ProgramCache
from pathways.runtime.proxy.reading.program_reader import ProgramReader
from pathways.runtime.proxy.wire.descriptors import Messages
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.resources.folders import PermittedFolders
from pathways.runtime.xla import ifrt

ScheduleIfrt = Callable[[bytes, Sequence[Any], str], MpmdSource]
"""Function that schedules MLIR bytecode in IFRT IR for devices, which the program numbers from 0.

The last argument is the platform of the devices.
"""

RUNTIME_TYPE = "pathways"
"""Name of the runtime for clients; Orbax has handlers for this name only."""

FOLDERS_ADVICE = "see pw-proxy --files"
"""End of the error of a path that the server may not use."""

_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}


class ServedDevices:
    """Devices of the server, with the messages of the protocol that describe them.

    Args:
      backend: the place of the devices. With more than one slice, in JAX's sense, the attributes of devices
        have its index.
      schedule_ifrt: schedules programs in IFRT IR; None rejects them.
      max_memory: the maximum of bytes of the arrays and programs of all clients; None for no limit.
      folders: the folders whose files clients may request the server to read and write.
      make_recorder: creates the recorders of traces; None rejects these.
    """

    def __init__(
        self,
        backend: Backend,
        messages: Messages,
        schedule_ifrt: ScheduleIfrt | None = None,
        max_memory: int | None = None,
        folders: PermittedFolders | None = None,
        make_recorder: MakeRecorder | None = None,
    ) -> None:
        self.backend = backend
        self.devices = tuple(offered.device for offered in backend.devices)
        self.messages = messages
        self.island_states = IslandStates.of(backend.islands)
        self.engine = backend.engine
        self.platform = backend.devices[0].facts.platform
        self.schedule_ifrt = schedule_ifrt
        self.call_traces = CallTraces(make_recorder)
        self.memory = MemoryAccount(max_memory)
        self.reader = ProgramReader()
        # With a limit, cached programs that no client has must not use memory of clients.
        self.program_cache = ProgramCache[Any]() if max_memory is None else ProgramCache[Any](0)
        self.folders = folders or PermittedFolders(advice=FOLDERS_ADVICE)
        self._by_id = {device.id: device for device in self.devices}
        self._islands = {offered.device: offered.island for offered in backend.devices}
        self._has_slices = any(offered.slice_index for offered in backend.devices)
        self._memory_kinds = {memory.kind for offered in backend.devices for memory in offered.facts.memories}
        self._placements: dict[bytes, ArrayPlacement] = {}
        self._kinds = messages["xla.ifrt.DTypeProto"].DESCRIPTOR.enum_types_by_name["Kind"]

    def islands_of(self, devices: Iterable[jax.Device]) -> frozenset[int]:
        """Returns the numbers of the islands of devices."""
        return frozenset(self._islands[device] for device in devices)

    def device(self, number: int) -> jax.Device:
        """Returns a device by its id.

        Raises:
          StatusError: no device has this id.
        """
        if number not in self._by_id:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"no device has the id {number}")
        return self._by_id[number]

    def devices_of(self, numbers: Iterable[int]) -> tuple[jax.Device, ...]:
        """Returns the devices of a sharding by their ids.

        Raises:
          StatusError: the list is empty, a device does not exist, or is listed twice.
        """
        devices = tuple(self.device(number) for number in numbers)
        if not devices:
            raise StatusError(StatusCode.INVALID_ARGUMENT, "a sharding has no devices")
        if len(set(devices)) != len(devices):
            raise StatusError(StatusCode.INVALID_ARGUMENT, "a sharding names a device twice")
        return devices

    def describe(self, response: Any, session: int) -> None:
        """Fills an `InitResponse` for a session."""
        response.session_id = session
        response.platform_name = self.platform
        response.platform_version = self.backend.devices[0].facts.platform_version
        response.runtime_type = RUNTIME_TYPE
        response.process_index = 0
        for offered in self.backend.devices:
            self._describe_device(response, offered)
        attributes = response.client_attributes.attributes
        attributes["serialize_with_sdy"].bool_value = True
        attributes["supports_executable_serialization"].bool_value = False

    def _describe_device(self, response: Any, offered: OfferedDevice) -> None:
        number, facts = offered.device.id, offered.facts
        described = response.all_devices.add(
            id=number,
            local_device_id=number,
            local_hardware_id=number,
            platform_name=facts.platform,
            device_kind=facts.kind,
            debug_string=facts.text,
            to_string=facts.representation,
        )
        response.primary_device_ids.append(number)
        response.addressable_device_ids.append(number)
        attributes = described.attributes.attributes
        if self._has_slices:
            attributes["slice_index"].int64_value = offered.slice_index
        if offered.task is not None:
            for name in ("task_id", "virtual_task_index"):
                attributes[name].int64_value = offered.task
        for memory in facts.memories:
            of_memory = len(response.memories)
            response.memories.add(
                id=of_memory,
                memory_space_kind=memory.kind,
                device_ids=[number],
                debug_string=memory.text,
                to_string=memory.representation,
            )
            described.memory_ids.append(of_memory)
            if memory.kind == facts.default_memory:
                described.default_memory_id = of_memory

    def dtype(self, proto: Any) -> np.dtype[Any]:
        """Returns the type of elements that a `DTypeProto` names.

        Raises:
          StatusError: the server does not support it.
        """
        value = self._kinds.values_by_number.get(proto.kind)
        name = "unknown" if value is None else value.name.removeprefix("KIND_")
        if name not in DTYPES:
            raise StatusError(
                StatusCode.UNIMPLEMENTED, f"arrays of type {name} are not supported by the server"
            )
        return DTYPES[name]

    def describe_dtype(self, proto: Any, dtype: np.dtype[Any]) -> None:
        """Fills a `DTypeProto`."""
        proto.kind = self._kinds.values_by_name[f"KIND_{_KINDS[dtype]}"].number

    def memory_kind(self, name: str | None) -> str | None:
        """Returns the checked name of a kind of memory, None for the default.

        Raises:
          StatusError: no device has a memory of that kind.
        """
        if name is not None and name not in self._memory_kinds:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, f"no device has a memory of the kind {name[:100]!r}"
            )
        return name

    def spec(self, proto: Any) -> ArraySpec:
        """Returns the array that an `ArraySpecProto` describes."""
        shape = shape_of(proto.shape)
        layout = parse_layout(proto.layout, len(shape))
        return ArraySpec(self.dtype(proto.dtype), shape, self.placement(proto.sharding), layout)

    def layout(self, proto: Any, rank: int) -> Layout | None:
        """Returns the layout of an array of `rank` dimensions that a `LayoutProto` of IFRT describes.

        Raises:
          ValueError, StatusError: it is invalid, or of a kind that the server does not support.
        """
        kind = proto.serialized_layout.type_name.rpartition("::")[2]
        data = proto.serialized_layout.data
        match kind:
            case "":
                return None
            case "CompactLayout":
                major_to_minor = self.messages.parse("xla.ifrt.CompactLayoutProto", data).major_to_minor
                return make_layout(major_to_minor[::-1], (), rank)
            case "PjRtLayout":
                layout = self.messages.parse("xla.ifrt.PjRtLayoutProto", data).xla_layout
                if {field.name for field, _ in layout.ListFields()} <= _LAYOUT_FIELDS:
                    tiles = [tile.dimensions for tile in layout.tiles]
                    return make_layout(layout.minor_to_major, tiles, rank)
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"layouts of the kind {kind[:100]!r} are not supported by the server"
        )

    def hlo_placement(
        self, device_ids: Iterable[int], sharding: bytes, memory_kind: str | None
    ) -> ArrayPlacement:
        """Returns the placement on devices by a serialised `xla.OpSharding`; no bytes mean replicated.

        Raises:
          StatusError: devices or memory do not exist, or the sharding is not one of that number of devices.
        """
        devices = self.devices_of(device_ids)
        check_op_sharding(self.messages.parse("xla.OpSharding", sharding), len(devices))
        return ArrayPlacement(devices, self.memory_kind(memory_kind), ifrt.hlo_sharding(sharding))

    def placement(self, proto: Any) -> ArrayPlacement:
        """Returns the placement that a `ShardingProto` describes; equal ones give the same object.

        Raises:
          StatusError: it names devices or a memory that do not exist, or is of an unknown kind.
        """
        key = proto.SerializeToString()
        placement = self._placements.get(key)
        if placement is None:
            placement = self._parse_placement(proto.serialized_sharding)
            if len(self._placements) >= _MAX_PLACEMENTS:
                self._placements.clear()
            self._placements[key] = placement
        return placement

    def _parse_placement(self, serialized: Any) -> ArrayPlacement:
        kind = serialized.type_name.rpartition("::")[2]
        name = _SHARDINGS.get(kind)
        if name is None:
            raise StatusError(
                StatusCode.UNIMPLEMENTED,
                f"shardings of the kind {kind[:100]!r} are not supported by the server",
            )
        proto = self.messages.parse(name, serialized.data)
        memory = self.memory_kind(proto.memory_kind if proto.HasField("memory_kind") else None)
        if kind == "SingleDeviceSharding":
            return on_device(self.device(proto.device_id), memory)
        if kind == "HloSharding":
            op_sharding = proto.xla_op_sharding.SerializeToString()
            return self.hlo_placement(proto.devices.device_ids, op_sharding, memory)
        devices = self.devices_of(proto.devices.device_ids)
        if kind == "ConcreteSharding":
            return ArrayPlacement(devices, memory, None, _common_shape(proto))
        if kind == "ConcreteEvenSharding" and not proto.is_fully_replicated:
            return ArrayPlacement(devices, memory, None, shape_of(proto.shard_shape))
        return ArrayPlacement(devices, memory, ifrt.replicated() if kind == "ConcreteEvenSharding" else None)

    def describe_placement(self, proto: Any, placement: ArrayPlacement) -> None:
        """Fills a `ShardingProto` with the placement of a result."""
        single = placement.hlo is None
        inner = self.messages[_SHARDINGS["SingleDeviceSharding" if single else "HloSharding"]]()
        if single:
            inner.device_id = placement.devices[0].id
        else:
            inner.devices.device_ids.extend(device.id for device in placement.devices)
            inner.xla_op_sharding.ParseFromString(ifrt.serialize_sharding(placement.hlo))
        if placement.memory_kind is not None:
            inner.memory_kind = placement.memory_kind
        proto.serialized_sharding.type_name = (
            f"xla::ifrt::{'SingleDeviceSharding' if single else 'HloSharding'}"
        )
        proto.serialized_sharding.data = inner.SerializeToString()


_SHARDINGS = {
    "SingleDeviceSharding": "xla.ifrt.SingleDeviceShardingProto",
    "HloSharding": "xla.ifrt.HloShardingProto",
    "ConcreteEvenSharding": "xla.ifrt.ConcreteEvenShardingProto",
    "ConcreteSharding": "xla.ifrt.ConcreteShardingProto",
    "OpaqueSharding": "xla.ifrt.OpaqueShardingProto",
}
"""Messages of the kinds of shardings."""

_LAYOUT_FIELDS = frozenset(
    {"minor_to_major", "tiles", "element_size_in_bits", "tail_padding_alignment_in_elements"}
)
_MAX_PLACEMENTS = 4096


def _common_shape(proto: Any) -> tuple[int, ...]:
    """Returns the shape that all shards of a `ConcreteShardingProto` have.

    Raises:
      StatusError: their shapes differ, or are missing.
    """
    shapes = {shape_of(shape) for shape in proto.shard_shapes}
    if len(shapes) != 1 or len(proto.shard_shapes) != len(proto.devices.device_ids):
        raise StatusError(
            StatusCode.UNIMPLEMENTED,
            "arrays whose shards have several shapes are not supported by the server",
        )
    return shapes.pop()


def shape_of(proto: Any) -> tuple[int, ...]:
    """Returns the dimensions that a `ShapeProto` has.

    Raises:
      StatusError: they are invalid.
    """
    return checked_shape(proto.dims)
