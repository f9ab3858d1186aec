"""Facts about a compiled XLA program, for the process that serves its client."""

from __future__ import annotations

from typing import Any

import msgspec

from pathways.runtime.xla import ifrt, pjrt


class LayoutFacts(msgspec.Struct, frozen=True):
    """Layout of an operand or result, as `xla.LayoutProto` has it."""

    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...]
    element_size_in_bits: int


class XlaFacts(msgspec.Struct, frozen=True):
    """Facts about a compiled XLA program.

    Attributes:
      operand_shardings: serialised `xla.OpSharding`s; None for a program of one device.
      result_shardings: likewise.
      result_memory_kinds: the memory of each result, as JAX names it.
      donated: the operands whose buffers an execution consumes.
      memory: XLA's analysis of its memory, by the names of the fields; None if the platform has none.
      code_bytes: the size of its code; 0 if XLA does not report it.
    """

    operand_shardings: tuple[bytes, ...] | None
    result_shardings: tuple[bytes, ...] | None
    operand_layouts: tuple[LayoutFacts, ...]
    result_layouts: tuple[LayoutFacts, ...]
    result_memory_kinds: tuple[str, ...]
    donated: tuple[int, ...]
    memory: dict[str, int] | None
    code_bytes: int


def facts_of(executable: Any) -> XlaFacts:
    """Returns the facts about an executable of XLA."""
    (kinds,) = executable.get_output_memory_kinds()
    operands = tuple(map(_layout, executable.get_parameter_layouts()))
    results = tuple(map(_layout, executable.get_output_layouts()))
    stats = pjrt.memory_stats(executable)
    return XlaFacts(
        _shardings(executable.get_parameter_shardings(), len(operands)),
        _shardings(executable.get_output_shardings(), len(results)),
        operands,
        results,
        tuple(kinds),
        ifrt.donated_operands(executable),
        None if stats is None else _numbers(stats),
        max(executable.size_of_generated_code_in_bytes(), 0),
    )


def _shardings(protos: Any, count: int) -> tuple[bytes, ...] | None:
    # XLA gives an empty tuple of results one sharding.
    return None if protos is None else tuple(map(ifrt.serialize_sharding, protos[:count]))


def _layout(layout: Any) -> LayoutFacts:
    xla = layout._xla_layout()
    tiles = tuple(tuple(tile) for tile in xla.tiling())
    return LayoutFacts(tuple(xla.minor_to_major()), tiles, xla.element_size_in_bits())


def _numbers(stats: Any) -> dict[str, int]:
    names = (name for name in dir(stats) if not name.startswith("_"))
    return {name: value for name in names if isinstance(value := getattr(stats, name), int)}
