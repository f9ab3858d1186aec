"""`pw-plan-memory`: who owns each buffer, when it dies, and how much is alive at once."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import (
    LaunchOp,
    MirrorOp,
    ReleaseOp,
    TransferOp,
    argument_attrs,
    argument_slices,
    ops_named,
    set_argument_attrs,
    slices_of,
)
from pathways.dialect.layouts import Layouts
from pathways.passes._channels import capacity_for, first_reads
from pathways.passes._order import DeadlockError, events_of, sort_block, topological_order
from pathways.passes.base import Pass, fail, main_function, option
from pathways.passes.ir_utils import body_block, byte_size, unique_name


@dataclasses.dataclass(frozen=True)
class PlanMemory(Pass):
    """Plans the life of every buffer.

    1. `@main` is sorted by the proved order.
    2. A launch that is the last reader of a value that the program owns (a donated argument, or a large
       intermediate) and has a result of the same type and sharding takes its buffer for it. Donation is a
       property of the computation, so such launches get a variant of theirs.
    3. Everything else that the program owns is released behind its last reader.
    4. Each channel gets the capacity that this order needs, and each slice the peak of its live bytes.

    Requires: launches and transfers with `order` and channels.
    Guarantees: no value is read after its release or donation; every owned value ends exactly once.
    """

    name: ClassVar[str] = "pw-plan-memory"
    donate_bytes: int = option(65536, "intermediates of at least this size are donated")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        for op in ops_named_in(main, ReleaseOp):
            op.operation.erase()
        _sort(module, main)
        _set_capacities(module, main)
        _Lifetimes(module, main, self.donate_bytes).run()


def ops_named_in(main: ir.OpView, kind: type) -> list[ir.OpView]:
    """The operations of one class that stand in a function."""
    return [op for op in body_block(main).operations if isinstance(op, kind)]


def _sort(module: ir.Module, main: ir.OpView) -> None:
    events = events_of(module, main)
    try:
        order = topological_order(events)
    except DeadlockError as error:
        fail(error.cycle[0].op, str(error))
    if order != list(range(len(order))):
        sort_block(main, [events[n].op for n in order])


def _set_capacities(module: ir.Module, main: ir.OpView) -> None:
    operations = list(body_block(main).operations)
    reads = first_reads(operations)
    spans: dict[str, list[tuple[int, int]]] = {}
    for n, op in enumerate(operations):
        if isinstance(op, TransferOp) and op.channel is not None:
            read = min(reads.get(r, len(operations)) for r in op.results)
            spans.setdefault(op.channel, []).append((n, read))
    for channel in ops_named(module, ["pw.channel"]):
        if channel.sym_name in spans:
            channel.capacity = capacity_for(spans[channel.sym_name])


class _Lifetimes:
    def __init__(self, module: ir.Module, main: ir.OpView, donate_bytes: int) -> None:
        self.module = module
        self.donate_bytes = donate_bytes
        self.layouts = Layouts(module)
        self.symbols = self.layouts.symbols
        block = body_block(main)
        *self.ops, self.terminator = block.operations
        self.arguments = list(block.arguments)
        self.slices = argument_slices(main)
        attrs = argument_attrs(main)
        self.given = {a for a, attr in zip(self.arguments, attrs, strict=True) if "pw.donated" in attr}
        self.last_use: dict[ir.Value, int] = {}
        for n, op in enumerate(self.ops):
            self.last_use.update(dict.fromkeys(op.results, n))
            self.last_use.update(dict.fromkeys(op.operands, n))
        self.kept = self.find_kept()
        self.variants: dict[tuple[str, tuple[tuple[int, int], ...]], str] = {}
        self.launches_of: dict[str, set[tuple[tuple[int, int], ...]]] = {}

    def find_kept(self) -> set[ir.Value]:
        """The values that outlive the program: results, and arguments that the caller keeps."""
        kept = set(self.terminator.operands)
        for op in self.ops:
            if isinstance(op, MirrorOp) and op.results[0] in kept:
                kept.update(op.operands)
        return kept | {a for a in self.arguments if a not in self.given}

    def run(self) -> None:
        aliases: dict[int, tuple[tuple[int, int], ...]] = {}
        for n, op in enumerate(self.ops):
            if isinstance(op, LaunchOp):
                aliases[n] = self.aliases(n, op)
                self.launches_of.setdefault(op.callee, set()).add(aliases[n])
        peaks = _Peaks()
        for argument, slices in zip(self.arguments, self.slices, strict=True):
            for name in slices or ():
                peaks.start(name, self.size(argument, name))
        for n, op in enumerate(self.ops):
            taken = {op.operands[a] for a, _ in aliases.get(n, ())}
            self.count(op, peaks, taken)
            ended = [
                v
                for v in dict.fromkeys([*op.operands, *op.results])
                if self.last_use[v] == n and v not in self.kept and v not in taken
            ]
            if isinstance(op, LaunchOp) and aliases[n]:
                op.callee = self.variant(op.callee, aliases[n])
            if ended and not isinstance(op, MirrorOp):
                following = self.ops[n + 1] if n + 1 < len(self.ops) else self.terminator
                ReleaseOp.build(ended, loc=op.operation.location, ip=ir.InsertionPoint(following))
            for value in (*ended, *taken):
                for name in slices_of(value, self.slices) or ():
                    peaks.end(name, self.size(value, name))
        for op in ops_named(self.module, ["pw.slice"]):
            op.peak_bytes = peaks.most.get(op.sym_name, 0)
        self.release_unread()

    def size(self, value: ir.Value, place: str) -> int:
        """Bytes of a value on all devices of a slice together: what is replicated counts once for each."""
        mesh = self.layouts.mesh(place)
        return byte_size(value.type) * mesh.size // math.prod(self.layouts.of(value, place).splits(mesh))

    def release_unread(self) -> None:
        """Donated arguments that nothing reads die before the first launch."""
        unread = [
            a for a in self.arguments if a in self.given and a not in self.last_use and a not in self.kept
        ]
        if unread:
            first = self.ops[0] if self.ops else self.terminator
            ReleaseOp.build(unread, loc=first.operation.location, ip=ir.InsertionPoint(first))

    def count(self, op: ir.OpView, peaks: _Peaks, taken: set[ir.Value]) -> None:
        """Adds the results of an operation to the live bytes; a donated operand's buffer is one of them."""
        if isinstance(op, (LaunchOp, TransferOp)):
            reused = sum(self.size(v, op.slice) for v in taken)
            peaks.start(op.slice, sum(self.size(r, op.slice) for r in op.results), reused)

    def aliases(self, n: int, op: LaunchOp) -> tuple[tuple[int, int], ...]:
        """Which operand gives its buffer to which result: arguments first, then large intermediates."""
        free = list(range(len(op.results)))
        operands = list(op.operands)
        found: list[tuple[int, int]] = []
        for given in (True, False):
            for number, value in enumerate(operands):
                if (
                    (value in self.given) != given
                    or value in self.kept
                    or self.last_use[value] != n
                    or operands.count(value) > 1
                    or len(slices_of(value, self.slices) or ()) != 1
                    or (not given and byte_size(value.type) < self.donate_bytes)
                ):
                    continue
                layout = self.layouts.of(value, op.slice)
                result = next(
                    (
                        r
                        for r in free
                        if op.results[r].type == value.type
                        and self.layouts.of(op.results[r], op.slice) == layout
                    ),
                    None,
                )
                if result is not None:
                    free.remove(result)
                    found.append((number, result))
        return tuple(sorted(found))

    def variant(self, callee: str, aliases: tuple[tuple[int, int], ...]) -> str:
        """The computation that donates these operands; the callee itself when all its launches do."""
        if (callee, aliases) not in self.variants:
            function, name = self.symbols[callee], callee
            if len(self.launches_of[callee]) > 1:
                name = unique_name(f"{callee}_donating", self.symbols)
                function = function.operation.clone(ir.InsertionPoint(function)).opview
                function.attributes["sym_name"] = ir.StringAttr.get(name)
                self.symbols[name] = function
            attrs = argument_attrs(function)
            for number, result in aliases:
                i32 = ir.IntegerType.get_signless(32)
                attrs[number]["tf.aliasing_output"] = ir.IntegerAttr.get(i32, result)
            set_argument_attrs(function, attrs)
            self.variants[callee, aliases] = name
        return self.variants[callee, aliases]


class _Peaks:
    """Live bytes of each slice, and their maximum so far."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self.most: dict[str, int] = {}

    def start(self, name: str, size: int, reused: int = 0) -> None:
        self.now[name] = self.now.get(name, 0) + size
        # A donated buffer is counted as operand and as result until `end`; it exists once.
        self.most[name] = max(self.most.get(name, 0), self.now[name] - reused)

    def end(self, name: str, size: int) -> None:
        self.now[name] -= size
