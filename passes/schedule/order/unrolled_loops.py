"""Loops in the IR: the launches of each action of a loop, and the needs of each action."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxlib.mlir import ir

from pathways.dialect import LoopOp, Origin, loop_of_op, ops_named
from pathways.dialect.relations.graphs import CycleError, topological_order
from pathways.dialect.relations.order import Event
from pathways.passes.manager.base import fail
from pathways.passes.schedule.policies.actions import Action, action_of
from pathways.passes.schedule.policies.schedule_file import Work


@dataclasses.dataclass
class Loop:
    """An unrolled loop.

    Attributes:
      op: its declaration.
      members: its launches, as numbers of events in block order.
      origins: the placed calls of each launch that is not glue.
      actions: the actions of a launch, one after the other; none for glue and repeated computations.
      slices: the slice of each stage, by ascending stage.
      needs: the names of the loops whose results it reads, directly or through others.
    """

    op: LoopOp
    members: list[int]
    origins: dict[int, Sequence[Origin]]
    actions: dict[int, tuple[Action, ...]]
    slices: dict[int, str]
    needs: frozenset[str] = frozenset()


def read_loops(module: ir.Module, events: Sequence[Event]) -> list[Loop]:
    """Returns the loops to schedule that have launches, in an order in which no loop needs a later one.

    Raises:
      PassFailure: when loops need each other, or a stage is on several slices.
    """
    loops: dict[str, Loop] = {
        op.sym_name: Loop(op, [], {}, {}, {})
        for op in ops_named(module, ["pw.loop"])
        if isinstance(op, LoopOp) and not op.sequential
    }
    for n, event in enumerate(events):
        name = loop_of_op(event.op)
        if event.kind == "launch" and name in loops:
            _add(loops[name], n, event)
    for loop in loops.values():
        loop.slices = dict(sorted(loop.slices.items()))
    return _sorted([loop for loop in loops.values() if loop.members], events)


def _add(loop: Loop, n: int, event: Event) -> None:
    loop.members.append(n)
    origins = event.op.origins
    if origins:
        loop.origins[n] = origins
    actions = tuple(action for origin in origins if (action := action_of(origin)) is not None)
    for action in actions:
        place = loop.slices.setdefault(action.stage, event.slice)
        if place != event.slice:
            fail(event.op, f"puts stage {action.stage} on @{event.slice}, but it is on @{place} already")
    if actions:
        loop.actions[n] = actions


def _sorted(loops: list[Loop], events: Sequence[Event]) -> list[Loop]:
    """Sorts loops by their dependences; independent loops keep their order."""
    loop_of = {n: number for number, loop in enumerate(loops) for n in loop.members}
    needed: list[set[int]] = []
    needs: list[set[int]] = [set() for _ in loops]
    for n, event in enumerate(events):
        before = set().union(*(needed[other] for other in event.waits_for))
        number = loop_of.get(n)
        if number is not None:
            needs[number] |= before - {number}
            before |= {number}
        needed.append(before)
    for loop, before in zip(loops, needs, strict=True):
        loop.needs = frozenset(loops[n].op.sym_name for n in before)
    try:
        order = topological_order(dict(enumerate(needs)))
    except CycleError as error:
        first, other = (loops[n].op for n in (*error.cycle, *error.cycle)[:2])
        fail(first, f"needs results of @{other.sym_name}, which needs results of this loop")
    return [loops[n] for n in order]


def nearest_before(events: Sequence[Event], loop: Loop) -> list[frozenset[Action]]:
    """Returns the actions of a loop that each event reads, directly or through launches without one."""
    nearest: list[frozenset[Action]] = []
    through: list[frozenset[Action]] = []
    for n, event in enumerate(events):
        nearest.append(frozenset().union(*(through[other] for other in event.waits_for)))
        through.append(frozenset(loop.actions[n]) if n in loop.actions else nearest[n])
    return nearest


def nearest_after(events: Sequence[Event], loop: Loop) -> list[frozenset[Action]]:
    """Returns the actions of a loop that read each event, directly or through launches without one."""
    nearest: list[set[Action]] = [set() for _ in events]
    for n in reversed(range(len(events))):
        through = set(loop.actions[n]) if n in loop.actions else nearest[n]
        for other in events[n].waits_for:
            nearest[other] |= through
    return [frozenset(actions) for actions in nearest]


def work_of(module: ir.Module, events: Sequence[Event], loop: Loop) -> Work:
    """Returns the actions of a loop, and the needs of each of them."""
    before = nearest_before(events, loop)
    needs: dict[Action, set[Action]] = {}
    for n, actions in loop.actions.items():
        for position, action in enumerate(actions):
            # Actions of one launch run one after the other; one of several launches does not wait for itself.
            needs.setdefault(action, set()).update((before[n] | set(actions[:position])) - {action})
    placed = set(loop.slices.values())
    rows = [op.sym_name for op in ops_named(module, ["pw.slice"]) if op.sym_name in placed]
    return Work(rows, loop.slices, loop.op.count, needs)
