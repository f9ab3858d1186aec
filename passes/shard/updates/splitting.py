"""Splitting: values outside of loops that replicas need only as blocks, with their dimensions."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.dialect.attributes.blocks import block_shape
from pathways.dialect.attributes.names import CONSTANT, KEYS, SLICE
from pathways.dialect.attributes.shardings import decided_inside
from pathways.dialect.relations.layouts import Layouts
from pathways.passes.analysis.functions import body_block, named_arguments
from pathways.passes.analysis.operations import captured_by_regions
from pathways.passes.analysis.sharding_rules import RuleReader
from pathways.passes.manager.base import fail_each, remark
from pathways.passes.shard.updates.axes import BRANCHES, partial_dims, ties_of
from pathways.passes.shard.updates.branches import is_movable


class ValueKey(NamedTuple):
    """Key of a value of `@main`, or of one inside of the computation of a launch.

    Attributes:
      launch: the number of the launch; -1 for a value of `@main`.
    """

    launch: int
    value: ir.Value


type Axis = tuple[ValueKey, int]
"""A dimension of a value."""


@dataclasses.dataclass(frozen=True)
class OuterLaunch:
    """A launch outside of loops, and its computation.

    Attributes:
      block: the computation, with calls inlined.
      rules: the reader of the sharding rules of its operations.
    """

    number: int
    op: dialect.LaunchOp
    block: ir.Block
    rules: RuleReader

    def key(self, value: ir.Value) -> ValueKey:
        """Returns the key of a value inside; the operands of a launch are values of `@main`."""
        if isinstance(value, ir.BlockArgument) and value.owner == self.block:
            return main_key(self.op.operands[value.arg_number])
        return ValueKey(self.number, value)

    @property
    def operations(self) -> list[ir.OpView]:
        """Operations of the computation, without the return."""
        return list(self.block.operations)[:-1]

    @property
    def returned(self) -> list[ir.Value]:
        """Values of the computation that it returns."""
        return list(self.block.operations[len(self.block.operations) - 1].operands)


def main_key(value: ir.Value) -> ValueKey:
    """Returns the key of a value of `@main`."""
    return ValueKey(-1, value)


@dataclasses.dataclass(frozen=True)
class Splitting:
    """Values that are split over replicas.

    Attributes:
      count: the number of replicas.
      dims: for values that could be split, the dimension.
      split: the values that replicas have as blocks only.
      states: the arguments that replicas hold as blocks, with the numbers of the results that replace them.
    """

    count: int
    dims: Mapping[ValueKey, int]
    split: Collection[ValueKey]
    states: Mapping[ir.Value, int]

    def dim(self, key: ValueKey) -> int | None:
        """Returns the dimension that is in blocks; None for a value that each replica has as a whole."""
        return self.dims[key] if key in self.split else None

    def block_type(self, type_: ir.Type, dim: int) -> ir.RankedTensorType:
        """Returns the type of a block of an array."""
        tensor = ir.RankedTensorType(type_)
        return ir.RankedTensorType.get(block_shape(tensor.shape, dim, self.count), tensor.element_type)


def decide(
    main: ir.OpView, launches: Mapping[dialect.LaunchOp, OuterLaunch], layouts: Layouts, count: int
) -> Splitting | None:
    """Decides which values replicas split; None for no value.

    An argument that only updates read, and whose place a result takes, is split along a dimension that goes
    together with one of a sum over replicas. So is all that is computed from blocks.

    Args:
      main: the program, of one replica.
      launches: the launches that may be rewritten.
      layouts: the shardings of its values.
      count: the number of replicas.

    Raises:
      PassFailure: an operation needs all of a value to split.
    """
    graph = _Graph(main, launches, layouts)
    states = _states(main, graph)
    choice = _Choice(main, graph, states, count)
    for argument in states:
        choice.add(argument)
    choice.report()
    split = {argument: n for argument, n in states.items() if main_key(argument) in choice.dims}
    # An argument stays whole unless its result comes in blocks. Whole, it may make more results whole, so
    # that others have to be left out as well: until nothing changes.
    while split:
        reached = graph.flow([*graph.sums, *split])
        cut = {key for key, dim in choice.dims.items() if (key, dim) in reached}
        last = {argument: n for argument, n in split.items() if main_key(graph.returned[n]) in cut}
        if len(last) == len(split):
            return Splitting(count, choice.dims, cut, split)
        split = last
    return None


class _Graph:
    """Graph of dimensions that go together, and of readers.

    Attributes:
      sums: the sums over replicas.
      blocked: for each axis the operations that need all of it.
      read_whole: values that an operation needs all of, each with the results of the operation.
      read_elsewhere: the values of `@main` with readers other than launches and transfers.
      classes: the axes that go together, by one of them.
      summed: the representatives of axes of sums.
    """

    def __init__(
        self, main: ir.OpView, launches: Mapping[dialect.LaunchOp, OuterLaunch], layouts: Layouts
    ) -> None:
        self.launches = launches
        self.layouts = layouts
        self.arguments = dialect.argument_slices(main)
        self.slices = [launch.op.slice for launch in launches.values()]
        self.sums: list[ir.Value] = []
        self.blocked: dict[Axis, list[ir.OpView]] = defaultdict(list)
        self.read_whole: list[tuple[ValueKey, list[ValueKey]]] = []
        self.read_elsewhere: set[ir.Value] = set()
        self.sources: dict[Axis, list[Axis]] = defaultdict(list)
        self.readers: dict[ValueKey, list[tuple[ValueKey, int]]] = defaultdict(list)
        self.parents: dict[Axis, Axis] = {}
        *operations, terminator = body_block(main).operations
        self.returned = list(terminator.operands)
        for op in operations:
            self.read(op)
        self.keep_whole_in_front()
        self.summed = {self.find((main_key(value), dim)) for value in self.sums for dim in _dims(value)}
        self.classes: dict[Axis, list[Axis]] = defaultdict(list)
        for axis in list(self.parents):
            self.classes[self.find(axis)].append(axis)

    def read(self, op: ir.OpView) -> None:
        """Reads an operation of `@main`."""
        if isinstance(op, dialect.LaunchOp) and op in self.launches:
            self.read_launch(self.launches[op])
        elif isinstance(op, dialect.TransferOp) and op.loop is None and op.routes is None:
            self.pass_on(main_key(op.operands[0]), main_key(op.results[0]))
        else:
            self.read_elsewhere.update(op.operands)
            if isinstance(op, dialect.AllReduceOp) and op.loop is None:
                self.sums.append(op.results[0])
                self.read_elsewhere.difference_update(op.operands)

    def read_launch(self, launch: OuterLaunch) -> None:
        """Reads the computation of a launch."""
        self.read_operations(launch, launch.operations)
        for inner, outer in zip(launch.returned, launch.op.results, strict=True):
            self.pass_on(launch.key(inner), main_key(outer))

    def read_operations(
        self, launch: OuterLaunch, operations: Iterable[ir.OpView], in_branch: bool = False
    ) -> None:
        """Reads operations of a computation; reductions of a branch will be moved in front of it."""
        for op in operations:
            if op.operation.name in BRANCHES:
                for region in op.regions:
                    *inside, terminator = region.blocks[0].operations
                    self.read_operations(launch, inside, in_branch=True)
                    for inner, result in zip(terminator.operands, op.results, strict=True):
                        self.pass_on(launch.key(inner), launch.key(result))
                continue
            tied = set()
            for tie in ties_of(op, launch.rules):
                tied.add((tie.operand, tie.dim))
                source, target = op.operands[tie.operand], op.results[tie.result]
                self.join((launch.key(source), tie.dim), (launch.key(target), tie.result_dim))
            for number, value in enumerate([*op.operands, *captured_by_regions(op)]):
                key = launch.key(value)
                self.readers[key] += [(launch.key(result), 1) for result in op.results]
                is_partial = number == 0 and (not in_branch or is_movable(op))
                partial = partial_dims(op) if is_partial else ()
                for dim in _dims(value):
                    if (number, dim) not in tied and dim not in partial:
                        self.blocked[key, dim].append(op)
                        self.read_whole.append((key, [launch.key(result) for result in op.results]))

    def keep_whole_in_front(self) -> None:
        """Notes values in front of microbatches that an operation needs all of, such as a slice."""
        sources: dict[ValueKey, list[ValueKey]] = defaultdict(list)
        targets: dict[ValueKey, list[ValueKey]] = defaultdict(list)
        for key, readers in self.readers.items():
            for other, _ in readers:
                sources[other].append(key)
                targets[key].append(other)
        after = _reached(targets, map(main_key, self.sums))
        front = _reached(sources, map(main_key, self.read_elsewhere))
        # After a sum it is part of an update, for which `_Choice` decides. Otherwise it counts only if it
        # leads to a reader other than launches and transfers, such as the split into microbatches.
        undivided = [
            key for key, results in self.read_whole if key not in after and not front.isdisjoint(results)
        ]
        self.read_elsewhere |= {key.value for key in _reached(sources, undivided) if key.launch < 0}

    def pass_on(self, source: ValueKey, target: ValueKey) -> None:
        """Notes that a value is another."""
        self.readers[source].append((target, 0))
        for dim in _dims(source.value):
            self.join((source, dim), (target, dim))

    def join(self, source: Axis, target: Axis) -> None:
        """Notes that a dimension is cut where another is."""
        self.sources[target].append(source)
        self.parents[self.find(source)] = self.find(target)

    def find(self, axis: Axis) -> Axis:
        """Returns the axis that represents all axes that are split together with one."""
        root = axis
        while (parent := self.parents.setdefault(root, root)) != root:
            root = parent
        # Path compression: chains are as long as computations.
        while self.parents[axis] != root:
            self.parents[axis], axis = root, self.parents[axis]
        return root

    def flow(self, values: Iterable[ir.Value]) -> set[Axis]:
        """Returns the axes that are cut if the axes of some values are."""
        targets: dict[Axis, list[Axis]] = defaultdict(list)
        for target, sources in self.sources.items():
            for source in sources:
                targets[source].append(target)
        return _reached(targets, ((main_key(value), dim) for value in values for dim in _dims(value)))

    def distances(self, argument: ir.Value) -> dict[ValueKey, int]:
        """Counts the operations from an argument to each value that is computed from it."""
        distances = {main_key(argument): 0}
        pending = deque(distances)
        while pending:
            key = pending.popleft()
            for other, steps in self.readers[key]:
                far = distances[key] + steps
                if far < distances.get(other, far + 1):
                    distances[other] = far
                    # 0-1 breadth-first search: free steps come before all others.
                    (pending.append if steps else pending.appendleft)(other)
        return distances

    def shards(self, axis: Axis) -> int:
        """Counts the blocks of a dimension over the devices of the slice."""
        (launch, value), dim = axis
        places = (dialect.slices_of(value, self.arguments) or ()) if launch < 0 else (self.slices[launch],)
        most = 1
        for name in places:
            home = self.layouts.meshes[name]
            if home.mesh.size > 1:
                layout = self.layouts.of(value, name) if launch < 0 else decided_inside(value, home)
                # A mirrored value has to divide on each of its slices.
                most = math.lcm(most, layout.splits(home.mesh)[dim])
        return most


def _reached[T](edges: Mapping[T, Iterable[T]], starts: Iterable[T]) -> set[T]:
    """Returns the nodes that edges lead to, the starts included."""
    reached: set[T] = set()
    pending = list(starts)
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending += edges.get(node, ())
    return reached


def _dims(value: ir.Value) -> range:
    return range(ir.RankedTensorType(value.type).rank)


def _states(main: ir.OpView, graph: _Graph) -> dict[ir.Value, int]:
    """Returns the arguments that only updates read, and the numbers of the results that take their places.

    An argument belongs to the result of its type that the fewest operations compute from it.
    """
    results = [
        None if KEYS in attrs else (value.type, dialect.read_slices(attrs[SLICE]))
        for value, attrs in zip(graph.returned, dialect.result_attrs(main), strict=True)
    ]
    pairs = []
    for number, attrs in enumerate(dialect.argument_attrs(main)):
        argument = body_block(main).arguments[number]
        here = argument.type, dialect.read_slices(attrs[SLICE])
        if CONSTANT in attrs or len(here[1]) > 1 or not _dims(argument) or here not in results:
            continue
        far = graph.distances(argument)
        pairs += [
            (far[main_key(value)], number, result)
            for result, value in enumerate(graph.returned)
            if results[result] == here and main_key(value) in far
        ]
    pairing: dict[int, int] = {}
    for _, number, result in sorted(pairs):
        if number not in pairing and result not in pairing.values():
            pairing[number] = result
    arguments = {body_block(main).arguments[n]: result for n, result in sorted(pairing.items())}
    # Only now: an argument that is read elsewhere, such as a parameter, has taken its own result, so that no
    # optimizer state of the same type is paired with it.
    return {value: result for value, result in arguments.items() if value not in graph.read_elsewhere}


class _Choice:
    """The dimensions along which values are split, argument by argument."""

    def __init__(self, main: ir.OpView, graph: _Graph, states: Mapping[ir.Value, int], count: int) -> None:
        self.main = main
        self.graph = graph
        self.states = states
        self.count = count
        self.dims: dict[ValueKey, int] = {}
        self.left: dict[str, list[ir.Value]] = defaultdict(list)
        """Arguments that stay whole, by the reason."""
        self.refused: dict[tuple[str, str], tuple[ir.OpView, list[ir.Value]]] = {}
        """Arguments that cannot be split, by the name and place of the operation that needs all of them."""
        self.in_flow = graph.flow([*graph.sums, *states])
        numbers = set(states.values())
        gathered = {
            value for n, value in enumerate(graph.returned) if n not in numbers
        } | graph.read_elsewhere
        self.gathered = {main_key(value) for value in gathered}
        for launch in graph.launches.values():
            for inner, outer in zip(launch.returned, launch.op.results, strict=True):
                if outer in gathered:
                    self.gathered.add(launch.key(inner))

    def add(self, argument: ir.Value) -> None:
        """Splits an argument, if a dimension of it divides and goes together with one of a sum."""
        graph, key = self.graph, main_key(argument)
        result = main_key(graph.returned[self.states[argument]])
        dims = [dim for dim in _dims(argument) if graph.find((key, dim)) == graph.find((result, dim))]
        dims = [dim for dim in dims if graph.find((key, dim)) in graph.summed]
        if key in self.dims:
            return
        if not dims:
            self.left["it is not updated element by element with a sum over replicas"].append(argument)
            return
        whys = {dim: self.why_not((key, dim)) for dim in dims}
        if all(whys.values()):
            self.left[str(whys[dims[0]])].append(argument)
            return
        fits = [dim for dim in dims if whys[dim] is None]
        readers = {dim: self.whole_readers((key, dim)) for dim in fits}
        # Rather a dimension that the devices of the slice do not divide as well.
        best = min(fits, key=lambda dim: (len(readers[dim]), graph.shards((key, dim)) > 1, dim))
        if readers[best]:
            op = readers[best][0]
            at = op.operation.name, str(op.operation.location)
            self.refused.setdefault(at, (op, []))[1].append(argument)
            return
        self.dims |= dict(graph.classes[graph.find((key, best))])

    def report(self) -> None:
        """Remarks on arguments that stay whole, and refuses arguments that cannot be split, by reason."""
        for why, arguments in self.left.items():
            remark(
                self.main,
                f"leaves {named_arguments(self.main, arguments)} whole on all {self.count} replicas: {why}",
            )
        if self.refused:
            fail_each(
                (
                    op,
                    f"needs all of what {self.count} replicas would have blocks of: zero1 cannot split the "
                    f"update of {named_arguments(self.main, arguments)}; {_remedy(op)}",
                )
                for op, arguments in self.refused.values()
            )

    def why_not(self, axis: Axis) -> str | None:
        """Explains why a dimension and all tied to it cannot be cut; None where they can."""
        members = self.graph.classes[self.graph.find(axis)]
        for key, dim in members:
            size = ir.RankedTensorType(key.value.type).shape[dim]
            shards = self.graph.shards((key, dim))
            if size == 0 or size % (self.count * shards):
                devices = f" times {shards} devices" if shards > 1 else ""
                return (
                    f"dimension {axis[1]} of size {size} is not divisible by {self.count} replicas{devices}"
                )
        dims: dict[ValueKey, int] = {}
        # A value is cut along one dimension only, but may have two in this class, or one chosen before.
        against = [
            (key, sorted({dim, other}))
            for key, dim in members
            if (other := dims.setdefault(key, dim)) != dim or (other := self.dims.get(key, dim)) != dim
        ]
        if not against:
            return None
        # The user knows arguments.
        key, (first, second) = min(against, key=lambda item: not self.is_argument(item[0]))
        return (
            f"dimension {axis[1]} goes together with dimensions {first} and {second} of {self.shown(key)}, "
            "and only one of them can be split"
        )

    def is_argument(self, key: ValueKey) -> bool:
        return isinstance(key.value, ir.BlockArgument) and key.launch < 0

    def shown(self, key: ValueKey) -> str:
        """Describes a value for the user."""
        if self.is_argument(key):
            return named_arguments(self.main, [key.value])
        owner = key.value.owner
        kind = "a value" if isinstance(owner, ir.Block) else f"a result of '{owner.operation.name}'"
        return f"{kind} of type {key.value.type}"

    def whole_readers(self, axis: Axis) -> list[ir.OpView]:
        """Returns operations that need a whole dimension of operands that may be split."""
        return [
            op
            for other in self.graph.classes[self.graph.find(axis)]
            if other in self.in_flow and other[0] not in self.gathered
            for op in self.graph.blocked.get(other, ())
        ]


def _remedy(op: ir.OpView) -> str:
    """Returns the remedy for an operation that needs all of a value."""
    if partial_dims(op):
        return "it is in a branch, after a loop: move it out of the conditional, or do not use zero1"
    return "make the update elementwise, or do not use zero1"
