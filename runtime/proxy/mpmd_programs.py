"""Programs of Shardy's MPMD compiler: launches on several meshes, and copies between, in one execution."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from pathways.dialect.errors import PathwaysError
from pathways.dialect.operations.bindings import make_context
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.bundle.carrier import bundle_in
from pathways.runtime.bundle.file import Bundle, parse
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.bundle.program import read_program
from pathways.runtime.local.devices import binding_of
from pathways.runtime.local.load import Executable, Port, load, stats_of
from pathways.runtime.local.memory import MemoryAnalysis, analyze
from pathways.runtime.proxy.arrays.placements import ArrayPlacement, ArraySpec
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.compiled_program import CompiledProgram
from pathways.runtime.proxy.loading.program_checks import check_module
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.xla import ifrt, pjrt


@dataclasses.dataclass(frozen=True, eq=False)
class MpmdProgram(CompiledProgram):
    """Program on slices of devices, each with its own mesh.

    Attributes:
      parameters: the required type and placement of each argument.
      read: the arguments that the executable takes, in order.
    """

    executable: Executable
    parameters: tuple[ArraySpec, ...]
    read: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of its module."""
        return self.executable.plan.name

    @functools.cached_property
    def _accepted(self) -> list[set[ArrayPlacement]]:
        """Placements that were checked already, for each argument."""
        return [{parameter.placement} for parameter in self.parameters]

    @functools.cached_property
    def slice_memory(self) -> MemoryAnalysis:
        """The memory that an execution needs on each slice, by the plan and XLA's analysis."""
        return analyze(self.executable.plan, stats_of(self.executable.executables))

    @functools.cached_property
    def needed_bytes(self) -> int:
        # The peak has the memory of donated arguments reused, so that is added again: the caller subtracts
        # that of the arguments that this execution consumes.
        return sum(
            slice.peak_memory_in_bytes - slice.argument_size_in_bytes + slice.alias_size_in_bytes
            for slice in self.slice_memory.values()
        )

    def execute(self, arguments: Sequence[ProxyArray], kept: Sequence[int] = ()) -> list[ProxyArray]:
        try:
            operands = self._operands(arguments)
            donated = set(self.donated) - set(kept)
            self._check_donated(operands, donated)
            for number in set(self.donated) & set(kept):
                operands[number] = _copy(operands[number])
            values = self.executable.run([operands[number] for number in self.read])
        except Exception as error:
            return self.fail(_status_of(error))
        return [
            ProxyArray(spec, value)
            for spec, value in zip(self.results, self._unshared(values, operands, donated), strict=True)
        ]

    def describe(self, response: Any) -> None:
        # Layouts are XLA's default everywhere.
        for field, specs in (
            (response.parameter_shardings, self.parameters),
            (response.output_shardings, self.results),
        ):
            field.SetInParent()
            for spec in specs:
                hlo = spec.placement.hlo or ifrt.replicated()
                field.shardings.add().ParseFromString(ifrt.serialize_sharding(hlo))
        for field in (
            response.parameter_layouts_error,
            response.output_layouts_error,
            response.output_memory_kinds.status,
        ):
            field.code = StatusCode.UNIMPLEMENTED
            field.message = "the program consists of multiple XLA programs"
        self.describe_memory(response)
        response.donated_input_indices.SetInParent()
        response.donated_input_indices.donated_input_indices.extend(self.donated)

    def describe_memory(self, response: Any) -> None:
        """Adds the memory of each slice to a response to either metadata request."""
        response.mpmd_compiled_memory_stats.SetInParent()
        stats = response.mpmd_compiled_memory_stats.compiled_memory_stats
        for name, slice in self.slice_memory.items():
            for field in stats[name].DESCRIPTOR.fields:
                value = getattr(slice, field.name, None)
                if isinstance(value, int):
                    setattr(stats[name], field.name, value)

    def describe_costs(self, response: Any) -> None:
        """Adds XLA's estimates for each computation to a `LoadedExecutableMpmdCostAnalysisResponse`."""
        response.attributes.SetInParent()
        for (computation, _), executable in self.executable.executables.items():
            attributes = response.attributes.attributes[computation].attributes
            for name, value in executable.cost_analysis().items():
                attributes[name].float_value = value

    def describe_slices(self, response: Any) -> None:
        """Adds the devices of each slice to a `CompileResponse`."""
        devices = response.mpmd_addressable_devices.mpmd_addressable_devices
        for name, sharding in _shardings(self.executable):
            devices[name].mpmd_addressable_device_ids.extend(
                device.id for device in sharding.mesh.devices.flat
            )

    def _operands(self, arguments: Sequence[ProxyArray]) -> list[jax.Array]:
        if len(arguments) != len(self.parameters):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"program '{self.name}' has {len(self.parameters)} arguments, got {len(arguments)}",
            )
        operands = []
        for number, argument in enumerate(arguments):
            spec, value = argument.read()
            if spec.placement not in self._accepted[number] or not _same_type(spec, self.parameters[number]):
                self._check(number, spec)
            operands.append(value)
        return operands

    def _check(self, number: int, spec: ArraySpec) -> None:
        """Checks that an argument has the type and placement of its parameter; the executable does not.

        Raises:
          StatusError: it has not.
        """
        parameter = self.parameters[number]
        if not _same_type(spec, parameter):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"program '{self.name}': argument {number} is {_describe(spec)}, "
                f"expected {_describe(parameter)}",
            )
        placement = spec.placement
        same = placement.devices == parameter.placement.devices and (
            len(placement.devices) == 1
            or (
                placement.hlo is not None
                and placement.sharding.is_equivalent_to(parameter.placement.sharding, len(spec.shape))
            )
        )
        if not same:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"program '{self.name}': argument {number} is on devices "
                f"{[device.id for device in placement.devices]} as {placement.hlo}, expected "
                f"{[device.id for device in parameter.placement.devices]} as {parameter.placement.hlo}",
            )
        self._accepted[number].add(placement)

    def _check_donated(self, operands: Sequence[jax.Array], donated: set[int]) -> None:
        if not donated or len(set(map(id, operands))) == len(operands):
            return
        for number in donated:
            if sum(operand is operands[number] for operand in operands) > 1:
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT,
                    f"program '{self.name}': argument {number} is donated and passed twice",
                )

    def _unshared(
        self, values: list[jax.Array], operands: Sequence[jax.Array], donated: set[int]
    ) -> list[jax.Array]:
        """Returns the results, with copies of those that share a buffer with others or with a kept argument.

        A client may delete or donate each array that it has, without a change of any other. Donated arguments
        are deleted.
        """
        held = {id(operand) for number, operand in enumerate(operands) if number not in donated}
        for number, value in enumerate(values):
            if id(value) in held:
                values[number] = _copy(value)
            held.add(id(value))
        for number in donated:
            # A donated argument ends even if no computation reads it, or could reuse its buffer.
            if id(operands[number]) not in held and not operands[number].is_deleted():
                operands[number].delete()
        return values


def compile_mpmd_program(served: ServedDevices, program: bytes, options: bytes) -> MpmdProgram:
    """Compiles a serialised `IfrtIRProgram`, or the bundle in it, for the devices that its options name.

    Raises:
      StatusError: the server or XLA rejects it.
    """
    proto = served.messages.parse("xla.ifrt.IfrtIrProgramProto", program)
    bundle = bundle_in(proto.ifrt_program)
    if served.compile_ifrt is None:
        kind, remedy = "in IFRT IR", ""
        if bundle is not None:
            kind, remedy = "of Pathways", " on hosts; run them there with pathways.connect(hosts=...)"
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"programs {kind} are not supported by the server{remedy}"
        )
    if proto.HasField("ifrt_version") or proto.atom_programs:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, "versioned programs in IFRT IR are not supported by the server"
        )
    compile_options = served.messages.parse("xla.ifrt.IfrtIrCompileOptionsProto", options)
    if compile_options.mlir_dump_to or compile_options.dot_graph_dump_to:
        raise StatusError(
            StatusCode.PERMISSION_DENIED, "the compiler options would have the server use files"
        )
    if any(value.env_option_overrides for value in compile_options.compile_option_overrides.values()):
        raise StatusError(
            StatusCode.UNIMPLEMENTED,
            "compiler options for the computations of a program in IFRT IR are not supported by the server",
        )
    devices = tuple(served.device(number) for number in compile_options.device_ids)
    if bundle is not None:
        served.reader.check_bundle(bundle)
    else:
        module = served.reader.read_ifrt(proto.ifrt_program)
    try:
        if bundle is not None:
            executable = _load_bundle(served, parse(bundle, "the program"), devices)
            # A caller of Pathways passes an argument to each slice that reads it.
            read = tuple(range(len(executable.inputs)))
        else:
            executable = served.compile_ifrt(module, devices)
            read = tuple(port.number for port in executable.inputs)
    except Exception as error:
        raise _status_of(error) from None
    passed = [argument for argument in executable.plan.arguments if argument.constant is None]
    if bundle is not None:
        passed = [passed[port.number] for port in executable.inputs]
    inputs = dict(zip(read, executable.inputs, strict=True))
    code = (max(loaded.size_of_generated_code_in_bytes(), 0) for loaded in executable.executables.values())
    memory = served.memory.reserve([sum(code)])
    # An argument that nothing reads may be on any device.
    anywhere = ArrayPlacement(devices[:1], None, None)
    return MpmdProgram(
        executable,
        tuple(dict.fromkeys(devices)),
        tuple(_spec(port) for port in executable.outputs),
        tuple(number for number, argument in enumerate(passed) if argument.donated),
        tuple(
            _spec(inputs[number])
            if number in inputs
            else ArraySpec(_dtype(argument.type.dtype), argument.type.shape, anywhere)
            for number, argument in enumerate(passed)
        ),
        read,
        memory=memory,
    )


def _load_bundle(served: ServedDevices, bundle: Bundle, devices: Sequence[jax.Device]) -> Executable:
    """Compiles a bundle that was checked, for the devices of its slices, one slice after the other.

    Raises:
      BundleError: it is for another platform, or for another number of devices.
      StatusError: a computation is not allowed for clients.
      ResourceError, CompileError: see `runtime.local.load`.
    """
    manifest, platform = bundle.manifest, pjrt.platform_of(devices[0])
    if manifest.platform != platform:
        raise BundleError(f"compiled for platform {manifest.platform}, but these are {platform} devices")
    if sum(slice.size for slice in manifest.slices) != len(devices):
        raise BundleError(f"its slices have other devices than the {len(devices)} of the request")
    program = read_program(bundle)
    if program.calls is not None:
        raise BundleError("loops whose end depends on values are not supported in a proxied process")
    # As programs of `jax.jit`: the server reads only bytes that MLIR has written.
    computations = {
        name: dataclasses.replace(computation, module=_checked(served, computation.module))
        for name, computation in program.plan.computations.items()
    }
    plan = dataclasses.replace(program.plan, computations=computations)
    remaining = iter(devices)
    bindings = {
        slice.name: binding_of([*itertools.islice(remaining, slice.size)], slice) for slice in manifest.slices
    }
    return load(plan, bindings, argument_names=[leaf.name for leaf in manifest.arguments])


def _checked(served: ServedDevices, artifact: bytes) -> bytes:
    """Returns the bytecode of a computation of a client.

    Raises:
      StatusError: the server must not compile it.
    """
    module = ir.Module.parse(served.reader.read_stablehlo(bytes(artifact)), make_context())
    check_module(module, served.platform)
    return bytecode_of(module)


def _spec(port: Port) -> ArraySpec:
    devices = tuple(port.sharding.mesh.devices.flat)
    hlo = None if len(devices) == 1 else ifrt.hlo_of(port.sharding, len(port.type.shape))
    return ArraySpec(_dtype(port.type.dtype), port.type.shape, ArrayPlacement(devices, None, hlo))


def _dtype(name: str) -> np.dtype[Any]:
    return jax.numpy.dtype(name)


def _same_type(left: ArraySpec, right: ArraySpec) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and left.layout == right.layout


def _describe(spec: ArraySpec) -> str:
    return f"{spec.dtype.name}{list(spec.shape)}{f' as {spec.layout}' if spec.layout else ''}"


def _copy(array: jax.Array) -> jax.Array:
    devices = [pjrt.device_list(list(array.sharding._device_assignment))]
    (copied,) = pjrt.copy_arrays([array], devices, [array.sharding], [pjrt.ALWAYS_COPY])
    return copied


def _shardings(executable: Executable) -> Iterator[tuple[str, Any]]:
    by_slice = {port.slice: port.sharding for port in (*executable.inputs, *executable.outputs)}
    yield from by_slice.items()


def _status_of(error: Exception) -> StatusError:
    """Returns the status of an error, with the note that names the failed step if there is one."""
    if isinstance(error, ResourceError):
        return StatusError(StatusCode.RESOURCE_EXHAUSTED, str(error))
    if isinstance(error, PathwaysError) and not isinstance(error, StatusError | ValueError):
        return StatusError(StatusCode.INVALID_ARGUMENT, str(error))
    status = status_of(error)
    notes = getattr(error, "__notes__", ())
    return StatusError(status.code, "; ".join([status.message, *notes[:1]])) if notes else status
