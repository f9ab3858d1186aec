"""Slices of programs in IFRT IR: one for each list of devices, with a mesh that fits all shardings on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect import argument_attrs, result_attrs, symbol_table
from pathways.dialect.attributes.meshes import Mesh, Sharding
from pathways.dialect.attributes.names import DEVICE_IDS, MAIN, SHARDING
from pathways.dialect.attributes.shardings import is_sharding, read_sharding
from pathways.passes.analysis.functions import body_block, unique_name
from pathways.passes.import_.mpmd import ifrt_arrays
from pathways.passes.import_.mpmd.atom_programs import function_of, meshes_in
from pathways.passes.import_.mpmd.mesh_tensors import NotMpmdError
from pathways.passes.import_.mpmd.refusals import refuse_type
from pathways.passes.import_.mpmd.slices import symbol_of
from pathways.passes.manager.base import fail

CALL = "ifrt.Call"
CONTROL = "!ifrt.control"
_MESH_NAME = "ifrt.mesh_name"


class ArrayTypes:
    """Reader of the types of a program, each once."""

    def __init__(self) -> None:
        self._read: dict[ir.Type, ifrt_arrays.IfrtArray] = {}

    def of(self, op: ir.OpView, subject: str, type_: ir.Type) -> ifrt_arrays.IfrtArray:
        """Reads the type of a value.

        Args:
          op: the operation that errors are reported at.
          subject: the name of the value in errors.

        Raises:
          PassFailure: it is not an array.
        """
        if type_ not in self._read:
            try:
                array = ifrt_arrays.read_array(type_)
            except (NotMpmdError, ValueError, ir.MLIRError) as error:
                fail(op, f"{subject} {error}")
            if array is None:
                refuse_type(op, subject, type_)
            self._read[type_] = array
        return self._read[type_]

    def of_operands(self, op: ir.OpView) -> list[ifrt_arrays.IfrtArray]:
        """Reads the types of all operands that are arrays."""
        types = [value.type for value in op.operands]
        return [self.of(op, f"operand #{n}", type_) for n, type_ in enumerate(types) if str(type_) != CONTROL]

    def of_results(self, op: ir.OpView) -> list[ifrt_arrays.IfrtArray]:
        """Reads the types of all results that are arrays."""
        types = [value.type for value in op.results]
        return [self.of(op, f"result #{n}", type_) for n, type_ in enumerate(types) if str(type_) != CONTROL]


def device_lists(function: ir.OpView) -> tuple[ifrt_arrays.DeviceIds, ...]:
    """Returns the lists of devices of a program, in the order in which its slices are declared.

    The program states the devices that it was compiled for; otherwise its own numbers count.

    Raises:
      PassFailure: it has a device that it was not compiled for, or a value that is not an array.
    """
    ids = physical_ids(function)
    return tuple(
        devices if ids is None else tuple(ids[device] for device in devices)
        for devices in _numbered_lists(function, ArrayTypes())
    )


def physical_ids(function: ir.OpView) -> list[int] | None:
    """Returns the ids of the devices that a program numbers from 0; None where it states none.

    Raises:
      PassFailure: it states them in another form.
    """
    attribute = function.attributes.get(DEVICE_IDS)
    if attribute is None:
        return None
    if not isinstance(attribute, ir.DenseI64ArrayAttr):
        fail(function, f"expected `{DEVICE_IDS}` to be an array of i64, got {attribute}")
    return list(attribute)


def _numbered_lists(function: ir.OpView, types: ArrayTypes) -> dict[ifrt_arrays.DeviceIds, None]:
    ids = physical_ids(function)
    lists: dict[ifrt_arrays.DeviceIds, None] = {}

    def add(op: ir.OpView, arrays: Iterable[ifrt_arrays.IfrtArray]) -> None:
        for array in arrays:
            if array.devices in lists:
                continue
            if len(set(array.devices)) < len(array.devices):
                fail(op, f"has an array that is on one device twice: {list(array.devices)}")
            unknown = [] if ids is None else [n for n in array.devices if n >= len(ids)]
            if unknown:
                fail(
                    op,
                    f"has an array on device {unknown[0]}, but the program was compiled for {len(ids or ())} "
                    "devices, which count from 0",
                )
            lists[array.devices] = None

    add(function, [types.of(function, f"argument #{n}", t) for n, t in enumerate(function.type.inputs)])
    for op in body_block(function).operations:
        add(op, types.of_results(op))
    add(function, [types.of(function, f"result #{n}", t) for n, t in enumerate(function.type.results)])
    return lists


class SliceMeshes:
    """Meshes of the lists of devices of a program.

    Args:
      types: reads its types.
    """

    def __init__(self, module: ir.Module, function: ir.OpView, types: ArrayTypes) -> None:
        self._symbols = symbol_table(module)
        self._meshes = meshes_in(module)
        self._function = function
        self._types = types
        self._lists = _numbered_lists(function, types)
        self._calls: dict[ifrt_arrays.DeviceIds, list[ir.OpView]] = {devices: [] for devices in self._lists}
        self._shardings: dict[ifrt_arrays.DeviceIds, set[ifrt_arrays.ShardingParam]] = {
            devices: set() for devices in self._lists
        }
        for op in body_block(function).operations:
            if op.operation.name == CALL:
                self._calls.setdefault(ifrt_arrays.read_devices(op.attributes["devices"]), []).append(op)
            self._add(types.of_results(op))
        self._add([types.of(function, "argument", type_) for type_ in function.type.inputs])

    def _add(self, arrays: Iterable[ifrt_arrays.IfrtArray]) -> None:
        for array in arrays:
            if array.sharding is not None:
                self._shardings[array.devices].add(array.sharding)

    def topology(self) -> dict[str, tuple[ifrt_arrays.DeviceIds, Mesh]]:
        """Returns the devices and the mesh of each slice, by its name.

        Raises:
          PassFailure: there is no mesh for all shardings on some devices.
        """
        named: dict[str, tuple[ifrt_arrays.DeviceIds, Mesh]] = {}
        for devices in self._lists:
            calls = self._calls[devices]
            mesh_names = [call.attributes.get(_MESH_NAME) for call in calls]
            names = [symbol_of(name.value) for name in mesh_names if isinstance(name, ir.StringAttr)]
            base = names[0] if names else "slice"
            named[unique_name(base, named)] = devices, self._mesh(devices, calls)
        return named

    def overlapping(self, named: Mapping[str, tuple[ifrt_arrays.DeviceIds, Mesh]]) -> list[str]:
        """Returns the names of the slices that have devices in common with others."""
        ids = physical_ids(self._function)
        sets = {
            name: {device if ids is None else ids[device] for device in devices}
            for name, (devices, _) in named.items()
        }
        return [
            name
            for name, used in sets.items()
            if any(not used.isdisjoint(theirs) for other, theirs in sets.items() if other != name)
        ]

    def _mesh(self, devices: ifrt_arrays.DeviceIds, calls: Sequence[ir.OpView]) -> Mesh:
        atoms = {function_of(call, self._symbols): call for call in calls}
        declared = {mesh: call for name, call in atoms.items() for mesh in meshes_in(self._symbols[name])}
        fitting = [mesh for mesh in declared if mesh.size == len(devices)]
        if len(fitting) > 1:
            fail(
                declared[fitting[1]],
                f"is over the mesh {described(fitting[1])}, but others on the same devices are over "
                f"{described(fitting[0])}",
            )
        if fitting:
            return fitting[0]
        if len(declared) == 1:
            ((mesh, call),) = declared.items()
            return self._resized(call, mesh, len(devices), calls)
        shardings = self._shardings[devices]
        try:
            for mesh in self._meshes:
                if mesh.size == len(devices) and all(s.over(mesh) is not None for s in shardings):
                    return mesh
            coarsest = ifrt_arrays.mesh_for(shardings, len(devices))
        except NotMpmdError as error:
            fail(self._function, str(error))
        if coarsest is None:
            fail(self._function, f"has shardings over devices {list(devices)} for which there is no one mesh")
        return coarsest

    def _resized(self, op: ir.OpView, mesh: Mesh, count: int, calls: Sequence[ir.OpView]) -> Mesh:
        """Returns a mesh of the same axes for as many devices, by the dimensions that they divide.

        Shardy declares one mesh for all computations, although their axes may have other sizes.
        """
        sizes: dict[str, int] = {}
        pairs = [pair for call in calls for pair in self._sharded_ports(call)]
        # A dimension with one unknown axis determines its size, which may leave one unknown in another
        # dimension: in each round at least one axis is found, or none ever is.
        for _ in mesh.axes:
            for sharding, param in pairs:
                for axes, shards in zip(sharding.dims, param.dims, strict=False):
                    unknown = [axis for axis in axes if axis not in sizes]
                    if len(unknown) == 1:
                        sizes[unknown[0]] = shards // math.prod(sizes[axis] for axis in axes if axis in sizes)
        rest = [name for name, _ in mesh.axes if name not in sizes]
        product = math.prod(sizes.values())
        if len(rest) == 1 and product:
            sizes[rest[0]] = count // product
        resized = Mesh(tuple((name, sizes.get(name, 1)) for name, _ in mesh.axes))
        if resized.size != count:
            fail(op, f"is over the mesh {described(mesh)}, but on {count} devices")
        return resized

    def _sharded_ports(self, call: ir.OpView) -> Iterator[tuple[Sharding, ifrt_arrays.ShardingParam]]:
        atom = self._symbols[function_of(call, self._symbols)]
        if atom.operation.name == "builtin.module":
            atom = symbol_table(atom)[MAIN]
        for arrays, all_attrs in (
            (self._types.of_operands(call), argument_attrs(atom)),
            (self._types.of_results(call), result_attrs(atom)),
        ):
            for array, attrs in zip(arrays, all_attrs, strict=False):
                sharding = attrs.get(SHARDING)
                if array.sharding is not None and sharding is not None and is_sharding(sharding):
                    yield read_sharding(sharding), array.sharding


def described(mesh: Mesh) -> str:
    """Returns the axes of a mesh and their sizes, for messages."""
    return ", ".join(f"{name}={size}" for name, size in mesh.axes)
