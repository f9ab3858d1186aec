"""What must hold between the operations of a program: a function each; `dialect/forms.py` says where."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxlib.mlir import ir

from pathways.dialect.layouts import Layouts
from pathways.dialect.loops import is_unrolled, loop_of, loop_of_op
from pathways.dialect.meshes import replicated
from pathways.dialect.names import BLOCK, CONSTANT, DONATED, LOOP, REPLICA, SHARDING, SLICE
from pathways.dialect.operation import PwOp, counted, is_program, nested_ops, op_has, referenced_symbols
from pathways.dialect.ops import (
    AllGatherOp,
    AllReduceOp,
    CarryOp,
    LaunchOp,
    NextOp,
    ReduceOp,
    ReduceScatterOp,
    SliceOp,
    SplitOp,
    TransferOp,
)
from pathways.dialect.order import DeadlockError, Event, device_queues, events_of, proved_order
from pathways.dialect.placement import Slices, argument_attrs, donated_arguments, read_slices
from pathways.dialect.program import ProgramView
from pathways.dialect.replicas import ReplicaPort
from pathways.dialect.shardings import read_sharding
from pathways.dialect.traits import Trait

Report = Callable[[ir.OpView, str], None]
Relation = Callable[[ProgramView, Report], None]


def operands_are_alive(program: ProgramView, report: Report) -> None:
    """Nothing is read after it was released or donated, and nothing ends that is passed twice."""
    ended: dict[ir.Value, str] = {}
    donated: dict[str, frozenset[int]] = {}
    copies: dict[ir.Value, frozenset[ir.Value]] = {}
    for op in (*program.ops, program.terminator):
        parts = [copies.get(value, frozenset({value})) for value in op.operands]
        for number, values in enumerate(parts):
            for how in sorted({ended[value] for value in values if value in ended}):
                report(op, f"operand #{number} is used after it was {how}")
        if op_has(op, Trait.JOINS):
            copies[op.results[0]] = frozenset().union(*parts)
        if op_has(op, Trait.ENDS):
            for number, values in enumerate(parts):
                if not values.isdisjoint(frozenset().union(*parts[:number])):
                    report(op, f"releases operand #{number}, which it was given before")
                ended.update(dict.fromkeys(values, "released"))
        if not op_has(op, Trait.EXECUTES):
            continue
        if op.callee not in donated:
            donated[op.callee] = donated_arguments(program.symbols[op.callee])
        given: dict[ir.Value, list[int]] = {}
        for number, values in enumerate(parts) if donated[op.callee] else ():
            for value in values:
                given.setdefault(value, []).append(number)
        for number in sorted(donated[op.callee]):
            again = [n for value in parts[number] for n in given[value] if n != number]
            if again:
                report(op, f"donates operand #{number}, which it is also given as operand #{min(again)}")
            ended.update(dict.fromkeys(parts[number], "donated"))


def arguments_carry_constants(program: ProgramView, report: Report) -> None:
    """A hidden argument has the type of the constant that it receives."""
    for number, (attrs, type_) in enumerate(zip(program.arguments, program.main.type.inputs, strict=True)):
        if CONSTANT not in attrs:
            continue
        constant = program.symbols[attrs[CONSTANT].value]
        if constant.value.type != type_:
            name = constant.sym_name
            report(program.main, f"argument #{number} is a {type_}, but @{name} is a {constant.value.type}")


def loops_are_closed(program: ProgramView, report: Report) -> None:
    """What reads a value of a loop is of the loop, or of one inside; `pw.reduce` and `pw.next` lead out."""
    members = {
        result: loop
        for op in program.ops
        if op.results and (loop := loop_of(op.results[0])) is not None
        for result in op.results
    }
    for op in (*program.ops, program.terminator):
        readers = (op,) if isinstance(op, PwOp) else (op, *nested_ops(op))
        reads = {members[value] for reader in readers for value in reader.operands if value in members}
        own = loop_of_op(op)
        if op_has(op, Trait.CLOSES_LOOP):
            if isinstance(op, ReduceOp):
                strange = reads - {op.loop}
                none = len(op.operands) == 1 and not reads and not _is_of(op, op.operands[0])
            else:
                strange, none = reads - set(_around(program, op.loop)), False
            if strange or none:
                report(op, f"{_VERBS[type(op)]} a value that is not of a microbatch of @{op.loop}")
            continue
        around = _around(program, own)
        if op_has(op, Trait.OPENS_LOOP):
            for loop in sorted(reads - set(around[1:])):
                verb = _VERBS[type(op)]
                report(op, f"{verb} a value of a microbatch of @{loop}, which @{own} is not inside of")
            continue
        strange = reads - set(around)
        if op is program.terminator:
            _refuse(op, "returns", sorted(strange), report)
        elif (not op_has(op, Trait.OF_LOOP) and isinstance(op, PwOp)) or is_unrolled(op):
            _refuse(op, "reads", sorted(reads), report)
        elif strange and own is not None:
            report(op, f"is of @{own}, but reads a value of a microbatch of @{min(strange)}")
        elif strange:
            name = "loop" if isinstance(op, PwOp) else LOOP
            report(op, f"reads a value of a microbatch of @{min(strange)}, but has no `{name}`")


_VERBS: Mapping[type[PwOp], str] = {
    SplitOp: "splits",
    CarryOp: "starts from",
    ReduceOp: "reduces",
    NextOp: "hands on",
}


def _is_of(reduction: ir.OpView, value: ir.Value) -> bool:
    """Whether a value is of the one microbatch that the loop of a reduction has, once it is unrolled."""
    if isinstance(value, ir.BlockArgument):
        return False
    op = value.owner.opview
    return is_unrolled(op) and op.loop == reduction.loop


def _around(program: ProgramView, loop: str | None) -> list[str]:
    """A loop, and those that it is inside of, innermost first."""
    loops = []
    while loop is not None:
        loops.append(loop)
        loop = program.symbols[loop].parent
    return loops


def _refuse(op: ir.OpView, verb: str, loops: list[str], report: Report) -> None:
    for loop in loops:
        report(op, f"{verb} a value of a microbatch of @{loop}; only pw.reduce and pw.next may take it out")


def carries_go_on(program: ProgramView, report: Report) -> None:
    """Exactly one `pw.next` says what a carried value is in the next turn, on the slice that it lives on."""
    counts: dict[ir.Value, int] = {}
    for op in program.ops:
        if isinstance(op, NextOp):
            counts[op.operands[0]] = counts.get(op.operands[0], 0) + 1
            here, there = (program.slices.get(value) for value in (op.results[0], op.operands[0]))
            if here != there:
                where = [_names(places) if places else "no slice" for places in (here, there)]
                report(op, f"is on {where[0]}, but what it hands on is carried on {where[1]}")
    for op in program.ops:
        if isinstance(op, CarryOp) and counts.get(op.results[0], 0) != 1:
            report(op, f"is handed on by {counted(counts.get(op.results[0], 0), 'pw.next')}, expected 1")


def microbatches_exist(program: ProgramView, report: Report) -> None:
    """A microbatch is one that its loop has, and so is that of every origin."""
    for op in program.ops:
        if not is_unrolled(op):
            continue
        if op.loop is None:
            report(op, "names a microbatch, but no loop")
            continue
        count = program.symbols[op.loop].count
        named = (
            [o.microbatch for o in op.origins if o.microbatch is not None] if isinstance(op, LaunchOp) else []
        )
        microbatch = max([op.microbatch, *named])
        if microbatch >= count:
            report(op, f"works on microbatch {microbatch}, but @{op.loop} has {count}")


def reductions_are_rolled(program: ProgramView, report: Report) -> None:
    """A reduction reads one value, which stands for that of each microbatch."""
    for op in program.ops:
        if isinstance(op, ReduceOp) and len(op.operands) != 1:
            report(op, f"has {len(op.operands)} operands before the loop @{op.loop} is unrolled, expected 1")


def reductions_are_unrolled(program: ProgramView, report: Report) -> None:
    """A reduction reads the value of each microbatch."""
    for op in program.ops:
        if isinstance(op, ReduceOp) and len(op.operands) != program.symbols[op.loop].count:
            report(op, f"has {len(op.operands)} operands for the microbatches of the loop @{op.loop}")


def sums_stand_for_replicas(program: ProgramView, report: Report) -> None:
    """A sum over replicas reads one value, which stands for that of each replica."""
    for op in program.ops:
        if isinstance(op, AllReduceOp) and len(op.operands) != 1:
            report(op, f"has {len(op.operands)} operands before there are replicas, expected 1")


def sums_are_over_replicas(program: ProgramView, report: Report) -> None:
    """What replicas exchange lies alike over different slices of one mesh."""
    layouts = None
    for op in program.ops:
        if not isinstance(op, AllReduceOp | ReduceScatterOp | AllGatherOp):
            continue
        layouts = layouts or Layouts(program.module)
        for value in () if isinstance(op, AllReduceOp) else op.results:
            for name in program.slices.get(value, ()):
                shape = ir.RankedTensorType(value.type).shape
                problem = layouts.of(value, name).problem(shape, program.meshes[name])
                if problem is not None:
                    report(op, f"makes what cannot lie over @{name}: {problem}")
        if len(op.operands) == 1:
            continue
        places = [program.slices.get(value, ()) for value in op.operands]
        if not all(len(here) == 1 for here in places) or len(set(places)) < len(places):
            named = " and ".join(map(_names, places))
            report(op, f"expected operands on one slice each, and all different, got {named}")
            continue
        lies = [
            (program.meshes[name], layouts.of(value, name))
            for value, (name,) in zip(op.operands, places, strict=True)
        ]
        if len(set(lies)) > 1:
            report(op, "exchanges values that lie differently over their slices")


def blocks_are_there(program: ProgramView, report: Report) -> None:
    """What each replica has a block of has the dimension that is cut."""
    for what, all_attrs, types in (
        ("argument", program.arguments, program.main.type.inputs),
        ("result", program.results, program.main.type.results),
    ):
        for number, (attrs, type_) in enumerate(zip(all_attrs, types, strict=True)):
            if BLOCK in attrs and attrs[BLOCK].value >= type_.rank:
                report(program.main, f"{what} #{number} is a block along a dimension that it lacks")


def replicas_are_one(program: ProgramView, report: Report) -> None:
    """No slice stands for several replicas."""
    for op in program.symbols.values():
        if isinstance(op, SliceOp) and op.replicas is not None:
            report(op, "has `replicas`; run pw-replicate")


def replicas_agree(program: ProgramView, report: Report) -> None:
    """What replicas have of an argument or result is alike, and each of them has it."""
    for what, all_attrs, types in (
        ("argument", program.arguments, program.main.type.inputs),
        ("result", program.results, program.main.type.results),
    ):
        groups: dict[int, list[tuple[ReplicaPort, tuple[ir.Type, bool, int, int | None]]]] = {}
        for attrs, type_ in zip(all_attrs, types, strict=True):
            if REPLICA in attrs:
                port = ReplicaPort.read(attrs[REPLICA])
                said = (type_, DONATED in attrs, port.count, port.split)
                groups.setdefault(port.of, []).append((port, said))
        for number, group in groups.items():
            ports = [port for port, _ in group]
            if len({said for _, said in group}) > 1 or len({port.number for port in ports}) < len(ports):
                report(program.main, f"{what} {number} is not alike on all replicas")
            elif program.host is None and len(group) < ports[0].count:
                report(program.main, f"{what} {number} is not on all {ports[0].count} replicas")
            elif (split := ports[0].split) is not None and split >= group[0][1][0].rank:
                report(program.main, f"{what} {number} is split along a dimension {split} that it lacks")
        if groups and sorted(groups) != list(range(len(groups))) and program.host is None:
            report(program.main, f"{what}s of replicas are numbered {sorted(groups)}")


def mirrored_copies_are_apart(program: ProgramView, report: Report) -> None:
    """No two copies of a mirrored value share a slice."""
    for op in program.ops:
        if not op_has(op, Trait.JOINS):
            continue
        seen: set[str] = set()
        for number, value in enumerate(op.operands):
            places = program.slices.get(value, ())
            for name in sorted(seen.intersection(places)):
                report(op, f"operand #{number} lives on @{name}, where an earlier operand lives already")
            seen.update(places)


def moves_lead_elsewhere(program: ProgramView, report: Report) -> None:
    """What moves does not live on the destination, and leaves from where it lives, by devices that exist."""
    for op in program.ops:
        if not op_has(op, Trait.MOVES):
            continue
        sources = dict.fromkeys(program.slices.get(value) for value in op.operands)
        if len(sources) > 1 and None not in sources:
            report(op, "moves pieces that do not live together")
        for places in sources:
            _check_move(program, op, places, report)


def _check_move(program: ProgramView, op: TransferOp, places: Slices | None, report: Report) -> None:
    if places is None:
        return
    if op.slice in places:
        report(op, f"expected a slice other than its operand's, got @{op.slice}")
    source = places[0]
    if op.channel is not None:
        source = program.symbols[op.channel].src
        if source not in places:
            report(op, f"operand lives on {_names(places)}, but channel @{op.channel} starts at @{source}")
    devices = program.meshes[source].size
    for device in [route.device for route in op.routes or () if not 0 <= route.device < devices][:1]:
        report(op, f"`routes` names device {device}, but @{source} has {devices}")


def operands_live_here(program: ProgramView, report: Report) -> None:
    """What an operation reads lives on its slice; results are returned where they should be."""
    for op in program.ops:
        if not op_has(op, Trait.STAYS) or op.slice is None:
            continue
        for number, value in enumerate(op.operands):
            places = program.slices.get(value)
            if places is not None and op.slice not in places:
                what = "the launch runs" if op_has(op, Trait.EXECUTES) else "the operation is"
                report(
                    op,
                    f"operand #{number} lives on {_names(places)}, but {what} on @{op.slice}: "
                    f"a pw.transfer of it to @{op.slice} is missing",
                )
    returned = zip(program.terminator.operands, program.results, strict=True)
    for number, (value, attrs) in enumerate(returned):
        places = program.slices.get(value)
        if SLICE not in attrs or places is None:
            continue
        needed = read_slices(attrs[SLICE])
        if not set(needed) <= set(places):
            report(
                program.terminator,
                f"operand #{number} lives on {_names(places)}, result needs it on {_names(needed)}",
            )


def values_move_once(program: ProgramView, report: Report) -> None:
    """A value moves to a slice at most once."""
    moved: set[tuple[ir.Value, str]] = set()
    for op in program.ops:
        if op_has(op, Trait.MOVES) and op.routes is None:
            if (op.operands[0], op.slice) in moved:
                report(op, f"moves a value to @{op.slice} that was moved there before")
            moved.add((op.operands[0], op.slice))


def operands_lie_as_taken(program: ProgramView, report: Report) -> None:
    """A computation gets its operands in the shardings that it takes."""
    if all(mesh.size == 1 for mesh in program.meshes.values()):
        return
    layouts = Layouts(program.module)
    taken: dict[str, list[Mapping[str, ir.Attribute]]] = {}
    for op in program.ops:
        if isinstance(op, LaunchOp):
            if op.callee not in taken:
                taken[op.callee] = list(argument_attrs(program.symbols[op.callee]))
            for number, (value, attrs) in enumerate(zip(op.operands, taken[op.callee], strict=True)):
                lies = layouts.of(value, op.slice)
                if SHARDING in attrs and read_sharding(attrs[SHARDING]) != lies:
                    report(
                        op,
                        f"operand #{number} lies over @{op.slice} by {lies}, but @{op.callee} takes "
                        f"{read_sharding(attrs[SHARDING])}",
                    )


def shards_correspond(program: ProgramView, report: Report) -> None:
    """Device by device, a transfer without `routes` moves just what the other side needs."""
    if all(mesh.size == 1 for mesh in program.meshes.values()):
        return
    layouts = Layouts(program.module)
    for op in program.ops:
        if not op_has(op, Trait.MOVES) or op.routes is not None:
            continue
        places = program.slices.get(op.operands[0])
        if not places:
            continue
        shape = ir.RankedTensorType(op.operands[0].type).shape
        source = places[0] if op.channel is None else program.symbols[op.channel].src
        held = layouts.of(op.operands[0], source).blocks(shape, program.meshes[source])
        needed = layouts.of(op.results[0], op.slice).blocks(shape, program.meshes[op.slice])
        if held != needed:
            report(op, f"moves shards of @{source} that @{op.slice} does not need; run pw-lower-transfers")


def channels_fit(program: ProgramView, report: Report) -> None:
    """A channel leads where its values go, and carries how they lie."""
    for op in program.ops:
        if not (op_has(op, Trait.MOVES) or op_has(op, Trait.RECEIVES)) or op.channel is None:
            continue
        channel = program.symbols[op.channel]
        rank = channel.value_type.rank
        said = [replicated(rank) if s is None else read_sharding(s) for s in (op.sharding, channel.sharding)]
        if said[0] != said[1]:
            report(op, f"lies by {said[0]} on @{op.slice}, but channel @{op.channel} carries {said[1]}")


def one_order_per_queue(program: ProgramView, report: Report) -> None:
    """No two launches or sends that stand in one queue have one position."""
    queues = device_queues(program.module)
    taken: dict[tuple[str, int], ir.OpView] = {}
    for op in program.ops:
        if not op_has(op, Trait.ORDERED):
            continue
        slice = program.symbols[op.channel].src if op_has(op, Trait.MOVES) else op.slice
        other = taken.setdefault((queues[slice], op.order), op)
        if other is not op:
            what = f"launch of @{other.callee}" if isinstance(other, LaunchOp) else f"send to @{other.slice}"
            report(op, f"has order {op.order} on @{slice}, which the {what} has too")


def order_can_be_met(program: ProgramView, report: Report) -> None:
    """No launch or send waits for itself by way of others, if channels hold any number of values."""
    _proved(events_of(program.module, with_capacities=False), report)


def order_is_met(program: ProgramView, report: Report) -> None:
    """No launch or send waits for itself by way of others, and each stands behind what it waits for."""
    events = events_of(program.module)
    order = _proved(events, report)
    # A receipt has no place in the block: it hands on what it waits for.
    latest: dict[int, int] = {}
    for n in order:
        waits_for = max((latest[other] for other in events[n].waits_for), default=-1)
        if events[n].kind == "receipt":
            latest[n] = waits_for
            continue
        latest[n] = n
        if waits_for > n:
            report(
                events[n].op, f"stands before the {events[waits_for]}, but waits for it; run pw-plan-memory"
            )
            return


def _proved(events: list[Event], report: Report) -> list[int]:
    """An order that meets all constraints; nothing, and a report, when there is none."""
    try:
        return proved_order(events)
    except DeadlockError as error:
        report(error.cycle[0].op, str(error))
        return []


def computations_are_plain(program: ProgramView, report: Report) -> None:
    """Computations hold no operation of this dialect, and do not call `@main`."""
    for function in program.symbols.values():
        if function.operation.name != "func.func" or is_program(function):
            continue
        for op in nested_ops(function):
            if isinstance(op, PwOp):
                report(op, "stands inside a computation; computations hold no pw operation")


def calls_end(program: ProgramView, report: Report) -> None:
    """No function calls itself, by others or not, and what is called is there."""
    called: dict[str, list[str]] = {}
    for name, function in program.symbols.items():
        if function.operation.name != "func.func":
            continue
        seen: set[ir.Attribute] = set()
        called[name] = [symbol for op in nested_ops(function) for symbol in referenced_symbols(op, seen)]
        for target in called[name]:
            if target not in program.symbols:
                report(function, f"refers to @{target}, which is not in the module")
                return
    done: set[str] = set()
    for root in called:
        path: list[str] = []
        waiting: list[tuple[str, bool]] = [(root, False)]
        while waiting:
            name, leaves = waiting.pop()
            if leaves:
                path.pop()
                done.add(name)
            elif name in path:
                report(program.symbols[name], "calls itself")
                return
            elif name not in done:
                path.append(name)
                waiting.append((name, True))
                waiting += [(other, False) for other in called[name] if other in called]


def _names(slices: Slices) -> str:
    return ", ".join(f"@{name}" for name in slices)
