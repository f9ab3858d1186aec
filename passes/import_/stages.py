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


def number_stages(main: ir.OpView, placed: Sequence[PlacedCall]) -> None:
    """Gives launches the number of their stage, unless the user chose one.

    Stages are maximal runs of forward calls on one slice, numbered in topological order. In a loop only what
    depends on the microbatch counts. A call in front of the loop that prepares what a stage on its slice
    reads is part of that stage, and so is its backward call.

    Args:
      main: the function that launches.
      placed: all its launches, in order.
    """
    level_of: dict[ir.Value, _Level] = {}
    forward: list[tuple[PlacedCall, _Level]] = []
    # Where only gradients are asked for, `jax.checkpoint` leaves no forward call but the repeated one.
    run_forward = {call.call for call in placed if call.kind == "fwd"}
    calls = iter(placed)
    for op in body_block(main).operations:
        in_loop = loop_of_op(op) is not None
        read = [v for v in op.operands if loop_of(v) is not None] if in_loop else op.operands
        incoming = [level_of[v] for v in read if v in level_of]
        if isinstance(op, LaunchOp):
            call = next(calls)
            if call.kind == "fwd" or (call.kind == "recompute" and call.call not in run_forward):
                here = max((lvl + (s != op.slice) for lvl, s in incoming), default=0)
                forward.append((call, (here, op.slice)))
                incoming = [(here, op.slice)]
        if incoming:
            level_of.update(dict.fromkeys(op.results, max(incoming)))
    forward = _with_readers(main, forward)
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
