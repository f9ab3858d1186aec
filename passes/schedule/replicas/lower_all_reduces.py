"""`pw-lower-all-reduces`: exchanges become launches on each replica and transfers between replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import AllReduceOp
from pathways.dialect.attributes.shardings import SliceMesh
from pathways.dialect.relations.graphs import topological_order
from pathways.dialect.relations.layouts import Layouts
from pathways.dialect.verification.forms import SHARDED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.operations import byte_size, replace
from pathways.passes.manager.base import Pass, fail, main_function, option
from pathways.passes.schedule.replicas.buckets import (
    Body,
    Bucket,
    Exchange,
    Member,
    add,
    add_and_join,
    buckets_of,
    cut,
    join,
    settled,
    total_of,
)
from pathways.passes.schedule.replicas.exchange import WIRES, Exchanger
from pathways.passes.schedule.replicas.exchange_blocks import BlockExchanges


@dataclasses.dataclass(frozen=True)
class LowerAllReduces(Pass):
    """Turns every `pw.all_reduce`, `pw.reduce_scatter` and `pw.all_gather` into launches and transfers.

    Sums of one dtype from the launches of one stage are sent together, as one bucket; each device of a
    slice exchanges with its counterparts in the other replicas. A value replicated over a slice is divided
    among its devices first, if a dimension is divisible, and gathered there at the end.

    1. A launch on each replica packs its values into a bucket, cut into as many equal pieces as there are
       replicas (padded with zeros).
    2. Each replica gets its piece from all others, and adds the pieces in the order of the replicas.
    3. Each replica sends its sum to all others. A launch unpacks the sums.

    For a `pw.reduce_scatter` each replica gets its block from all others, as in the first two steps. For a
    `pw.all_gather` each replica sends its block to all others, and a launch assembles the blocks.

    So each replica sends and receives 2 (R - 1) / R times the bytes of a bucket. Buckets of up to
    `whole-bytes` are not cut, nor are buckets between two replicas, where that saves no bytes: each replica
    gets the buckets of all others and adds them up itself, in the same order. With two replicas, arrays above
    that size travel outside of the bucket, without packing.

    With `dtype`, terms and sums of wider floats are rounded to it for transfers, and added in their own
    dtype. Gathered values are not rounded.

    All replicas run the same computations, and have bitwise equal sums. Launches before a transfer are marked
    to overlap with the loop: they run while other stages of the slice are busy.

    ```mlir
    // before
    %0:2 = pw.all_reduce %arg0, %arg1
    %1:2 = pw.all_reduce %arg2, %arg3
    // after
    %0 = pw.launch @bucket(%arg0, %arg2) on @s0 {overlap_with_loop}
    %1 = pw.launch @bucket(%arg1, %arg3) on @s1 {overlap_with_loop}
    %2 = pw.transfer %1 to @s0
    %3 = pw.transfer %0 to @s1
    %4:2 = pw.launch @bucket_total(%0, %2) on @s0
    %5:2 = pw.launch @bucket_total(%3, %1) on @s1
    ```

    Requires: `pw-replicate`.
    Guarantees: no exchanges.
    """

    name: ClassVar[str] = "pw-lower-all-reduces"
    input_forms = (SHARDED,)
    whole_bytes: int = option(16384, "buckets up to this size are sent as a whole to each replica")
    dtype: str = option("", "the dtype in which wider floats are sent: bfloat16, float16 or float32")

    def __post_init__(self) -> None:
        if self.dtype not in ("", *WIRES):
            raise ValueError(f"option 'dtype' must be one of {', '.join(WIRES)}, got '{self.dtype}'")

    def run(self, module: ir.Module) -> None:
        block = body_block(main_function(module))
        operations = list(block.operations)
        exchanges = [op for op in operations if isinstance(op, Exchange)]
        alone = [op for op in exchanges if len(op.operands) == 1]
        exchanges = [op for op in exchanges if len(op.operands) > 1]
        for op in alone:
            if not isinstance(op, AllReduceOp):
                fail(op, "stands for all replicas; run pw-replicate first")
            replace(op, op.operands)
        if not exchanges:
            return
        layouts = Layouts(module)
        computations = Computations(module, layouts.symbols)
        kinds = [
            kind(layouts, computations, self.whole_bytes, self.dtype)
            for kind in (_AllReduces, BlockExchanges)
        ]
        for bucket in buckets_of(operations, exchanges):
            kinds[not isinstance(bucket[0], AllReduceOp)].lower(bucket)
        _sort(block)


def _sort(block: ir.Block) -> None:
    """Moves operations after the operations that they read; otherwise keeps their order."""
    *operations, terminator = block.operations
    number = {result: n for n, op in enumerate(operations) for result in op.results}
    reads = {n: {number[v]: None for v in op.operands if v in number} for n, op in enumerate(operations)}
    order = topological_order(reads)
    if order != list(range(len(operations))):
        for n in order:
            operations[n].operation.move_before(terminator)


class _AllReduces(Exchanger):
    def lower(self, sums: Sequence[AllReduceOp]) -> None:
        """Replaces the sums of a bucket."""
        places = self.places(sums[0])
        home = self.layouts.meshes[places[0]]
        self.loop = sums[0].loop
        members = [(op, self.member(op.operands[0], places[0], home)) for op in sums]
        alone = [(op, member) for op, member in members if self.goes_alone(op, member)]
        packed = [(op, member) for op, member in members if not self.goes_alone(op, member)]
        # All terms precede the last sum; `_sort` moves the readers of other sums after it.
        with sums[-1].operation.location, ir.InsertionPoint(sums[-1]):
            for some, exchange in ((alone, self.exchange_alone), (packed, self.exchange)):
                if some:
                    exchange([op for op, _ in some], places, self.bucket(some, home, len(places)))
        for op in sums:
            op.operation.erase()

    def goes_alone(self, op: AllReduceOp, member: Member) -> bool:
        """Returns whether an array is sent alone, since packing a large array costs more than it saves."""
        is_large = byte_size(member.type) > self.whole_bytes
        is_rounded = self.wire(member) != member.element
        return len(op.operands) == 2 and is_large and member.spread == member.layout and not is_rounded

    def bucket(self, members: Sequence[tuple[AllReduceOp, Member]], home: SliceMesh, count: int) -> Bucket:
        """Returns the bucket of some arrays."""
        size = sum(byte_size(member.type) for _, member in members)
        is_whole = count == 2 or size <= self.whole_bytes
        pieces = 1 if is_whole else count
        return Bucket(home, tuple(member for _, member in members), pieces, self.wire(members[0][1]))

    def exchange_alone(self, sums: Sequence[AllReduceOp], places: Sequence[str], bucket: Bucket) -> None:
        """Sends arrays without packing; each replica adds them up."""
        layouts = [bucket.attribute(member.layout) for member in bucket.members]

        def add_up(terms: list[ir.Value]) -> list[ir.Value]:
            # Terms are ordered by replica, then by array: the terms of one array are `len(sums)` apart.
            return settled([total_of(bucket, terms[n :: len(sums)]) for n in range(len(sums))])

        for r, place in enumerate(places):
            terms = [
                self.moved(value, source, place, layout)
                for n, source in enumerate(places)
                for value, layout in zip([op.operands[n] for op in sums], layouts, strict=True)
            ]
            totals = self.launched("total", bucket, terms, place, add_up, [*layouts] * len(places), layouts)
            for op, value in zip(sums, totals, strict=True):
                op.results[r].replace_all_uses_with(value)

    def exchange(self, sums: Sequence[AllReduceOp], places: Sequence[str], bucket: Bucket) -> None:
        """Sends arrays in a bucket."""
        if bucket.length == 0:
            for op in sums:
                for old, new in zip(op.results, op.operands, strict=True):
                    old.replace_all_uses_with(new)
            return
        body: Body
        piece = bucket.attribute(bucket.piece_sharding)
        pieces = []
        for r, place in enumerate(places):
            values = [op.operands[r] for op in sums]
            pieces.append(self.launch("bucket", bucket, values, place, cut))
        if bucket.pieces == 1:
            totals = self.sent([mine[0] for mine in pieces], places, piece)
            base, body = "bucket_total", add_and_join
        else:
            sums_of_pieces = []
            for owner, place in enumerate(places):
                terms = [self.moved(mine[owner], places[r], place, piece) for r, mine in enumerate(pieces)]
                sums_of_pieces += self.launch("bucket_sum", bucket, terms, place, add)
            totals = self.sent(sums_of_pieces, places, piece)
            base, body = "bucket_join", join
        for r, place in enumerate(places):
            values = self.launch(base, bucket, totals[r], place, body)
            for op, value in zip(sums, values, strict=True):
                op.results[r].replace_all_uses_with(value)

    def launch(
        self, base: str, bucket: Bucket, operands: Sequence[ir.Value], place: str, body: Body
    ) -> list[ir.Value]:
        """Launches a computation, which equal buckets share."""
        members = [bucket.attribute(member.layout) for member in bucket.members]
        piece = bucket.attribute(bucket.piece_sharding)
        is_joined = body in (join, add_and_join)
        return self.launched(
            base,
            (bucket, len(operands)),
            operands,
            place,
            lambda arguments: settled(body(bucket, arguments)) if is_joined else body(bucket, arguments),
            members if body is cut else [piece] * len(operands),
            members if is_joined else [piece] * (bucket.pieces if body is cut else 1),
            # The launches after the exchange wait for all replicas, so they cannot overlap.
            overlap_with_loop=body in (cut, add),
        )
