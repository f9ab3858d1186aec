"""`pw-replicate`: a program for each replica of the slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import pathways.dialect as dialect
from pathways.dialect.attributes.blocks import block_shape
from pathways.dialect.attributes.fields import NATURAL
from pathways.dialect.attributes.meshes import Sharding
from pathways.dialect.attributes.names import BLOCK, CONSTANT, MAX_OPERATIONS, REPLICA, SLICE
from pathways.dialect.attributes.replica_ports import ReplicaPort
from pathways.dialect.attributes.shardings import make_sharding
from pathways.dialect.relations.graphs import topological_order
from pathways.dialect.relations.layouts import Layouts
from pathways.dialect.verification.forms import SHARDED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block, set_signature, unique_name
from pathways.passes.analysis.operations import has_side_effect, integer
from pathways.passes.analysis.replicas import replica_count
from pathways.passes.manager.base import Pass, fail, main_function, remark
from pathways.passes.schedule.replicas.shares import Shares, decide_shares, rows_divide


@dataclasses.dataclass(frozen=True)
class Replicate(Pass):
    """Creates a slice for each replica of a slice, and replicates the program on them.

    1. A slice with `replicas = R` becomes R slices: itself for replica 0, and one with `replica` and
       `replica_of` for each of the others.
    2. A loop over M microbatches becomes R loops of M / R: replica r works on the M / R microbatches from
       number r M / R on. All other code is repeated, on values that are equal on all replicas; a loop whose
       iterations depend on each other stays one loop over all replicas.
    3. Each argument and result becomes R, tied by `pw.replica`. A batch that is only cut into microbatches is
       `split`: each replica gets its rows. So is a result that concatenates microbatches; other readers of
       such a result get the rows of all replicas, which are sent once to each other replica.
    4. An exchange, such as `pw.all_reduce`, gets an operand and a result for each replica.
    5. Replica 0 alone executes side effects outside of loops over microbatches, such as a print.
    6. Carried state is passed from replica to replica, in the order of the microbatches: replica r starts
       from the final state of replica r - 1, and all get the final state of the last one. A remark states
       which launches wait for that. Values carried `per_replica` are repeated like other values.

    ```mlir
    // before
    %0 = pw.split %arg1 in @batch on @s0
    %1 = pw.launch @f(%arg0, %0) on @s0 in @batch
    %4 = pw.all_reduce %3 on @s1
    // after
    %0 = pw.split %arg2 in @batch on @s0
    %1 = pw.split %arg3 in @batch_r1 on @s0_r1
    %2 = pw.launch @f(%arg0, %0) on @s0 in @batch
    %3 = pw.launch @f(%arg1, %1) on @s0_r1 in @batch_r1
    %8:2 = pw.all_reduce %6, %7
    ```

    Requires: shardings decided, transfers cut into pieces; all slices with one number of replicas, which
    divides the microbatches.
    Guarantees: every slice is a single replica; computations are shared by all replicas.
    """

    name: ClassVar[str] = "pw-replicate"
    input_forms = (SHARDED,)

    def run(self, module: ir.Module) -> None:
        count = replica_count(module)
        if count == 1:
            for op in dialect.ops_named(module, ["pw.slice"]):
                op.replicas = None
            return
        main = main_function(module)
        size = len(body_block(main).operations)
        if size * count > MAX_OPERATIONS:
            fail(main, f"has {size} operations, {count} times; a program has at most {MAX_OPERATIONS}")
        layouts = Layouts(module)
        shares = decide_shares(module, main, layouts, count)
        with main.operation.location:
            _Replicator(module, main, shares, layouts).run()


class _Replicator:
    """Writer of the program of all replicas.

    Args:
      shares: the values that are split over replicas.
      layouts: the shardings of values over their slices.
    """

    def __init__(self, module: ir.Module, main: ir.OpView, shares: Shares, layouts: Layouts) -> None:
        self.module = module
        self.main = main
        self.shares = shares
        self.count = shares.count
        self.replicas = range(shares.count)
        self.layouts = layouts
        self.symbols = self.layouts.symbols
        self.computations = Computations(module, self.symbols)
        self.block = body_block(main)
        *self.operations, self.terminator = self.block.operations
        self.arguments = list(self.block.arguments)
        self.attrs = dialect.argument_attrs(main)
        self.values: dict[ir.Value, list[ir.Value]] = {}
        """The value in each replica, by the original value."""
        self.effects: dict[str, bool] = {}
        self.quiet: dict[str, str] = {}
        """The computation without effects for each computation with effects, by names."""
        self.slices: dict[str, list[str]] = {}
        self.loops: dict[str, list[str]] = {}
        self.passes_on = False
        """Whether replicas pass state to each other within a loop."""

    def run(self) -> None:
        self.declare_slices()
        self.declare_loops()
        self.add_arguments()
        self.numbers = self.add_numbers()
        ip = ir.InsertionPoint(self.terminator)
        for op in self.operations:
            with op.operation.location:
                self.repeat(op, ip)
        self.finish()

    def declare_slices(self) -> None:
        originals = [
            op for op in dialect.ops_named(self.module, ["pw.slice"]) if isinstance(op, dialect.SliceOp)
        ]
        last = originals[-1].operation
        for op in originals:
            op.replicas = None
            op.replica = 0
            self.slices[op.sym_name] = [op.sym_name]
        for r in self.replicas[1:]:
            for op in originals:
                name = unique_name(f"{op.sym_name}_r{r}", self.symbols)
                copy = op.rebuilt(
                    sym_name=name, replica=r, replica_of=op.sym_name, ip=ir.InsertionPoint.after(last)
                )
                last = copy.operation
                self.symbols[name] = copy
                self.layouts.meshes[name] = self.layouts.meshes[op.sym_name]
                self.slices[op.sym_name].append(name)

    def declare_loops(self) -> None:
        originals = [
            op for op in dialect.ops_named(self.module, ["pw.loop"]) if isinstance(op, dialect.LoopOp)
        ]
        for op in originals:
            if op.sequential:
                # Replicas may exchange sums in its iterations, so they share the loop.
                self.loops[op.sym_name] = [op.sym_name] * self.count
                continue
            op.count = op.count // self.count
            names = [op.sym_name]
            for r in self.replicas[1:]:
                names.append(unique_name(f"{op.sym_name}_r{r}", self.symbols))
                # Reserve the name; the loop is declared below.
                self.symbols[names[-1]] = op
            self.loops[op.sym_name] = names
        for op in originals:
            if op.sequential:
                continue
            ip = ir.InsertionPoint.after(op.operation)
            # Each is inserted right after the first, so the last one comes first.
            for r in reversed(self.replicas[1:]):
                name = self.loops[op.sym_name][r]
                self.symbols[name] = op.rebuilt(sym_name=name, replica_of=op.sym_name, ip=ip)

    def add_arguments(self) -> None:
        """Appends the arguments of replicas; `finish` removes the original ones."""
        self.new_attrs: list[dict[str, ir.Attribute]] = []
        self.new_arguments: list[ir.Value] = []
        of = 0
        for argument, attrs in zip(self.arguments, self.attrs, strict=True):
            if CONSTANT in attrs:
                places = [name for r in self.replicas for name in self.in_replica(attrs, r)]
                value = self.add_argument(argument.type, {**attrs, SLICE: dialect.make_slices(places)})
                self.values[argument] = [value] * self.count
                continue
            split, type_ = _taken_block(attrs), argument.type
            if argument in self.shares.arguments:
                split, type_ = 0, self.rows_of(argument.type)
            self.values[argument] = [
                self.add_argument(
                    type_,
                    {
                        **attrs,
                        SLICE: dialect.make_slices(self.in_replica(attrs, r)),
                        REPLICA: ReplicaPort(of, r, self.count, split).attribute,
                    },
                )
                for r in self.replicas
            ]
            of += 1

    def add_numbers(self) -> list[ir.Value]:
        """Returns the numbers of the replicas as hidden arguments, on the slices that read them."""
        if not self.shares.numbered:
            return []
        numbers = []
        scalar = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        for r in self.replicas:
            name = unique_name(f"replica_{r}", self.symbols)
            value = ir.DenseElementsAttr.get_splat(scalar, ir.IntegerAttr.get(scalar.element_type, r))
            self.symbols[name] = dialect.ConstantOp.build(
                sym_name=name, value=value, ip=ir.InsertionPoint(self.main)
            )
            places = dialect.make_slices([self.slices[place][r] for place in self.shares.numbered])
            attrs = {CONSTANT: ir.FlatSymbolRefAttr.get(name), SLICE: places}
            numbers.append(self.add_argument(scalar, attrs))
        return numbers

    def add_argument(self, type_: ir.Type, attrs: dict[str, ir.Attribute]) -> ir.Value:
        value = self.block.add_argument(type_, self.main.operation.location)
        self.new_arguments.append(value)
        self.new_attrs.append(attrs)
        return value

    def in_replica(self, attrs: dict[str, ir.Attribute], r: int) -> list[str]:
        """Returns the slices of an argument or result in a replica."""
        return [self.slices[name][r] for name in dialect.read_slices(attrs[SLICE])]

    def rows_of(self, type_: ir.Type) -> ir.RankedTensorType:
        """Returns the type of one replica's rows of an array."""
        tensor = ir.RankedTensorType(type_)
        return ir.RankedTensorType.get(block_shape(tensor.shape, 0, self.count), tensor.element_type)

    def repeat(self, op: ir.OpView, ip: ir.InsertionPoint) -> None:
        """Repeats an operation on every replica."""
        if isinstance(op, dialect.ReplicaOp):
            self.values[op.results[0]] = self.numbers
            return
        if isinstance(op, dialect.AllReduceOp | dialect.ReduceScatterOp | dialect.AllGatherOp):
            (value,), (result,) = op.operands, op.results
            types = [result.type] * self.count
            exchange = op.rebuilt(self.values[value], types, ip=ip, slice=None)
            self.values[result] = list(exchange.results)
            return
        if isinstance(op, dialect.ReduceOp) and op.kind == "concat" and op.loop in self.shares.microbatched:
            self.repeat_concatenation(op, ip)
            return
        if (
            isinstance(op, dialect.NextOp)
            and op.loop in self.shares.microbatched
            and not op.carry.per_replica
        ):
            self.pass_on(op, ip)
            return
        # An effect on equal values, such as printing a loss, happens on the first replica only.
        is_repeated = op.results or not self.has_effect_outside(op)
        copies = [self.copy(op, r, ip) for r in self.replicas if r == 0 or is_repeated]
        for number, result in enumerate(op.results):
            self.values[result] = [copy.results[number] for copy in copies]

    def copy(self, op: ir.OpView, r: int, ip: ir.InsertionPoint) -> ir.OpView:
        """Returns a copy of an operation in a replica."""
        operands = [self.values[value][r] for value in op.operands]
        if isinstance(op, dialect.SplitOp) and op.loop in self.shares.microbatched:
            (value,) = op.operands
            if value not in self.shares.arguments:
                operands = [self.rows(value, op, r, ip)]
        copy = op.operation.clone(ip).opview
        for number, value in enumerate(operands):
            copy.operands[number] = value
        if "slice" in copy.attributes:
            copy.slice = self.slices[copy.slice][r]
        if isinstance(copy, dialect.AllToAllOp):
            copy.slices = [self.slices[place][r] for place in copy.slices]
        for name in ("loop", "outer"):
            if name in copy.attributes:
                setattr(copy, name, self.loops[getattr(copy, name)][r])
        if r > 0 and isinstance(copy, dialect.LaunchOp) and self.has_effect_outside(op):
            copy.callee = self.without_effect(op.callee)
        return copy

    def has_effect_outside(self, op: ir.OpView) -> bool:
        """Returns whether an operation has side effects and is outside of loops over microbatches."""
        if not isinstance(op, dialect.LaunchOp) or op.loop in self.shares.microbatched:
            return False
        return has_side_effect(self.symbols[op.callee], self.symbols, self.effects)

    def without_effect(self, callee: str) -> str:
        """Returns a computation without the operations that only its side effects need."""
        if callee not in self.quiet:
            function = self.computations.variant(callee, f"{callee}_quiet")
            for inner in reversed(list(body_block(function).operations)):
                is_return = inner.operation.name == "func.return"
                if not inner.results and not is_return and has_side_effect(inner, self.symbols, self.effects):
                    inner.operation.erase()
            self.quiet[callee] = function.attributes["sym_name"].value
        return self.quiet[callee]

    def repeat_concatenation(self, op: dialect.ReduceOp, ip: ir.InsertionPoint) -> None:
        """Repeats a concatenation of microbatches: each replica has its rows, or all rows for readers."""
        value = op.results[0]
        blocks = []
        for r in self.replicas:
            copy = self.copy(op, r, ip)
            blocks.append(copy.rebuilt(result_types=[self.rows_of(value.type)], ip=ip).results[0])
            copy.operation.erase()
        self.values[value] = blocks if value in self.shares.results else self.gathered(op, blocks, ip)

    def gathered(
        self, op: dialect.ReduceOp, blocks: Sequence[ir.Value], ip: ir.InsertionPoint
    ) -> list[ir.Value]:
        """Returns the rows of all replicas, on each of them."""
        value, loop = op.results[0], op.outer
        layout = self.layouts.of(value, op.slice)
        sharding = self.attribute(op.slice, layout.dims)
        # If the rows of one replica do not divide over the devices, they travel unsharded.
        divides = rows_divide(value, op.slice, self.layouts, self.count)
        block_dims = layout.dims if divides else ((), *layout.dims[1:])
        block_sharding = self.attribute(op.slice, block_dims)
        if block_dims != layout.dims:
            for block in blocks:
                block.owner.opview.sharding = block_sharding
        name = self.computations.make(
            "rows",
            [blocks[0].type] * self.count,
            lambda rows: [stablehlo.concatenate(rows, 0)],
            op.operation.location,
            arguments=block_sharding,
            results=sharding,
            key=(blocks[0].type, self.layouts.meshes[op.slice], layout, block_dims),
        )
        gathered_rows = []
        for r, loop_name in enumerate(self.loops[loop] if loop else [None] * self.count):
            here = self.slices[op.slice][r]
            arrived = [
                block
                if other == r
                else dialect.TransferOp.build(
                    [block], [block.type], slice=here, sharding=block_sharding, loop=loop_name, ip=ip
                ).results[0]
                for other, block in enumerate(blocks)
            ]
            launch = dialect.LaunchOp.build(
                arrived, [value.type], callee=name, slice=here, loop=loop_name, ip=ip
            )
            gathered_rows.append(launch.results[0])
        return gathered_rows

    def pass_on(self, op: dialect.NextOp, ip: ir.InsertionPoint) -> None:
        """Passes carried state from replica to replica, and the final state of the last one to all."""
        carry = op.carry
        remark(
            carry,
            f"of type {carry.results[0].type} is passed on from replica to replica: "
            f"{_describe_wait(op, self.operations)}",
        )
        self.passes_on = True
        ends = [self.copy(op, r, ip).results[0] for r in self.replicas]

        def sent(value: ir.Value, r: int) -> ir.Value:
            sharding = self.attribute(op.slice, self.layouts.of(carry.results[0], op.slice).dims)
            loop = None if op.outer is None else self.loops[op.outer][r]
            slice = self.slices[op.slice][r]
            return dialect.TransferOp.build(
                [value], [value.type], slice=slice, sharding=sharding, loop=loop, ip=ip
            ).results[0]

        for r in self.replicas[1:]:
            self.values[carry.results[0]][r].owner.opview.operands[0] = sent(ends[r - 1], r)
        last = self.count - 1
        if any(True for _ in op.results[0].uses):
            ends = [ends[r] if r == last else sent(ends[last], r) for r in self.replicas]
        self.values[op.results[0]] = ends

    def attribute(self, slice: str, dims: Sequence[tuple[str, ...]]) -> ir.Attribute | None:
        home = self.layouts.meshes[slice]
        if home.mesh.size == 1:
            return None
        return make_sharding(home.symbol, Sharding(tuple(dims)))

    def rows(self, value: ir.Value, split: dialect.SplitOp, r: int, ip: ir.InsertionPoint) -> ir.Value:
        """Returns one replica's rows of a value that each replica has entirely."""
        layout = self.layouts.of(value, split.slice)
        rows_layout = self.layouts.of(split.results[0], split.slice)
        target = self.rows_of(value.type)

        def body(arguments: list[ir.Value]) -> list[ir.Value]:
            value_of_all, number = arguments
            starts = [stablehlo.multiply(number, integer(target.shape[0]))]
            starts += [integer(0)] * (target.rank - 1)
            return [stablehlo.dynamic_slice(value_of_all, starts, list(target.shape))]

        name = self.computations.make(
            "replica_rows",
            [value.type, self.numbers[r].type],
            body,
            split.operation.location,
            arguments=[self.attribute(split.slice, layout.dims), self.attribute(split.slice, ())],
            results=self.attribute(split.slice, rows_layout.dims),
            key=(value.type, layout, rows_layout, self.layouts.meshes[split.slice]),
        )
        loop = dialect.loop_of(value)
        launch = dialect.LaunchOp.build(
            [self.values[value][r], self.numbers[r]],
            [target],
            callee=name,
            slice=self.slices[split.slice][r],
            loop=None if loop is None else self.loops[loop][r],
            ip=ip,
        )
        return launch.results[0]

    def finish(self) -> None:
        """Writes the new return of `@main`, and removes the original operations and arguments."""
        returned, attrs_of_results = [], []
        for of, (value, attrs) in enumerate(
            zip(self.terminator.operands, dialect.result_attrs(self.main), strict=True)
        ):
            split = _taken_block(attrs)
            if value in self.shares.results:
                split = 0
            for r in self.replicas:
                returned.append(self.values[value][r])
                attrs_of_results.append(
                    {
                        **attrs,
                        SLICE: dialect.make_slices(self.in_replica(attrs, r)),
                        REPLICA: ReplicaPort(of, r, self.count, split).attribute,
                    }
                )
        with ir.InsertionPoint(self.terminator), self.terminator.operation.location:
            ir.Operation.create("func.return", operands=returned)
        self.terminator.operation.erase()
        for op in reversed(self.operations):
            op.operation.erase()
        # The arguments of replicas were appended, so the original ones come first.
        for _ in self.arguments:
            self.block.erase_argument(0)
        if self.passes_on:
            self.sort()
        set_signature(self.main, [a.type for a in self.block.arguments], [v.type for v in returned])
        dialect.set_argument_attrs(self.main, self.new_attrs)
        dialect.set_result_attrs(self.main, attrs_of_results)

    def sort(self) -> None:
        """Moves operations after the final state of another replica that they start from."""
        *operations, terminator = self.block.operations
        makers = {value: n for n, op in enumerate(operations) for value in op.results}
        needs = {
            n: {makers[value] for value in op.operands if value in makers} for n, op in enumerate(operations)
        }
        for n in topological_order(needs):
            operations[n].operation.move_before(terminator)


def _describe_wait(op: dialect.NextOp, operations: Sequence[ir.OpView]) -> str:
    """Describes which launches of a replica wait for the previous replica, and until when."""
    members = [each for each in operations if dialect.loop_of_op(each) == op.loop]
    launches = [each for each in members if isinstance(each, dialect.LaunchOp)]
    reached = set(op.carry.results)
    for each in members:
        if any(value in reached for value in each.operands):
            reached.update(each.results)
    waiting = sum(any(value in reached for value in each.operands) for each in launches)
    needed = {op.operands[1]}
    makers: list[ir.OpView] = []
    for each in reversed(members):
        if any(result in needed for result in each.results):
            makers.append(each)
            needed.update(each.operands)
    needs_stage = any(isinstance(each, dialect.LaunchOp) and not each.is_glue for each in makers)
    until = "until it has done its last microbatch" if needs_stage else "for its updates of this alone"
    launches_of = f"{waiting} of {len(launches)} launches of each microbatch of @{op.loop}"
    return f"{launches_of} wait for the replica before, {until}"


def _taken_block(attrs: dict[str, ir.Attribute]) -> int | None:
    """Removes the dimension that is in blocks, one for each replica, from attributes, and returns it."""
    block = attrs.pop(BLOCK, None)
    return None if block is None else NATURAL.read(block)
