"""Moves what is ready from CPU to CPU in one pass over memory. Never imports jax.

A reshard is a cut on the source, a transfer of pieces, and a join on the target (see docs/transfers.md).
None of them waits for another, and each is a pass over memory. The devices of the CPU platform share the
memory of the process, so a value that is ready when the first of the three steps is issued needs one pass:
that step leaves views of the source's shards behind in place of pieces, and the last one fills the shards of
the target from them. A value that is not ready yet takes the three steps, since waiting would hold up all
that is issued after them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent import futures
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import make_context, symbol_table
from pathways.runtime.bundle import is_artifact
from pathways.runtime.plan import Launch, Plan, Release, Slot, Step, Transfer

Index = tuple[tuple[int, int], ...]
"""Where a part begins and ends, in each dimension."""

_LARGE = 4 << 20
"""Bytes that several threads copy, which numpy allows. Below, one is done before another wakes."""

_HEAP = 32 << 20
"""Bytes above which an allocator gives memory back to the system, which then clears every page anew."""

_KEPT = 256 << 20
_spare: dict[int, np.ndarray] = {}
"""At most one, by its size."""

_MOST_PARTS = 1 << 16
"""The parts that the operations of a computation may read: a few can make any number of them."""

_ALIGNMENT = 64
"""XLA takes an array of the host as it is from such addresses, and copies it from others."""


_Copies = Sequence[tuple[int, int, tuple[slice, ...], tuple[slice, ...]]]
"""The numbers of an array of the target and of a shard of the source, and what goes where from where."""


class Views(tuple[np.ndarray, ...]):
    """The shards of a value that is ready, in place of its pieces."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a value: the number of the device or operand that has it, where it lies there, and here."""

    source: int
    there: Index
    here: Index


Shard = tuple[Part, ...]
"""The parts that a shard is made of."""


@dataclasses.dataclass(frozen=True)
class Role:
    """What a step does when a value moves through the host.

    Attributes:
      begins: whether it finds out that the value is ready; else an earlier step did.
      shards: for each device of the target what its shard is made of, by devices of the source; None for a
        step that leaves views behind.
    """

    begins: bool
    shards: tuple[Shard, ...] | None = None


def find_roles(
    plan: Plan, slices: Set[str], apart: Set[Slot], replicas: Callable[[Slot], Sequence[int]]
) -> Mapping[Slot, Role]:
    """The roles of the steps of a plan that move a value through the host, by their first results.

    Args:
      plan: the plan.
      slices: the slices on devices of the CPU platform.
      apart: the slots that hold shards and no array.
      replicas: for each device of a slot's slice the first one that holds the same shard.
    """
    return _Finder(plan, slices, apart).roles(replicas)


@dataclasses.dataclass(frozen=True)
class _Move:
    """The steps that move a value; there may be nothing to cut, or nothing to join."""

    cut: Launch | None
    transfer: Transfer
    join: Launch | None

    @property
    def steps(self) -> list[Launch | Transfer]:
        return [step for step in (self.cut, self.transfer, self.join) if step is not None]

    @property
    def source(self) -> Slot:
        return self.steps[0].operands[0]

    @property
    def result(self) -> Slot:
        return self.steps[-1].results[0]


class _Finder:
    def __init__(self, plan: Plan, slices: Set[str], apart: Set[Slot]) -> None:
        self.plan = plan
        self.slices = slices
        self.apart = apart
        self.makers: dict[Slot, Launch] = {}
        self.readers: dict[Slot, list[Launch | Transfer]] = {}
        self.numbers: dict[int, int] = {}
        """The number of each step, by its identity: launches without results may be equal."""
        self.ends: dict[Slot, int] = {}
        """The number of the step that consumes what is in a slot."""
        for number, step in enumerate(plan.steps):
            self.numbers[id(step)] = number
            self.ends.update(dict.fromkeys(self.consumed(step), number))
            if isinstance(step, Launch | Transfer):
                for slot in step.operands:
                    self.readers.setdefault(slot, []).append(step)
            if isinstance(step, Launch) and self.is_local(step):
                self.makers.update(dict.fromkeys(step.results, step))
        self.parts = functools.cache(self._parts)

    def roles(self, replicas: Callable[[Slot], Sequence[int]]) -> dict[Slot, Role]:
        found: dict[Slot, Role] = {}
        for move in self.moves():
            shards = tuple(self.shards(move, replicas(move.source)))
            for step in move.steps:
                ends = step is move.steps[-1]
                found[step.results[0]] = Role(step is move.steps[0], shards if ends else None)
        return found

    def moves(self) -> list[_Move]:
        """The moves all of whose steps can do their part."""
        found = [move for step in self.plan.steps if isinstance(step, Transfer) for move in self.move(step)]
        able = {move.transfer.results[0] for move in found}

        def reads_views(step: Launch | Transfer) -> bool:
            return isinstance(step, Transfer) and step.results[0] in able

        return [
            move
            for move in found
            if move.cut is None
            or all(reads_views(step) for slot in move.cut.results for step in self.readers.get(slot, ()))
        ]

    def move(self, transfer: Transfer) -> Iterator[_Move]:
        """The move that a transfer is part of, if it is one that saves a pass over memory."""
        if transfer.routes is None or not {transfer.src, transfer.dst} <= self.slices:
            return
        found = _Move(self.cut(transfer), transfer, self.join(transfer))
        first, last = found.steps[0], found.steps[-1]
        launches = [step for step in found.steps if isinstance(step, Launch)]
        if (
            launches
            and len(first.operands) == len(last.results) == 1
            and self.apart.isdisjoint({found.source, found.result})
            and not self.numbers[id(first)] <= self.ends.get(found.source, -1) <= self.numbers[id(last)]
            and all(self.parts(launch.computation) is not None for launch in launches)
        ):
            yield found

    def consumed(self, step: Step) -> Iterator[Slot]:
        """The slots whose arrays a step donates or deletes: XLA could not, while there are views of them."""
        match step:
            case Launch():
                for number in self.plan.computations[step.computation].donated:
                    yield step.operands[number]
            case Release():
                yield from step.delete
            case Transfer():
                pass

    def cut(self, transfer: Transfer) -> Launch | None:
        """The local launch that made the operands of a transfer, and that only transfers read."""
        cut = self.makers.get(transfer.operands[0])
        if cut is None or not set(transfer.operands) <= set(cut.results) <= self.apart:
            return None
        return cut

    def join(self, transfer: Transfer) -> Launch | None:
        """The local launch that alone reads the results of a transfer."""
        readers = [reader for slot in transfer.results for reader in self.readers.get(slot, ())]
        if not readers or not set(transfer.results) <= self.apart:
            return None
        join = readers[0]
        alone = all(reader is join for reader in readers)
        if alone and isinstance(join, Launch) and self.is_local(join) and join.operands == transfer.results:
            return join
        return None

    def is_local(self, launch: Launch) -> bool:
        return self.plan.computations[launch.computation].local

    def shards(self, move: _Move, replicas: Sequence[int]) -> Iterator[Shard]:
        """For each device of the target what its shard is made of."""
        transfer = move.transfer
        piece = self.plan.shard_type(transfer.results[0], transfer.dst).shape
        joined: Shard = (Part(0, _whole(piece), _whole(piece)),)
        pieces = [joined]
        if move.cut is not None:
            made = dict(zip(move.cut.results, self.parts(move.cut.computation) or [], strict=True))
            pieces = [made[slot] for slot in transfer.operands]
        if move.join is not None:
            (joined,) = self.parts(move.join.computation) or []
        assert transfer.routes is not None
        for device in range(len(transfer.routes[0])):
            yield tuple(
                Part(replicas[sender], inner.there, inner.here)
                for part in joined
                for operand, sender in [transfer.routes[part.source][device]]
                for inner in _within(pieces[operand], part)
            )

    def _parts(self, computation: str) -> list[Shard] | None:
        return read_parts(self.plan.computations[computation].module)


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
        everything = _whole(argument.type.shape)
        known[argument] = (Part(number, everything, everything),)
    seen = 0
    for op in block.operations:
        seen += sum(len(known[value]) for value in op.operands)
        if seen > _MOST_PARTS:
            return None
        match op:
            case stablehlo.SliceOp() if set(op.strides) <= {1}:
                taken = tuple(zip(op.start_indices, op.limit_indices, strict=True))
                kept = Part(0, taken, _whole(op.result.type.shape))
                known[op.result] = tuple(_within(known[op.operand], kept))
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


def _whole(shape: Sequence[int]) -> Index:
    return tuple((0, size) for size in shape)


def _within(parts: Sequence[Part], window: Part) -> Iterator[Part]:
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


def through_host(
    views: Callable[[Any], Views | None],
    land: Callable[[Views], Any] | None,
    results: int,
    otherwise: Callable[[list[Any]], list[Any]],
) -> Callable[[list[Any]], list[Any]]:
    """A step of a move, which is made as it is planned where the value was not ready.

    Args:
      views: the views that an operand is or begins with, None where the value is not ready.
      land: makes the result of the last step; None for other steps, which hand the views on.
      results: how many results the step has.
      otherwise: makes the step as it is planned.
    """

    def step(operands: list[Any]) -> list[Any]:
        held = views(operands[0])
        if held is None:
            return otherwise(operands)
        return [held] * results if land is None else [land(held)]

    return step


def handed_on(operand: Any) -> Views | None:
    """The views that an earlier step has left behind, if it did."""
    return operand if isinstance(operand, Views) else None


def fill(
    shards: Sequence[Shard], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Callable[[Views], list[np.ndarray]]:
    """A function that makes the shards of the target; devices whose shards are equal share one array."""
    numbers = {shard: number for number, shard in enumerate(dict.fromkeys(shards))}
    order = [numbers[shard] for shard in shards]
    copies = [
        (number, part.source, _slices(part.here), _slices(part.there))
        for shard, number in numbers.items()
        for part in shard
    ]
    large = len(numbers) * math.prod(shape) * dtype.itemsize >= _LARGE
    threads = min(4, os.cpu_count() or 1) if large else 1
    mine, *others = [copies[n::threads] for n in range(threads)]

    def make(views: Views) -> list[np.ndarray]:
        made = [_empty(shape, dtype) for _ in numbers]

        def copy(some: _Copies) -> None:
            for number, source, here, there in some:
                made[number][here] = views[source][there]

        waiting = [_in_thread(copy, some) for some in others if some]
        copy(mine)
        for wait in waiting:
            wait()
        return [made[number] for number in order]

    return make


def _in_thread(copy: Callable[[_Copies], None], some: _Copies) -> Callable[[], None]:
    """Begins to copy in another thread; returns what waits for it."""
    try:
        return _copiers().submit(copy, some).result
    except RuntimeError:  # The interpreter shuts down, and starts no threads any more.
        return functools.partial(copy, some)


@functools.cache
def _copiers() -> futures.ThreadPoolExecutor:
    """The threads that copy besides the one that issues steps."""
    return futures.ThreadPoolExecutor(thread_name_prefix="pathways copy")


def _slices(index: Index) -> tuple[slice, ...]:
    return tuple(slice(begin, end) for begin, end in index)


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array that XLA can take as it is."""
    size = math.prod(shape) * dtype.itemsize
    raw = _memory(size + _ALIGNMENT)
    begin = -raw.ctypes.data % _ALIGNMENT
    return raw[begin : begin + size].view(dtype).reshape(shape)


def _memory(size: int) -> np.ndarray:
    """Bytes of the host. Of the large ones the last that is not needed any more is kept for the next time."""
    if not _HEAP < size <= _KEPT:
        return np.empty(size, np.uint8)
    memory = _spare.pop(size, None)
    if memory is None:
        memory = np.empty(size, np.uint8)
    # All that looks at the memory keeps this array alive, which does not own it.
    array = np.frombuffer(memoryview(memory), np.uint8)
    weakref.finalize(array, _keep, memory).atexit = False
    return array


def _keep(memory: np.ndarray) -> None:
    _spare.clear()
    _spare[memory.size] = memory
