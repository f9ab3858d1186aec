"""`pw-outline`: the code between placed calls becomes computations of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import (
    LaunchOp,
    MirrorOp,
    PwOp,
    loop_of_op,
    nested_ops,
    op_has,
    read_slices,
    result_slices,
    symbol_table,
)
from pathways.dialect.forms import LOCATED, OUTLINED
from pathways.dialect.names import LOOP, MIRRORED, SLICE
from pathways.dialect.traits import Trait
from pathways.passes.base import Pass, fail, main_function
from pathways.passes.util.computations import Computations
from pathways.passes.util.functions import body_block, merge_equal_functions
from pathways.passes.util.operations import captured, has_side_effect

Instance = tuple[int, str]
"""An operation, by its position in `@main`, on one slice. A mirrored one has an instance per slice."""


@dataclasses.dataclass(frozen=True)
class Outline(Pass):
    """Moves placed operations of `@main` into functions and launches them.

    Operations on one slice share a computation when they wait for the same launches and the same
    values from other slices, so that none waits longer than it would alone; those that lead to a value
    for another slice are kept apart from those that do not, so that the value leaves as soon as it can.
    An operation whose only readers are in one computation joins it; what is done for each microbatch of a
    loop is kept apart from what is done once. Work marked `pw.mirrored` is
    repeated in each computation that reads it. Structurally equal computations are merged.

    Requires: every operation placed by `pw-infer-placement`.
    Guarantees: `@main` holds only `pw` operations and its return; launches of glue have no origins.
    """

    name: ClassVar[str] = "pw-outline"
    takes = (LOCATED,)
    leaves = OUTLINED

    def run(self, module: ir.Module) -> None:
        main = main_function(module)
        program = _PlacedProgram(module, main)
        groups = _Grouping(program)
        _Emitter(module, main, program, groups).run()
        merge_equal_functions(module)


class _PlacedProgram:
    """The placed operations of `@main`: what each reads, where it runs, where its values come from."""

    def __init__(self, module: ir.Module, main: ir.OpView) -> None:
        *self.ops, self.terminator = body_block(main).operations
        self.places = [self._places(op) for op in self.ops]
        self.stands_alone = [isinstance(op, PwOp) for op in self.ops]
        self.loop = [loop_of_op(op) for op in self.ops]
        self.mirrored = [MIRRORED in op.attributes for op in self.ops]
        self.reads = [captured(op) for op in self.ops]
        self.producer = {r: n for n, op in enumerate(self.ops) for r in op.results}
        symbols, memo = symbol_table(module), dict[str, bool]()
        self.has_effect = [has_side_effect(op, symbols, memo) for op in self.ops]
        self.returned = list(zip(self.terminator.operands, result_slices(main), strict=True))

    def _places(self, op: ir.OpView) -> tuple[str, ...]:
        if isinstance(op, PwOp):
            return (op.slice,)
        # What is done for its effect alone, and on no value, may stand anywhere.
        return read_slices(op.attributes[SLICE])

    def is_mirrored(self, value: ir.Value) -> bool:
        """Whether each reader computes the value for itself."""
        n = self.producer.get(value)
        return n is not None and self.mirrored[n]

    def source(self, value: ir.Value, place: str) -> Instance | None:
        """The instance that gives a reader on `place` a value; None for an argument."""
        n = self.producer.get(value)
        if n is None:
            return None
        return (n, place if place in self.places[n] else self.places[n][0])

    def instances(self) -> Iterator[Instance]:
        """All instances in program order, mirrored work apart."""
        for n, places in enumerate(self.places):
            if not self.mirrored[n]:
                for place in places:
                    yield n, place


@dataclasses.dataclass(eq=False)
class _Group:
    """Operations that become one computation.

    Attributes:
      slice: where it runs.
      loop: the loop whose microbatches it works on.
      position: where in the program it belongs: at its last operation.
      members: its operations, last first.
      exports: mirrored values that launches or the caller get from it.
    """

    slice: str
    loop: str | None = None
    position: int = -1
    members: list[int] = dataclasses.field(default_factory=list)
    exports: dict[ir.Value, None] = dataclasses.field(default_factory=dict)


Unit = int | _Group
"""What becomes one launch: a launch there is, by its position, or a group."""


class _Grouping:
    """Which operations share a computation."""

    def __init__(self, program: _PlacedProgram) -> None:
        self.program = program
        self.group_of: dict[Instance, _Group] = {}
        self.exporter: dict[tuple[ir.Value, str], _Group] = {}
        self.known_inputs: dict[Unit, tuple[str, list[ir.Value]]] = {}
        self.assign_groups()
        self.assign_exports()

    def groups(self) -> list[_Group]:
        every_group = [*self.group_of.values(), *self.exporter.values()]
        return list({id(g): g for g in every_group}.values())

    def assign_groups(self) -> None:
        program = self.program
        readers: dict[Instance, set[Instance]] = {}
        for n, place in program.instances():
            for value in program.reads[n]:
                source = program.source(value, place)
                if source is not None:
                    readers.setdefault(source, set()).add((n, place))
        returned = {
            (maker, place)
            for value, _ in program.returned
            if (maker := program.producer.get(value)) is not None
            for place in program.places[maker]
        }
        waits = self.wait_sets()
        leaves_soon: set[Instance] = set()
        by_waits: dict[tuple[str, str | None, int, bool], _Group] = {}
        for instance in reversed(list(program.instances())):
            n, place = instance
            if program.stands_alone[n]:
                continue
            # Readers that turned out dead are in no group.
            live = [r for r in readers.get(instance, ()) if program.stands_alone[r[0]] or r in self.group_of]
            must_stay = instance in returned or program.has_effect[n]
            if not live and not must_stay:
                continue
            if any(r[1] != place or (r in leaves_soon and waits[r] == waits[instance]) for r in live):
                leaves_soon.add(instance)
            into = {self.group_of.get(r) if r[1] == place else None for r in live}
            group = into.pop() if len(into) == 1 and not must_stay else None
            loop = program.loop[n]
            # What all microbatches share is worked out once, in front of them.
            if group is None or group.loop != loop:
                key = (place, loop, waits[instance], instance in leaves_soon)
                group = by_waits.setdefault(key, _Group(place, loop))
            self.group_of[instance] = group
            group.members.append(n)
            group.position = max(group.position, n)

    def wait_sets(self) -> dict[Instance, int]:
        """For each instance, the launches and arrivals from other slices that it waits for, as bits."""
        program = self.program
        bits = 0
        waits: dict[Instance, int] = {}
        arrivals: dict[tuple[ir.Value, str], int] = {}
        units: dict[object, int] = {}
        for n, places in enumerate(program.places):
            for place in places:
                mask = 0
                for value in program.reads[n]:
                    source = program.source(value, place)
                    if source is None:
                        continue
                    mask |= waits[source]
                    if source[1] != place:
                        if (value, place) not in arrivals:
                            arrivals[value, place] = 1 << bits
                            bits += 1
                        mask |= arrivals[value, place]
                if program.stands_alone[n]:
                    # The microbatches of a loop begin together, and end together.
                    op = program.ops[n]
                    unit = n if op_has(op, Trait.EXECUTES) else (op.operation.name, op.loop)
                    if unit not in units:
                        units[unit] = 1 << bits
                        bits += 1
                    mask |= units[unit]
                waits[n, place] = mask
        return waits

    def repeated(self, group: _Group) -> set[ir.Value]:
        """The mirrored values that a computation works out for itself."""
        program = self.program
        remade: set[ir.Value] = set()
        pending = [v for n in group.members for v in program.reads[n]] + list(group.exports)
        while pending:
            value = pending.pop()
            if program.is_mirrored(value) and value not in remade:
                n = program.producer[value]
                remade.update(program.ops[n].results)
                pending += program.reads[n]
        return remade

    def assign_exports(self) -> None:
        """Finds or makes computations for the mirrored values that launches or the caller need."""
        program = self.program
        for_launches: dict[str, dict[ir.Value, None]] = {}
        for n, place in program.instances():
            if program.stands_alone[n]:
                for value in program.reads[n]:
                    if program.is_mirrored(value):
                        for_launches.setdefault(place, {})[value] = None
        for_caller: dict[str, dict[ir.Value, None]] = {}
        for value, slices in program.returned:
            if program.is_mirrored(value):
                for place in slices or program.places[program.producer[value]]:
                    if value not in for_launches.get(place, ()):
                        for_caller.setdefault(place, {})[value] = None
        candidates = [(group, self.repeated(group)) for group in self.groups()]
        for place, values in for_launches.items():
            # Launches wait for these: a computation of their own, ahead of everything else.
            group = _Group(place, exports=values)
            self.exporter.update(((value, place), group) for value in values)
        for place, values in for_caller.items():
            own = _Group(place, position=len(program.ops))
            for value in values:
                has_it = (g for g, inside in candidates if g.slice == place and value in inside)
                group = next(has_it, own)
                group.exports[value] = None
                self.exporter[value, place] = group

    def inputs(self, unit: Unit) -> tuple[str, list[ir.Value]]:
        """The slice of a unit, and the values it reads that it does not work out itself."""
        if unit not in self.known_inputs:
            self.known_inputs[unit] = self.find_inputs(unit)
        return self.known_inputs[unit]

    def find_inputs(self, unit: Unit) -> tuple[str, list[ir.Value]]:
        program = self.program
        if isinstance(unit, int):
            return program.places[unit][0], program.reads[unit]
        inside = self.repeated(unit)
        inside_ops = dict.fromkeys(n for n in sorted(program.producer[v] for v in inside))
        values = dict.fromkeys(v for n in (*reversed(unit.members), *inside_ops) for v in program.reads[n])
        inside.update(r for n in unit.members for r in program.ops[n].results)
        return unit.slice, [v for v in values if v not in inside]

    def producers(self, unit: Unit) -> Iterator[Unit]:
        """The units whose results a unit reads."""
        program = self.program
        place, values = self.inputs(unit)
        for value in values:
            source = program.source(value, place)
            if source is None:
                continue
            if program.stands_alone[source[0]]:
                yield source[0]
            elif program.mirrored[source[0]]:
                yield self.exporter[value, place]
            else:
                yield self.group_of[source]

    def outputs(self) -> dict[_Group, dict[ir.Value, None]]:
        """The values that each computation must return."""
        program = self.program
        leaving: dict[_Group, dict[ir.Value, None]] = {group: {} for group in self.groups()}

        def need(value: ir.Value, place: str, reader: _Group | None) -> None:
            group = self.group_of.get(program.source(value, place) or (-1, ""))
            if group is not None and group is not reader:
                leaving[group][value] = None

        for instance in program.instances():
            reader = self.group_of.get(instance)
            if reader is not None or program.stands_alone[instance[0]]:
                for value in program.reads[instance[0]]:
                    need(value, instance[1], reader)
        for value, _ in program.returned:
            n = program.producer.get(value)
            for place in program.places[n] if n is not None else ():
                need(value, place, None)
        for group in leaving:
            leaving[group].update(group.exports)
        return leaving

    def in_order(self) -> Iterator[Unit]:
        """All units, each after those it reads from, otherwise in program order."""
        units: list[tuple[int, Unit]] = [
            (n, n) for n, launch in enumerate(self.program.stands_alone) if launch
        ]
        units += [(group.position, group) for group in self.groups()]
        done: set[Unit] = set()
        for _, unit in sorted(units, key=lambda entry: entry[0]):
            pending = [unit]
            while pending:
                current = pending[-1]
                missing = [] if current in done else [u for u in self.producers(current) if u not in done]
                if missing:
                    pending += missing
                    continue
                pending.pop()
                if current not in done:
                    done.add(current)
                    yield current


class _Emitter:
    """Writes the new `@main`."""

    def __init__(
        self, module: ir.Module, main: ir.OpView, program: _PlacedProgram, groups: _Grouping
    ) -> None:
        self.module = module
        self.main = main
        self.program = program
        self.groups = groups
        self.outputs = groups.outputs()
        self.new_values: dict[tuple[ir.Value, str], ir.Value] = {}
        self.computations = Computations(module, symbol_table(module))

    def run(self) -> None:
        for unit in list(self.groups.in_order()):
            if isinstance(unit, int):
                self.emit_launch(unit)
            else:
                self.emit_group(unit)
        self.emit_return()
        for op in reversed(self.program.ops):
            op.operation.erase()

    def value_on(self, value: ir.Value, place: str) -> ir.Value:
        """What stands for a value in the new `@main`, for a reader on `place`."""
        source = self.program.source(value, place)
        return value if source is None else self.new_values[value, source[1]]

    def record(self, old: Iterable[ir.Value], launch: ir.OpView, place: str) -> None:
        for value, new in zip(old, launch.results, strict=True):
            self.new_values[value, place] = new

    def emit_launch(self, n: int) -> None:
        op, place = self.program.ops[n], self.program.places[n][0]
        launch = op.operation.clone(ir.InsertionPoint(self.program.terminator)).opview
        for number, value in enumerate(self.program.reads[n]):
            launch.operands[number] = self.value_on(value, place)
        self.record(op.results, launch, place)

    def emit_group(self, group: _Group) -> None:
        program = self.program
        _, inputs = self.groups.inputs(group)
        outputs = list(self.outputs[group])
        last = group.members[0] if group.members else program.producer[outputs[0]]
        location = program.ops[last].operation.location

        def body(arguments: list[ir.Value]) -> list[ir.Value]:
            mapping = dict(zip(inputs, arguments, strict=True))
            for n in reversed(group.members):
                self.clone_with_inputs(n, mapping)
            for value in group.exports:
                self.clone_with_inputs(program.producer[value], mapping)
            return [mapping[value] for value in outputs]

        name = self.computations.make("glue", [v.type for v in inputs], body, location)
        launch = LaunchOp.build(
            [self.value_on(v, group.slice) for v in inputs],
            [v.type for v in outputs],
            callee=name,
            slice=group.slice,
            loop=group.loop,
            loc=location,
            ip=ir.InsertionPoint(program.terminator),
        )
        self.record(outputs, launch, group.slice)

    def clone_with_inputs(self, root: int, mapping: dict[ir.Value, ir.Value]) -> None:
        """Clones an operation to the insertion point, and before it the mirrored work that it reads."""
        program = self.program
        pending = [root]
        while pending:
            op = program.ops[pending[-1]]
            if op.results and op.results[0] in mapping:
                pending.pop()
                continue
            missing = [program.producer[v] for v in program.reads[pending[-1]] if v not in mapping]
            if missing:
                pending += missing
                continue
            pending.pop()
            copy = op.operation.clone().opview
            for attribute in (SLICE, MIRRORED, LOOP):
                if attribute in copy.attributes:
                    del copy.attributes[attribute]
            for inner in (copy, *nested_ops(copy)):
                for number, value in enumerate(list(inner.operands)):
                    if value in mapping:
                        inner.operands[number] = mapping[value]
            mapping.update(zip(op.results, copy.results, strict=True))

    def emit_return(self) -> None:
        terminator = self.program.terminator
        for number, (value, slices) in enumerate(self.program.returned):
            n = self.program.producer.get(value)
            if n is None:
                continue
            places = self.program.places[n]
            for place in slices or ():
                if place not in places:
                    made = ", ".join(f"@{name}" for name in sorted(places))
                    fail(terminator, f"returns result #{number} on @{place}, but it is made on {made}")
            copies = [self.new_values[value, place] for place in slices or places]
            if len(copies) > 1:
                location = self.program.ops[n].operation.location
                ip = ir.InsertionPoint(terminator)
                copies = [MirrorOp.build(copies, [value.type], loc=location, ip=ip).results[0]]
            terminator.operands[number] = copies[0]
