"""XLA programs of clients: their sources after all checks, and the facts about loaded ones."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.experimental.layout import Layout
from jaxlib.mlir import ir

from pathways.runtime.proxy.arrays.layouts import make_layout
from pathways.runtime.proxy.arrays.placements import DTYPES, ArrayPlacement, ArraySpec
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.loading.compiled_program import CompiledProgram
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.proxy.worker.xla_facts import LayoutFacts, XlaFacts
from pathways.runtime.xla import ifrt

Type = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of an operand or a result."""


@dataclasses.dataclass(frozen=True, eq=False)
class XlaSource:
    """XLA program of a client, checked, and ready to be compiled.

    Attributes:
      name: its name in messages.
      data: the program as the client has sent it.
      module: StableHLO, as `pjrt.parse` returns it.
      options: a serialised `xla.CompileOptionsProto`, whose device assignment has the ids that clients know.
      devices: its devices, in the order of shards.
      operands: the type of each operand.
      results: the type of each result.
    """

    name: str
    data: bytes
    module: ir.Module
    options: bytes
    devices: tuple[Any, ...]
    operands: tuple[Type, ...]
    results: tuple[Type, ...]

    @classmethod
    def of(
        cls, name: str, data: bytes, module: ir.Module, options: bytes, devices: tuple[Any, ...]
    ) -> XlaSource:
        """Returns the source of a module.

        Raises:
          StatusError: it has no function `main`, or that has a type that the server does not support.
        """
        main = type_of_main(module)
        operands, results = (tuple(map(_type_of, types)) for types in (main.inputs, main.results))
        return cls(name, data, module, options, devices, operands, results)

    def specs(self, facts: XlaFacts) -> tuple[ArraySpec, ...]:
        """Returns the type and placement of each result, with XLA's shardings and layouts."""
        shardings = facts.result_shardings if len(self.devices) > 1 else None
        specs = []
        for number, (shape, dtype) in enumerate(self.results):
            hlo = None if shardings is None else ifrt.hlo_sharding(shardings[number])
            placement = ArrayPlacement(self.devices, facts.result_memory_kinds[number], hlo)
            specs.append(ArraySpec(dtype, shape, placement, _layout(facts.result_layouts[number])))
        return tuple(specs)


@dataclasses.dataclass(frozen=True, eq=False)
class XlaProgram(CompiledProgram):
    """Program that is one XLA program.

    Attributes:
      facts: the facts about what XLA has compiled.
    """

    name: str
    facts: XlaFacts

    @abc.abstractmethod
    def text(self) -> str:
        """Returns the HLO that XLA has compiled."""

    @abc.abstractmethod
    def costs(self) -> dict[str, float]:
        """Returns XLA's estimates, such as `flops`."""

    @functools.cached_property
    def layouts(self) -> tuple[Layout | None, ...]:
        """The layout of each operand."""
        return tuple(map(_layout, self.facts.operand_layouts))

    @functools.cached_property
    def needed_bytes(self) -> int:
        temporary = (self.facts.memory or {}).get("temp_size_in_bytes", 0)
        return len(self.devices) * (temporary + sum(spec.shard_bytes for spec in self.results))

    def values_of(self, arguments: Sequence[ProxyArray]) -> list[tuple[ArraySpec, Any]]:
        """Returns the specs and values of arguments. XLA does not check their layouts.

        Raises:
          StatusError: their number or a layout is wrong, or one has no value.
        """
        if len(arguments) != len(self.layouts):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, f"{len(arguments)} arguments for {len(self.layouts)} operands"
            )
        read = []
        for number, (argument, layout) in enumerate(zip(arguments, self.layouts, strict=True)):
            spec, value = argument.read()
            if spec.layout != layout:
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT,
                    f"argument {number} has the layout {spec.layout or 'default'}, and the program needs "
                    f"{layout or 'the default'}",
                )
            read.append((spec, value))
        return read

    def describe(self, response: Any) -> None:
        facts = self.facts
        for field, shardings in (
            (response.parameter_shardings, facts.operand_shardings),
            (response.output_shardings, facts.result_shardings),
        ):
            if shardings is not None:
                field.SetInParent()
                for sharding in shardings:
                    field.shardings.add().ParseFromString(sharding)
        for field, layouts in (
            (response.parameter_layouts_list, facts.operand_layouts),
            (response.output_layouts_list, facts.result_layouts),
        ):
            field.SetInParent()
            for layout in layouts:
                _describe_layout(field.layouts.add(), layout)
        kinds = response.output_memory_kinds
        kinds.SetInParent()
        kinds.memory_kind_lists.add().memory_kinds.extend(facts.result_memory_kinds)
        response.donated_input_indices.SetInParent()
        response.donated_input_indices.donated_input_indices.extend(self.donated)
        if facts.memory is None:
            response.compiled_memory_stats_error.code = StatusCode.UNIMPLEMENTED
            response.compiled_memory_stats_error.message = (
                "the platform of the server makes no analysis of memory"
            )
        else:
            stats = response.compiled_memory_stats
            stats.SetInParent()
            names = {field.name for field in stats.DESCRIPTOR.fields}
            for name in names & facts.memory.keys():
                setattr(stats, name, facts.memory[name])
        response.size_of_generated_code_in_bytes = facts.code_bytes


def type_of_main(module: ir.Module) -> ir.FunctionType:
    """Returns the type of the function `main`.

    Raises:
      StatusError: the program has none.
    """
    for op in module.operation.regions[0].blocks[0].operations:
        if op.operation.name == "func.func" and op.attributes["sym_name"].value == "main":
            return ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
    raise StatusError(StatusCode.INVALID_ARGUMENT, "the program has no function 'main'")


def _type_of(type_: ir.Type) -> Type:
    if str(type_) == "!stablehlo.token":
        # Outside of programs, JAX represents tokens by empty arrays.
        return (0,), DTYPES["PRED"]
    name = ""
    if isinstance(type_, ir.RankedTensorType):
        kind = str(type_.element_type)
        name = _NAMES.get(kind) or kind.replace("ui", "u").replace("i", "s").upper()
    if name not in DTYPES:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"operands and results of type {type_} are not supported by the server"
        )
    return tuple(type_.shape), DTYPES[name]


_NAMES = {"complex<f32>": "C64", "complex<f64>": "C128", "i1": "PRED"}
"""Names of types in the protocol that do not follow from their text."""


def _layout(facts: LayoutFacts) -> Layout | None:
    return make_layout(facts.minor_to_major, facts.tiles, len(facts.minor_to_major))


def _describe_layout(proto: Any, layout: LayoutFacts) -> None:
    """Fills an `xla.LayoutProto`."""
    proto.minor_to_major.extend(layout.minor_to_major)
    for tile in layout.tiles:
        proto.tiles.add().dimensions.extend(tile)
    proto.element_size_in_bits = layout.element_size_in_bits
