"""`pw-schedule`: gives every launch and send its position on its slice, and every transfer a channel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import Origin, ops_named, symbol_table
from pathways.dialect.attributes.call_times import CallTimes
from pathways.dialect.attributes.fields import CALL_TIMES
from pathways.dialect.attributes.names import MAX_OPERATIONS, TIMES
from pathways.dialect.relations.graphs import CycleError, topological_order
from pathways.dialect.relations.order import Event, data_events, device_queues, sort_block
from pathways.dialect.relations.program_view import read_function
from pathways.dialect.verification.forms import ORDERED, UNROLLED
from pathways.passes.analysis.links import read_link
from pathways.passes.analysis.quantities import FLOPS, UNITS, TimesError
from pathways.passes.manager.base import Pass, fail, main_function, option, remark
from pathways.passes.schedule.order.channels import assign_channels
from pathways.passes.schedule.order.costs import (
    LaunchTimes,
    bytes_held,
    bytes_limits,
    delays_of,
    durations_of,
)
from pathways.passes.schedule.order.ordering import Costs, orders_by
from pathways.passes.schedule.order.replica_loops import (
    first_replica,
    interleaved,
    side_by_side,
    starts_from_replica,
)
from pathways.passes.schedule.order.sequence import sequence
from pathways.passes.schedule.order.unrolled_loops import Loop, nearest_before, read_loops, work_of
from pathways.passes.schedule.policies.actions import Action, ActionCycleError, Needs, Orders, start_times
from pathways.passes.schedule.policies.custom import registered
from pathways.passes.schedule.policies.pipeline import PolicyError
from pathways.passes.schedule.policies.registry import CUSTOM, PROGRAM, SEARCH
from pathways.passes.schedule.policies.request import RequestError, ScheduleRequest, read_request
from pathways.passes.schedule.policies.schedule_file import (
    ScheduleFileError,
    Work,
    read_schedules,
    write_schedules,
)
from pathways.passes.schedule.search.exact import NoSolverError


@dataclasses.dataclass(frozen=True)
class Schedule(Pass):
    """Orders the launches and sends of each slice and assigns channels.

    The order of a loop over microbatches comes from a file, or from a policy: the option, else the `schedule`
    of the `pw.loop`, else `program`.

    - `program` keeps the order of the program.
    - `gpipe` does all forwards, then all backwards.
    - `1f1b` runs a backward as soon as one is ready, and keeps the fewest activations alive.
    - `interleaved-1f1b` does the same with several stages per slice, assigned round-robin.
    - `eager` prefers the actions that are furthest from the end of the step.
    - `zb-h1` is `1f1b` with the weight halves of backwards filling its bubbles.
    - `zb-h2` idles less, and keeps nearly twice as much alive.
    - `zb-v` does so for the memory of `1f1b`, with two stages on each slice in a V.
    - `interleaved-zb` is `interleaved-1f1b` with halves, `looped-bfs` is `gpipe` with round-robin stages.
    - `search` looks for an order that is faster than all of these.

    A program may bring a policy, a function that sees the shape of the pipeline. Its loops then
    request `custom`, whose order cannot be computed again without the program.

    A policy may have options, as in `zb-h1(max-live=4, times=times.json)`: limits on live values, which are
    `max-live`, `max-pending` and `max-bytes`, and `times`: a file of durations or a trace, `flops` for
    estimates, or `units`, with the `latency` and `bandwidth` of links. By `1f1b`, `eager`, `zb-h1` and
    `zb-h2` actions are then ordered as these take time, if that is faster than their pattern. A search has
    `seconds`, `iterations`, `seed` and `solver` too; a remark states the result.

    A launch of a loop that is neither forward nor backward runs right before the action that first needs it
    if that is on its slice; if another slice needs it first, as soon as possible. Launches outside loops run
    before the loops, or after the loops whose results they read; launches without relation to any loop run
    after all of them. Exchanges of replicas overlap with the loop: each runs after its operands, sums one
    action later, when the terms of others have arrived. Loops of replicas have one schedule and run side by
    side; if each starts from results of the one before, the launches for these that need no action run first.
    Slices that may share devices have one order together. The block of `@main` is sorted by the order.

    Transfers of one type and sharding between two slices share a channel as long as their values are first
    read in the order in which they are sent; a channel's capacity is large enough that no send waits for room
    in that order.

    The module's `pw.times` records how long placed calls take, by their operations, and which times the
    orders were computed with, so that a replay can use the same.

    ```mlir
    // before
    %0 = pw.launch @f(%arg0) on @s0
    %1 = pw.transfer %0 to @s1
    %2 = pw.launch @f(%0) on @s0
    %3 = pw.launch @f(%1) on @s1
    // after
    %0 = pw.launch @f(%arg0) on @s0 order 0
    %1 = pw.transfer %0 to @s1 over @c0 order 1
    %2 = pw.launch @f(%0) on @s0 order 2
    %3 = pw.launch @f(%1) on @s1 order 0
    ```

    Requires: loops unrolled; memory not planned yet: buffers end by the order.
    Guarantees: every launch and transfer has an `order`, every transfer a `channel`; the order can be met.
    """

    name: ClassVar[str] = "pw-schedule"
    input_forms = (UNROLLED, ORDERED)
    output_form = ORDERED
    policy: str = option(
        "", "the policy of all loops, overriding that of each; with options, such as 'zb-h1(times=flops)'"
    )
    file: str = option("", "a CSV file with the orders of all loops, instead of a policy")
    max_live: int = option(0, "how many microbatches a stage may have in flight; 0 for no limit")

    def __post_init__(self) -> None:
        if self.policy and self.file:
            raise ValueError("policy and file exclude each other")
        if self.max_live and self.file:
            raise ValueError("max-live and file exclude each other")
        if self.max_live < 0:
            raise ValueError(f"max-live must not be negative, got {self.max_live}")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        for op in ops_named(module, ["pw.slice"]):
            if op.peak_bytes is not None:
                fail(op, "has a memory plan, which is for the order that is there; run pw-schedule before it")
        if self.policy:
            try:
                read_request(self.policy)
            except RequestError as error:
                fail(main, f"cannot be scheduled by {error}")
        for op in ops_named(module, ["pw.channel"]):
            op.operation.erase()
        events = data_events(read_function(module, symbol_table(module), main))
        loops = read_loops(module, events)
        with_launches = {loop.op.sym_name for loop in loops}
        for op in ops_named(module, ["pw.loop"]):
            if op.sym_name not in with_launches and not op.sequential:
                remark(op, "has no launches: no used value depends on the microbatch")
        launches = LaunchTimes(module, events, _placed_calls(events, loops))
        requested = [] if self.file else [_times_for(self.request(loop.op)) for loop in loops]
        _write_times(module, launches.of_calls([times for times in requested if times]))
        # Replicas do the same work: one schedule is that of all their loops.
        distinct: dict[str, Loop] = {}
        for loop in loops:
            distinct.setdefault(first_replica(loop), loop)
        if self.file:
            by_name = self.by_file(main, module, events, distinct)
        else:
            by_name = {
                name: self.by_policy(module, events, loop, launches) for name, loop in distinct.items()
            }
        times = [by_name[first_replica(loop)] for loop in loops]
        queues = device_queues(module)
        replicas = {op.sym_name: op.replica or 0 for op in ops_named(module, ["pw.slice"])}
        if any(times):
            order = sequence(events, loops, times)
            # Such loops follow each other in the sequence, but overlap as far as their data lets them.
            if any(starts_from_replica(loop, loops) for loop in loops):
                order = side_by_side(events, order, queues)
            ordered = [events[n] for n in order]
        elif any(replicas.values()):
            ordered = [events[n] for n in interleaved(events, replicas)]
        else:
            ordered = events
        if ordered is not events:
            sort_block(main, [event.op for event in ordered])
        counters: dict[str, int] = {}
        for event in ordered:
            queue = queues[event.slice]
            event.set_order(counters.get(queue, 0))
            counters[queue] = counters.get(queue, 0) + 1
        assign_channels(module, main, ordered)
        for loop in loops:
            # Caches and bundles know a program by its text, which states the order: the name adds nothing.
            if loop.op.schedule and registered(loop.op.schedule.partition("(")[0]) is not None:
                loop.op.schedule = CUSTOM

    def by_policy(
        self, module: ir.Module, events: list[Event], loop: Loop, launches: LaunchTimes
    ) -> dict[Action, int]:
        """Returns the start of each action of a loop; nothing when it stays in the order of the program."""
        request = self.request(loop.op)
        if request.policy == PROGRAM:
            if request != ScheduleRequest():
                fail(loop.op, f"asks for '{request}', but '{PROGRAM}' has no options")
            return {}
        work = _work_of(module, events, loop)
        _check_needs(request, loop, work)
        try:
            orders = _apply(
                request, work, loop, lambda: _costs(request, module, events, loop, work, launches)
            )
            return start_times(orders, work.needs)
        except ActionCycleError as error:
            fail(
                loop.op,
                f"cannot be scheduled by '{request}', which requires that no forward reads a backward: use "
                f"'{PROGRAM}' or a schedule file; {error.describe(str, work.slices)}",
            )

    def request(self, loop: ir.OpView) -> ScheduleRequest:
        """Returns the policy that a loop requests, with its limits."""
        try:
            request = read_request(self.policy or loop.schedule or PROGRAM)
        except RequestError as error:
            fail(loop, f"asks for {error}")
        return dataclasses.replace(request, max_live=self.max_live) if self.max_live else request

    def by_file(
        self, main: ir.OpView, module: ir.Module, events: list[Event], loops: Mapping[str, Loop]
    ) -> dict[str, dict[Action, int]]:
        """Returns the start of each action of each loop by the file; nothing for loops without stages."""
        staged = {name: loop for name, loop in loops.items() if loop.slices}
        if not staged:
            fail(main, "has no loop with stages that a schedule file could order")
        works = {name: _work_of(module, events, loop) for name, loop in staged.items()}
        (first, *more) = (loop.op for loop in staged.values())
        subject = main if more else first
        try:
            # Spreadsheets put a byte order mark in front.
            orders = read_schedules(Path(self.file).read_bytes().decode("utf-8-sig"), works)
        except OSError as error:
            fail(subject, f"cannot be scheduled by '{self.file}': {error.strerror}")
        except UnicodeDecodeError:
            fail(subject, f"cannot be scheduled by '{self.file}': it is not UTF-8 text")
        except ScheduleFileError as error:
            op = subject if error.loop is None else staged[error.loop].op
            fail(op, f"cannot be scheduled by '{self.file}': {error}")
        return {
            name: start_times(orders[name], works[name].needs) if name in orders else {} for name in loops
        }


def _work_of(module: ir.Module, events: list[Event], loop: Loop) -> Work:
    """Returns the work of a loop, with a remark if ordering it is of no use."""
    slices = {events[n].slice for n in loop.members}
    if len(slices) == 1:
        remark(loop.op, f"runs on @{slices.pop()} alone: nothing is pipelined")
    _check_stage_order(events, loop)
    return work_of(module, events, loop)


def _apply(
    request: ScheduleRequest, work: Work, loop: Loop, costs: Callable[[], Costs]
) -> Sequence[Sequence[Action]]:
    """Returns the orders of the slices by a policy."""
    if len(work.slices) * work.microbatches > MAX_OPERATIONS:
        size = f"{len(work.slices)} stages x {work.microbatches} microbatches"
        fail(loop.op, f"has {size}; a policy orders at most {MAX_OPERATIONS} actions")
    try:
        return orders_by(request, work, costs(), lambda message: remark(loop.op, message))
    except PolicyError as error:
        fail(loop.op, f"cannot be scheduled by '{request}', which {error}")
    except (TimesError, NoSolverError) as error:
        fail(loop.op, f"cannot be scheduled by '{request}': {error}")


def _times_for(request: ScheduleRequest) -> str:
    """Returns the times that a policy goes by; empty for none."""
    return request.times or (FLOPS if request.policy == SEARCH else "")


def _placed_calls(events: list[Event], loops: Sequence[Loop]) -> dict[int, Sequence[Origin]]:
    """Returns the placed calls that each launch represents, without glue."""
    calls = {n: origins for loop in loops for n, origins in loop.origins.items()}
    members = {n for loop in loops for n in loop.members}
    for n, event in enumerate(events):
        if event.kind == "launch" and n not in members and (origins := event.op.origins):
            calls[n] = origins
    return calls


def _write_times(module: ir.Module, times: CallTimes) -> None:
    attributes = module.operation.attributes
    if times.tables:
        attributes[TIMES] = CALL_TIMES.make(times)
    elif TIMES in attributes:
        del attributes[TIMES]


def _costs(
    request: ScheduleRequest,
    module: ir.Module,
    events: list[Event],
    loop: Loop,
    work: Work,
    launches: LaunchTimes,
) -> Costs:
    """Returns the costs of the actions of a loop, as far as a policy requests them."""
    durations = delays = ties = None
    times = _times_for(request)
    if times:
        durations, unit = durations_of(loop, launches, times)
        if not any(durations.values()):
            durations = None
        elif times == FLOPS:
            ties, _ = durations_of(loop, launches, UNITS)
        if request.latency or request.bandwidth:
            link = read_link(request.latency or None, request.bandwidth or None, unit)
            delays = delays_of(events, loop, link)
    if not request.max_bytes:
        return Costs(durations, delays=delays, ties=ties)
    held = bytes_held(module, events, loop, work.needs)
    return Costs(durations, bytes_limits(held, request.max_bytes), delays, ties)


def schedule_of(module: ir.Module) -> str:
    """Returns the schedules of the loops of a program, as a file that `pw-schedule` reads.

    Raises:
      PassFailure: when there is no program, it is not scheduled, has no loop with stages, or an order has a
        cycle.
    """
    main = main_function(module)
    events = data_events(read_function(module, symbol_table(module), main))
    # Loops of other replicas have the same costs.
    loops = [loop for loop in read_loops(module, events) if loop.op.replica_of is None and loop.slices]
    if not loops:
        fail(main, "has no loop with stages to write a schedule file for")
    schedules: dict[str, tuple[Orders, Needs]] = {}
    for loop in loops:
        unordered = next((n for n in loop.members if events[n].order is None), None)
        if unordered is not None:
            fail(events[unordered].op, "has no `order`; run pw-schedule first")
        work = work_of(module, events, loop)
        in_order = sorted(loop.actions, key=lambda n: events[n].op.order)
        orders = [
            list(dict.fromkeys(a for n in in_order if events[n].slice == row for a in loop.actions[n]))
            for row in work.rows
        ]
        try:
            start_times(orders, work.needs)
        except ActionCycleError as error:
            fail(loop.op, error.describe(str, work.slices))
        schedules[loop.op.sym_name] = orders, work.needs
    return write_schedules(schedules)


def _check_stage_order(events: list[Event], loop: Loop) -> None:
    """Checks that no forward reads results of a later stage."""
    reads: dict[int, set[int]] = {}
    against: tuple[ir.OpView, int, int] | None = None
    for n, before in enumerate(nearest_before(events, loop)):
        (action, *_) = loop.actions.get(n, (None,))
        if action is None or action.kind != "F":
            continue
        # Values that another microbatch passed on may come from any stage.
        same = {other for other in before if other.kind == "F" and other.microbatch == action.microbatch}
        stages = {other.stage for other in same} - {action.stage}
        reads.setdefault(action.stage, set()).update(stages)
        later = max(stages, default=action.stage)
        if later > action.stage and against is None:
            against = (events[n].op, action.stage, later)
    if against is None:
        return
    op, stage, later = against
    both = f"belongs to stage {stage} and reads results of stage {later}"
    try:
        topological_order(reads)
    except CycleError as error:
        if stage in error.cycle:
            fail(
                op,
                f"{both}, which needs results of stage {stage}: no numbers fit; leave out `stage=`, or use "
                f"'{PROGRAM}'",
            )
    fail(
        op, f"{both}; number stages in the order in which a microbatch goes through them, or use '{PROGRAM}'"
    )


def _check_needs(request: ScheduleRequest, loop: Loop, work: Work) -> None:
    """Checks that no action waits for itself by way of others in every order."""
    try:
        topological_order(work.needs)
    except CycleError as error:
        waits = ActionCycleError([(action, True) for action in error.cycle])
        fail(
            loop.op,
            f"cannot be scheduled by '{request}', which runs all work of a stage for a microbatch at "
            f"once: use '{PROGRAM}'\n{waits.waits(str, work.slices)}",
        )
