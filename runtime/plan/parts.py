"""What data movement within a computation amounts to: which part of a result is which part of an operand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import make_context, symbol_table
from pathways.runtime.bundle.file import is_artifact

Index = tuple[tuple[int, int], ...]
"""Where a part begins and ends, in each dimension."""

_MOST_PARTS = 1 << 16
"""The parts that the operations of a computation may read: a few can make any number of them."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a value: the number of the device or operand that has it, where it lies there, and here."""

    source: int
    there: Index
    here: Index


Shard = tuple[Part, ...]
"""The parts that a shard is made of."""


def read_parts(module: bytes) -> list[Shard] | None:
    """What each result of a module is made of, by its operands; None where it does more than cut and join."""
    context = make_context()
    if is_artifact(module):
        parsed = stablehlo.deserialize_portable_artifact(context, module)
    else:
        parsed = ir.Module.parse(module, context)
    block = symbol_table(parsed)["main"].regions[0].blocks[0]
    values = [*block.arguments, *(value for op in block.operations for value in op.results)]
    if not all(isinstance(v.type, ir.RankedTensorType) and v.type.has_static_shape for v in values):
        return None
    known: dict[ir.Value, Shard] = {}
    for number, argument in enumerate(block.arguments):
        everything = whole(argument.type.shape)
        known[argument] = (Part(number, everything, everything),)
    seen = 0
    for op in block.operations:
        seen += sum(len(known[value]) for value in op.operands)
        if seen > _MOST_PARTS:
            return None
        match op:
            case stablehlo.SliceOp() if set(op.strides) <= {1}:
                taken = tuple(zip(op.start_indices, op.limit_indices, strict=True))
                kept = Part(0, taken, whole(op.result.type.shape))
                known[op.result] = tuple(within(known[op.operand], kept))
            case stablehlo.ConcatenateOp():
                known[op.result] = tuple(_joined([known[v] for v in op.inputs], op))
            case _ if op.operation.name == "func.return":
                return [known[value] for value in op.operands]
            case _:
                return None
    return None


def _joined(inputs: Sequence[Shard], op: ir.OpView) -> Iterator[Part]:
    dim, offset = op.dimension.value, 0
    for parts, value in zip(inputs, op.inputs, strict=True):
        for part in parts:
            here = list(part.here)
            here[dim] = (here[dim][0] + offset, here[dim][1] + offset)
            yield dataclasses.replace(part, here=tuple(here))
        offset += value.type.shape[dim]


def whole(shape: Sequence[int]) -> Index:
    """All of a value."""
    return tuple((0, size) for size in shape)


def within(parts: Sequence[Part], window: Part) -> Iterator[Part]:
    """The parts of a value that lie in a part of it, `window.there`, as parts of what that one is part of."""
    for part in parts:
        common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(part.here, window.there, strict=True)]
        if all(begin < end for begin, end in common):
            yield Part(
                part.source,
                _moved(common, part.here, part.there),
                _moved(common, window.there, window.here),
            )


def _moved(index: Sequence[tuple[int, int]], origin: Index, to: Index) -> Index:
    return tuple((a - o + t, b - o + t) for (a, b), (o, _), (t, _) in zip(index, origin, to, strict=True))
