"""Programs of clients: checks, compilation, and execution by XLA."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.experimental.layout import Layout
from jaxlib.mlir import ir

from pathways.dialect.operations.operation import nested_ops, printed
from pathways.runtime.bundle.custom_calls import CLIENT_CALLS, bound_sparse_indices
from pathways.runtime.bundle.program import custom_calls, problem_of
from pathways.runtime.proxy.arrays import ProxyArray
from pathways.runtime.proxy.compile_process import Cancellation
from pathways.runtime.proxy.compiled_program import CompiledProgram
from pathways.runtime.proxy.devices import DTYPES, ArrayPlacement, ArraySpec, ServedDevices, checked_shape
from pathways.runtime.proxy.memory.layouts import layout_of
from pathways.runtime.proxy.mpmd_programs import MpmdProgram, compile_mpmd_program
from pathways.runtime.proxy.persistence import PersistenceProgram, parse_read, parse_write
from pathways.runtime.proxy.plugin_programs import ReshardProgram, parse_request, parse_reshard
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of
from pathways.runtime.xla import compile_cache, ifrt, pjrt
from pathways.runtime.xla.launch_order import launch_order


@dataclasses.dataclass(frozen=True, eq=False)
class ProxyProgram(CompiledProgram):
    """Program that is one XLA program."""

    name: str
    layouts: tuple[Layout | None, ...]

    @functools.cached_property
    def _makers(self) -> list[Any]:
        return [spec.placement.maker(spec.shape, spec.dtype) for spec in self.results]

    @functools.cached_property
    def _order(self) -> AbstractContextManager[object]:
        """The lock that orders executions over several devices with those of other sessions."""
        return launch_order(self.devices)

    @functools.cached_property
    def needed_bytes(self) -> int:
        stats = pjrt.memory_stats(self.executable)
        temporary = 0 if stats is None else stats.temp_size_in_bytes
        return len(self.devices) * (temporary + sum(spec.shard_bytes for spec in self.results))

    def execute(self, arguments: Sequence[ProxyArray], kept: Sequence[int] = ()) -> list[ProxyArray]:
        try:
            operands = self._operands(arguments)
            for number in set(kept) & set(self.donated):
                (operands[number],) = pjrt.copy_arrays(
                    [operands[number]],
                    [pjrt.device_list(self.devices)],
                    [operands[number].sharding],
                    [pjrt.ALWAYS_COPY],
                )
            with self._order:
                values = ifrt.execute(self.executable, operands, self._makers)
        except StatusError as error:
            return self.fail(status_of(error))
        return [ProxyArray(spec, value) for spec, value in zip(self.results, values, strict=True)]

    def _operands(self, arguments: Sequence[ProxyArray]) -> list[jax.Array]:
        """Returns the values of arguments, after a check of their layouts, which XLA does not check."""
        if len(arguments) != len(self.layouts):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, f"{len(arguments)} arguments for {len(self.layouts)} operands"
            )
        operands = []
        for number, (argument, layout) in enumerate(zip(arguments, self.layouts, strict=True)):
            spec, value = argument.read()
            if spec.layout != layout:
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT,
                    f"argument {number} has the layout {spec.layout or 'default'}, and the program needs "
                    f"{layout or 'the default'}",
                )
            operands.append(value)
        return operands

    def describe(self, response: Any) -> None:
        executable = self.executable
        for field, shardings in (
            (response.parameter_shardings, executable.get_parameter_shardings()),
            (response.output_shardings, executable.get_output_shardings()),
        ):
            if shardings is not None:
                field.SetInParent()
                for sharding in shardings:
                    field.shardings.add().ParseFromString(ifrt.serialize_sharding(sharding))
        for field, layouts in (
            (response.parameter_layouts_list, executable.get_parameter_layouts()),
            (response.output_layouts_list, executable.get_output_layouts()),
        ):
            field.SetInParent()
            for layout in layouts:
                ifrt.layout(field.layouts.add(), layout)
        for kinds in executable.get_output_memory_kinds():
            response.output_memory_kinds.memory_kind_lists.add().memory_kinds.extend(kinds)
        response.output_memory_kinds.SetInParent()
        response.donated_input_indices.SetInParent()
        response.donated_input_indices.donated_input_indices.extend(self.donated)
        stats = pjrt.memory_stats(executable)
        if stats is None:
            response.compiled_memory_stats_error.code = StatusCode.UNIMPLEMENTED
            response.compiled_memory_stats_error.message = (
                "the platform of the server makes no analysis of memory"
            )
        else:
            response.compiled_memory_stats.SetInParent()
            for field in response.compiled_memory_stats.DESCRIPTOR.fields:
                value = getattr(stats, field.name, None)
                if isinstance(value, int):
                    setattr(response.compiled_memory_stats, field.name, value)
        response.size_of_generated_code_in_bytes = executable.size_of_generated_code_in_bytes()


Program = ProxyProgram | ReshardProgram | PersistenceProgram | MpmdProgram
"""Program that a client can execute."""


def compile_program(
    served: ServedDevices,
    program: Any,
    options: Any,
    watch: Callable[[str], AbstractContextManager[object]] = lambda _: contextlib.nullcontext(),
    cancellation: Cancellation | None = None,
) -> Program:
    """Compiles a serialised program for the devices that its options name.

    Args:
      served: the devices.
      program: the program of a `CompileRequest`.
      watch: returns the context in which a program with that name is compiled.
      cancellation: ends the compilation of a long program.

    Raises:
      StatusError: the server or XLA rejects it.
    """
    kind = program.type_name.rpartition("::")[2]
    if kind == "PluginProgram":
        return _plugin_program(served, program.data)
    if kind == "IfrtIRProgram":
        with watch("of several meshes"):
            return compile_mpmd_program(served, program.data, options.data)
    if kind == "CustomCallProgram":
        raise StatusError(StatusCode.UNIMPLEMENTED, _COLOCATED)
    if kind != "XlaProgram":
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"programs of the kind {kind[:100]!r} are not supported by the server"
        )
    of_ifrt = served.messages.parse("xla.ifrt.XlaCompileOptionsProto", options.data)
    # Serialised again, since clients serialise maps in any order.
    key = of_ifrt.SerializeToString(deterministic=True)
    compiled = served.program_cache.find(program.data, key)
    if compiled is None:
        compiled = _compile_xla(served, program.data, of_ifrt, watch, cancellation or Cancellation())
        served.program_cache.add(program.data, key, compiled)
    return compiled


_COLOCATED = (
    "colocated Python is the program's, and runs in its own process: PjRtCompiler requires an HloProgram"
)
"""Refusal of colocated Python. With the last words, JAX runs the function in the process of the client."""


def _compile_xla(
    served: ServedDevices,
    data: bytes,
    of_ifrt: Any,
    watch: Callable[[str], AbstractContextManager[object]],
    cancellation: Cancellation,
) -> ProxyProgram:
    proto = of_ifrt.compile_options
    if of_ifrt.outputs_bundle_slice_sizes:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, "programs with bundles of results are not supported by the server"
        )
    build = proto.executable_build_options
    if build.num_replicas > 1:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, "programs of several replicas are not supported by the server"
        )
    assigned = build.device_assignment.computation_devices
    devices = tuple(
        served.device(entry.replica_device_ids[0]) for entry in assigned if entry.replica_device_ids
    )
    if not devices or len(devices) != max(build.num_partitions, 1):
        raise StatusError(
            StatusCode.UNIMPLEMENTED,
            "portable programs, which name no devices, are not supported by the server",
        )
    if len(set(devices)) != len(devices):
        raise StatusError(StatusCode.INVALID_ARGUMENT, "a program names a device twice")
    module = pjrt.parse(served.reader.read_stablehlo(data))
    check_module(module, pjrt.platform_of(devices[0]))
    options = served.messages.parse(
        "xla.CompileOptionsProto", pjrt.compile_options(devices, 0, 0).SerializeAsString()
    )
    type_ = _type_of_main(module)
    _set_options(options, proto, len(type_.inputs), len(type_.results))
    name = ir.StringAttr(module.operation.attributes["sym_name"]).value
    options_of_xla = ifrt.compile_options(options.SerializeToString())
    with watch(name):
        executable = compile_cache.load_one(
            data,
            module,
            devices,
            options_of_xla,
            lambda: served.compilers.compile(module, devices, options_of_xla, cancellation),
        )
    results = _results(type_.results, executable, devices)
    memory = served.memory.reserve([code_bytes(executable)])
    donated = ifrt.donated_operands(executable)
    layouts = tuple(map(layout_of, executable.get_parameter_layouts()))
    return ProxyProgram(executable, devices, results, donated, name, layouts, memory=memory)


def code_bytes(executable: Any) -> int:
    """Returns the number of bytes of the code of an executable; 0 if XLA does not report it."""
    return max(executable.size_of_generated_code_in_bytes(), 0)


_PLUGIN_PROGRAMS: Mapping[str, Callable[[ServedDevices, Any], ReshardProgram | PersistenceProgram]] = {
    "reshardRequest": parse_reshard,
    "bulk_persistence_write_request": parse_write,
    "bulk_persistence_read_request": parse_read,
}
"""Parsers of the requests of `pathwaysutils` and Orbax, by kind."""


def _plugin_program(served: ServedDevices, data: bytes) -> ReshardProgram | PersistenceProgram:
    kind, body = parse_request(data)
    if kind not in _PLUGIN_PROGRAMS:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"plugin programs {kind[:100]!r} are not supported by the server"
        )
    return _PLUGIN_PROGRAMS[kind](served, body)


_DIALECTS = ("builtin", "func", "stablehlo", "chlo", "sdy")
_FILES = re.compile(r"dump(?!_max_hlo_modules$)|path|file|dir$|_dir_|_to$")
"""Pattern of compiler options that name files or have XLA write some, except limits of their number."""
_NOT_OF_CLIENTS = re.compile(
    rf"{_FILES.pattern}|crash|terminat|hlo_passes|extra_options|extra_flags|gpu_detect_(nan|inf)"
)
"""Pattern of compiler options that clients may not set: those of files, and those that can abort the process.

XLA aborts if code lacks a pass, if a collective exceeds its timeout, if LLVM does not know an option, and if
a result is not finite.
"""
_SPLIT_COUNT = "xla_cpu_parallel_codegen_split_count"
_MAX_SPLIT_COUNT = 1024
"""Maximum of modules that XLA may split a program into for compilation; it also creates empty ones."""


def check_module(module: ir.Module, platform: str, dialects: Collection[str] = _DIALECTS) -> None:
    """Checks that the server may compile a module, and prepares its custom calls.

    Args:
      dialects: the dialects that it may use.

    Raises:
      StatusError: the server must not compile it.
    """
    problem = problem_of(module, "a program", dialects, CLIENT_CALLS, advice="")
    if problem is not None:
        raise StatusError(StatusCode.UNIMPLEMENTED, f"the program {problem}")
    _check_shapes(module, platform)
    _check_meshes(module)
    bound_sparse_indices(module)
    if any(call.startswith("lapack_") for call in custom_calls(module)):
        pjrt.initialize_lapack()


_MESH = re.compile(rb'<\[("(?:[^"\\]|\\.)*"=\d+(?:, )?)+\]')
_AXIS_SIZE = re.compile(rb'"=(\d+)')
_MAX_MESH = 1 << 20
"""Maximum of devices of a mesh in a program. XLA does not check the number for overflow."""


def _check_meshes(module: ir.Module) -> None:
    """Checks the sizes of meshes, which shardings refer to or contain.

    Raises:
      StatusError: one is too large.
    """
    for mesh in _MESH.finditer(printed(module)):
        sizes = [int(size) for size in _AXIS_SIZE.findall(mesh[0])]
        if math.prod(sizes) > _MAX_MESH:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"the program has a mesh of {sizes[:8]}")


_MAX_CPU_SIZE = 1 << 35
"""Maximum of elements of a value: with more, XLA divides by zero when it distributes work over threads."""


def _check_shapes(module: ir.Module, platform: str) -> None:
    """Checks the sizes of all values of a module, which XLA multiplies without a check for overflow.

    Raises:
      StatusError: one is too large.
    """
    types: set[ir.Type] = set()

    for op in nested_ops(module.operation.opview):
        types.update(value.type for value in op.results)
        types.update(value.type for region in op.regions for block in region for value in block.arguments)
    for type_ in types:
        if isinstance(type_, ir.RankedTensorType) and type_.has_static_shape:
            size = math.prod(checked_shape(type_.shape))
            if platform == "cpu" and size > _MAX_CPU_SIZE:
                raise StatusError(
                    StatusCode.RESOURCE_EXHAUSTED,
                    f"the program has a value of {size} elements; XLA computes at most {_MAX_CPU_SIZE} "
                    "on a CPU",
                )


_BUILD_OPTIONS = (
    "use_shardy_partitioner",
    "use_spmd_partitioning",
    "optimization_level",
    "memory_fitting_level",
)
"""Compiler options that clients may set. XLA does not check the others, or JAX never sets them."""


def _set_options(own: Any, proto: Any, operands: int, results: int) -> None:
    """Sets compiler options to those of a client, except those that clients may not set.

    Args:
      own: the options of the server for the devices of the program, which are changed.
      proto: the options of the client.
      operands: the number of operands of the program.

    Raises:
      StatusError: the program itself sets an option that clients may not set, in `compiler_options` of
        `jax.jit`, or an option does not fit the operands or results or is out of range.
    """
    build, of_client = own.executable_build_options, proto.executable_build_options
    for name in _BUILD_OPTIONS:
        setattr(build, name, getattr(of_client, name))
    for field, count in (
        ("allow_spmd_sharding_propagation_to_parameters", operands),
        ("allow_spmd_sharding_propagation_to_output", results),
    ):
        allowed = getattr(of_client, field)
        if len(allowed) not in (0, 1, count):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"the compiler option {field} has {len(allowed)} values for {count}",
            )
        build.ClearField(field)
        getattr(build, field).extend(allowed)
    if of_client.HasField("debug_options"):
        default = type(build.debug_options).FromString(build.debug_options.SerializeToString())
        build.debug_options.CopyFrom(of_client.debug_options)
        for field in build.debug_options.DESCRIPTOR.fields:
            if _NOT_OF_CLIENTS.search(field.name):
                build.debug_options.ClearField(field.name)
                # The setting of the server, which XLA_FLAGS may give, takes its place.
                if field.is_repeated:
                    getattr(build.debug_options, field.name).MergeFrom(getattr(default, field.name))
                elif default.HasField(field.name):
                    setattr(build.debug_options, field.name, getattr(default, field.name))
        if build.debug_options.HasField(_SPLIT_COUNT):
            _check_split_count(getattr(build.debug_options, _SPLIT_COUNT))
    for name in proto.env_option_overrides:
        if _NOT_OF_CLIENTS.search(name):
            effect = "use files" if _FILES.search(name) else "end"
            raise StatusError(
                StatusCode.PERMISSION_DENIED, f"the compiler option {name!r} would have the server {effect}"
            )
        value = proto.env_option_overrides[name]
        if name == _SPLIT_COUNT:
            _check_split_count(getattr(value, value.WhichOneof("value") or "int_field"))
        own.env_option_overrides[name].CopyFrom(value)


def _check_split_count(count: float | str) -> None:
    """Checks the number of modules that a client wants a program split into.

    Raises:
      StatusError: the number is too large, or not positive.
    """
    try:
        number = int(count)
    except (ValueError, OverflowError):
        number = 0
    if not 1 <= number <= _MAX_SPLIT_COUNT:
        raise StatusError(
            StatusCode.INVALID_ARGUMENT,
            f"the compiler option {_SPLIT_COUNT} is {str(count)[:30]}; the server accepts 1 to "
            f"{_MAX_SPLIT_COUNT}",
        )


def _type_of_main(module: ir.Module) -> ir.FunctionType:
    """Returns the type of the function `main`.

    Raises:
      StatusError: the program has none.
    """
    for op in module.operation.regions[0].blocks[0].operations:
        if op.operation.name == "func.func" and op.attributes["sym_name"].value == "main":
            return ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
    raise StatusError(StatusCode.INVALID_ARGUMENT, "the program has no function 'main'")


def _results(
    types: Sequence[ir.Type], executable: Any, devices: tuple[jax.Device, ...]
) -> tuple[ArraySpec, ...]:
    """Returns the type and placement of each result of a program, from its type and XLA's shardings."""
    (kinds,) = executable.get_output_memory_kinds()
    shardings = executable.get_output_shardings() if len(devices) > 1 else None
    layouts = executable.get_output_layouts()
    specs = []
    for number, type_ in enumerate(types):
        hlo = None if shardings is None else ifrt.hlo_sharding(ifrt.serialize_sharding(shardings[number]))
        specs.append(_spec(type_, ArrayPlacement(devices, kinds[number], hlo), layout_of(layouts[number])))
    return tuple(specs)


def _spec(type_: ir.Type, placement: ArrayPlacement, layout: Layout | None) -> ArraySpec:
    if str(type_) == "!stablehlo.token":
        # Outside of programs, JAX represents tokens by empty arrays.
        return ArraySpec(DTYPES["PRED"], (0,), placement, layout)
    if not isinstance(type_, ir.RankedTensorType):
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"results of type {type_} are not supported by the server"
        )
    kind = str(type_.element_type)
    name = _COMPLEX.get(kind) or {"i1": "PRED"}.get(kind) or kind.replace("ui", "u").replace("i", "s").upper()
    if name not in DTYPES:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"results of type {type_} are not supported by the server"
        )
    return ArraySpec(DTYPES[name], tuple(type_.shape), placement, layout)


_COMPLEX = {"complex<f32>": "C64", "complex<f64>": "C128"}
