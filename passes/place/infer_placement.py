"""`pw-infer-placement`: gives a slice to all code that stands between placed calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import (
    argument_attrs,
    loop_of,
    make_slices,
    op_has,
    ops_named,
    read_slices,
    result_attrs,
    set_argument_attrs,
    set_result_attrs,
    symbol_table,
)
from pathways.dialect.forms import IMPORTED, LOCATED
from pathways.dialect.names import DONATED, MIRRORED, SLICE
from pathways.dialect.traits import Trait
from pathways.passes.base import Pass, fail, main_function, option
from pathways.passes.place.cut import Edge, multiway_cut
from pathways.passes.place.partials import sum_on_each_slice
from pathways.passes.util.functions import body_block
from pathways.passes.util.operations import EXPENSIVE, byte_size, captured, has_side_effect

_MAX_REPEATED = 64
"""How many small operations are looked at to save a value its way back."""


@dataclasses.dataclass(frozen=True)
class InferPlacement(Pass):
    """Gives every unplaced operation and argument of `@main` a slice, so that the fewest bytes cross.

    1. Work that depends only on small arguments and constants (step counters, learning rates, PRNG
       keys) is mirrored: computed on every slice that reads it.
    2. All other operations and arguments are split by a minimum cut whose terminals are the launches,
       with the bytes of each value as its cost; forward and backward code are cut together. Code that
       touches no launch goes to the first slice. A small value is broadcast anew for each reader, so
       that it crosses, not the broadcast.
    3. Associative chains that alternate between slices (a global norm over all layers) become partial
       results on each slice and one combination.
    4. A small operation is also mirrored where all that it reads crosses anyway; and a small result that
       would go back to a slice it came from is worked out on both sides instead, from what each sends.
    5. An argument that several slices read is mirrored, unless it is donated and large: then it has one
       home and is sent from there.
    6. A value of a microbatch costs its bytes once for each microbatch. A batch that the caller passes is
       split where its microbatches are read.

    Requires: form `imported`.
    Guarantees: every operation, argument and result of `@main` has a slice.
    """

    name: ClassVar[str] = "pw-infer-placement"
    takes = (IMPORTED,)
    leaves = LOCATED
    mirror_bytes: int = option(1024, "values up to this size may be mirrored")

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        names = [op.sym_name for op in ops_named(module, ["pw.slice"])]
        if not names:
            fail(main, "has no slice to run on: the program calls no placed function")
        placer = _Placer(main, symbol_table(module), names, self.mirror_bytes)
        placer.find_mirrorable()
        placer.copy_for_readers()
        placer.cut()
        placer.regroup_chains()
        placer.mirror_round_trips()
        placer.mirror_where_free()
        placer.place_mirrored()
        placer.write()


class _Placer:
    """Placements in the making: `label` for values with one home, `demand` for mirrored ones."""

    def __init__(
        self, main: ir.OpView, symbols: dict[str, ir.OpView], names: list[str], mirror_bytes: int
    ) -> None:
        self.main = main
        self.symbols = symbols
        self.names = names
        self.number = {name: n for n, name in enumerate(names)}
        self.mirror_bytes = mirror_bytes
        self.arguments = list(body_block(main).arguments)
        self.attrs = argument_attrs(main)
        self.side_effects: dict[str, bool] = {}
        self.mirrored: set[ir.Value] = set()
        self.home: dict[ir.Value, int] = {}
        self.also: dict[ir.Value, set[int]] = {}
        """Further slices of small operations, by their first result."""
        self.demand: dict[ir.Value, set[int]] = {}
        self.scan()

    def scan(self) -> None:
        """Reads the operations of `@main`. Operations hash by content, so they are known by position."""
        *self.ops, terminator = body_block(self.main).operations
        self.reads = [captured(op) for op in self.ops]
        self.returned = list(terminator.operands)

    def is_small(self, values: Iterable[ir.Value]) -> bool:
        return all(byte_size(v.type) <= self.mirror_bytes for v in values)

    def fixed_label(self, op: ir.OpView) -> int | None:
        """The slice of an operation that has one before anything is inferred."""
        if op_has(op, Trait.EXECUTES):
            return self.number[op.slice]
        if SLICE in op.attributes:
            return self.number[read_slices(op.attributes[SLICE])[0]]
        return None

    def find_mirrorable(self) -> None:
        self.mirrored.update(a for a in self.arguments if self.is_small([a]))
        for op, reads in zip(self.ops, self.reads, strict=True):
            cheap = op.operation.name not in EXPENSIVE and not op.regions and not _is_of_loop(op)
            if (
                self.fixed_label(op) is None
                and all(v in self.mirrored for v in reads)
                and (cheap or (self.is_small(op.results) and not _is_of_loop(op)))
                and not has_side_effect(op, self.symbols, self.side_effects)
            ):
                self.mirrored.update(op.results)

    def copy_for_readers(self) -> None:
        """Gives each reader of a broadcast small value, or of a block of the batch, one of its own.

        It can then have one on its slice: the small value crosses, and not the broadcast.
        """
        for op in self.ops:
            if self.is_mirrored_op(op):
                continue
            if op_has(op, Trait.OPENS_LOOP):
                copied = self.is_given_freely(op.operands[0])
            else:
                copied = op.operation.name == "stablehlo.broadcast_in_dim" and self.is_small(op.operands)
            for use in list(op.results[0].uses)[1:] if copied else ():
                copy = op.operation.clone(ir.InsertionPoint(op))
                use.owner.operation.operands[use.operand_number] = copy.results[0]
        self.scan()

    def is_given_freely(self, value: ir.Value) -> bool:
        """Whether the caller can bring a value to every slice that reads it."""
        return isinstance(value, ir.BlockArgument) and DONATED not in self.attrs[value.arg_number]

    def is_mirrored_op(self, op: ir.OpView) -> bool:
        return len(op.results) > 0 and op.results[0] in self.mirrored

    def cut(self) -> None:
        node: dict[ir.Value, int] = {}
        members: list[list[ir.Value]] = []
        fixed: dict[int, int] = {}
        for argument in self.arguments:
            if argument not in self.mirrored:
                node[argument] = len(members)
                members.append([argument])
        consumers: dict[ir.Value, dict[int, None]] = {}
        for op, reads in zip(self.ops, self.reads, strict=True):
            if self.is_mirrored_op(op):
                continue
            label = self.fixed_label(op)
            if label is not None:
                fixed[len(members)] = label
            for value in reads:
                if value in node and not (op_has(op, Trait.OPENS_LOOP) and self.is_given_freely(value)):
                    consumers.setdefault(value, {})[len(members)] = None
            node.update(dict.fromkeys(op.results, len(members)))
            members.append(list(op.results))
        edges = [Edge(node[value], tuple(read), self.cost(value)) for value, read in consumers.items()]
        for component, inside in _components(len(members), edges, fixed):
            local = {n: i for i, n in enumerate(component)}
            known = {local[n]: fixed[n] for n in component if n in fixed}
            labels = multiway_cut(
                len(component),
                [Edge(local[e.producer], tuple(local[c] for c in e.consumers), e.cost) for e in inside],
                known or {0: 0},
            )
            for n, label in zip(component, labels, strict=True):
                self.home.update(dict.fromkeys(members[n], label))

    def cost(self, value: ir.Value) -> int:
        """The bytes that cross when a value does."""
        loop = loop_of(value)
        return byte_size(value.type) * (1 if loop is None else self.symbols[loop].count)

    def regroup_chains(self) -> None:
        if sum_on_each_slice(self.main, self.home, self.mirrored):
            self.scan()

    def places(self, op: ir.OpView, reads: list[ir.Value]) -> set[int]:
        """The slices of an operation that is not mirrored work."""
        label = self.fixed_label(op)
        if label is not None:
            return {label}
        if not op.results:
            return {next((self.home[v] for v in reads if v in self.home), 0)}
        return {self.home[op.results[0]]} | self.also.get(op.results[0], set())

    def readers(self) -> dict[ir.Value, list[int]]:
        """The positions of the operations, mirrored work apart, that read each value."""
        reading: dict[ir.Value, list[int]] = {}
        for n, op in enumerate(self.ops):
            if not self.is_mirrored_op(op):
                for value in self.reads[n]:
                    reading.setdefault(value, []).append(n)
        return reading

    def mirror_round_trips(self) -> None:
        """Works out small values that go back where they came from on both sides.

        Two slices that add their partial sums exchange them, and both add: the result needs no way back.
        """
        readers = self.readers()
        producer = {r: n for n, op in enumerate(self.ops) for r in op.results}
        where = [
            set[int]() if self.is_mirrored_op(op) else self.places(op, reads)
            for op, reads in zip(self.ops, self.reads, strict=True)
        ]

        def cone(n: int, place: int, visited: dict[int, bool]) -> bool:
            """Finds the small operations between an operation and values that live on `place`."""
            if n not in visited and len(visited) < _MAX_REPEATED:
                visited[n] = False
                op = self.ops[n]
                if not self.is_repeatable(op) or place in where[n]:
                    return False
                for value in self.reads[n]:
                    if self.home.get(value) == place and value not in self.mirrored:
                        visited[n] = True
                    elif value in producer and value not in self.mirrored:
                        visited[n] |= cone(producer[value], place, visited)
            return visited.get(n, False)

        for n, op in enumerate(self.ops):
            if not self.is_repeatable(op):
                continue
            read_on = {p for r in op.results for reader in readers.get(r, ()) for p in where[reader]}
            for place in read_on - where[n]:
                visited: dict[int, bool] = {}
                if not cone(n, place, visited):
                    continue
                repeated = {m for m, inside in visited.items() if inside}
                sent = {
                    value
                    for m in repeated
                    for value in self.reads[m]
                    if value not in self.mirrored
                    and self.home[value] != place
                    and producer.get(value) not in repeated
                }
                if sum(byte_size(v.type) for v in sent) <= sum(byte_size(r.type) for r in op.results):
                    for m in repeated:
                        where[m].add(place)
                        self.also.setdefault(self.ops[m].results[0], set()).add(place)

    def is_repeatable(self, op: ir.OpView) -> bool:
        """Whether an operation is small enough to run on several slices."""
        return (
            not self.is_mirrored_op(op)
            and not _is_of_loop(op)
            and self.fixed_label(op) is None
            and not op.regions
            and len(op.results) > 0
            and self.is_small(op.results)
            and not has_side_effect(op, self.symbols, self.side_effects)
        )

    def mirror_where_free(self) -> None:
        """Computes a small operation also where it is read, if everything it reads is sent there anyway."""
        readers = self.readers()
        where = [
            set[int]() if self.is_mirrored_op(op) else self.places(op, reads)
            for op, reads in zip(self.ops, self.reads, strict=True)
        ]
        for n in reversed(range(len(self.ops))):
            op = self.ops[n]
            if not self.is_repeatable(op):
                continue
            read_on = {p for r in op.results for reader in readers.get(r, ()) for p in where[reader]}
            for place in read_on - where[n]:
                if all(
                    value in self.mirrored
                    or self.home[value] == place
                    or any(place in where[reader] for reader in readers[value] if reader != n)
                    for value in self.reads[n]
                ):
                    where[n].add(place)
                    self.also.setdefault(op.results[0], set()).add(place)

    def place_mirrored(self) -> None:
        """Demands each mirrored value where it is read; one that is only returned, where its inputs are."""
        for op, reads in zip(self.ops, self.reads, strict=True):
            if not self.is_mirrored_op(op):
                for value in reads:
                    if value in self.mirrored:
                        self.demand.setdefault(value, set()).update(self.places(op, reads))
        self.propagate_demand()
        roots: dict[ir.Value, set[int]] = {a: set(self.demand.get(a, ())) for a in self.arguments}
        for op, reads in zip(self.ops, self.reads, strict=True):
            if self.is_mirrored_op(op):
                union: set[int] = set().union(*(roots.get(v, set()) for v in reads))
                roots.update(dict.fromkeys(op.results, union))
        for value in self.returned:
            if value in self.mirrored:
                wanted = self.demand.get(value, set()) | roots.get(value, set())
                self.demand[value] = wanted or {0}
        self.propagate_demand()

    def propagate_demand(self) -> None:
        for op, reads in zip(reversed(self.ops), reversed(self.reads), strict=True):
            if self.is_mirrored_op(op):
                wanted: set[int] = set().union(*(self.demand.get(r, set()) for r in op.results))
                for value in (*op.results, *reads):
                    self.demand.setdefault(value, set()).update(wanted)

    def slices(self, places: Iterable[int]) -> ir.Attribute:
        return make_slices([self.names[p] for p in sorted(places)])

    def argument_places(
        self, attrs: dict[str, ir.Attribute], argument: ir.Value, read_on: set[int]
    ) -> set[int]:
        if argument in self.mirrored:
            return self.demand.get(argument) or {0}
        if DONATED in attrs or not read_on:
            return {self.home[argument]}
        return read_on

    def write(self) -> None:
        readers = self.readers()
        where = [
            (self.demand.get(op.results[0]) or {0}) if self.is_mirrored_op(op) else self.places(op, reads)
            for op, reads in zip(self.ops, self.reads, strict=True)
        ]
        placed: dict[ir.Value, ir.Attribute] = {}
        for argument, attrs in zip(self.arguments, self.attrs, strict=True):
            read_on = {p for n in readers.get(argument, ()) for p in where[n]}
            placed[argument] = self.slices(self.argument_places(attrs, argument, read_on))
            attrs[SLICE] = placed[argument]
        set_argument_attrs(self.main, self.attrs)
        results = result_attrs(self.main)
        for op, places in zip(self.ops, where, strict=True):
            placed.update(dict.fromkeys(op.results, self.slices(places)))
            if op_has(op, Trait.EXECUTES):
                continue
            if _is_of_loop(op):
                op.slice = self.names[min(places)]
                continue
            if self.is_mirrored_op(op):
                op.attributes[MIRRORED] = ir.UnitAttr.get()
            op.attributes[SLICE] = self.slices(places)
        for entry, value in zip(results, self.returned, strict=True):
            entry[SLICE] = placed[value]
        set_result_attrs(self.main, results)


def _is_of_loop(op: ir.OpView) -> bool:
    """Whether an operation is not code that could be repeated or outlined."""
    return op_has(op, Trait.OPENS_LOOP) or op_has(op, Trait.CLOSES_LOOP)


def _components(
    num_nodes: int, edges: list[Edge], fixed: dict[int, int]
) -> list[tuple[list[int], list[Edge]]]:
    """Connected parts of the graph; a fixed node does not connect what it touches."""
    parent = list(range(num_nodes))

    def find(n: int) -> int:
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    for edge in edges:
        free = [n for n in (edge.producer, *edge.consumers) if n not in fixed]
        for other in free[1:]:
            parent[find(other)] = find(free[0])
    inside: dict[int, list[Edge]] = {}
    nodes: dict[int, dict[int, None]] = {}
    for n in range(num_nodes):
        if n not in fixed:
            nodes.setdefault(find(n), {})[n] = None
    for edge in edges:
        ends = (edge.producer, *edge.consumers)
        free = [n for n in ends if n not in fixed]
        if free:
            root = find(free[0])
            inside.setdefault(root, []).append(edge)
            nodes[root].update(dict.fromkeys(ends))
    parts = [(list(members), inside.get(root, [])) for root, members in nodes.items()]
    parts += [([n], []) for n in fixed]
    return parts
