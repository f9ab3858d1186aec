"""Operations of the `pw` dialect. Their docstrings are the reference in `docs/pw_ops.md`."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from pathways.dialect.attributes.blocks import whole_shape
from pathways.dialect.attributes.fields import (
    ELEMENTS,
    NATURAL,
    ORDERS,
    ORIGINS,
    ROUTES,
    SHARDING,
    STRING,
    TENSOR_TYPE,
    UNIT,
    Attr,
    OptionalAttr,
    Values,
    one_of,
    symbol,
    symbols,
)
from pathways.dialect.attributes.names import MAX_DEVICES, MAX_MICROBATCHES, MAX_OPERATIONS
from pathways.dialect.attributes.origins import Origin
from pathways.dialect.attributes.shardings import read_mesh
from pathways.dialect.operations.operation import OPERATIONS, Emit, PwOp, attribute_of, counted, operation
from pathways.dialect.operations.traits import Trait

__all__ = [
    "OPERATIONS",
    "AllGatherOp",
    "AllReduceOp",
    "AllToAllOp",
    "CarryOp",
    "ChannelOp",
    "ConstantOp",
    "IndexOp",
    "LaunchOp",
    "LoopOp",
    "MirrorOp",
    "NextOp",
    "RecvOp",
    "ReduceOp",
    "ReduceScatterOp",
    "ReleaseOp",
    "RepeatOp",
    "ReplicaOp",
    "RunOp",
    "SendOp",
    "SliceOp",
    "SplitOp",
    "TransferOp",
    "UntilOp",
]

REDUCTIONS = ("sum", "concat")

_SLICE = symbol("pw.slice")
_SLICES = symbols("pw.slice")
_CHANNEL = symbol("pw.channel")
_FUNC = symbol("func.func")
_MESH = symbol("sdy.mesh")
_LOOP = symbol("pw.loop")
_PART = symbol("builtin.module")

_OUTER = "The loop around the loop, to which the result belongs."


@operation("slice")
class SliceOp(PwOp):
    """Declares a virtual slice: a mesh of devices that a program requests without naming any device.

    All slices of one shape share one `sdy.mesh`, so that equal stages share computations. Which devices
    a slice gets is decided when the program is loaded; no physical device appears in the IR.

    ```mlir
    sdy.mesh @mesh_2x2 = <["data"=2, "model"=2]>
    "pw.slice"() {mesh = @mesh_2x2, sym_name = "s0"} : () -> ()
    ```
    """

    sym_name = Attr(STRING, "The name of the slice.")
    mesh = Attr(_MESH, "The axis names and sizes of the slice.")
    island = OptionalAttr(STRING, "The island that the slice must be on; any island if absent.")
    overlap = OptionalAttr(
        UNIT,
        "The slice may share devices with other slices that are marked so; all their work has one order.",
    )
    replicas = OptionalAttr(
        NATURAL, "The number of replicas of the slice, until `pw-replicate` has created a slice for each."
    )
    replica = OptionalAttr(
        NATURAL, "The replica of the program that the slice belongs to, set by `pw-replicate`."
    )
    replica_of = OptionalAttr(
        _SLICE, "The slice of replica 0 that this one represents in its replica, set by `pw-replicate`."
    )
    peak_bytes = OptionalAttr(
        NATURAL,
        "The peak of bytes alive on the slice, over all its devices, set by `pw-plan-memory`, and again "
        "by `pw-split-hosts`.",
    )
    host = OptionalAttr(NATURAL, "The number of the host that the slice is on, set by `pw-bind-slices`.")
    traits = frozenset({Trait.SYMBOL})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        if self.replicas is not None and not 1 <= self.replicas <= MAX_DEVICES:
            emit(f"expected 1 to {MAX_DEVICES} replicas, got {self.replicas}")
        if self.replicas is not None and self.replica is not None:
            emit("has `replicas`, but is itself one `replica`")
        # Replica 0 represents itself: slices of other replicas name the slices of replica 0.
        if self.replica_of is not None and not self.replica:
            emit(f"is a replica of @{self.replica_of}, but has no other `replica` number")


@operation("channel")
class ChannelOp(PwOp):
    """Declares a precomputed future: a path from one slice to another for values of one type.

    Its shape, sharding and capacity are known before anything runs, so that both ends can allocate and
    post their side ahead of the data. Values arrive in the order in which they were sent.

    ```mlir
    "pw.channel"() {capacity = 1, dst = @s1, src = @s0, sym_name = "c0",
        value_type = tensor<8x4xf32>} : () -> ()
    ```

    Invariants: `src` and `dst` differ; `capacity` is at least 1.
    """

    sym_name = Attr(STRING, "The name of the channel.")
    src = Attr(_SLICE, "The slice that sends.")
    dst = Attr(_SLICE, "The slice that receives.")
    value_type = Attr(TENSOR_TYPE, "The type of every value that passes.")
    capacity = Attr(NATURAL, "The limit of values that are in flight or not yet received.")
    sharding = OptionalAttr(SHARDING, "The sharding of a value over the receiving slice.")
    traits = frozenset({Trait.SYMBOL})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        if self.src == self.dst:
            emit(f"expected `src` and `dst` to be different slices, got @{self.src} twice")
        if self.capacity < 1:
            emit(f"expected a capacity of at least 1, got {self.capacity}")


@operation("constant")
class ConstantOp(PwOp):
    """Declares an array that the program closes over, stored once outside all computations.

    An argument of `@main` that carries `pw.constant = @k0` receives it on its slices when the program
    is loaded; callers do not pass it.

    ```mlir
    "pw.constant"() {sym_name = "k0", value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> ()
    ```
    """

    sym_name = Attr(STRING, "The name of the constant.")
    value = Attr(ELEMENTS, "The array.")
    traits = frozenset({Trait.SYMBOL})


@operation("launch")
class LaunchOp(PwOp):
    """A gang-scheduled execution of a computation on all devices of a slice.

    The callee is a private function of StableHLO and becomes one XLA module, partitioned over the
    devices of the slice. Donation is a property of that module: an argument of the callee that carries
    `tf.aliasing_output` or `jax.buffer_donor` consumes the operand.

    ```mlir
    %h = "pw.launch"(%w, %x) {callee = @embed, loop = @batch, microbatch = 0, order = 3,
        origins = [{kind = "fwd", microbatch = 0, stage = 0}], slice = @s0}
        : (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    ```

    Invariants: operand and result types equal the callee's signature; once transfers are inserted, every
    operand lives on `slice`; a donated operand is passed once and not used later.
    """

    inputs = Values("The arguments of the computation.")
    outputs = Values("Its results; all live on `slice`.")
    callee = Attr(_FUNC, "The computation.")
    slice = Attr(_SLICE, "The slice; all its devices take part.")
    origins = OptionalAttr(
        ORIGINS,
        "The placed calls that it represents, in order; none for the code between placed calls (glue), more "
        "than one after `pw-fuse-launches` has fused launches.",
        default=(),
    )
    loop = OptionalAttr(_LOOP, "The innermost loop over microbatches that it belongs to.")
    microbatch = OptionalAttr(
        NATURAL, "The microbatch of the loop that it works on, once the loop is unrolled."
    )
    overlap_with_loop = OptionalAttr(
        UNIT,
        "It belongs to no microbatch, but runs early, among launches of the loop that produces its operands: "
        "an exchange between replicas.",
    )
    order = OptionalAttr(NATURAL, "Its position among the launches and sends of its slice.")
    traits = frozenset({Trait.EXECUTES, Trait.LOCAL, Trait.ORDERED, Trait.OF_LOOP})

    @property
    def is_glue(self) -> bool:
        """Whether it represents no placed call of the program."""
        return "origins" not in self.attributes

    @property
    def origin(self) -> Origin | None:
        """The first placed call that it represents; None for glue."""
        return next(iter(self.origins), None)

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        signature = symbols[self.callee].type
        operands, results = list(self.operands), list(self.results)
        # Types are unique in a context, so that one comparison of signatures does for nearly all launches.
        if ir.FunctionType.get([v.type for v in operands], [v.type for v in results]) == signature:
            return
        for side, expected, provided in (
            ("operand", signature.inputs, operands),
            ("result", signature.results, results),
        ):
            if len(expected) != len(provided):
                emit(f"expected {counted(len(expected), side)}, as for @{self.callee}, got {len(provided)}")
                continue
            for number, (want, value) in enumerate(zip(expected, provided, strict=True)):
                if want != value.type:
                    emit(f"{side} #{number} has type {value.type}, but @{self.callee} has {want}")


@operation("transfer")
class TransferOp(PwOp):
    """Moves a value to another slice: the only way in which a value changes slice.

    Where each device of one slice has exactly the shard that one device of the other needs, shards are copied
    as they are. Otherwise `pw-lower-transfers` cuts the value into pieces on the source and joins them on the
    destination: the transfer then moves several operands to several results, and `routes` says, for each
    device of the destination and each result, the operand and the device that it comes from.

    ```mlir
    %h1 = "pw.transfer"(%h) {channel = @c0, order = 4, slice = @s1} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %q = "pw.transfer"(%p0, %p1) {routes = array<i64: 0, 0, 1, 0>, slice = @s1}
        : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    ```

    Invariants: without `routes` there is one operand and one result, of one type. With it all operands have
    one type and all results have one, and there is a pair of numbers for each device of the destination and
    each result. No operand lives on `slice` already; a channel leads from a slice of the operands to `slice`
    and carries the type of the results.
    """

    inputs = Values("The value to move, or its pieces on the source.", one_type=True)
    outputs = Values("The same value on `slice`, or its pieces there.", one_type=True)
    slice = Attr(_SLICE, "The slice to move to.")
    sharding = OptionalAttr(SHARDING, "The sharding of each result over `slice`.")
    routes = OptionalAttr(
        ROUTES,
        "Pairs (number of the operand, number of the source device): result by result, and for each of "
        "them device by device of the destination.",
    )
    memory_kind = OptionalAttr(
        STRING, "The memory kind of the results, as JAX names it; the default one if absent."
    )
    loop = OptionalAttr(_LOOP, "The innermost loop over microbatches that the value belongs to.")
    microbatch = OptionalAttr(
        NATURAL, "The microbatch of the loop that the value belongs to, once the loop is unrolled."
    )
    channel = OptionalAttr(_CHANNEL, "The path of the value, set by `pw-schedule`.")
    order = OptionalAttr(
        NATURAL, "The position of the send among the launches and sends of the source slice."
    )
    traits = frozenset({Trait.TRANSFERS, Trait.PURE, Trait.ORDERED, Trait.OF_LOOP})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        if self.routes is None:
            self.check_whole(emit)
        else:
            self.check_pieces(symbols, emit)
        if self.channel is None or not self.results:
            return
        # Where the channel starts is checked with the slices of the operands, by `moves_lead_elsewhere`.
        channel = symbols[self.channel]
        assert isinstance(channel, ChannelOp)
        moved = self.results[0].type
        if channel.dst != self.slice:
            emit(f"goes to @{self.slice}, but channel @{self.channel} leads to @{channel.dst}")
        if channel.value_type != moved:
            emit(f"moves {moved}, but channel @{self.channel} carries {channel.value_type}")

    def check_whole(self, emit: Emit) -> None:
        """Checks a transfer of one value, shard by shard."""
        for side, values in (("operand", self.operands), ("result", self.results)):
            if len(values) != 1:
                emit(f"expected {counted(1, side)} without `routes`, got {len(values)}")
                return
        source, target = self.operands[0].type, self.results[0].type
        if source != target:
            emit(f"expected operand and result of one type, got {source} and {target}")

    def check_pieces(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        """Checks a transfer of pieces against its routes."""
        for side, values in (("operand", self.operands), ("result", self.results)):
            types = {value.type for value in values}
            if len(types) != 1:
                emit(f"expected {side}s of one type with `routes`, got {len(types)}")
                return
        if _check_routes(self, len(self.results), self.slice, symbols, emit):
            _check_operands(self, emit)


_INDEX = "The number of the transfer between hosts in a step, the same at both ends."


@operation("send")
class SendOp(PwOp):
    """Sends a value to another host: the half of a transfer that is on the host of its source.

    It does not block: the value may not be computed yet, and the other host may have requested it already.
    The receiver does not acknowledge the value, so it lives to the end of the step. A value that may be freed
    sooner, or that the caller may free, is copied first.

    ```mlir
    "pw.send"(%h) {channel = @c0, index = 0, order = 4, slice = @s0} : (tensor<8x4xf32>) -> ()
    ```

    Invariants: the operands live on `slice`, where the channel starts. Exactly one `pw.recv`, on the host of
    the slice where the channel ends, has the same `index`, and the same channel and routes.
    """

    inputs = Values("The value to send, or its pieces.", one_type=True)
    slice = Attr(_SLICE, "The slice that the value leaves.")
    channel = Attr(_CHANNEL, "The path of the value.")
    index = Attr(NATURAL, _INDEX)
    order = Attr(NATURAL, "Its position among the work of the host.")
    routes = OptionalAttr(ROUTES, "The routes of the `pw.transfer`.")
    copy = OptionalAttr(UNIT, "A copy is sent, since the value may be donated or deleted before it is read.")
    loop = OptionalAttr(_LOOP, "The innermost loop over microbatches that the value belongs to.")
    microbatch = OptionalAttr(NATURAL, "The microbatch of the loop that the value belongs to.")
    traits = frozenset({Trait.SENDS, Trait.LOCAL, Trait.ORDERED, Trait.OF_LOOP})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        channel = symbols[self.channel]
        _check_index(self.index, emit)
        if channel.src != self.slice:
            emit(f"leaves @{self.slice}, but channel @{self.channel} starts at @{channel.src}")
        if self.routes is None:
            _check_whole_end("operand", self.operands, self.channel, channel.value_type, emit)
            return
        if len({value.type for value in self.operands}) != 1:
            emit("expected operands of one type with `routes`")
            return
        devices = read_mesh(symbols[symbols[channel.dst].mesh]).size
        if not self.routes or len(self.routes) % devices:
            pairs = counted(devices, "pair")
            emit(f"expected {pairs} in `routes` for each result, got {len(self.routes)} in all")
            return
        _check_operands(self, emit)


@operation("recv")
class RecvOp(PwOp):
    """Receives a value from another host: the half of a transfer that is on the host of its destination.

    It does not block: launches may read its results at once, and run when the other host has sent them.
    Their memory is allocated at once, too.

    ```mlir
    %h1 = "pw.recv"() {channel = @c0, index = 0, order = 2, slice = @s1} : () -> tensor<8x4xf32>
    ```

    Invariants: the results have the type that the channel carries, and `slice` is where it ends. Exactly one
    `pw.send`, on the host of the slice where the channel starts, has the same `index`, and the same channel
    and routes.
    """

    outputs = Values("The value on `slice`, or its pieces there.", one_type=True)
    slice = Attr(_SLICE, "The slice that the value goes to.")
    channel = Attr(_CHANNEL, "The path of the value.")
    index = Attr(NATURAL, _INDEX)
    order = Attr(NATURAL, "Its position among the work of the host.")
    sharding = OptionalAttr(SHARDING, "The sharding of each result over `slice`.")
    routes = OptionalAttr(ROUTES, "The routes of the `pw.transfer`, by operands of the `pw.send`.")
    memory_kind = OptionalAttr(STRING, "The memory kind of the `pw.transfer`.")
    loop = OptionalAttr(_LOOP, "The innermost loop over microbatches that the value belongs to.")
    microbatch = OptionalAttr(NATURAL, "The microbatch of the loop that the value belongs to.")
    traits = frozenset({Trait.RECEIVES, Trait.ORDERED, Trait.OF_LOOP})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        channel = symbols[self.channel]
        _check_index(self.index, emit)
        if channel.dst != self.slice:
            emit(f"goes to @{self.slice}, but channel @{self.channel} leads to @{channel.dst}")
        if self.routes is None:
            _check_whole_end("result", self.results, self.channel, channel.value_type, emit)
            return
        if {value.type for value in self.results} != {channel.value_type}:
            emit(f"expected results of type {channel.value_type}, which channel @{self.channel} carries")
            return
        _check_routes(self, len(self.results), self.slice, symbols, emit)


def _check_index(index: int, emit: Emit) -> None:
    if index >= MAX_OPERATIONS:
        emit(f"expected an `index` below {MAX_OPERATIONS}, got {index}")


def _check_whole_end(
    side: str, values: Sequence[ir.Value], channel: str, expected: ir.Type, emit: Emit
) -> None:
    """Checks one end of a transfer of one value, shard by shard."""
    if len(values) != 1:
        emit(f"expected {counted(1, side)} without `routes`, got {len(values)}")
    elif values[0].type != expected:
        emit(f"{side} has type {values[0].type}, but channel @{channel} carries {expected}")


def _check_routes(
    op: TransferOp | RecvOp, results: int, slice: str, symbols: dict[str, ir.OpView], emit: Emit
) -> bool:
    """Checks that there is a pair for each device of the destination and each result."""
    devices = read_mesh(symbols[symbols[slice].mesh]).size
    expected = devices * results
    if len(op.routes) == expected:
        return True
    pairs = f"{counted(devices, 'device')} and {counted(results, 'result')}"
    emit(f"expected {2 * expected} numbers in `routes`, a pair for each of {pairs}, got {2 * len(op.routes)}")
    return False


def _check_operands(op: TransferOp | SendOp, emit: Emit) -> None:
    """Checks that routes begin at existing operands."""
    if not all(0 <= route.operand < len(op.operands) for route in op.routes):
        emit(f"`routes` names an operand it does not have; it has {len(op.operands)}")


@operation("mirror")
class MirrorOp(PwOp):
    """Joins the copies of one value, one per slice, into a value mirrored on all their slices.

    It costs nothing at run time: it declares its operands equal, so that a caller that gets the result
    may pass it back and every slice finds its own copy.

    ```mlir
    %step = "pw.mirror"(%step_on_s0, %step_on_s1) : (tensor<i32>, tensor<i32>) -> tensor<i32>
    ```

    Invariants: all operands and the result have one type; no two operands share a slice.
    """

    inputs = Values("Equal values on different slices.", one_type=True)
    outputs = Values("The mirrored value.", 1)
    traits = frozenset({Trait.ALIASES, Trait.PURE})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        if len(self.operands) < 2:
            emit(f"expected at least 2 operands, got {len(self.operands)}")
        for number, value in enumerate(self.operands):
            if value.type != self.results[0].type:
                emit(f"operand #{number} has type {value.type}, but the result has {self.results[0].type}")


@operation("release")
class ReleaseOp(PwOp):
    """Ends the life of values: their buffers are free once the launches that read them have run.

    ```mlir
    "pw.release"(%h, %h1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> ()
    ```

    Invariants: no value is used, returned or released again afterwards.
    """

    inputs = Values("The values to release; each is one logical buffer, whatever the number of shards.")
    traits = frozenset({Trait.RELEASES})


@operation("loop")
class LoopOp(PwOp):
    """Declares a loop: over the microbatches of a batch, or over iterations that carry values.

    The code of one iteration is in `@main` once, between operations that name the loop: operations that
    depend on a `pw.split`, a `pw.carry` or the `pw.index`, directly or indirectly, run once per iteration,
    and all others once; `pw.reduce` and `pw.next` lead out of the loop. `pw-unroll-microbatches` repeats it;
    the launches that it creates name the loop and the iteration, which is called the microbatch in every
    loop.

    ```mlir
    "pw.loop"() {count = 8, schedule = "1f1b", sym_name = "batch"} : () -> ()
    "pw.loop"() {count = 128, sequential, sym_name = "tokens"} : () -> ()
    "pw.loop"() {chunk = 8, sequential, sym_name = "decode"} : () -> ()
    ```

    Invariants: there is a `count` or a `chunk`, of at least 1, and not both; no loop is inside of itself; a
    loop around other loops is sequential; so is one with a `chunk`, which is inside of no other.
    """

    sym_name = Attr(STRING, "The name of the loop.")
    count = OptionalAttr(NATURAL, "The number of iterations.")
    chunk = OptionalAttr(
        NATURAL,
        "The number of iterations that are issued at once, where a `pw.until` decides when the loop ends.",
    )
    schedule = OptionalAttr(STRING, "The pipeline schedule that the program requests.")
    sequential = OptionalAttr(UNIT, "Its iterations keep program order, whatever schedule other loops have.")
    parent = OptionalAttr(_LOOP, "The loop that it is nested in.")
    replica_of = OptionalAttr(
        _LOOP, "The loop of replica 0 that this one represents in its replica, set by `pw-replicate`."
    )
    traits = frozenset({Trait.SYMBOL})

    @property
    def iterations(self) -> int:
        """The number of its iterations in `@main`: all of them, or one chunk."""
        return self.chunk if self.count is None else self.count

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        if (self.count is None) == (self.chunk is None):
            emit(f"expected `count` or `chunk`, got {'neither' if self.count is None else 'both'}")
            return
        if not 1 <= self.iterations <= MAX_MICROBATCHES:
            attribute = "chunk" if self.count is None else "count"
            emit(f"expected a {attribute} of 1 to {MAX_MICROBATCHES}, got {self.iterations}")
        if self.chunk is not None and not self.sequential:
            emit("has a `chunk`, but is not sequential")
        if self.chunk is not None and self.parent is not None:
            emit(f"has a `chunk`, but is nested in @{self.parent}")
        if self.parent is not None and not symbols[self.parent].sequential:
            emit(f"is nested in @{self.parent}, which is not sequential")
        # All code that walks from a loop outwards relies on this: a cycle of parents has no end.
        ancestor, seen = self.parent, {self.sym_name}
        while ancestor is not None and ancestor not in seen:
            seen.add(ancestor)
            ancestor = symbols[ancestor].parent
        if ancestor is not None:
            emit(f"is nested in itself, by way of @{ancestor}")


@operation("split")
class SplitOp(PwOp):
    """Cuts the block of the current microbatch out of a value.

    Microbatch `i` gets the `i`-th of `count` equal blocks of the leading dimension.

    ```mlir
    %b = "pw.split"(%x) {loop = @batch, slice = @s0} : (tensor<64x4xf32>) -> tensor<8x4xf32>
    ```

    Invariants: the leading dimension of the operand is `count` times that of the result; all else is equal;
    once placed, the operand lives on `slice`; the operand does not itself belong to a microbatch.
    """

    inputs = Values("The whole value.", 1)
    outputs = Values("One block of it.", 1)
    loop = Attr(_LOOP, "The loop.")
    slice = OptionalAttr(_SLICE, "The slice on which the value is split, set by `pw-infer-placement`.")
    sharding = OptionalAttr(SHARDING, "The sharding of the block over `slice`.")
    traits = frozenset({Trait.LOCAL, Trait.PURE, Trait.OPENS_LOOP})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        _check_blocks(self.operands[0], self.results[0], symbols[self.loop].iterations, "operand", emit)


@operation("reduce")
class ReduceOp(PwOp):
    """Reduces the values of the microbatches of a loop: to their sum, or to their concatenation.

    With one operand it represents the value of each microbatch. Once the loop is unrolled it has an
    operand for each microbatch, in their order, until `pw-accumulate` turns it into launches.

    ```mlir
    %g = "pw.reduce"(%gi) {kind = "sum", loop = @batch, slice = @s0} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    ```

    Invariants: one operand or `count`, of one type; a sum has that type too; in a concatenation the leading
    dimension of the result is `count` times that of an operand; once placed, operands live on `slice`.
    """

    inputs = Values("The value of a microbatch, or one for each.", one_type=True)
    outputs = Values("The reduced value.", 1)
    kind = Attr(one_of(*REDUCTIONS), "The reduction.")
    loop = Attr(_LOOP, "The loop.")
    outer = OptionalAttr(_LOOP, _OUTER)
    slice = OptionalAttr(_SLICE, "The slice on which the value is reduced, set by `pw-infer-placement`.")
    sharding = OptionalAttr(SHARDING, "The sharding of the result over `slice`.")
    traits = frozenset({Trait.LOCAL, Trait.PURE, Trait.CLOSES_LOOP})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        _check_outer(self, symbols, emit)
        count = symbols[self.loop].iterations
        if len(self.operands) not in (1, count):
            emit(
                f"expected {counted(1, 'operand')} or one for each of {count} microbatches, "
                f"got {len(self.operands)}"
            )
            return
        types = {value.type for value in self.operands}
        if len(types) != 1:
            emit(f"expected operands of one type, got {len(types)}")
        elif self.kind == "concat":
            _check_blocks(self.results[0], self.operands[0], count, "result", emit)
        elif self.operands[0].type != self.results[0].type:
            emit(f"sums {self.operands[0].type}, but the result has {self.results[0].type}")


@operation("all_reduce")
class AllReduceOp(PwOp):
    """Sums a value over all replicas, and gives the sum to each of them.

    `pw-insert-all-reduces` puts it after sums over microbatches. Until `pw-replicate` it has one operand and
    one result, which represent all replicas; then one of each for every replica, on the slice of the
    operand. `pw-lower-all-reduces` lowers it to launches and transfers.

    ```mlir
    %g = "pw.all_reduce"(%gi) {slice = @s0} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %g:2 = "pw.all_reduce"(%g0, %g1)
        : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    ```

    Invariants: as many results as operands, all of one type; two or more operands live on one slice each, no
    two on the same, and their slices have one mesh, over which they are sharded alike.
    """

    inputs = Values("The value, or that of each replica.", one_type=True)
    outputs = Values("The sum, or the sum on each replica.", one_type=True)
    slice = OptionalAttr(_SLICE, "The slice of the value, as long as it represents all replicas.")
    loop = OptionalAttr(_LOOP, "The innermost loop that the sum belongs to.")
    traits = frozenset({Trait.LOCAL, Trait.PURE, Trait.OF_LOOP, Trait.SPREADS})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        if not self.operands or len(self.operands) != len(self.results):
            emit(f"expected as many results as operands, got {len(self.operands)} and {len(self.results)}")
        elif len(self.operands) > 1 and self.slice is not None:
            emit(f"has a `slice`, but {counted(len(self.operands), 'operand')}")
        elif {value.type for value in self.operands} != {value.type for value in self.results}:
            emit(f"sums {self.operands[0].type}, but the result is {self.results[0].type}")


@operation("reduce_scatter")
class ReduceScatterOp(PwOp):
    """Sums a value over all replicas, and gives each of them its block of a dimension.

    `pw-split-updates` replaces a `pw.all_reduce` by it. It has the same operands and results, and is lowered
    by `pw-lower-all-reduces`, too.

    ```mlir
    %g = "pw.reduce_scatter"(%gi) {dim = 0, slice = @s0} : (tensor<4x4xf32>) -> tensor<2x4xf32>
    %g:2 = "pw.reduce_scatter"(%g0, %g1) {dim = 0}
        : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    ```

    Invariants: as for `pw.all_reduce`, except that the results are blocks: `dim` is as many times larger in
    an operand as there are replicas.
    """

    inputs = Values("The value, or that of each replica.", one_type=True)
    outputs = Values("A block of the sum, or that of each replica.", one_type=True)
    dim = Attr(NATURAL, "The dimension that is cut; replica r gets block r of it.")
    slice = OptionalAttr(_SLICE, "The slice of the value, as long as it represents all replicas.")
    traits = frozenset({Trait.LOCAL, Trait.PURE, Trait.SPREADS})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        _check_shares(self, self.operands, self.results, symbols, emit)


@operation("all_gather")
class AllGatherOp(PwOp):
    """Gathers a value that each replica has a block of, and gives the whole to each of them.

    ```mlir
    %w = "pw.all_gather"(%block) {dim = 0, slice = @s0} : (tensor<2x4xf32>) -> tensor<4x4xf32>
    %w:2 = "pw.all_gather"(%block0, %block1) {dim = 0}
        : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    ```

    Invariants: as for `pw.reduce_scatter`, with blocks as operands.
    """

    inputs = Values("A block, or that of each replica.", one_type=True)
    outputs = Values("All blocks, or all of them on each replica.", one_type=True)
    dim = Attr(NATURAL, "The dimension that is concatenated, in the order of the replicas.")
    slice = OptionalAttr(_SLICE, "The slice of the value, as long as it represents all replicas.")
    traits = frozenset({Trait.LOCAL, Trait.PURE, Trait.SPREADS})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        _check_shares(self, self.results, self.operands, symbols, emit)


def _check_shares(
    op: ReduceScatterOp | AllGatherOp,
    values: Sequence[ir.Value],
    blocks: Sequence[ir.Value],
    symbols: dict[str, ir.OpView],
    emit: Emit,
) -> None:
    """Checks an exchange between values and their blocks on replicas."""
    if not values or len(values) != len(blocks):
        emit(f"expected as many results as operands, got {len(op.operands)} and {len(op.results)}")
        return
    if len(values) > 1 and op.slice is not None:
        emit(f"has a `slice`, but {counted(len(values), 'operand')}")
        return
    count = len(values)
    if count == 1 and op.slice is not None:
        # Before `pw-replicate` one operand represents all replicas of its slice.
        count = symbols[op.slice].replicas or 1
    types = {value.type for value in values}, {value.type for value in blocks}
    if not all(
        len(some) == 1 and all(isinstance(t, ir.RankedTensorType) and t.has_static_shape for t in some)
        for some in types
    ):
        emit("expected operands and results of one type each, ranked tensors of static shape")
        return
    (full,), (block,) = types
    shape = list(whole_shape(block.shape, op.dim, count))
    if op.dim >= block.rank:
        emit(f"names dimension {op.dim}, but {block} has {block.rank}")
    elif list(full.shape) != shape or full.element_type != block.element_type:
        emit(f"expected {count} blocks along dimension {op.dim}, got {full} and {block}")


@operation("all_to_all")
class AllToAllOp(PwOp):
    """Exchanges blocks between slices: block s of the result on slice t is block t of the operand on slice s.

    An operand and a result hold a block for each slice along the leading dimension. `pw-lower-all-to-alls`
    lowers it to transfers between all pairs of slices, which all happen for any contents of the blocks.

    ```mlir
    %r:2 = "pw.all_to_all"(%x0, %x1) {loop = @batch, slices = [@s0, @s1]}
        : (tensor<2x8x4xf32>, tensor<2x8x4xf32>) -> (tensor<2x8x4xf32>, tensor<2x8x4xf32>)
    ```

    Invariants: two or more different slices; an operand and a result for each of them, all of one type, whose
    leading dimension is the number of slices. Once transfers are inserted, operand n lives on slice n; result
    n has the sharding of operand n, in which the leading dimension is whole once shardings are decided.
    """

    inputs = Values("The blocks that each slice sends.", one_type=True)
    outputs = Values("The blocks that each slice receives.", one_type=True)
    slices = Attr(_SLICES, "The slices that exchange blocks, in the order of operands and results.")
    loop = OptionalAttr(_LOOP, "The innermost loop over microbatches that the blocks belong to.")
    microbatch = OptionalAttr(
        NATURAL, "The microbatch of the loop that the blocks belong to, once the loop is unrolled."
    )
    orders = OptionalAttr(
        ORDERS, "The position on each slice, among its launches and sends, at which its blocks leave."
    )
    traits = frozenset({Trait.EXCHANGES, Trait.PURE, Trait.OF_LOOP})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        slices, count = self.slices, len(self.slices)
        if count < 2:
            emit(f"expected at least 2 slices, got {count}")
            return
        for name in dict.fromkeys(name for name in slices if slices.count(name) > 1):
            emit(f"expected different slices, got @{name} {slices.count(name)} times")
        for side, values in (("operand", self.operands), ("result", self.results)):
            if len(values) != count:
                emit(f"expected {counted(count, side)}, one for each slice, got {len(values)}")
                return
        if self.orders is not None and len(self.orders) != count:
            emit(
                f"expected {counted(count, 'number')} in `orders`, one for each slice, got {len(self.orders)}"
            )
        block = self.operands[0].type
        for side, values in (("operand", self.operands), ("result", self.results)):
            for number, (value, place) in enumerate(zip(values, slices, strict=True)):
                if value.type != block:
                    emit(f"{side} #{number} on @{place} has type {value.type}, but operand #0 has {block}")
                    return
        if not isinstance(block, ir.RankedTensorType) or not block.rank or block.shape[0] != count:
            emit(f"expected a leading dimension of {count}, one block for each slice, got {block}")


@operation("replica")
class ReplicaOp(PwOp):
    """Gives the number of the replica.

    `pw-split-updates` creates it where a replica slices its block out of a value that it has whole, and
    `pw-sum-carries` where a replica scales its term of a sum. `pw-replicate` replaces it by the numbers.

    ```mlir
    %r = "pw.replica"() {slice = @s0} : () -> tensor<i32>
    ```
    """

    outputs = Values("The number.", 1)
    slice = Attr(_SLICE, "The slice that reads it.")
    traits = frozenset({Trait.PURE})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        if str(self.results[0].type) != "tensor<i32>":
            emit(f"expected a result of type tensor<i32>, got {self.results[0].type}")


@operation("carry")
class CarryOp(PwOp):
    """Gives the value that the iterations of a loop carry.

    In the first iteration it is the operand, in every other one the operand of `pw.next` in the one before.

    ```mlir
    %state = "pw.carry"(%init) {loop = @steps, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
    ```

    Invariants: operand and result have one type; exactly one `pw.next` has it as its first operand; its own
      operand
    does not belong to the loop; the loop of one that is `per_replica` is not sequential.
    """

    inputs = Values("The value in the first iteration.", 1)
    outputs = Values("The value in the current iteration.", 1)
    loop = Attr(_LOOP, "The loop.")
    slice = OptionalAttr(
        _SLICE, "The slice that it lives on in all iterations, once the program is outlined."
    )
    sharding = OptionalAttr(SHARDING, "Its sharding over `slice` in all iterations.")
    per_replica = OptionalAttr(
        UNIT, "Each replica carries a value of its own: it is not passed on from one to the next."
    )
    traits = frozenset({Trait.LOCAL, Trait.OPENS_LOOP})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        if self.operands[0].type != self.results[0].type:
            emit(f"starts from {self.operands[0].type}, but is {self.results[0].type}")
        if self.per_replica and symbols[self.loop].sequential:
            emit(f"is carried per replica, but the iterations of @{self.loop} are those of all replicas")


@operation("next")
class NextOp(PwOp):
    """Passes a value on to the next iteration of a loop.

    It reads a `pw.carry`, and its value in the next iteration. Its result is the value after the last
    iteration.

    ```mlir
    %last = "pw.next"(%state, %new) {loop = @steps, slice = @s0}
        : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    ```

    Invariants: the first operand is a `pw.carry` of the loop, on the same slice; all types are equal.
    """

    inputs = Values("The `pw.carry`, and its value in the next iteration.", 2, one_type=True)
    outputs = Values("Its value after the last iteration.", 1)
    loop = Attr(_LOOP, "The loop.")
    outer = OptionalAttr(_LOOP, _OUTER)
    slice = OptionalAttr(_SLICE, "The slice of the `pw.carry`.")
    traits = frozenset({Trait.LOCAL, Trait.CLOSES_LOOP})

    @property
    def carry(self) -> CarryOp:
        """The carried value that it updates."""
        return self.operands[0].owner.opview

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        _check_outer(self, symbols, emit)
        source = self.operands[0].owner
        if isinstance(source, ir.Block) or not isinstance(source.opview, CarryOp):
            emit("operand #0 is not a `pw.carry`")
        else:
            # The other operation may be ill-formed.
            carries = attribute_of(source, "loop")
            if carries is None or carries != self.attributes["loop"]:
                emit(f"operand #0 is carried by {carries or 'no loop'}, not by @{self.loop}")
        for number, value in enumerate(self.operands):
            if value.type != self.results[0].type:
                emit(f"operand #{number} has type {value.type}, but the result has {self.results[0].type}")


@operation("until")
class UntilOp(PwOp):
    """Ends a loop with a `chunk`: after the chunk of iterations in which a value becomes true.

    The iterations of the chunk after the end change nothing. `pw-split-chunks` replaces the loop by a
    `pw.repeat`.

    ```mlir
    "pw.until"(%done) {loop = @decode, slice = @s0} : (tensor<i1>) -> ()
    ```
    """

    inputs = Values("Whether the loop has ended.", 1)
    outputs = Values("None.", 0)
    loop = Attr(_LOOP, "The loop.")
    slice = OptionalAttr(_SLICE, "The slice that the value lives on, once it is placed.")
    traits = frozenset({Trait.LOCAL})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        if symbols[self.loop].chunk is None:
            emit(f"ends @{self.loop}, which has a `count` and no `chunk`")
        if str(self.operands[0].type) != "tensor<i1>":
            emit(f"expected an operand of type tensor<i1>, got {self.operands[0].type}")


@operation("run")
class RunOp(PwOp):
    """Runs a sub-program once: a module inside of this one, with a `@main` of its own.

    ```mlir
    %0:2 = "pw.run"(%x) {part = @before_decode} : (tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>)
    ```
    """

    inputs = Values("The arguments of the sub-program, without its constants.")
    outputs = Values("The results of the sub-program.")
    part = Attr(_PART, "The sub-program.")


@operation("repeat")
class RepeatOp(PwOp):
    """Runs a sub-program repeatedly: once, and then until one of its results is true.

    The results of the sub-program are its first arguments in the next iteration; the other operands are the
    same in every one. The runtime reads the result that ends the loop after each iteration.

    ```mlir
    %1:2 = "pw.repeat"(%0#0, %0#1, %w) {part = @decode, until = 0}
        : (tensor<i1>, tensor<4xf32>, tensor<4x4xf32>) -> (tensor<i1>, tensor<4xf32>)
    ```
    """

    inputs = Values("The arguments of the sub-program in its first iteration, without its constants.")
    outputs = Values("The results of the last iteration.")
    part = Attr(_PART, "The sub-program.")
    until = Attr(NATURAL, "The number of the result that is true after the last iteration.")

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        if len(self.results) > len(self.operands):
            emit(f"has {counted(len(self.results), 'result')}, but {counted(len(self.operands), 'operand')}")
            return
        for number, (result, operand) in enumerate(zip(self.results, self.operands, strict=False)):
            if result.type != operand.type:
                emit(f"result #{number} has type {result.type}, but operand #{number} has {operand.type}")
        if self.until >= len(self.results):
            emit(f"has no result #{self.until}, which `until` names")
        elif str(self.results[self.until].type) != "tensor<i1>":
            emit(f"expected result #{self.until} to be of type tensor<i1>, as `until` names it")


@operation("index")
class IndexOp(PwOp):
    """Gives the number of the current iteration of a loop, from 0. Like a constant it is available on every
    slice.

    ```mlir
    %i = "pw.index"() {loop = @steps} : () -> tensor<i32>
    ```
    """

    outputs = Values("The number.", 1)
    loop = Attr(_LOOP, "The loop.")
    traits = frozenset({Trait.PURE, Trait.OPENS_LOOP})

    def check(self, symbols: dict[str, ir.OpView], emit: Emit) -> None:
        if str(self.results[0].type) != "tensor<i32>":
            emit(f"expected a result of type tensor<i32>, got {self.results[0].type}")


def _check_outer(op: ReduceOp | NextOp, symbols: dict[str, ir.OpView], emit: Emit) -> None:
    """Checks that a value leaving a loop names the outer loop."""
    parent = symbols[op.loop].parent
    if op.outer != parent:
        leads, inside = (f"@{name}" if name else "no loop" for name in (op.outer, parent))
        emit(f"leads out of @{op.loop} into {leads}, but that is nested in {inside}")


def _check_blocks(value: ir.Value, block: ir.Value, count: int, subject: str, emit: Emit) -> None:
    """Checks that a value consists of `count` blocks along its leading dimension."""
    if not all(isinstance(v.type, ir.RankedTensorType) and v.type.has_static_shape for v in (value, block)):
        emit(f"expected ranked tensors of static shape, got {value.type} and {block.type}")
        return
    shape = list(block.type.shape)
    if not shape:
        emit("a scalar has no leading dimension to divide into microbatches")
        return
    expected = list(whole_shape(shape, 0, count))
    if list(value.type.shape) != expected or value.type.element_type != block.type.element_type:
        dims = "".join(f"{size}x" for size in expected)
        emit(
            f"{subject} has type {value.type}, expected tensor<{dims}{block.type.element_type}>: "
            f"{count} blocks of {block.type}"
        )
