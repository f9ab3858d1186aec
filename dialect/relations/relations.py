"""Relations between the operations of a program, a function each; the table of forms says which apply
where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect.attributes.meshes import Sharding, replicated
from pathways.dialect.attributes.names import (
    BLOCK,
    CONSTANT,
    DONATED,
    LOOP,
    MEMORY_KIND,
    REPLICA,
    SHARDING,
    SLICE,
)
from pathways.dialect.attributes.replica_ports import ReplicaPort
from pathways.dialect.attributes.shardings import mesh_of, read_mesh, read_sharding
from pathways.dialect.operations import ops
from pathways.dialect.operations.loops import is_unrolled, loop_of_op
from pathways.dialect.operations.operation import (
    PwOp,
    counted,
    is_program,
    nested_ops,
    op_has,
    referenced_symbols,
    symbol_name,
)
from pathways.dialect.operations.placement import (
    Slices,
    argument_attrs,
    donated_arguments,
    read_slices,
    result_attrs,
)
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.layouts import Layouts
from pathways.dialect.relations.order import DeadlockError, Event, device_queues, events_of, proved_order
from pathways.dialect.relations.program_view import ProgramView, Report

Relation = Callable[[ProgramView, Report], None]


def operands_are_alive(program: ProgramView, report: Report) -> None:
    """No value is read after its release or donation, or consumed by an operation that gets it twice."""
    ended: dict[ir.Value, str] = {}
    donated: dict[str, frozenset[int]] = {}
    copies: dict[ir.Value, Sequence[ir.Value]] = {}

    def parts(value: ir.Value) -> Sequence[ir.Value]:
        """Returns the copies that a value represents."""
        return copies.get(value, (value,))

    for op, read in program.readers:
        for number, value in enumerate(read):
            if value in ended or value in copies:
                for end in sorted({ended[part] for part in parts(value) if part in ended}):
                    report(op, f"operand #{number} is used after it was {end}")
        if op_has(op, Trait.ALIASES):
            # A mirror owns no memory: its copies are released or donated. So liveness is tracked for copies,
            # however deeply mirrors nest.
            copies[op.results[0]] = [part for value in read for part in parts(value)]
        elif op_has(op, Trait.RELEASES):
            released: set[ir.Value] = set()
            for number, value in enumerate(read):
                if not released.isdisjoint(parts(value)):
                    report(op, f"releases operand #{number}, which it was given before")
                released.update(parts(value))
            ended.update(dict.fromkeys(released, "released"))
        elif op_has(op, Trait.EXECUTES):
            callee = op.callee
            if callee not in donated:
                donated[callee] = donated_arguments(program.symbols[callee])
            # JAX refuses `f(donate(a), a)` when it is called; here the same copy may also come by way of a
            # mirror.
            operands_by_copy: dict[ir.Value, list[int]] = {}
            for number, value in enumerate(read) if donated[callee] else ():
                for part in parts(value):
                    operands_by_copy.setdefault(part, []).append(number)
            for number in sorted(donated[callee]):
                again = [n for part in parts(read[number]) for n in operands_by_copy[part] if n != number]
                if again:
                    report(op, f"donates operand #{number}, which it is also given as operand #{min(again)}")
                ended.update(dict.fromkeys(parts(read[number]), "donated"))


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
    """An operation that reads a value of a loop is in that loop, or in one inside; `pw.reduce` and `pw.next`
    lead out of it."""
    members: dict[ir.Value, str] = {}
    for op, produced in zip(program.ops, program.produces, strict=True):
        if produced and not is_unrolled(op) and (loop := loop_of_op(op)) is not None:
            members.update(dict.fromkeys(produced, loop))
    for op, read in program.readers:
        if op_has(op, Trait.CLOSES_LOOP) or op_has(op, Trait.OPENS_LOOP):
            _check_loop_boundary(program, op, {members[value] for value in read if value in members}, report)
            continue
        # Regions of other dialects read values of `@main` without operands; operations of pw have no regions.
        inner = () if isinstance(op, PwOp) else nested_ops(op)
        reads = {members[value] for value in read if value in members}
        reads.update(members[value] for other in inner for value in other.operands if value in members)
        if not reads:
            continue
        loop_of_reader = loop_of_op(op)
        strange = reads - set(_around(program, loop_of_reader))
        if op is program.terminator:
            _refuse(op, "returns", sorted(strange), report)
        # A value of a loop represents one of each microbatch: an operation that runs once, or for one
        # microbatch, cannot read all.
        elif (not op_has(op, Trait.OF_LOOP) and isinstance(op, PwOp)) or is_unrolled(op):
            _refuse(op, "reads", sorted(reads), report)
        elif strange and loop_of_reader is not None:
            report(op, f"is of @{loop_of_reader}, but reads a value of a microbatch of @{min(strange)}")
        elif strange:
            name = "loop" if isinstance(op, PwOp) else LOOP
            report(op, f"reads a value of a microbatch of @{min(strange)}, but has no `{name}`")


def _check_loop_boundary(program: ProgramView, op: ir.OpView, reads: set[str], report: Report) -> None:
    """Checks the loops of the values that lead into an iteration, or out of it."""
    if op_has(op, Trait.OPENS_LOOP):
        opened = loop_of_op(op)
        # Without the loop itself: its initial values exist before its first iteration.
        for loop in sorted(reads - set(_around(program, opened)[1:])):
            verb = _VERBS[type(op)]
            report(op, f"{verb} a value of a microbatch of @{loop}, which @{opened} is not inside of")
        return
    if isinstance(op, ops.ReduceOp):
        strange = reads - {op.loop}
        # One operand represents all microbatches of a rolled loop, or the only one of an unrolled loop.
        none = len(op.operands) == 1 and not reads and not _is_of(op, op.operands[0])
    else:
        strange, none = reads - set(_around(program, op.loop)), False
    if strange or none:
        report(op, f"{_VERBS[type(op)]} a value that is not of a microbatch of @{op.loop}")


_VERBS: Mapping[type[PwOp], str] = {
    ops.SplitOp: "splits",
    ops.CarryOp: "starts from",
    ops.ReduceOp: "reduces",
    ops.NextOp: "passes on",
}


def _is_of(reduction: ir.OpView, value: ir.Value) -> bool:
    """Returns whether a value belongs to the only microbatch of the unrolled loop of a reduction."""
    if isinstance(value, ir.BlockArgument):
        return False
    op = value.owner.opview
    return is_unrolled(op) and op.loop == reduction.loop


def _around(program: ProgramView, loop: str | None) -> list[str]:
    """Returns a loop and the loops around it, innermost first."""
    loops = []
    while loop is not None:
        loops.append(loop)
        loop = program.symbols[loop].parent
    return loops


def _refuse(op: ir.OpView, verb: str, loops: list[str], report: Report) -> None:
    for loop in loops:
        report(op, f"{verb} a value of a microbatch of @{loop}; only pw.reduce and pw.next may take it out")


def carries_go_on(program: ProgramView, report: Report) -> None:
    """A carried value gets its next value from exactly one `pw.next`, on its own slice."""
    counts: dict[ir.Value, int] = {}
    for op in program.ops:
        if isinstance(op, ops.NextOp):
            counts[op.operands[0]] = counts.get(op.operands[0], 0) + 1
            following, carried = (program.slices.get(value) for value in (op.results[0], op.operands[0]))
            if following != carried:
                actual, expected = (
                    _names(places) if places else "no slice" for places in (following, carried)
                )
                report(op, f"is on {actual}, but its value is carried on {expected}")
    for op in program.ops:
        if isinstance(op, ops.CarryOp) and counts.get(op.results[0], 0) != 1:
            report(op, f"is passed on by {counted(counts.get(op.results[0], 0), 'pw.next')}, expected 1")


def chunks_end(program: ProgramView, report: Report) -> None:
    """A loop with a `chunk` has exactly one `pw.until`."""
    ends = Counter(op.loop for op, _ in program.ops_of(ops.UntilOp))
    for name, op in program.symbols.items():
        if isinstance(op, ops.LoopOp) and op.chunk is not None and ends[name] != 1:
            report(op, f"has a `chunk` and {counted(ends[name], 'pw.until')}, expected 1")


def microbatches_exist(program: ProgramView, report: Report) -> None:
    """The microbatch of an operation, and of each of its origins, is one that its loop has."""
    counts: dict[str, int] = {}
    for op, _ in program.ops_with(Trait.OF_LOOP):
        if not is_unrolled(op):
            continue
        loop = op.loop
        if loop is None:
            report(op, "names a microbatch, but no loop")
            continue
        if loop not in counts:
            counts[loop] = program.symbols[loop].iterations
        named = (
            [o.microbatch for o in op.origins if o.microbatch is not None]
            if isinstance(op, ops.LaunchOp)
            else []
        )
        microbatch = max([op.microbatch, *named])
        if microbatch >= counts[loop]:
            report(op, f"works on microbatch {microbatch}, but @{loop} has {counts[loop]}")


def reductions_are_rolled(program: ProgramView, report: Report) -> None:
    """A reduction reads one value, which represents that of each microbatch."""
    for op, read in program.ops_of(ops.ReduceOp):
        if len(read) != 1:
            report(op, f"has {len(read)} operands before the loop @{op.loop} is unrolled, expected 1")


def reductions_are_unrolled(program: ProgramView, report: Report) -> None:
    """A reduction reads the value of each microbatch."""
    for op, read in program.ops_of(ops.ReduceOp):
        if len(read) != program.symbols[op.loop].iterations:
            report(op, f"has {len(read)} operands for the microbatches of the loop @{op.loop}")


def sums_stand_for_replicas(program: ProgramView, report: Report) -> None:
    """A sum over replicas reads one value, which represents that of each replica."""
    for op, read in program.ops_of(ops.AllReduceOp):
        if len(read) != 1:
            report(op, f"has {len(read)} operands before there are replicas, expected 1")


def sums_are_over_replicas(program: ProgramView, report: Report) -> None:
    """Values that replicas exchange are sharded alike over different slices of one mesh."""
    # Read at the first such operation: most programs have none, and layouts of all values take longer.
    layouts = None
    for op, _ in program.ops_of(ops.AllReduceOp, ops.ReduceScatterOp, ops.AllGatherOp):
        layouts = layouts or Layouts(program.module)
        for value in () if isinstance(op, ops.AllReduceOp) else op.results:
            for name in program.slices.get(value, ()):
                shape = ir.RankedTensorType(value.type).shape
                problem = layouts.of(value, name).problem(shape, program.meshes[name])
                if problem is not None:
                    report(op, f"has a result that cannot be laid out over @{name}: {problem}")
        if len(op.operands) == 1:
            continue
        places = [program.slices.get(value, ()) for value in op.operands]
        if not all(len(here) == 1 for here in places) or len(set(places)) < len(places):
            named = " and ".join(map(_names, places))
            report(op, f"expected operands on one slice each, and all different, got {named}")
            continue
        shardings = [
            (program.meshes[name], layouts.of(value, name))
            for value, (name,) in zip(op.operands, places, strict=True)
        ]
        if len(set(shardings)) > 1:
            report(op, "exchanges values with different shardings over their slices")


def blocks_are_there(program: ProgramView, report: Report) -> None:
    """A block of an argument or result is along a dimension that exists."""
    for side, all_attrs, types in (
        ("argument", program.arguments, program.main.type.inputs),
        ("result", program.results, program.main.type.results),
    ):
        for number, (attrs, type_) in enumerate(zip(all_attrs, types, strict=True)):
            if BLOCK in attrs and attrs[BLOCK].value >= type_.rank:
                report(program.main, f"{side} #{number} is a block along a dimension that does not exist")


def replicas_are_one(program: ProgramView, report: Report) -> None:
    """No slice represents more than one replica."""
    for op in program.symbols.values():
        if isinstance(op, ops.SliceOp) and op.replicas is not None:
            report(op, "has `replicas`; run pw-replicate")


def replicas_agree(program: ProgramView, report: Report) -> None:
    """An argument or result is alike on all replicas, and each of them has it."""
    for side, all_attrs, types in (
        ("argument", program.arguments, program.main.type.inputs),
        ("result", program.results, program.main.type.results),
    ):
        groups: dict[int, list[tuple[ReplicaPort, tuple[ir.Type, bool, int, int | None]]]] = {}
        for attrs, type_ in zip(all_attrs, types, strict=True):
            if REPLICA in attrs:
                port = ReplicaPort.read(attrs[REPLICA])
                seen = (type_, DONATED in attrs, port.count, port.split)
                groups.setdefault(port.of, []).append((port, seen))
        for number, group in groups.items():
            ports = [port for port, _ in group]
            if len({seen for _, seen in group}) > 1 or len({port.number for port in ports}) < len(ports):
                report(program.main, f"{side} {number} is not alike on all replicas")
            # A host has only the replicas that are on its slices.
            elif program.host is None and len(group) < ports[0].count:
                report(program.main, f"{side} {number} is not on all {ports[0].count} replicas")
            elif (split := ports[0].split) is not None and split >= group[0][1][0].rank:
                report(program.main, f"{side} {number} is split along a dimension {split} that it lacks")
        if groups and sorted(groups) != list(range(len(groups))) and program.host is None:
            report(program.main, f"{side}s of replicas are numbered {sorted(groups)}")


def mirrored_copies_are_apart(program: ProgramView, report: Report) -> None:
    """No two copies of a mirrored value share a slice."""
    for op, read in program.ops_with(Trait.ALIASES):
        seen: set[str] = set()
        for number, value in enumerate(read):
            places = program.slices.get(value, ())
            for name in sorted(seen.intersection(places)):
                report(op, f"operand #{number} lives on @{name}, where an earlier operand lives already")
            seen.update(places)


def moves_lead_elsewhere(program: ProgramView, report: Report) -> None:
    """A moved value leaves a slice that it lives on for one that lacks it, by devices that exist."""
    channels = {op.sym_name: op.src for op in program.symbols.values() if isinstance(op, ops.ChannelOp)}
    for op, read in program.ops_with(Trait.TRANSFERS):
        sources = dict.fromkeys(program.slices.get(value) for value in read)
        if len(sources) > 1 and None not in sources:
            report(op, "moves pieces that live on different slices")
        for places in sources:
            if places is not None:
                _check_move(program, op, places, channels, report)


def _check_move(
    program: ProgramView, op: ops.TransferOp, places: Slices, channels: Mapping[str, str], report: Report
) -> None:
    slice_, channel, routes = op.slice, op.channel, op.routes
    if slice_ in places:
        report(op, f"expected a slice other than its operand's, got @{slice_}")
    source = places[0]
    if channel is not None:
        source = channels[channel]
        if source not in places:
            report(op, f"operand lives on {_names(places)}, but channel @{channel} starts at @{source}")
    devices = program.meshes[source].size
    for device in [route.device for route in routes or () if not 0 <= route.device < devices][:1]:
        report(op, f"`routes` names device {device}, but @{source} has {devices}")


def operands_live_here(program: ProgramView, report: Report) -> None:
    """Operands live on the slice of their operation; results are returned where they should be."""
    for op, read in program.ops_with(Trait.LOCAL):
        slice = op.slice
        for number, value in enumerate(read) if slice is not None else ():
            places = program.slices.get(value)
            if places is not None and slice not in places:
                verb = "the launch runs" if op_has(op, Trait.EXECUTES) else "the operation is"
                report(
                    op,
                    f"operand #{number} lives on {_names(places)}, but {verb} on @{slice}: "
                    f"a pw.transfer of it to @{slice} is missing",
                )
    for op, read in program.ops_with(Trait.EXCHANGES):
        for number, (value, slice) in enumerate(zip(read, op.slices, strict=True)):
            places = program.slices.get(value)
            if places is not None and slice not in places:
                report(
                    op,
                    f"operand #{number} lives on {_names(places)}, but is exchanged on @{slice}: "
                    f"a pw.transfer of it to @{slice} is missing",
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
    for op, read in program.ops_with(Trait.TRANSFERS):
        if op.routes is None:
            if (read[0], op.slice) in moved:
                report(op, f"moves a value to @{op.slice} that was already moved there")
            moved.add((read[0], op.slice))


def shardings_are_over_slices(program: ProgramView, report: Report) -> None:
    """A sharding is over a mesh like that of the value's slice, or of the first of its slices."""

    def check(op: ir.OpView, subject: str, sharding: ir.Attribute | None, slice: str) -> None:
        if sharding is None:
            return
        mesh = program.symbols[mesh_of(sharding)]
        if read_mesh(mesh) != program.meshes[slice]:
            home = program.symbols[slice].attributes["mesh"].value
            report(op, f"{subject} is sharded over @{symbol_name(mesh)}, but @{slice} has @{home}")

    for side, all_attrs in (("argument", program.arguments), ("result", program.results)):
        for number, attrs in enumerate(all_attrs):
            if SLICE in attrs:
                check(program.main, f"{side} #{number}", attrs.get(SHARDING), read_slices(attrs[SLICE])[0])
    launched: set[tuple[str, str]] = set()
    for op in program.ops:
        if isinstance(op, ops.LaunchOp):
            launched.add((op.callee, op.slice))
        elif isinstance(op, PwOp) and "sharding" in op.fields() and op.slice is not None:
            check(op, "result", op.sharding, op.slice)
    for callee, slice in sorted(launched):
        function = program.symbols[callee]
        for side, all_attrs in (("argument", argument_attrs(function)), ("result", result_attrs(function))):
            for number, attrs in enumerate(all_attrs):
                check(function, f"{side} #{number}", attrs.get(SHARDING), slice)


def operands_have_expected_shardings(program: ProgramView, report: Report) -> None:
    """Operands have the shardings that their computation expects."""
    if all(mesh.size == 1 for mesh in program.meshes.values()):
        return
    layouts = Layouts(program.module)
    attrs_by_callee: dict[str, list[Mapping[str, ir.Attribute]]] = {}
    for op, read in program.ops_of(ops.LaunchOp):
        callee = op.callee
        if callee not in attrs_by_callee:
            attrs_by_callee[callee] = list(argument_attrs(program.symbols[callee]))
        for number, (value, attrs) in enumerate(zip(read, attrs_by_callee[callee], strict=True)):
            if SHARDING not in attrs:
                continue
            sharding = layouts.of(value, op.slice)
            if read_sharding(attrs[SHARDING]) != sharding:
                report(
                    op,
                    f"operand #{number} has the sharding {sharding} on @{op.slice}, "
                    f"but @{callee} takes {read_sharding(attrs[SHARDING])}",
                )


def operands_are_in_expected_memory(program: ProgramView, report: Report) -> None:
    """Operands of a launch, and results of the program, are in the memory that their readers expect."""
    layouts = Layouts(program.module)
    expected: dict[str, list[str | None]] = {}

    def check(op: ir.OpView, subject: str, value: ir.Value, expected_kind: str | None, reader: str) -> None:
        kind = layouts.memory_kind(value)
        if kind != expected_kind:
            names = kind or "device", expected_kind or "device"
            report(op, f"{subject} is in {names[0]} memory, but {reader} expects it in {names[1]} memory")

    for op, read in program.ops_of(ops.LaunchOp):
        callee = op.callee
        if callee not in expected:
            expected[callee] = [_memory_kind(attrs) for attrs in argument_attrs(program.symbols[callee])]
        for number, (value, kind) in enumerate(zip(read, expected[callee], strict=True)):
            check(op, f"operand #{number}", value, kind, f"@{callee}")
    for number, (value, attrs) in enumerate(zip(program.terminator.operands, program.results, strict=True)):
        check(program.terminator, f"result #{number}", value, _memory_kind(attrs), "the program")


def _memory_kind(attrs: Mapping[str, ir.Attribute]) -> str | None:
    return attrs[MEMORY_KIND].value if MEMORY_KIND in attrs else None


def shards_correspond(program: ProgramView, report: Report) -> None:
    """Device by device, a transfer without `routes` moves exactly the shards that the other side needs."""
    if all(mesh.size == 1 for mesh in program.meshes.values()):
        return
    layouts = Layouts(program.module)
    for op, read in program.ops_with(Trait.TRANSFERS):
        if op.routes is not None:
            continue
        places = program.slices.get(read[0])
        if not places:
            continue
        shape = ir.RankedTensorType(op.operands[0].type).shape
        source = places[0] if op.channel is None else program.symbols[op.channel].src
        held = layouts.of(op.operands[0], source).blocks(shape, program.meshes[source])
        needed = layouts.of(op.results[0], op.slice).blocks(shape, program.meshes[op.slice])
        if held != needed:
            report(op, f"moves shards of @{source} that @{op.slice} does not need; run pw-lower-transfers")


def exchanged_blocks_are_whole(program: ProgramView, report: Report) -> None:
    """No device has a part of the blocks that slices exchange: their leading dimension is not split."""
    layouts = None
    for op, _ in program.ops_of(ops.AllToAllOp):
        layouts = layouts or Layouts(program.module)
        for number, (value, place) in enumerate(zip(op.operands, op.slices, strict=True)):
            sharding = layouts.of(value, place)
            if sharding.dims[0]:
                report(op, f"operand #{number} has the sharding {sharding} on @{place}, which splits blocks")


def channels_fit(program: ProgramView, report: Report) -> None:
    """A channel leads to the slice of its values, and carries their sharding."""
    carried: dict[str, tuple[int, Sharding]] = {}
    for op in program.ops:
        if not (op_has(op, Trait.TRANSFERS) or op_has(op, Trait.RECEIVES)) or (name := op.channel) is None:
            continue
        if name not in carried:
            channel = program.symbols[name]
            rank = channel.value_type.rank
            carried[name] = rank, _written(channel.sharding, rank)
        rank, expected = carried[name]
        sharding = _written(op.sharding, rank)
        if sharding != expected:
            report(op, f"has the sharding {sharding} on @{op.slice}, but channel @{name} carries {expected}")


def _written(attribute: ir.Attribute | None, rank: int) -> Sharding:
    return replicated(rank) if attribute is None else read_sharding(attribute)


def one_order_per_queue(program: ProgramView, report: Report) -> None:
    """No two launches or sends of one queue have one position."""
    # By queue and not by slice: slices that may share devices run their work in one order.
    queues = device_queues(program.module)
    ops_by_position: dict[tuple[str, int], ir.OpView] = {}
    sources = {op.sym_name: op.src for op in program.symbols.values() if isinstance(op, ops.ChannelOp)}
    positions = [
        (op, sources[op.channel] if op_has(op, Trait.TRANSFERS) else op.slice, op.order)
        for op, _ in program.ops_with(Trait.ORDERED)
    ]
    for op, _ in program.ops_with(Trait.EXCHANGES):
        positions += [(op, place, order) for place, order in zip(op.slices, op.orders, strict=True)]
    for op, slice, order in positions:
        other = ops_by_position.setdefault((queues[slice], order), op)
        if other is not op:
            report(op, f"has order {order} on @{slice}, which the {_work(other)} has too")


def _work(op: ir.OpView) -> str:
    """Returns the name of an operation with a position, for a message."""
    if isinstance(op, ops.LaunchOp):
        return f"launch of @{op.callee}"
    return f"send to @{op.slice}" if isinstance(op, ops.TransferOp) else "exchange of blocks"


def order_can_be_met(program: ProgramView, report: Report) -> None:
    """No launch or send waits for itself through others, if channels hold any number of values."""
    _proved(events_of(program, with_capacities=False), report)


def order_is_met(program: ProgramView, report: Report) -> None:
    """No launch or send waits for itself through others, and each follows its predecessors."""
    events = events_of(program)
    order = _proved(events, report)
    # A receipt has no place in the block: its readers wait for its own constraints.
    latest: dict[int, int] = {}
    for n in order:
        waits_for = max((latest[other] for other in events[n].waits_for), default=-1)
        if events[n].kind == "receipt":
            latest[n] = waits_for
            continue
        latest[n] = n
        if waits_for > n:
            report(
                events[n].op, f"comes before the {events[waits_for]}, but waits for it; run pw-plan-memory"
            )
            return


def _proved(events: list[Event], report: Report) -> list[int]:
    """Returns an order that meets all constraints; nothing, after a report, if there is none."""
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
                report(op, "is inside a computation; computations hold no pw operation")


def calls_end(program: ProgramView, report: Report) -> None:
    """No function calls itself, directly or through others, and every callee exists."""
    calls_of_symbols_end(program.symbols, report)


def calls_of_symbols_end(symbols: Mapping[str, ir.OpView], report: Report) -> None:
    """Checks `calls_end` for the symbols of a module."""
    called: dict[str, list[str]] = {}
    for name, function in symbols.items():
        if function.operation.name != "func.func":
            continue
        seen: set[ir.Attribute] = set()
        called[name] = [symbol for op in nested_ops(function) for symbol in referenced_symbols(op, seen)]
        for target in called[name]:
            if target not in symbols:
                report(function, f"refers to @{target}, which is not in the module")
                return
    done: set[str] = set()
    for root in called:
        path: list[str] = []
        # Depth first without recursion, since chains of calls may be deeper than Python's stack: a name is
        # pushed a second time below its callees, to leave the path once they are done.
        waiting: list[tuple[str, bool]] = [(root, False)]
        while waiting:
            name, leaves = waiting.pop()
            if leaves:
                path.pop()
                done.add(name)
            elif name in path:
                report(symbols[name], "calls itself")
                return
            elif name not in done:
                path.append(name)
                waiting.append((name, True))
                waiting += [(other, False) for other in called[name] if other in called]


def _names(slices: Slices) -> str:
    return ", ".join(f"@{name}" for name in slices)
