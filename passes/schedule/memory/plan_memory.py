"""`pw-plan-memory`: the owner and the lifetime of each buffer, and the peak of live bytes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import ClassVar

from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.dialect.attributes.meshes import Sharding
from pathways.dialect.attributes.names import ALIASING, DONATED
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.layouts import Layouts
from pathways.dialect.relations.order import DeadlockError, events_of, proved_order, sort_block
from pathways.dialect.relations.program_view import ProgramView, read_function
from pathways.dialect.verification.forms import ORDERED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import byte_size
from pathways.passes.manager.base import Pass, fail, main_function, option
from pathways.passes.schedule.memory.live_bytes import LiveBytes
from pathways.passes.schedule.order.positions import capacity_for, first_reads


@dataclasses.dataclass(frozen=True)
class PlanMemory(Pass):
    """Plans the lifetime of every buffer.

    1. `@main` is sorted by the proved order.
    2. A launch that is the last reader of a value that the program owns (a donated argument, or an
       intermediate) and has a result of the same type, sharding and memory takes its buffer for it. Donation
       is a property of the computation, so such launches get a variant of theirs. A small intermediate is
       not worth one, nor is a scalar that is an argument: they are donated where every launch of the
       computation can do so. The launches that add to a sum over microbatches can, so that a sum is one
       buffer.
    3. Everything else that the program owns is released after its last reader, which for transfers
       that follow each other is the last of them: they are issued together.
    4. Each channel gets the capacity that this order needs, and each slice the peak of its live bytes in the
       default memory of its devices, over all of them: arguments, intermediates, results, and the copies that
       the caller gets of results that are also another result or an argument that was not donated.

    ```mlir
    // before
    %0 = pw.launch @f(%arg0) on @s0 order 0
    %1 = pw.launch @f(%0) on @s0 order 1
    // after
    %0 = pw.launch @f(%arg0) on @s0 order 0
    %1 = pw.launch @f(%0) on @s0 order 1
    pw.release %0
    ```

    Requires: launches and transfers with `order` and channels.
    Guarantees: no value is read after its release or donation; every owned value ends exactly once.
    """

    name: ClassVar[str] = "pw-plan-memory"
    input_forms = (ORDERED,)
    donate_bytes: int = option(
        65536, "an intermediate of at least this size is worth a variant of the computation that donates it"
    )

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        for op in list(body_block(main).operations):
            if dialect.op_has(op, Trait.RELEASES):
                op.operation.erase()
        program = _sorted(read_function(module, dialect.symbol_table(module), main))
        _set_capacities(program)
        _Lifetimes(program, self.donate_bytes).run()


def _sorted(program: ProgramView) -> ProgramView:
    """Sorts the block of a program by the proved order; returns the program as it is then."""
    # Capacities follow from this order. Those of `pw-schedule` may be too small by now: fusion has delayed
    # the launches that receive.
    events = events_of(program, with_capacities=False)
    try:
        order = proved_order(events)
    except DeadlockError as error:
        fail(error.cycle[0].op, str(error))
    if order == list(range(len(order))):
        return program
    sort_block(program.main, [events[n].op for n in order if events[n].kind != "receipt"])
    return read_function(program.module, program.symbols, program.main)


def _set_capacities(program: ProgramView) -> None:
    reads = first_reads(program.ops)
    spans: dict[str, list[tuple[int, int]]] = {}
    for n, (op, results) in enumerate(zip(program.ops, program.produces, strict=True)):
        if dialect.op_has(op, Trait.TRANSFERS):
            read = min(reads.get(value, len(program.ops)) for value in results)
            spans.setdefault(op.channel, []).append((n, read))
    for channel in dialect.ops_named(program.module, ["pw.channel"]):
        if channel.sym_name in spans:
            channel.capacity = capacity_for(spans[channel.sym_name])


Aliases = tuple[tuple[int, int], ...]
"""Pairs of an operand of a launch and the result that gets its buffer."""


class _Lifetimes:
    def __init__(self, view: ProgramView, donate_bytes: int) -> None:
        self.module = module = view.module
        self.donate_bytes = donate_bytes
        self.byte_size = functools.cache(byte_size)
        self.layouts = Layouts(module)
        self.symbols = self.layouts.symbols
        self.computations = Computations(module, self.symbols)
        self.ops, self.terminator, self.slices = view.ops, view.terminator, view.slices
        self.arguments = list(body_block(view.main).arguments)
        attrs = zip(self.arguments, view.arguments, strict=True)
        self.donated = {argument for argument, entries in attrs if DONATED in entries}
        self.operands, self.results = view.reads, view.produces
        self.mirrored: dict[ir.Value, list[ir.Value]] = {}
        """Values that a mirror declares equal, by its result."""
        # In block order: mirrors are noted on the way, for their readers.
        self.touched = [self.touched_by(n, op) for n, op in enumerate(self.ops)]
        self.last_use = {v: n for n, touched in enumerate(self.touched) for v in touched}
        # Results, and arguments that the caller keeps, outlive the program.
        self.lasting = {v for result in self.terminator.operands for v in self.unmirrored(result)}
        self.lasting |= {a for a in self.arguments if a not in self.donated}
        self.sizes: dict[tuple[ir.Value, str], int] = {}
        self.variants: dict[tuple[str, Aliases], str] = {}
        self.launches_of: dict[str, set[Aliases]] = {}

    def run(self) -> None:
        aliases = self.find_aliases()
        live: LiveBytes[str] = LiveBytes()
        for argument in self.arguments:
            # An argument that the caller keeps and nothing reads is never brought to its slice.
            if argument in self.donated or any(True for _ in argument.uses):
                for name in self.slices.get(argument, ()):
                    live.add(name, self.size(argument, name))
        self.release_unread(live)
        ended: list[ir.Value] = []
        for n, op in enumerate(self.ops):
            donated = {self.operands[n][a] for a, _ in aliases.get(n, ())}
            if aliases.get(n):
                op.callee = self.variant(op.callee, aliases[n])
            # A donated operand's buffer is the result's from here on.
            self.end(donated, live)
            if dialect.op_has(op, Trait.ORDERED):
                slice_ = op.slice
                live.add(slice_, sum(self.size(r, slice_) for r in self.results[n]))
            ended += [
                v
                for v in self.touched[n]
                if self.last_use[v] == n and v not in self.lasting and v not in donated
            ]
            following = self.ops[n + 1] if n + 1 < len(self.ops) else self.terminator
            is_last = not (dialect.op_has(op, Trait.TRANSFERS) and dialect.op_has(following, Trait.TRANSFERS))
            if ended and is_last:
                dialect.ReleaseOp.build(ended, loc=op.operation.location, ip=ir.InsertionPoint(following))
                self.end(ended, live)
                ended = []
        for value, name in self.copied_results():
            live.add(name, self.size(value, name))
        for op in dialect.ops_named(self.module, ["pw.slice"]):
            op.peak_bytes = live.peak.get(op.sym_name, 0)

    def size(self, value: ir.Value, place: str) -> int:
        """Returns the bytes of a value in the default memory of a slice; replicated ones count per device."""
        if (value, place) not in self.sizes:
            mesh = self.layouts.mesh(place)
            shards = math.prod(self.layouts.of(value, place).splits(mesh)) if mesh.size > 1 else 1
            in_default = self.layouts.memory_kind(value) is None
            self.sizes[value, place] = self.byte_size(value.type) * mesh.size // shards if in_default else 0
        return self.sizes[value, place]

    def touched_by(self, n: int, op: ir.OpView) -> dict[ir.Value, None]:
        """Returns the values that an operation, the one at a position, reads or makes, each once."""
        if dialect.op_has(op, Trait.ALIASES):
            equal = [v for value in self.operands[n] for v in self.unmirrored(value)]
            self.mirrored[self.results[n][0]] = equal
            return dict.fromkeys(equal)
        values = (*self.operands[n], *self.results[n])
        if not self.mirrored:
            return dict.fromkeys(values)
        return {v: None for value in values for v in self.unmirrored(value)}

    def unmirrored(self, value: ir.Value) -> list[ir.Value]:
        """Returns the values behind a value: itself, or the values that a mirror declares equal."""
        return self.mirrored.get(value) or [value]

    def release_unread(self, live: LiveBytes[str]) -> None:
        """Releases donated arguments that nothing reads before the first launch."""
        unread = [
            a
            for a in self.arguments
            if a in self.donated and a not in self.last_use and a not in self.lasting
        ]
        if unread:
            first = self.ops[0] if self.ops else self.terminator
            dialect.ReleaseOp.build(unread, loc=first.operation.location, ip=ir.InsertionPoint(first))
            self.end(unread, live)

    def end(self, values: Iterable[ir.Value], live: LiveBytes[str]) -> None:
        """Takes the bytes of values off on each slice that has them."""
        for value in values:
            for name in self.slices.get(value, ()):
                live.remove(name, self.size(value, name))

    def copied_results(self) -> Iterator[tuple[ir.Value, str]]:
        """Yields the results that are copied for the caller, each with the slice of the copy.

        The caller may donate results, so no buffer is two results, or a result and an array that the caller
        kept.
        """
        owned: set[tuple[ir.Value, str]] = set()
        for result in self.terminator.operands:
            copies = [
                (value, name) for value in self.unmirrored(result) for name in self.slices.get(value, ())
            ]
            for value, name in copies:
                is_argument = isinstance(value, ir.BlockArgument) and value not in self.donated
                if is_argument or (value, name) in owned:
                    yield value, name
            owned.update(copies)

    def find_aliases(self) -> dict[int, Aliases]:
        """Returns the aliases of each launch, by its position."""
        launches = {n: op for n, op in enumerate(self.ops) if dialect.op_has(op, Trait.EXECUTES)}
        donatable = {n: self.donatable(n) for n in launches}
        callees = {n: op.callee for n, op in launches.items()}
        free: dict[str, set[int]] = {}
        for n, callee in callees.items():
            numbers = set(donatable[n])
            free[callee] = free[callee] & numbers if callee in free else numbers
        aliases = {n: self.aliases(n, op, donatable[n], free[callees[n]]) for n, op in launches.items()}
        for n, callee in callees.items():
            self.launches_of.setdefault(callee, set()).add(aliases[n])
        return aliases

    def donatable(self, n: int) -> dict[int, ir.Value]:
        """Returns the operands that the program owns, and that the launch at a position alone reads last."""
        operands = self.operands[n]
        times = Counter(operands)
        return {
            number: value
            for number, value in enumerate(operands)
            if self.last_use.get(value) == n
            and value not in self.lasting
            # A value on several slices is several buffers; and a buffer cannot be given away that is another
            # operand, too.
            and len(self.slices.get(value, ())) == 1
            and times[value] == 1
        }

    def aliases(
        self, n: int, op: dialect.LaunchOp, donatable: dict[int, ir.Value], free: set[int]
    ) -> Aliases:
        """Pairs operands with the results that get their buffers: arguments first, variants last.

        Args:
          donatable: the operands that it can donate, by their numbers.
          free: the numbers of arguments that need no variant, because all launches of the computation can
            donate them.
        """
        if not donatable:
            return ()
        slice = op.slice
        arguments = [(k, v) for k, v in donatable.items() if v in self.donated]
        # From the end: pw-accumulate puts sums there, which XLA adds to in place.
        intermediates = [(k, v) for k, v in reversed(donatable.items()) if v not in self.donated]
        order = [(k, v) for k, v in (*arguments, *intermediates) if k in free or self.is_worth_a_variant(v)]
        order.sort(key=lambda entry: entry[1] not in self.donated and not self.is_worth_a_variant(entry[1]))
        aliases: list[tuple[int, int]] = []
        results: dict[tuple[ir.Type, Sharding, str | None], list[int]] = {}
        # The last result first, so that `pop` takes the first one that fits.
        for number, result in reversed(list(enumerate(self.results[n]))):
            results.setdefault(self.buffer_type(result, slice), []).append(number)
        for number, value in order:
            fitting = results.get(self.buffer_type(value, slice))
            if fitting:
                aliases.append((number, fitting.pop()))
        return tuple(sorted(aliases))

    def buffer_type(self, value: ir.Value, slice: str) -> tuple[ir.Type, Sharding, str | None]:
        """Returns the properties that a value shares with any other value that gets its buffer."""
        return value.type, self.layouts.of(value, slice), self.layouts.memory_kind(value)

    def is_worth_a_variant(self, value: ir.Value) -> bool:
        """Returns whether a computation is compiled once more so that a value can be donated to it."""
        if value in self.donated:
            return value.type.rank > 0
        return self.byte_size(value.type) >= self.donate_bytes

    def variant(self, callee: str, aliases: Aliases) -> str:
        """Returns the computation that donates these operands; the callee itself when all its launches do."""
        if (callee, aliases) not in self.variants:
            function, name = self.symbols[callee], callee
            if len(self.launches_of[callee]) > 1:
                function = self.computations.variant(callee, f"{callee}_donating")
                name = function.attributes["sym_name"].value
            attrs = dialect.argument_attrs(function)
            for number, result in aliases:
                i32 = ir.IntegerType.get_signless(32)
                attrs[number][ALIASING] = ir.IntegerAttr.get(i32, result)
            dialect.set_argument_attrs(function, attrs)
            self.variants[callee, aliases] = name
        return self.variants[callee, aliases]
