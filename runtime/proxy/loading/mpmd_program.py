"""Base class of compiled programs of clients on several meshes: launches there, and copies between."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pathways.runtime.control.records.errors import HostError
from pathways.runtime.local.memory import MemoryAnalysis
from pathways.runtime.plan.plan import Plan
from pathways.runtime.proxy.arrays.array_engine import ArrayEngine
from pathways.runtime.proxy.arrays.placements import ArrayPlacement, ArraySpec, same_place
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.loading.compiled_program import CompiledProgram
from pathways.runtime.proxy.loading.mpmd_source import MpmdInterface
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.xla import ifrt


@dataclasses.dataclass(frozen=True, eq=False)
class MpmdProgram(CompiledProgram):
    """Program on slices of devices, each with its own mesh.

    Attributes:
      interface: its arguments and results.
      engine: the engine of arrays.
      default_memory: the kind of the memory that arrays of its devices are in by default.
      digest: the digest of its bundle; empty if it has none.
    """

    interface: MpmdInterface
    engine: ArrayEngine
    default_memory: str | None = dataclasses.field(default=None, kw_only=True)
    digest: str = dataclasses.field(default="", kw_only=True)

    @property
    def name(self) -> str:
        """The name of its module."""
        return self.interface.name

    @property
    def parameters(self) -> tuple[ArraySpec, ...]:
        """The required type and placement of each argument."""
        return self.interface.parameters

    @property
    def traced(self) -> Mapping[str, Plan]:
        """The plans of calls in traces of clients, by digest: of programs of bundles alone."""
        return {self.digest: self.executable.plan} if self.digest else {}

    @functools.cached_property
    def _accepted(self) -> list[ArraySpec]:
        """The spec of each argument that was checked last: often of a result of an earlier call."""
        return list(self.parameters)

    @property
    @abc.abstractmethod
    def slice_memory(self) -> MemoryAnalysis:
        """The memory that an execution needs on each slice, by the plan and XLA's analysis."""

    @property
    @abc.abstractmethod
    def costs(self) -> Mapping[str, Mapping[str, float]]:
        """XLA's estimates for each computation."""

    @abc.abstractmethod
    def device_text(self) -> str:
        """Returns XLA's optimized module of each computation on each slice."""

    @abc.abstractmethod
    def run(self, operands: list[Any], donated: set[int], copied: Sequence[int]) -> list[Any]:
        """Starts an execution, and returns the values of its results, or their errors; none share a buffer.

        Args:
          operands: the values of its arguments, of the types and placements of `parameters`.
          donated: the arguments that it consumes.
          copied: donated arguments that must not be consumed.
        """

    @abc.abstractmethod
    def status_of(self, error: Exception) -> StatusError:
        """Returns the status of an error of an execution."""

    @property
    def code_bytes(self) -> int:
        """The bytes of its compiled code on all devices."""
        return sum(max(slice.generated_code_size_in_bytes, 0) for slice in self.slice_memory.values())

    @functools.cached_property
    def needed_bytes(self) -> int:
        # The peak has the memory of donated arguments reused, so that is added again: the caller subtracts
        # the memory of the arguments that this execution consumes.
        return sum(
            slice.peak_memory_in_bytes - slice.argument_size_in_bytes + slice.alias_size_in_bytes
            for slice in self.slice_memory.values()
        )

    def execute(self, arguments: Sequence[ProxyArray], undonated: Sequence[int] = ()) -> list[ProxyArray]:
        try:
            operands = self._operands(arguments)
            donated = set(self.donated)
            copied = sorted(donated.intersection(undonated)) if undonated else ()
            donated.difference_update(undonated)
            self._check_donated(operands, donated)
            values = self.run(operands, donated, copied)
        except Exception as error:
            return self.fail(self.status_of(error))
        return [ProxyArray(spec, value) for spec, value in zip(self.results, values, strict=True)]

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
        for computation, costs in self.costs.items():
            attributes = response.attributes.attributes[computation].attributes
            for name, value in costs.items():
                attributes[name].float_value = value

    def describe_slices(self, response: Any) -> None:
        """Adds the devices of each slice to a `CompileResponse`."""
        devices = response.mpmd_addressable_devices.mpmd_addressable_devices
        for name, of_slice in self.interface.slices.items():
            devices[name].mpmd_addressable_device_ids.extend(device.id for device in of_slice)

    def _operands(self, arguments: Sequence[ProxyArray]) -> list[Any]:
        if len(arguments) != len(self.parameters):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"program '{self.name}' has {len(self.parameters)} arguments, got {len(arguments)}",
            )
        operands, accepted = [], self._accepted
        for number, argument in enumerate(arguments):
            try:
                spec, value = argument.read()
            except StatusError:
                spec, value = self._copied_again(number, arguments).read()
            if spec is not accepted[number]:
                self._check(number, spec)
                accepted[number] = spec
            operands.append(value)
        return operands

    def _copied_again(self, number: int, arguments: Sequence[ProxyArray]) -> ProxyArray:
        """Returns a new copy of an argument from another slice, or the argument if there is none.

        A client sees an argument on several slices as one array, and does not know that another island lost
        its copy.
        """
        for other in self.interface.copies[number]:
            if arguments[other].error is None:
                # While the island is lost, the error of the argument says so.
                with contextlib.suppress(HostError, StatusError):
                    return self.engine.reshard(self.parameters[number], arguments[other])
        return arguments[number]

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
        placement, required = spec.placement, parameter.placement
        if not same_place(placement, required, self.default_memory):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"program '{self.name}': argument {number} is {self._place_of(placement)}, expected "
                f"{self._place_of(required)}",
            )

    def _memory_of(self, placement: ArrayPlacement) -> str | None:
        return placement.memory_kind or self.default_memory

    def _place_of(self, placement: ArrayPlacement) -> str:
        memory = self._memory_of(placement)
        ids = [device.id for device in placement.devices]
        in_memory = "" if memory == self.default_memory else f" in {memory}"
        return f"on devices {ids}{in_memory} as {placement.hlo}"

    def _check_donated(self, operands: Sequence[Any], donated: set[int]) -> None:
        if not donated or len(set(map(id, operands))) == len(operands):
            return
        for number in donated:
            if sum(operand is operands[number] for operand in operands) > 1:
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT,
                    f"program '{self.name}': argument {number} is donated and passed twice",
                )


def _same_type(left: ArraySpec, right: ArraySpec) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and left.layout == right.layout


def _describe(spec: ArraySpec) -> str:
    return f"{spec.dtype.name}{list(spec.shape)}{f' as {spec.layout}' if spec.layout else ''}"
