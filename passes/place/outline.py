"""`pw-outline`: the code between placed calls becomes computations."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import IndexOp, LaunchOp, MirrorOp, op_has, symbol_table
from pathways.dialect.attributes.names import LOOP, MIRRORED, SLICE
from pathways.dialect.operations.operation import attributes_of, symbol_name
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.graphs import depth_first
from pathways.dialect.verification.forms import LOCATED, OUTLINED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import merge_equal_functions
from pathways.passes.analysis.glue_names import GlueNames
from pathways.passes.analysis.operations import copy_into
from pathways.passes.manager.base import Pass
from pathways.passes.place.instances import Instance, InstanceGraph, instance_graph, wait_sets


@dataclasses.dataclass(frozen=True)
class Outline(Pass):
    """Moves placed operations of `@main` into functions and launches them.

    Operations on one slice share a computation if they wait for the same launches and the same
    values from other slices, so that none waits longer than it would alone; operations that lead to a value
    for another slice are kept apart from the others, so that the value leaves as soon as it can. An operation
    whose only readers are in one computation joins it; operations of each microbatch of a loop are kept apart
    from operations that run once. Work marked `pw.mirrored` is repeated in each computation that reads it.
    Structurally equal computations are merged.

    A computation is named after the function of the user from which more than half of its operations come, as
    their locations state it, or after its last operation; `glue` without locations.

    ```mlir
    // before
    %0 = pw.launch @f(%arg0) on @s0
    %1 = stablehlo.negate %0 {pw.slice = @s0}
    %2 = stablehlo.tanh %1 {pw.slice = @s0}
    %3 = pw.launch @f(%0) on @s0
    %4 = stablehlo.exponential %3 {pw.slice = @s0}
    // after
    %0 = pw.launch @f(%arg0) on @s0
    %1 = pw.launch @glue(%0) on @s0
    %2 = pw.launch @f(%0) on @s0
    %3 = pw.launch @glue_1(%2) on @s0
    ```

    Requires: every operation placed by `pw-infer-placement`.
    Guarantees: `@main` holds only `pw` operations and its return; launches of glue have no origins.
    """

    name: ClassVar[str] = "pw-outline"
    input_forms = (LOCATED,)
    output_form = OUTLINED

    def run(self, module: ir.Module) -> None:
        graph = instance_graph(module)
        waits = wait_sets(graph)
        unit_of = _units(graph, waits)
        _add_outputs(graph, unit_of)
        exporters = _add_exports(graph, unit_of, waits)
        units = dict.fromkeys([*unit_of.values(), *exporters.values()])
        contents = {unit: unit.contents() for unit in units}
        inputs = {unit: unit.inputs(contents[unit]) for unit in units}
        emitter = _Emitter(module, graph)
        for unit in _in_order(inputs, unit_of, exporters):
            emitter.emit(unit, contents[unit], inputs[unit])
        emitter.emit_return()
        for op in reversed(graph.operations[:-1]):
            if not isinstance(op, IndexOp):
                op.operation.erase()
        merge_equal_functions(module)


type Inputs = Sequence[tuple[ir.Value, Instance | None]]
"""Values that are read, in order, each with the instance that makes it; None for an argument."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Unit:
    """Unit that becomes one launch: an operation of `pw` by itself, or others that become a computation.

    Attributes:
      slice: where it runs; of an exchange of blocks, one of its slices.
      position: where in the program it belongs: at its last operation.
      loop: the loop whose microbatches it works on.
      members: its operations, last first; the mirrored work that it repeats is not among them. Of an exchange
        the instances on its slices, in their order.
      outputs: the values that it returns, each with the instance that makes it.
    """

    slice: str
    position: int
    loop: str | None = None
    members: list[Instance] = dataclasses.field(default_factory=list)
    outputs: dict[ir.Value, Instance] = dataclasses.field(default_factory=dict)

    @property
    def stands_alone(self) -> bool:
        """Whether it is an operation of `pw`, which stays as it is."""
        return bool(self.members) and self.members[0].stands_alone

    def contents(self) -> list[Instance]:
        """Returns its work in order: members and outputs, each after the mirrored work that it reads."""
        if self.stands_alone:
            return self.members
        roots = [*reversed(self.members), *self.outputs.values()]
        return list(depth_first(roots, lambda of: [s for s in of.sources.values() if s and s.mirrored]))

    def inputs(self, contents: Sequence[Instance]) -> Inputs:
        """Returns the values that it reads from others, each with its source; None for an argument."""
        if self.stands_alone:
            # The slices of an exchange may each read their own copy of one mirrored value.
            return [pair for member in self.members for pair in member.sources.items()]
        # Members first: arguments do not move when work is repeated.
        in_order = sorted(contents, key=lambda instance: (instance.mirrored, instance.position))
        produced = {result for instance in in_order for result in instance.op.results}
        sources = {v: source for i in in_order for v, source in i.sources.items() if v not in produced}
        return list(sources.items())


def _units(graph: InstanceGraph, waits: Mapping[Instance, int]) -> dict[Instance, _Unit]:
    """Returns the unit of each instance that is needed, last first; mirrored work has none of its own."""
    returned = {maker for _, makers in graph.results for maker in makers.values()}
    leaves_soon: set[Instance] = set()
    by_waits: dict[tuple[str, str | None, int, bool], _Unit] = {}
    unit_of: dict[Instance, _Unit] = {}
    exchanges: dict[int, _Unit] = {}
    for instance in reversed(graph.readers):
        place, loop, position = instance.slice, instance.loop, instance.position
        if instance.mirrored:
            continue
        if instance.stands_alone:
            results = dict.fromkeys(instance.op.results, instance)
            alone = _Unit(place, position, loop, [], results)
            if op_has(instance.op, Trait.EXCHANGES):
                alone = exchanges.setdefault(position, alone)
            alone.members.insert(0, instance)
            alone.outputs.update(dict.fromkeys(instance.results, instance))
            unit_of[instance] = alone
            continue
        # Readers that turned out dead are in no unit.
        readers = [reader for reader in graph.readers[instance] if reader in unit_of]
        must_stay = instance in returned or instance.has_effect
        if not readers and not must_stay:
            continue
        # The results of a launch are ready only when all of it is done: a value that another slice waits for
        # must not wait for unrelated work.
        if any(
            r.slice != place
            or op_has(r.op, Trait.EXCHANGES)
            or (r in leaves_soon and waits[r] == waits[instance])
            for r in readers
        ):
            leaves_soon.add(instance)
        # Inside of its only reader a value delays nobody else. The caller's must not wait for all that the
        # reader does.
        reading_units = {unit_of[reader] for reader in readers}
        unit = reading_units.pop() if len(reading_units) == 1 and not must_stay else None
        # Work that all microbatches share is done once, in front of them.
        if unit is None or unit.stands_alone or (unit.slice, unit.loop) != (place, loop):
            key = (place, loop, waits[instance], instance in leaves_soon)
            unit = by_waits.setdefault(key, _Unit(place, position, loop))
        unit_of[instance] = unit
        unit.members.append(instance)
    return unit_of


def _add_outputs(graph: InstanceGraph, unit_of: dict[Instance, _Unit]) -> None:
    """Adds the values that other units and the caller read to the outputs of units."""
    for reader in graph.readers:
        if reader not in unit_of:
            continue
        for value, source in reader.sources.items():
            if source is not None and source in unit_of and unit_of[source] is not unit_of[reader]:
                unit_of[source].outputs[value] = source
    for value, makers in graph.results:
        for maker in makers.values():
            if maker in unit_of:
                unit_of[maker].outputs[value] = maker


def _add_exports(
    graph: InstanceGraph, unit_of: dict[Instance, _Unit], waits: Mapping[Instance, int]
) -> dict[tuple[ir.Value, str], _Unit]:
    """Makes units return the mirrored values that launches and the caller read.

    Returns:
      The unit that returns each of these values for readers on a slice; some are created for it.
    """
    exporters: dict[tuple[ir.Value, str], _Unit] = {}
    for_launches: dict[tuple[str, str | None, int], dict[ir.Value, Instance]] = defaultdict(dict)
    for instance in graph.readers:
        if not instance.stands_alone:
            continue
        for value, source in instance.sources.items():
            if source is not None and source.mirrored:
                for_launches[source.slice, source.loop, waits[source]][value] = source
    for (place, loop, _), values in for_launches.items():
        # Launches wait for these: a computation of their own, ahead of everything else.
        unit = _Unit(place, -1, loop, outputs=values)
        exporters.update(((value, place), unit) for value in values)
    for_caller: dict[str, dict[ir.Value, Instance]] = defaultdict(dict)
    for value, makers in graph.results:
        for place, maker in makers.items():
            if maker.mirrored and (value, place) not in exporters:
                for_caller[place][value] = maker
    repeating = _repeating(unit_of.values()) if for_caller else {}
    for place, values in for_caller.items():
        unit_of_slice = _Unit(place, len(graph.operations))
        for value, maker in values.items():
            unit = repeating.get((value, place), unit_of_slice)
            unit.outputs[value] = maker
            exporters[value, place] = unit
    return exporters


def _repeating(units: Iterable[_Unit]) -> dict[tuple[ir.Value, str], _Unit]:
    """Returns for each mirrored value and slice the first of the units that compute it there."""
    repeating: dict[tuple[ir.Value, str], _Unit] = {}
    for unit in dict.fromkeys(units):
        # Work in each iteration of a loop returns a value of each iteration.
        mirrored = (i for i in unit.contents() if i.mirrored and i.loop == unit.loop)
        for value in (result for instance in mirrored for result in instance.op.results):
            repeating.setdefault((value, unit.slice), unit)
    return repeating


def _in_order(
    inputs: dict[_Unit, Inputs], unit_of: dict[Instance, _Unit], exporters: dict[tuple[ir.Value, str], _Unit]
) -> Iterator[_Unit]:
    """Yields all units, each after the units that it reads, otherwise in program order."""

    def producers(unit: _Unit) -> Iterator[_Unit]:
        for value, source in inputs[unit]:
            if source is not None:
                yield exporters[value, source.slice] if source.mirrored else unit_of[source]

    return depth_first(sorted(inputs, key=lambda unit: unit.position), producers)


class _Emitter:
    """Writer of the new `@main`, in front of its return."""

    def __init__(self, module: ir.Module, graph: InstanceGraph) -> None:
        self.graph = graph
        self.end = ir.InsertionPoint(graph.operations[-1])
        self.computations = Computations(module, symbol_table(module))
        self.names = GlueNames(symbol_name(module.operation.opview) or "")
        self.new_values: dict[tuple[ir.Value, str], ir.Value] = {}
        self.names_by_key: dict[object, str] = {}
        """The computations by their operations: the microbatches of a program are alike."""

    def emit(self, unit: _Unit, contents: Sequence[Instance], inputs: Inputs) -> None:
        operands = [v if s is None else self.new_values[v, s.slice] for v, s in inputs]
        read = [v for v, _ in inputs]
        if unit.stands_alone:
            launch = self.moved(unit, read, operands)
        else:
            launch = self.launched(unit, contents, read, operands)
        for (value, maker), new in zip(unit.outputs.items(), launch.results, strict=True):
            self.new_values[value, maker.slice] = new

    def moved(self, unit: _Unit, read: Sequence[ir.Value], operands: Sequence[ir.Value]) -> ir.OpView:
        copy = unit.members[0].op.operation.clone(self.end).opview
        reads = copy.operands
        if op_has(copy, Trait.EXCHANGES):
            for number, value in enumerate(operands):
                reads[number] = value
            return copy
        copy.slice = unit.slice
        if SLICE in copy.attributes:
            del copy.attributes[SLICE]
        new = dict(zip(read, operands, strict=True))
        for number, value in enumerate(list(reads)):
            reads[number] = new[value]
        return copy

    def launched(
        self,
        unit: _Unit,
        contents: Sequence[Instance],
        read: Sequence[ir.Value],
        operands: Sequence[ir.Value],
    ) -> ir.OpView:
        last = (unit.members or list(unit.outputs.values()))[0]
        location = last.op.operation.location
        return LaunchOp.build(
            operands,
            [value.type for value in unit.outputs],
            callee=self.computation(unit, contents, read, location),
            slice=unit.slice,
            loop=unit.loop,
            loc=location,
            ip=self.end,
        )

    def computation(
        self, unit: _Unit, contents: Sequence[Instance], inputs: Sequence[ir.Value], location: ir.Location
    ) -> str:
        """Returns the name of the computation of a unit."""
        key = _key(contents, inputs, unit.outputs)
        if key is not None and key in self.names_by_key:
            return self.names_by_key[key]
        base = self.names.name((instance.op.operation.location for instance in contents), location)

        def body(arguments: list[ir.Value]) -> list[ir.Value]:
            mapping = dict(zip(inputs, arguments, strict=True))
            copy_into((instance.op for instance in contents), mapping, without=_OF_MAIN)
            return [mapping[value] for value in unit.outputs]

        name = self.computations.make(base, [value.type for value in inputs], body, location)
        if key is not None:
            self.names_by_key[key] = name
        return name

    def emit_return(self) -> None:
        for number, (value, makers) in enumerate(self.graph.results):
            if not makers:
                continue
            copies = [self.new_values[value, place] for place in makers]
            if len(copies) > 1:
                location = next(iter(makers.values())).op.operation.location
                copies = list(MirrorOp.build(copies, [value.type], loc=location, ip=self.end).results)
            self.graph.operations[-1].operands[number] = copies[0]


_OF_MAIN = (SLICE, MIRRORED, LOOP)
"""Attributes that place an operation in `@main`, and that have no meaning in a computation."""


def _key(contents: Iterable[Instance], inputs: Sequence[ir.Value], outputs: Iterable[ir.Value]) -> object:
    """Returns the key that equal computations share; None for one that cannot be compared."""
    numbers = {value: n for n, value in enumerate(inputs)}
    done = []
    for instance in contents:
        op = instance.op
        if len(op.regions):
            return None
        attributes = tuple(
            attribute for attribute in attributes_of(op).items() if attribute[0] not in _OF_MAIN
        )
        if any(value is None for _, value in attributes):
            # The bindings return no complex constants, so that two of them would look the same.
            return None
        results = list(op.results)
        done.append(
            (
                op.operation.name,
                attributes,
                tuple(numbers[value] for value in op.operands),
                tuple(result.type for result in results),
            )
        )
        first = len(numbers)
        numbers.update((result, first + n) for n, result in enumerate(results))
    return tuple(value.type for value in inputs), tuple(done), tuple(numbers[value] for value in outputs)
