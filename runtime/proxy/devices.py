"""Devices that the server offers, and the placements of arrays on them that clients describe."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.experimental.layout import Layout

from pathways.runtime.local.load import Executable
from pathways.runtime.proxy.compile_process import CompileProcesses
from pathways.runtime.proxy.memory.layouts import make_layout, parse_layout
from pathways.runtime.proxy.memory.memory_account import MemoryAccount
from pathways.runtime.proxy.memory.shardings import check_op_sharding
from pathways.runtime.proxy.memory.slice_states import SliceStates
from pathways.runtime.proxy.program_cache import ProgramCache
from pathways.runtime.proxy.reading.program_reader import ProgramReader
from pathways.runtime.proxy.wire.descriptors import Messages
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.resources.folders import PermittedFolders
from pathways.runtime.xla import ifrt, pjrt

CompileIfrt = Callable[[bytes, Sequence[jax.Device]], Executable]
"""Function that compiles MLIR bytecode in IFRT IR for devices, which the program numbers from 0."""

RUNTIME_TYPE = "pathways"
"""Name of the runtime for clients; Orbax has handlers for this name only."""

STRING = np.dtype(np.dtypes.StringDType())

DTYPES: Mapping[str, np.dtype[Any]] = {
    "PRED": np.dtype(bool),
    **{f"S{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "C64": np.dtype(np.complex64),
    "C128": np.dtype(np.complex128),
    **{
        f"{letter}{bits}": np.dtype(getattr(ml_dtypes, f"{name}{bits}"))
        for letter, name in (("S", "int"), ("U", "uint"))
        for bits in (1, 2, 4)
        if hasattr(ml_dtypes, f"{name}{bits}")
    },
    **{
        f"F{name}": np.dtype(getattr(ml_dtypes, f"float{name[0]}_{name[1:].lower()}"))
        for name in (
            "8E3M4",
            "8E4M3",
            "8E4M3FN",
            "8E4M3B11FNUZ",
            "8E4M3FNUZ",
            "8E5M2",
            "8E5M2FNUZ",
            "8E8M0FNU",
            "4E2M1FN",
            "6E2M3FN",
            "6E3M2FN",
        )
    },
    "STRING": STRING,
}
"""Types of elements by their names in the protocol."""

FOLDERS_ADVICE = "see pw-proxy --files"
"""End of the error of a path that the server may not use."""

_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayPlacement:
    """Placement of an array: devices, and the division into a shard for each of them.

    Attributes:
      devices: the devices, in the order of the shards.
      memory_kind: a kind of memory of these devices; None for their default.
      hlo: the sharding; None for a client that gives the shapes of shards alone.
      shard_shape: the shape of each shard, from such a client.
    """

    devices: tuple[jax.Device, ...]
    memory_kind: str | None
    hlo: ifrt.HloSharding | None
    shard_shape: tuple[int, ...] | None = None

    @functools.cached_property
    def sharding(self) -> jax.sharding.Sharding:
        """The sharding for JAX; a replicated placeholder if only the shapes of shards are known."""
        return ifrt.sharding_on(self.devices, self.hlo or ifrt.replicated(), self.memory_kind)

    def shard_shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Returns the shape of each shard of an array; None if the client has not given it.

        Raises:
          ValueError: the sharding does not divide the shape.
          StatusError: the sharding has another number of dimensions.
        """
        if self.hlo is not None:
            try:
                return self.sharding.shard_shape(shape)
            except AssertionError:  # JAX itself never creates such a sharding.
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT,
                    f"the sharding {self.hlo} is not one of {len(shape)} dimensions"[:1000],
                ) from None
        return shape if len(self.devices) == 1 else self.shard_shape

    @property
    def is_replicated(self) -> bool:
        """Whether each shard is the whole array."""
        return len(self.devices) == 1 or (self.hlo is not None and ifrt.is_replicated(self.hlo))

    @functools.cached_property
    def _makers(self) -> dict[Any, Callable[[Sequence[jax.Array]], jax.Array]]:
        return {}

    def maker(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[Sequence[jax.Array]], jax.Array]:
        """Returns a function that joins shards to an array."""
        key = shape, dtype
        if key not in self._makers:
            self._makers[key] = ifrt.array_maker(self.shard_shape or shape, dtype, self.sharding)
        return self._makers[key]


@functools.lru_cache(maxsize=1024)
def on_device(device: jax.Device, memory_kind: str | None) -> ArrayPlacement:
    """Returns the placement on one device. It is one object, so that its sharding is created once."""
    return ArrayPlacement((device,), memory_kind, None)


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Type and placement of an array.

    Attributes:
      dtype: the type of its elements.
      placement: its devices and sharding.
      layout: the layout of each shard in memory; None for the default.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    placement: ArrayPlacement
    layout: Layout | None = None

    @functools.cached_property
    def shard_bytes(self) -> int:
        """The bytes of each shard; the mean if the shapes of shards are unknown."""
        placement = self.placement
        if placement.shard_shape is not None:
            return math.prod(placement.shard_shape) * self.dtype.itemsize
        whole = math.prod(self.shape) * self.dtype.itemsize
        if placement.is_replicated:
            return whole
        try:
            return math.prod(placement.sharding.shard_shape(self.shape)) * self.dtype.itemsize
        except ValueError:  # The devices do not divide the shape.
            return -(-whole // len(placement.devices))

    def make(self, shards: Sequence[jax.Array]) -> jax.Array:
        """Joins shards to an array, without a copy.

        Raises:
          StatusError: they have another type or shape, which JAX does not check.
        """
        shape = self.placement.shard_shape_of(self.shape)
        for shard in shards:
            if shard.dtype != self.dtype or shard.shape != (shape or shard.shape):
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT,
                    f"{shard.dtype.name}{list(shard.shape)} is no shard of "
                    f"{self.dtype.name}{list(self.shape)}",
                )
        return self.placement.maker(self.shape, self.dtype)(shards)


class ServedDevices:
    """Devices of the server, with the messages of the protocol that describe them.

    Args:
      devices: the devices that clients may use.
      slices: the number of equal slices that the devices form; if it is more than one, the attributes of
        devices have the index of their slice.
      compile_ifrt: compiles programs in IFRT IR; None rejects them.
      max_memory: the maximum of bytes of the arrays and programs of all clients; None for no limit.
      folders: the folders in which clients may have the server read and write files.
    """

    def __init__(
        self,
        devices: Sequence[jax.Device],
        messages: Messages,
        slices: int = 1,
        compile_ifrt: CompileIfrt | None = None,
        max_memory: int | None = None,
        folders: PermittedFolders | None = None,
    ) -> None:
        if slices < 1 or len(devices) % slices:
            raise ValueError(f"{len(devices)} devices cannot form {slices} equal slices")
        self.devices = tuple(devices)
        self.messages = messages
        self.slices = slices
        self.slice_states = SliceStates.of(slices)
        self.compile_ifrt = compile_ifrt
        self.memory = MemoryAccount(max_memory)
        self.reader = ProgramReader()
        self.compilers = CompileProcesses()
        # With a limit, cached programs that no client has must not use memory of clients.
        self.program_cache = ProgramCache[Any]() if max_memory is None else ProgramCache[Any](0)
        self.folders = folders or PermittedFolders(advice=FOLDERS_ADVICE)
        self._by_id = {device.id: device for device in devices}
        self._slices = {
            device: number * slices // len(self.devices) for number, device in enumerate(self.devices)
        }
        self._memory_kinds = {memory.kind for device in devices for memory in device.addressable_memories()}
        self._placements: dict[bytes, ArrayPlacement] = {}
        self._kinds = messages["xla.ifrt.DTypeProto"].DESCRIPTOR.enum_types_by_name["Kind"]

    @property
    def client(self) -> Any:
        """XLA's client of the devices."""
        return self.devices[0].client

    def slice_of(self, device: jax.Device) -> int:
        """Returns the index of the slice of a device."""
        return self._slices[device]

    def slices_of(self, devices: Iterable[jax.Device]) -> frozenset[int]:
        """Returns the indices of the slices of devices."""
        return frozenset(self._slices[device] for device in devices)

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
        client = self.client
        response.session_id = session
        response.platform_name = pjrt.platform_of(self.devices[0])
        response.platform_version = client.platform_version
        response.runtime_type = RUNTIME_TYPE
        response.process_index = 0
        for device in self.devices:
            self._describe_device(response, device)
        attributes = response.client_attributes.attributes
        attributes["serialize_with_sdy"].bool_value = True
        attributes["supports_executable_serialization"].bool_value = False

    def _describe_device(self, response: Any, device: jax.Device) -> None:
        described = response.all_devices.add(
            id=device.id,
            local_device_id=device.id,
            local_hardware_id=device.id,
            platform_name=pjrt.platform_of(device),
            device_kind=device.device_kind,
            debug_string=str(device),
            to_string=repr(device),
        )
        response.primary_device_ids.append(device.id)
        response.addressable_device_ids.append(device.id)
        if self.slices > 1:
            described.attributes.attributes["slice_index"].int64_value = self.slice_of(device)
        default = device.default_memory().kind
        for memory in device.addressable_memories():
            number = len(response.memories)
            response.memories.add(
                id=number,
                memory_space_kind=memory.kind,
                device_ids=[device.id],
                debug_string=str(memory),
                to_string=repr(memory),
            )
            described.memory_ids.append(number)
            if memory.kind == default:
                described.default_memory_id = number

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
_MAX_RANK = 64
_MAX_SIZE = 1 << 56
"""Elements of an array: XLA counts bytes with 63 bits."""


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


def checked_shape(dims: Iterable[int]) -> tuple[int, ...]:
    """Checks the dimensions of an array, and returns them.

    Raises:
      StatusError: they are too many or too large, or one is negative.
    """
    shape = tuple(dims)
    if len(shape) > _MAX_RANK or min(shape, default=0) < 0 or math.prod(max(n, 1) for n in shape) > _MAX_SIZE:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"invalid shape: {shape[:_MAX_RANK]}")
    return shape
