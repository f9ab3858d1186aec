"""Programs of a client: checked, compiled and executed as XLA executables."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jaxlib.mlir import ir

from pathways.runtime.bundle.program import CUSTOM_CALLS, custom_calls
from pathways.runtime.proxy.arrays import ProxyArray
from pathways.runtime.proxy.devices import DTYPES, ArrayPlacement, ArraySpec, ServedDevices
from pathways.runtime.proxy.statuses import StatusCode, StatusError
from pathways.runtime.xla import ifrt, pjrt


@dataclasses.dataclass(frozen=True, eq=False)
class ProxyProgram:
    """A compiled program on its devices.

    Attributes:
      name: the name of its module.
      executable: what XLA made of it.
      devices: its devices, in the order of shards.
      results: what each result is and where.
      donated: the operands whose buffers an execution consumes.
    """

    name: str
    executable: Any
    devices: tuple[jax.Device, ...]
    results: tuple[ArraySpec, ...]
    donated: tuple[int, ...]

    @functools.cached_property
    def _makers(self) -> list[Any]:
        return [spec.placement.maker(spec.shape, spec.dtype) for spec in self.results]

    def execute(self, arguments: Sequence[ProxyArray], kept: Sequence[int] = ()) -> list[ProxyArray]:
        """Starts an execution; what fails is in the results, of each of which there is one in any case.

        Args:
          arguments: the arguments.
          kept: the arguments that must not be consumed although the program could.
        """
        try:
            operands = [argument.read()[1] for argument in arguments]
            for number in set(kept) & set(self.donated):
                (operands[number],) = pjrt.copy_arrays(
                    [operands[number]],
                    [pjrt.device_list(self.devices)],
                    [operands[number].sharding],
                    [pjrt.ALWAYS_COPY],
                )
            values = ifrt.execute(self.executable, operands, self._makers)
        except StatusError as error:
            return self.fail(error)
        return [ProxyArray(spec, value) for spec, value in zip(self.results, values, strict=True)]

    def fail(self, error: StatusError) -> list[ProxyArray]:
        """Returns results that all raise an error."""
        return [ProxyArray(spec, error) for spec in self.results]

    def describe_result(self, proto: Any, number: int, served: ServedDevices) -> None:
        """Fills an `Output` of `LoadedExecutableExecuteResponse`."""
        spec = self.results[number]
        served.describe_dtype(proto.dtype, spec.dtype)
        proto.shape.dims.extend(spec.shape)
        served.describe_placement(proto.sharding, spec.placement)

    def describe(self, response: Any) -> None:
        """Fills a `LoadedExecutableMetadataResponse`."""
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


def compile_program(served: ServedDevices, program: Any, options: Any) -> ProxyProgram:
    """Compiles a serialised program for the devices that its options name.

    Raises:
      StatusError: the server refuses it, or XLA did.
    """
    kind = program.type_name.rpartition("::")[2]
    if kind != "XlaProgram":
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"programs of the kind {kind[:100]!r} are not supported by the server"
        )
    proto = served.messages.parse("xla.ifrt.XlaCompileOptionsProto", options.data).compile_options
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
    # The client has no other settings of the compiler than those of its own process, which may name files.
    build.ClearField("debug_options")
    proto.ClearField("env_option_overrides")
    try:
        module = pjrt.parse(program.data)
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise StatusError(
            StatusCode.INVALID_ARGUMENT, f"the program is not StableHLO: {str(error)[:300]}"
        ) from None
    calls = _check(module)
    if any(call.startswith("lapack_") for call in calls):
        pjrt.initialize_lapack()
    name = ir.StringAttr(module.operation.attributes["sym_name"]).value
    executable = pjrt.compile_parsed(module, devices, ifrt.compile_options(proto.SerializeToString()))
    types = module.operation.regions[0].blocks[0]
    results = _results(types, executable, devices)
    return ProxyProgram(name, executable, devices, results, ifrt.donated_operands(executable))


_DIALECTS = ("builtin", "func", "stablehlo", "chlo", "sdy")
_FORBIDDEN = ("stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send", "stablehlo.recv")


def _check(module: ir.Module) -> set[str]:
    """Returns the custom calls of a module, all of which are allowed.

    Raises:
      StatusError: it holds what the server must not run.
    """
    names = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        names.add(op.name)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    refused = sorted(name for name in names if name.partition(".")[0] not in _DIALECTS or name in _FORBIDDEN)
    if refused:
        raise StatusError(
            StatusCode.INVALID_ARGUMENT,
            f"the program has operations that the server does not run: {', '.join(refused)}",
        )
    calls = custom_calls(module)
    unknown = sorted(calls - CUSTOM_CALLS)
    if unknown:
        raise StatusError(
            StatusCode.UNIMPLEMENTED,
            f"the program makes custom calls that the server does not run: {', '.join(unknown)[:500]}; "
            "it runs those that JAX itself makes, and no callbacks",
        )
    return calls


def _results(block: ir.Block, executable: Any, devices: tuple[jax.Device, ...]) -> tuple[ArraySpec, ...]:
    """Returns what the results of a program are, from the type of its main function and XLA's shardings."""
    main = next(
        op
        for op in block.operations
        if op.operation.name == "func.func" and op.attributes["sym_name"].value == "main"
    )
    types = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results
    (kinds,) = executable.get_output_memory_kinds()
    shardings = executable.get_output_shardings() if len(devices) > 1 else None
    specs = []
    for number, type_ in enumerate(types):
        hlo = None if shardings is None else ifrt.hlo_sharding(ifrt.serialize_sharding(shardings[number]))
        specs.append(_spec(type_, ArrayPlacement(devices, kinds[number], hlo)))
    return tuple(specs)


def _spec(type_: ir.Type, placement: ArrayPlacement) -> ArraySpec:
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
    return ArraySpec(DTYPES[name], tuple(type_.shape), placement)


_COMPLEX = {"complex<f32>": "C64", "complex<f64>": "C128"}
