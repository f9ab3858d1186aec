"""Numbers the stages of a pipeline from where its forward calls are placed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, loop_of, loop_of_op
from pathways.passes.util.functions import body_block
from pathways.passes.util.operations import captured


@dataclasses.dataclass
class PlacedCall:
    """A launch, and the call of the trace that it stems from."""

    launch: LaunchOp
    call: str

    @property
    def kind(self) -> str:
        """Whether it is forward, backward or repeated."""
        (origin,) = self.launch.origins
        return origin.kind

    @property
    def stage(self) -> int | None:
        """Its stage, None where it has none yet."""
        (origin,) = self.launch.origins
        return origin.stage

    def set_stage(self, stage: int) -> None:
        """Gives it a stage, unless the user chose one."""
        if self.stage is None:
            (origin,) = self.launch.origins
            self.launch.origins = (dataclasses.replace(origin, stage=stage),)


_Level = tuple[int, str]
"""A stage without a number yet: how many changes of slice lie in front of it, and its own slice."""


@dataclasses.dataclass(frozen=True)
class _Forward:
    """A forward call and its level.

    Attributes:
      call: the call.
      level: where it is.
      reads: the positions of the forward calls whose results it reads, directly or through other code.
    """

    call: PlacedCall
    level: _Level
    reads: frozenset[int]


def number_stages(main: ir.OpView, placed: Sequence[PlacedCall]) -> None:
    """Gives launches the number of their stage, unless the user chose one.

    Stages are maximal runs of forward calls on one slice, numbered in topological order. In a loop only what
    depends on the microbatch counts. A call in front of the loop that prepares what a stage on its slice
    reads is part of that stage, and so is its backward call.

    Args:
      main: the function that launches.
      placed: all its launches, in order.
    """
    forward = _with_readers(main, [(f.call, f.level) for f in _joined(_forward_calls(main, placed))])
    keys = sorted(dict.fromkeys(key for _, key in forward), key=lambda level: level[0])
    numbers = {key: n for n, key in enumerate(keys)}
    by_call: dict[str, list[int]] = {}
    for call, key in forward:
        call.set_stage(numbers[key])
        by_call.setdefault(call.call, []).append(call.stage or 0)
    # Backward calls meet the forward calls they stem from in reverse.
    numbered = {id(call) for call, _ in forward}
    for call in placed:
        stages = by_call.get(call.call, [])
        if id(call) in numbered or not stages:
            continue
        if call.kind == "bwd":
            stages.insert(0, stages.pop())
        call.set_stage(stages[0])


def _forward_calls(main: ir.OpView, placed: Sequence[PlacedCall]) -> list[_Forward]:
    """The forward calls, each at the first level at which it can be."""
    # Where only gradients are asked for, `jax.checkpoint` leaves no forward call but the repeated one.
    run_forward = {call.call for call in placed if call.kind == "fwd"}
    calls = {
        call.launch.operation: call
        for call in placed
        if call.kind == "fwd" or (call.kind == "recompute" and call.call not in run_forward)
    }
    operations = list(body_block(main).operations)
    leading: set[ir.Value] = set()
    """Values that lead to forward calls; those of the backward do not, and read very many of them."""
    for op in reversed(operations):
        if op.operation in calls or not leading.isdisjoint(op.results):
            leading.update(op.operands)
    backward = {call.launch.operation for call in placed if call.kind == "bwd"}
    after: set[ir.Value] = set()
    """Values of a microbatch that its backward leads to: what reads them is no part of the forward."""
    forward: list[_Forward] = []
    behind: dict[ir.Value, frozenset[int]] = {}
    for op in operations:
        loop = loop_of_op(op)
        in_loop = loop is not None
        read = [v for v in op.operands if loop_of(v) == loop] if in_loop else op.operands
        reads = frozenset().union(*(behind.get(v, frozenset()) for v in read))
        if in_loop and (op.operation in backward or not after.isdisjoint(op.operands)):
            after.update(op.results)
        elif op.operation in calls:
            levels = (forward[n].level for n in reads)
            depth = max((before + (slice != op.slice) for before, slice in levels), default=0)
            forward.append(_Forward(calls[op.operation], (depth, op.slice), reads))
            reads = frozenset({len(forward) - 1})
        if reads:
            behind.update((result, reads) for result in op.results if result in leading)
    return forward


def _joined(forward: Sequence[_Forward]) -> list[_Forward]:
    """Side branches: calls of a level join the next one of their slice if all that reads them is as late."""
    joined = list(forward)
    readers: list[list[int]] = [[] for _ in joined]
    for n, one in enumerate(joined):
        for other in one.reads:
            readers[other].append(n)
    members: dict[_Level, list[int]] = {}
    for n, one in enumerate(joined):
        members.setdefault(one.level, []).append(n)
    following: dict[str, _Level] = {}
    for level in sorted(members, reverse=True):
        _, slice = level
        behind = {r for n in members[level] for r in readers[n]} - set(members[level])
        bounds = [before - (other != slice) for before, other in (joined[r].level for r in behind)]
        latest = min(bounds, default=level[0])
        later = following.get(slice)
        if later is not None and later[0] <= latest:
            for n in members[level]:
                joined[n] = dataclasses.replace(joined[n], level=later)
        else:
            following[slice] = level
    return joined


def _with_readers(
    main: ir.OpView, forward: list[tuple[PlacedCall, _Level]]
) -> list[tuple[PlacedCall, _Level]]:
    """Gives calls in front of a loop the level of its first call on their slice that reads them."""
    levels = {
        call.launch.results[0]: level for call, level in forward if call.launch.loop and call.launch.results
    }
    read_at: dict[ir.Value, frozenset[_Level]] = {}
    for op in reversed(list(body_block(main).operations)) if levels else ():
        if op.results and op.results[0] in levels:
            before = frozenset({levels[op.results[0]]})
        elif isinstance(op, LaunchOp) and op.loop is not None:
            continue
        else:
            before = frozenset().union(*(read_at.get(r, frozenset()) for r in op.results))
        for value in captured(op) if before else ():
            read_at[value] = read_at.get(value, frozenset()) | before

    def moved(launch: LaunchOp, level: _Level) -> _Level:
        readers = frozenset().union(*(read_at.get(r, frozenset()) for r in launch.results))
        here = [reader for reader in readers if reader[1] == launch.slice]
        return min(here) if launch.loop is None and here else level

    return [(call, moved(call.launch, level)) for call, level in forward]
