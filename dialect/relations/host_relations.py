"""Relations of a program that is split over hosts: in the function of each host, and between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from jaxlib.mlir import ir

from pathways.dialect.attributes.names import CONSTANT, DONATED, MAIN, NUMBER, SLICE
from pathways.dialect.operations.operation import counted, nested_ops, op_has, referenced_symbols
from pathways.dialect.operations.placement import donated_arguments, read_slices
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.host_order import host_events
from pathways.dialect.relations.layouts import Layouts
from pathways.dialect.relations.order import DeadlockError, proved_order
from pathways.dialect.relations.program_view import ProgramView, Report

JointRelation = Callable[[Sequence[ProgramView], Report], None]


def work_is_on_the_host(program: ProgramView, report: Report) -> None:
    """All work and values of a host's function are on slices of that host."""

    def is_here(slice: str) -> bool:
        return program.symbols[slice].host == program.host

    for side, all_attrs in (("argument", program.arguments), ("result", program.results)):
        for number, attrs in enumerate(all_attrs):
            for slice in read_slices(attrs[SLICE]):
                if not is_here(slice):
                    report(program.main, f"{side} #{number} lives on @{slice}, which is on another host")
    for op in program.ops:
        if op_has(op, Trait.ORDERED) and not is_here(op.slice):
            report(op, f"is on @{op.slice}, which is not on host {program.host}")


def positions_increase(program: ProgramView, report: Report) -> None:
    """The operations of a host are in order, and no two have one position."""
    ordered = [op for op in program.ops if op_has(op, Trait.ORDERED)]
    for before, op in itertools.pairwise(ordered):
        if op.order <= before.order:
            report(op, f"has order {op.order}, but comes after what has order {before.order}")


def numbers_differ(program: ProgramView, report: Report) -> None:
    """No two arguments of a host are one argument of the program, and no two results one result."""
    for side, all_attrs in (("argument", program.arguments), ("result", program.results)):
        seen: set[int] = set()
        for number, attrs in enumerate(all_attrs):
            name = attrs[NUMBER].value
            if name in seen:
                report(program.main, f"{side} #{number} is {side} {name} of the program, as is another")
            seen.add(name)


def sent_values_last(program: ProgramView, report: Report) -> None:
    """A value that is sent without a copy lasts: it is neither donated nor returned, it is not an argument
    that the caller keeps, and it is released after everything else."""
    sent: dict[ir.Value, ir.OpView] = {}
    for op in program.ops:
        if op_has(op, Trait.SENDS) and not op.copy:
            sent.update({part: op for value in op.operands for part in parts_of(value)})
    for value, op in sent.items():
        if isinstance(value, ir.BlockArgument):
            attrs = program.arguments[value.arg_number]
            if DONATED not in attrs and CONSTANT not in attrs:
                report(op, "sends without a copy an argument that the caller keeps, and may donate")
    for op, value in lost_values(program):
        if value in sent:
            report(sent[value], f"sends without a copy what {_lost_by(op)}")
    # A release is at the end if no operation with a position follows it.
    released: set[ir.Value] = set()
    for op in program.ops:
        if op_has(op, Trait.RELEASES):
            released.update(part for value in op.operands for part in parts_of(value))
        elif op_has(op, Trait.ORDERED):
            for value in [value for value in sent if value in released]:
                report(sent.pop(value), "sends without a copy a value that is released before the end")


def lost_values(program: ProgramView) -> Iterator[tuple[ir.OpView, ir.Value]]:
    """Yields the values that a launch donates or the program returns, each with the launch or the return."""
    for op in program.ops:
        if op_has(op, Trait.EXECUTES):
            for number in donated_arguments(program.symbols[op.callee]):
                for value in parts_of(op.operands[number]):
                    yield op, value
    for result in program.terminator.operands:
        for value in parts_of(result):
            yield program.terminator, value


def parts_of(value: ir.Value) -> list[ir.Value]:
    """Returns the copies that a value represents: itself, or the operands of a mirror."""
    if isinstance(value, ir.BlockArgument) or not op_has(value.owner.opview, Trait.ALIASES):
        return [value]
    return [part for copy in value.owner.operands for part in parts_of(copy)]


def _lost_by(op: ir.OpView) -> str:
    return f"the launch of @{op.callee} donates" if op_has(op, Trait.EXECUTES) else "is returned"


def hosts_stand_alone(programs: Sequence[ProgramView], report: Report) -> None:
    """The module has a function for each host and no `@main`; nothing refers to them."""
    # `read_hosts` sorts by host: two functions of one host are neighbours.
    for before, program in itertools.pairwise(programs):
        if before.host == program.host:
            report(program.main, f"is a second function for host {program.host}")
    for program in programs[:1]:
        if MAIN in program.symbols:
            report(program.symbols[MAIN], "is not legal in a module with host functions")
        names = {other.main.attributes["sym_name"].value for other in programs}
        for function in program.symbols.values():
            for op in nested_ops(function) if function.operation.name == "func.func" else ():
                for name in names.intersection(referenced_symbols(op)):
                    report(op, f"refers to @{name}, which is a host function")


def ports_agree(programs: Sequence[ProgramView], report: Report) -> None:
    """An argument or result of the program has one type on all hosts that have it."""
    types: dict[tuple[str, int], tuple[ir.Type, int | None]] = {}
    for program in programs:
        signature = program.main.type
        for side, all_attrs, all_types in (
            ("argument", program.arguments, signature.inputs),
            ("result", program.results, signature.results),
        ):
            for attrs, type_ in zip(all_attrs, all_types, strict=True):
                number = attrs[NUMBER].value
                first, host = types.setdefault((side, number), (type_, program.host))
                if first != type_:
                    report(
                        program.main,
                        f"{side} {number} of the program is a {type_} here, but a {first} on host {host}",
                    )


def sends_have_receives(programs: Sequence[ProgramView], report: Report) -> None:
    """Every send has exactly one receive of the same index, and they agree on channel and routes, with
    existing operands. Both have the types of the channel."""
    ends: list[dict[int, ir.OpView]] = []
    for trait, verb in ((Trait.SENDS, "sends"), (Trait.RECEIVES, "receives")):
        seen: dict[int, ir.OpView] = {}
        for op in _operations(programs, trait):
            if op.index in seen:
                report(op, f"{verb} transfer {op.index}, as another does")
            seen.setdefault(op.index, op)
        ends.append(seen)
    sends, receives = ends
    for index, send in sends.items():
        if index not in receives:
            report(send, f"sends transfer {index}, which no pw.recv receives")
    for index, receive in receives.items():
        if index not in sends:
            report(receive, f"receives transfer {index}, which no pw.send sends")
        else:
            _check_ends(sends[index], receive, report)


def _check_ends(send: ir.OpView, receive: ir.OpView, report: Report) -> None:
    index = send.index
    if send.channel != receive.channel:
        report(
            receive, f"receives transfer {index} from @{receive.channel}, but it is sent by @{send.channel}"
        )
    elif send.routes != receive.routes:
        report(receive, f"receives transfer {index} with other `routes` than it is sent with")


def hosts_differ(programs: Sequence[ProgramView], report: Report) -> None:
    """Every send is to another host, from devices that exist."""
    for program in programs:
        for op in program.ops:
            if not op_has(op, Trait.SENDS):
                continue
            channel = program.symbols[op.channel]
            if program.symbols[channel.dst].host == program.host:
                report(op, f"sends to @{channel.dst}, which is on the same host; a pw.transfer does that")
            devices = program.meshes[channel.src].size
            for device in [r.device for r in op.routes or () if not 0 <= r.device < devices][:1]:
                report(op, f"`routes` names device {device}, but @{channel.src} has {devices}")


def channels_keep_their_order(programs: Sequence[ProgramView], report: Report) -> None:
    """The values of a channel are sent and received in the order of their indices, and it has room for all
    of them, so that nothing waits for room."""
    for trait, done in ((Trait.SENDS, "sent"), (Trait.RECEIVES, "received")):
        # All sends of a channel are on one host, and so are its receives: the order of the hosts is
        # irrelevant.
        last: dict[str, int] = {}
        for op in _operations(programs, trait):
            before = last.get(op.channel)
            if before is not None and op.index < before:
                report(op, f"transfer {op.index} is {done} after transfer {before} on @{op.channel}")
            last[op.channel] = op.index
    counts: dict[str, int] = {}
    for op in _operations(programs, Trait.SENDS):
        counts[op.channel] = counts.get(op.channel, 0) + 1
    for name, count in counts.items():
        channel = programs[0].symbols[name]
        if channel.capacity < count:
            report(channel, f"has capacity {channel.capacity}, but carries {counted(count, 'value')}")


def shards_arrive_where_needed(programs: Sequence[ProgramView], report: Report) -> None:
    """Device by device, a send without `routes` gives exactly the shards that the other side needs."""
    if not programs or all(mesh.size == 1 for mesh in programs[0].meshes.values()):
        return
    layouts = Layouts(programs[0].module)
    receives = {op.index: op for op in _operations(programs, Trait.RECEIVES)}
    for send in _operations(programs, Trait.SENDS):
        if send.routes is not None:
            continue
        receive, meshes = receives[send.index], programs[0].meshes
        shape = ir.RankedTensorType(send.operands[0].type).shape
        held = layouts.of(send.operands[0], send.slice).blocks(shape, meshes[send.slice])
        needed = layouts.of(receive.results[0], receive.slice).blocks(shape, meshes[receive.slice])
        if held != needed:
            report(send, f"sends shards of @{send.slice} that @{receive.slice} does not need")


def hosts_do_not_deadlock(programs: Sequence[ProgramView], report: Report) -> None:
    """No event of a host waits for itself through other events, even if every host waited at every step."""
    try:
        proved_order(host_events(programs))
    except DeadlockError as error:
        report(error.cycle[0].op, str(error))


def _operations(programs: Sequence[ProgramView], trait: Trait) -> Iterator[ir.OpView]:
    return (op for program in programs for op in program.ops if op_has(op, trait))
