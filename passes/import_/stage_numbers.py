"""Numbers of pipeline stages, from the slices of forward calls.

A loop may differentiate gradients, as for a gradient penalty. Then the calls of these gradients are forward
calls with stages of their own, and have backward calls.

    front (s0)   back (s1)   back_grad (s1)   front_grad (s0)      one microbatch, to the right
    stage 0      stage 1     stage 2          stage 3              each of them has a backward
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, Origin, loop_of, loop_of_op
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import captured


@dataclasses.dataclass
class PlacedCall:
    """A launch, and the call of the trace that it stems from.

    Attributes:
      origin: its origin in the launch, once stages have numbers.
      lineage: how differentiation made it of the call; see `CallMetadata`.
    """

    launch: LaunchOp
    call: str
    origin: Origin
    lineage: str = ""

    @property
    def kind(self) -> str:
        """Whether it is forward, backward or repeated."""
        return self.origin.kind

    @property
    def stage(self) -> int | None:
        """Stage of the call, None where it has none yet."""
        return self.origin.stage

    @property
    def identity(self) -> tuple[str, str]:
        """Identity of its computation; a repeated call has that of the first one, also if either was cut."""
        return self.call, self.lineage.rstrip("0")

    @property
    def differentiated(self) -> tuple[str, str]:
        """For a backward call the identity of the one that it is the backward of."""
        return self.call, self.lineage[:-1].rstrip("0")

    def set_stage(self, stage: int, anew: bool = False) -> None:
        """Gives it a stage; replaces a stage that the user chose only if `anew`."""
        if self.stage is None or anew:
            self.set_origin(stage=stage)

    def make_gradient(self) -> None:
        """Makes a backward call one that the forward needs."""
        self.set_origin(kind="grad")

    def set_origin(self, **changes: Any) -> None:
        """Replaces the origin of the call in the launch, once stages have numbers."""
        self.origin = dataclasses.replace(self.origin, **changes)


class _Level(NamedTuple):
    """A stage without a number yet.

    Attributes:
      depth: the number of changes before it, of slice or of whether calls are gradients.
      is_gradient: whether its calls are gradients.
      chosen: the stage that the user chose, in a loop that differentiates gradients.
    """

    depth: int
    slice: str
    is_gradient: bool
    chosen: int | None

    @property
    def place(self) -> tuple[str, bool, int | None]:
        """Properties that all calls of a stage have in common."""
        return self[1:]


@dataclasses.dataclass(frozen=True)
class _Forward:
    """A forward call and its level.

    Attributes:
      reads: the positions of the forward calls whose results it reads, directly or through other code.
    """

    call: PlacedCall
    level: _Level
    reads: frozenset[int]


def number_stages(main: ir.OpView, placed: Sequence[PlacedCall], loops: Collection[str]) -> None:
    """Gives launches the number of their stage, unless the user chose one, and the identity of their call.

    Stages are maximal runs of forward calls on one slice, numbered in topological order. In a loop only calls
    that depend on the microbatch count. A call in front of the loop that prepares operands of a stage on its
    slice is part of that stage, and so is its backward call.

    Gradients that a loop differentiates, or that its forward needs, are forward calls of stages of their own.
    In such a loop a stage that the user chose only distinguishes stages: calls of one function may come
    before and after its gradients, and cannot have one number.

    Args:
      placed: all its launches, in order.
      loops: the loops over microbatches.
    """
    forward = _forward_calls(main, placed)
    # A gradient that is found is a forward call, and may need others. Kinds only change in this direction.
    while _find_gradients(main, placed, forward, loops):
        forward = _forward_calls(main, placed)
    levels = _with_readers(main, [(f.call, f.level) for f in _joined(forward)])
    keys = sorted(dict.fromkeys(level for _, level in levels), key=lambda level: level.depth)
    numbers = {key: n for n, key in enumerate(keys)}
    counted = _with_gradients(placed)
    stages: dict[tuple[str, str], list[int]] = {}
    for call, level in levels:
        call.set_stage(numbers[level], anew=call.launch.loop in counted)
        stages.setdefault(call.identity, []).append(call.stage or 0)
    # Backward calls meet the forward calls they stem from in reverse.
    numbered = {id(call) for call, _ in levels}
    for call in placed:
        call_stages = stages.get(call.differentiated if call.kind == "bwd" else call.identity, [])
        if id(call) in numbered or not call_stages:
            continue
        if call.kind == "bwd":
            # Rotated: the next backward call gets the stage before this one, and after the first the last.
            call_stages.insert(0, call_stages.pop())
        call.set_stage(call_stages[0], anew=call.launch.loop in counted)
    for call in placed:
        call.launch.origins = (call.origin,)


def _with_gradients(placed: Sequence[PlacedCall]) -> set[str]:
    """Returns the loops that have gradients as stages."""
    return {call.launch.loop for call in placed if call.kind == "grad" and call.launch.loop is not None}


def _forward_calls(main: ir.OpView, placed: Sequence[PlacedCall]) -> list[_Forward]:
    """Returns the forward calls, each at the first level at which it can be."""
    # Where only gradients are computed, `jax.checkpoint` leaves no forward call but the repeated one.
    run_forward = {call.identity for call in placed if call.kind in ("fwd", "grad")}
    calls = {
        call.launch.operation: call
        for call in placed
        if call.kind in ("fwd", "grad") or (call.kind == "recompute" and call.identity not in run_forward)
    }
    repeated = {
        call.launch.operation: call.identity
        for call in placed
        if call.kind == "recompute" and call.identity in run_forward
    }
    operations = [(op, captured(op), list(op.results)) for op in body_block(main).operations]
    leading: set[ir.Value] = set()
    """Values that lead to forward calls; values of the backward do not, and read very many of them."""
    for op, operands, results in reversed(operations):
        if op.operation in calls or not leading.isdisjoint(results):
            leading.update(operands)
    backward = {call.launch.operation for call in placed if call.kind == "bwd"}
    counted = _with_gradients(placed)
    after: set[ir.Value] = set()
    """Values of a microbatch that its backward leads to: their readers are not part of the forward."""
    forward: list[_Forward] = []
    later: dict[ir.Value, frozenset[int]] = {}
    run: dict[tuple[str, str], frozenset[int]] = {}
    for op, operands, results in operations:
        loop = loop_of_op(op)
        in_loop = loop is not None
        read = [v for v in operands if v in later and (loop is None or loop_of(v) == loop)]
        reads = frozenset().union(*(later[v] for v in read)) if read else frozenset()
        if op.operation in repeated:
            # A reader of a repeated call comes after the call itself.
            reads |= run.get(repeated[op.operation], frozenset())
        if in_loop and (op.operation in backward or not after.isdisjoint(operands)):
            after.update(results)
        elif op.operation in calls:
            call = calls[op.operation]
            place = (op.slice, call.kind == "grad", call.stage if loop in counted else None)
            levels = (forward[n].level for n in reads)
            # Calls in a row at one place are one stage: only a change of place goes deeper.
            depth = max((level.depth + (level.place != place) for level in levels), default=0)
            forward.append(_Forward(call, _Level(depth, *place), reads))
            reads = frozenset({len(forward) - 1})
            run[call.identity] = run.get(call.identity, frozenset()) | reads
        if reads:
            later.update((result, reads) for result in results if result in leading)
    return forward


def _find_gradients(
    main: ir.OpView, placed: Sequence[PlacedCall], forward: Sequence[_Forward], loops: Collection[str]
) -> bool:
    """Finds backward calls of loops that the forward needs, and makes gradients of them.

    These are not differentiated themselves, as with `jax.lax.stop_gradient`, or JAX would have marked them.
    A backward call is a gradient if a differentiated forward call reads it, or the backward call of a later
    stage: backward calls lead to earlier stages.

    Returns:
      whether there were any.
    """
    backward = {
        call.launch.operation: call for call in placed if call.kind == "bwd" and call.launch.loop in loops
    }
    trained = {call.differentiated for call in backward.values()}
    first: dict[tuple[str, str], int] = {}
    last: dict[tuple[str, str], int] = {}
    for forward_call in forward:
        of, depth = forward_call.call.identity, forward_call.level.depth
        first[of], last[of] = min(depth, first.get(of, depth)), max(depth, last.get(of, depth))
    needed = {
        call.launch.operation
        for call in placed
        if call.kind == "grad" or (call.kind == "fwd" and call.identity in trained)
    }
    into: dict[ir.Value, float] = {}
    """The depth of the latest reader of each value: the stage of a backward call, or infinite."""
    gradients: list[PlacedCall] = []
    for op in reversed(list(body_block(main).operations)) if backward else ():
        if loop_of_op(op) not in loops:
            continue
        leads = max((into.get(result, -1) for result in op.results), default=-1)
        call = backward.get(op.operation)
        if op.operation in needed:
            leads = math.inf
        elif call is not None:
            # The backward of a stage leads to earlier backwards. If it leads to a later one, or to the
            # forward, these need it to compute a value: it is a gradient.
            if leads > last.get(call.differentiated, len(forward)):
                gradients.append(call)
                leads = math.inf
            leads = max(leads, first.get(call.differentiated, -1))
        for value in captured(op) if leads >= 0 else ():
            into[value] = max(leads, into.get(value, -1))
    for call in gradients:
        call.make_gradient()
    return bool(gradients)


def _joined(forward: Sequence[_Forward]) -> list[_Forward]:
    """Joins side branches: calls join the next level of their place if all their readers are as late."""
    joined = list(forward)
    readers: list[list[int]] = [[] for _ in joined]
    for n, member in enumerate(joined):
        for other in member.reads:
            readers[other].append(n)
    members: dict[_Level, list[int]] = {}
    for n, member in enumerate(joined):
        members.setdefault(member.level, []).append(n)
    following: dict[tuple[str, bool, int | None], _Level] = {}
    for level in sorted(members, key=_sorted_by, reverse=True):
        reading = {r for n in members[level] for r in readers[n]} - set(members[level])
        # A reader at another place must come at least one level later.
        bounds = [joined[r].level.depth - (joined[r].level.place != level.place) for r in reading]
        latest = min(bounds, default=level.depth)
        later = following.get(level.place)
        if later is not None and later.depth <= latest:
            for n in members[level]:
                joined[n] = dataclasses.replace(joined[n], level=later)
        else:
            following[level.place] = level
    return joined


def _sorted_by(level: _Level) -> tuple[int, str, bool, int]:
    return level.depth, level.slice, level.is_gradient, -1 if level.chosen is None else level.chosen


def _with_readers(
    main: ir.OpView, forward: list[tuple[PlacedCall, _Level]]
) -> list[tuple[PlacedCall, _Level]]:
    """Gives calls in front of a loop the level of its first call on their slice that reads them.

    A call that no call of a level reads has no stage of its own if it is inside of a call of the loop.
    """
    levels = {
        call.launch.results[0]: level for call, level in forward if call.launch.loop and call.launch.results
    }
    read_at: dict[ir.Value, frozenset[_Level]] = {}
    for op in reversed(list(body_block(main).operations)) if levels else ():
        if op.results and op.results[0] in levels:
            before = frozenset({levels[op.results[0]]})
        # Not a forward call: operands of a backward, for example, prepare no stage.
        elif isinstance(op, LaunchOp) and op.loop is not None:
            continue
        else:
            before = frozenset().union(*(read_at.get(r, frozenset()) for r in op.results))
        for value in captured(op) if before else ():
            read_at[value] = read_at.get(value, frozenset()) | before

    in_loop = {call.identity for call, _ in forward if call.launch.loop is not None}

    def moved(call: PlacedCall, level: _Level) -> _Level | None:
        launch = call.launch
        if launch.loop is not None:
            return level
        readers = frozenset().union(*(read_at.get(r, frozenset()) for r in launch.results))
        here = [reader for reader in readers if reader.slice == launch.slice]
        if here:
            return min(here, key=_sorted_by)
        return None if call.identity in in_loop else level

    levels_now = ((call, moved(call, level)) for call, level in forward)
    return [(call, level) for call, level in levels_now if level is not None]
