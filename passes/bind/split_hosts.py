"""`pw-split-hosts`: splits a program into one function per host."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

import pathways.dialect as dialect
from pathways.dialect.attributes.fields import NATURAL
from pathways.dialect.attributes.names import CONSTANT, DONATED, HOST, NUMBER, REPLACED_BY, SLICE
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.host_relations import lost_values, parts_of
from pathways.dialect.relations.program_view import Attributes, ProgramView, read_hosts, read_program
from pathways.dialect.verification.forms import BOUND, SPLIT
from pathways.passes.analysis.functions import body_block, erase_unused_functions, unique_name
from pathways.passes.manager.base import Pass, fail, main_function, option
from pathways.passes.schedule.memory.host_memory import peak_bytes

_MAX_AHEAD = 2**20
"""Limit on steps in flight, far above any cluster's; a channel's capacity is a multiple of it, in 64 bits."""


@dataclasses.dataclass(frozen=True)
class SplitHosts(Pass):
    """Replaces `@main` with one function per host that has work, such as `@host_0`.

    1. The function of a host takes the arguments and returns the results that live on its slices, with their
       numbers in the program; each host that reads a mirrored argument takes it, and each that has a copy of
       a mirrored result returns it.
    2. The function holds the launches, transfers, mirrors and releases on its slices. A transfer to a slice
       on another host is a `pw.send` on the host that it leaves, and a `pw.recv` on the other.
    3. All work of a host has one order, that of `@main`.
    4. Nothing blocks: a `pw.send` and a `pw.recv` return at once, whether or not the other host is ready.
       Therefore values that are sent are released at the end. Where this is impossible, because a launch
       takes the buffer or the caller has it, a copy is sent. Channels between hosts have room for all values
       that `ahead` steps send.
    5. The peak of each slice counts sent values up to the end of the step, and received values from its
       start, since a host may issue all of a step before any of it runs. It counts both once more for each
       further step that runs ahead.

    ```mlir
    // before
    %0 = pw.launch @f(%arg0) on @s0 order 0
    %1 = pw.transfer %0 to @s1 over @c0 order 1
    %3 = pw.launch @g(%1, %arg1) on @s1 order 0
    // after
    %0 = pw.launch @f(%arg0) on @s0 order 0
    pw.send %0 from @s0 over @c0 index 0 order 1
    %0 = pw.recv on @s1 over @c0 index 0 order 0
    %1 = pw.launch @g(%0, %arg0) on @s1 order 1
    ```

    Requires: a `host` for each slice; of a program of sub-programs, one of these as a module of its own.
    Guarantees: every send has one receive; all hosts together are free of deadlock, even if they did wait at
    every step.
    """

    name: ClassVar[str] = "pw-split-hosts"
    input_forms = (BOUND,)
    output_form = SPLIT
    always_verified = True
    ahead: int = option(1, "how many steps may be in flight, including the current one")

    def __post_init__(self) -> None:
        if self.ahead < 1:
            raise ValueError(f"ahead must be at least 1, got {self.ahead}")
        if self.ahead > _MAX_AHEAD:
            raise ValueError(f"ahead must be at most {_MAX_AHEAD}, got {self.ahead}")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        if module.operation.parent is not None:
            fail(main, "is of a sub-program: each sub-program is split over hosts as a module of its own")
        program = read_program(module)
        assert program is not None
        split = _read(program)
        _set_capacities(program, split)
        for host in sorted(set(split.hosts.values())):
            _HostFunction(program, split, host).write()
        program.main.operation.erase()
        erase_unused_functions(module)
        make_room(module, self.ahead)


def make_room(module: ir.Module, ahead: int) -> None:
    """Sets room for so many steps at once in a program that was split with room for one."""
    hosts = read_hosts(module)
    crossing = {op.channel for host in hosts for op in host.ops if dialect.op_has(op, Trait.SENDS)}
    for op in dialect.ops_named(module, ["pw.channel"]):
        if op.sym_name in crossing:
            op.capacity *= ahead
    peaks = peak_bytes(hosts, ahead)
    for op in dialect.ops_named(module, ["pw.slice"]):
        op.peak_bytes = peaks.get(op.sym_name, 0)


@dataclasses.dataclass(frozen=True)
class _Split:
    """Values of a program that go between hosts.

    Attributes:
      indices: the transfers between hosts by their first result, numbered in the order of the program.
      lost: the values that may be donated or deleted before another host has them.
      sent: the values that each host sends unchanged, and holds to the end.
      numbers: the `pw.number` of each argument: for the caller's arguments their position among these.
    """

    hosts: Mapping[str, int]
    indices: Mapping[ir.Value, int]
    lost: Set[ir.Value]
    sent: Mapping[int, Set[ir.Value]]
    numbers: Sequence[int]


def _read(program: ProgramView) -> _Split:
    hosts = {op.sym_name: op.host for op in dialect.ops_named(program.module, ["pw.slice"])}
    transfers = [
        op
        for op in program.ops
        if dialect.op_has(op, Trait.TRANSFERS) and hosts[program.symbols[op.channel].src] != hosts[op.slice]
    ]
    lost = {value for _, value in lost_values(program)}
    arguments = body_block(program.main).arguments
    for argument, attrs in zip(arguments, program.arguments, strict=True):
        # The caller may donate or delete it in its next step, before another host has read it.
        if DONATED not in attrs and CONSTANT not in attrs:
            lost.add(argument)
    sent: dict[int, set[ir.Value]] = {host: set() for host in hosts.values()}
    for op in transfers:
        parts = {part for value in op.operands for part in parts_of(value)}
        sent[hosts[program.symbols[op.channel].src]] |= parts - lost
    # Hidden arguments come last: the numbers of callers' arguments must not depend on them.
    passed_first = sorted(range(len(arguments)), key=lambda n: CONSTANT in program.arguments[n])
    numbers = [passed_first.index(n) for n in range(len(arguments))]
    return _Split(hosts, {op.results[0]: n for n, op in enumerate(transfers)}, lost, sent, numbers)


def _set_capacities(program: ProgramView, split: _Split) -> None:
    counts: dict[str, int] = {}
    for value in split.indices:
        op = value.owner.opview
        counts[op.channel] = counts.get(op.channel, 0) + 1
    for name, count in counts.items():
        program.symbols[name].capacity = count


class _HostFunction:
    """Writer of the function of one host."""

    def __init__(self, program: ProgramView, split: _Split, host: int) -> None:
        self.program = program
        self.split = split
        self.host = host
        self.values: dict[ir.Value, ir.Value] = {}
        """The values of the program that the host has, each with its value in the function."""
        self.released_last: list[ir.Value] = []
        """Values that are released at the end."""
        self.position = 0

    def write(self) -> None:
        """Writes the function, if the host has anything to do."""
        returned = [
            (number, value)
            for number, value in enumerate(self.program.terminator.operands)
            if self.here(self.program.results[number])
        ]
        arguments = self.arguments([value for _, value in returned])
        ops = [op for op in self.program.ops if self.takes_part(op)]
        if not arguments and not returned and not ops:
            return
        main = self.program.main
        block_arguments = body_block(main).arguments
        name = unique_name(f"host_{self.host}", dialect.symbol_table(self.program.module))
        types = [block_arguments[n].type for n in arguments], [value.type for _, value in returned]
        location = main.operation.location
        with ir.InsertionPoint(main), location:
            function = func.FuncOp(name, ir.FunctionType.get(*types), visibility="public")
            block = function.add_entry_block([location] * len(arguments))
        function.attributes[HOST] = NATURAL.make(self.host)
        for argument, n in zip(block.arguments, arguments, strict=True):
            self.values[block_arguments[n]] = argument
        self.ip = ir.InsertionPoint(block)
        for op in ops:
            self.copy(op)
        location = self.program.terminator.operation.location
        if self.released_last:
            dialect.ReleaseOp.build(self.released_last, loc=location, ip=self.ip)
        func.ReturnOp([self.values[value] for _, value in returned], loc=location, ip=self.ip)
        numbers = self.split.numbers
        dialect.set_argument_attrs(
            function, [self.port(self.program.arguments[n], numbers[n]) for n in arguments]
        )
        dialect.set_result_attrs(function, [self.port(self.program.results[n], n) for n, _ in returned])

    def here(self, attrs: Attributes) -> list[str]:
        """Returns the slices of an argument or a result that are on the host."""
        return [name for name in dialect.read_slices(attrs[SLICE]) if self.split.hosts[name] == self.host]

    def port(self, attrs: Attributes, number: int) -> dict[str, ir.Attribute]:
        """Returns the attributes of an argument or a result on the host."""
        rest = {name: value for name, value in attrs.items() if name != REPLACED_BY}
        return {**rest, SLICE: dialect.make_slices(self.here(attrs)), NUMBER: NATURAL.make(number)}

    def arguments(self, returned: Sequence[ir.Value]) -> list[int]:
        """Returns the numbers of the arguments that the host reads or must release."""
        read = {part for value in returned for part in parts_of(value)}
        for op in self.program.ops:
            if dialect.op_has(op, Trait.ORDERED) and self.source(op) == self.host:
                read.update(part for value in op.operands for part in parts_of(value))
        return [
            number
            for number, (argument, attrs) in enumerate(
                zip(body_block(self.program.main).arguments, self.program.arguments, strict=True)
            )
            # A donated argument is the host's to release, even if nothing reads it.
            if self.here(attrs) and (argument in read or DONATED in attrs)
        ]

    def source(self, op: ir.OpView) -> int:
        """Returns the host on which an operation reads its operands."""
        slice = self.program.symbols[op.channel].src if dialect.op_has(op, Trait.TRANSFERS) else op.slice
        return self.split.hosts[slice]

    def takes_part(self, op: ir.OpView) -> bool:
        """Returns whether the host does something for an operation."""
        if dialect.op_has(op, Trait.ORDERED):
            return self.host in (self.source(op), self.split.hosts[op.slice])
        # Values that are joined or released here were computed here.
        return any(
            self.split.hosts[name] == self.host
            for value in op.operands
            for name in self.program.slices.get(value, ())
        )

    def copy(self, op: ir.OpView) -> None:
        """Writes the host's share of an operation."""
        if dialect.op_has(op, Trait.ALIASES):
            self.join(op)
        elif dialect.op_has(op, Trait.RELEASES):
            self.release(op)
        elif not dialect.op_has(op, Trait.TRANSFERS) or op.results[0] not in self.split.indices:
            copy = op.rebuilt(self.operands(op), order=self.next_order(), ip=self.ip)
            self.values.update(zip(op.results, copy.results, strict=True))
        elif self.source(op) == self.host:
            self.send(op)
        else:
            self.receive(op)

    def operands(self, op: ir.OpView) -> list[ir.Value]:
        return [self.values[value] for value in op.operands]

    def next_order(self) -> int:
        self.position += 1
        return self.position - 1

    def join(self, mirror: dialect.MirrorOp) -> None:
        """Copies a mirror; a value that is alone on the host is not mirrored there."""
        copies = [self.values[value] for value in mirror.operands if value in self.values]
        if len(copies) > 1:
            self.values[mirror.results[0]] = mirror.rebuilt(copies, ip=self.ip).results[0]
        elif copies:
            self.values[mirror.results[0]] = copies[0]

    def release(self, release: dialect.ReleaseOp) -> None:
        """Releases values on the host; sent values stay to the end."""
        now: list[ir.Value] = []
        for value in release.operands:
            if value in self.values:
                lasts = not self.split.sent[self.host].isdisjoint(parts_of(value))
                (self.released_last if lasts else now).append(self.values[value])
        if now:
            release.rebuilt(now, ip=self.ip)

    def send(self, transfer: dialect.TransferOp) -> None:
        parts = {part for value in transfer.operands for part in parts_of(value)}
        dialect.SendOp.build(
            self.operands(transfer),
            slice=self.program.symbols[transfer.channel].src,
            channel=transfer.channel,
            index=self.split.indices[transfer.results[0]],
            order=self.next_order(),
            routes=transfer.routes,
            copy=None if parts.isdisjoint(self.split.lost) else True,
            loop=transfer.loop,
            microbatch=transfer.microbatch,
            loc=transfer.operation.location,
            ip=self.ip,
        )

    def receive(self, transfer: dialect.TransferOp) -> None:
        received = dialect.RecvOp.build(
            result_types=[result.type for result in transfer.results],
            slice=transfer.slice,
            channel=transfer.channel,
            index=self.split.indices[transfer.results[0]],
            order=self.next_order(),
            sharding=transfer.sharding,
            routes=transfer.routes,
            memory_kind=transfer.memory_kind,
            loop=transfer.loop,
            microbatch=transfer.microbatch,
            loc=transfer.operation.location,
            ip=self.ip,
        )
        self.values.update(zip(transfer.results, received.results, strict=True))
