"""Lowering of exchanges of blocks: each replica gets its block of a sum, or the blocks of all replicas."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import ReduceScatterOp
from pathways.dialect.attributes.blocks import block_bounds
from pathways.passes.analysis.operations import byte_size
from pathways.passes.schedule.replicas.buckets import (
    Bucket,
    Exchange,
    Member,
    add_and_join,
    cut,
    join,
    laid_out,
    settled,
    total_of,
)
from pathways.passes.schedule.replicas.exchange import Exchanger


class BlockExchanges(Exchanger):
    """Lowering of `pw.reduce_scatter` and `pw.all_gather`, in which the members of a bucket are blocks."""

    def lower(self, exchanges: Sequence[Exchange]) -> None:
        """Replaces the exchanges of a bucket."""
        places = self.places(exchanges[0])
        home = self.layouts.meshes[places[0]]
        is_sum = isinstance(exchanges[0], ReduceScatterOp)
        lower = self.scatter if is_sum else self.gather
        members = []
        for op in exchanges:
            values = op.results if is_sum else op.operands
            member = self.member(values[0], places[0], home)
            members.append((op, member, self.wire(member) if is_sum else member.element))
        for goes_alone in (True, False):
            some = [entry for entry in members if self.goes_alone(*entry[1:]) == goes_alone]
            if some:
                ops = [op for op, *_ in some]
                bucket = Bucket(home, tuple(member for _, member, _ in some), 1, some[0][2])
                with ops[-1].operation.location, ir.InsertionPoint(ops[-1]):
                    lower(ops, places, bucket, goes_alone)
        for op in exchanges:
            op.operation.erase()

    def goes_alone(self, member: Member, wire: ir.Type) -> bool:
        """Returns whether blocks of an array are sent outside of a bucket."""
        is_large = byte_size(member.type) > self.whole_bytes
        return is_large and member.spread == member.layout and wire == member.element

    def scatter(
        self, sums: Sequence[Exchange], places: Sequence[str], bucket: Bucket, goes_alone: bool
    ) -> None:
        """Sends each replica the terms of its blocks, which it adds up."""
        count = len(places)
        dims = [op.dim for op in sums]
        members = [bucket.attribute(member.layout) for member in bucket.members]
        sent = members if goes_alone else [bucket.attribute(bucket.piece_sharding)]

        def cut_blocks(arrays: list[ir.Value]) -> list[ir.Value]:
            pieces = []
            for number in range(count):
                blocks = [_block(value, dim, number, count) for value, dim in zip(arrays, dims, strict=True)]
                pieces += blocks if goes_alone else cut(bucket, blocks)
            return pieces

        def total(terms: list[ir.Value]) -> list[ir.Value]:
            if not goes_alone:
                return settled(add_and_join(bucket, terms))
            # Terms are ordered by replica, then by array: the terms of one array are `len(dims)` apart.
            return settled([total_of(bucket, terms[n :: len(dims)]) for n in range(len(dims))])

        key = bucket, tuple(dims), goes_alone
        width = len(sent)
        scattered = [
            self.launched(
                "scatter",
                key,
                [op.operands[r] for op in sums],
                place,
                cut_blocks,
                members,
                sent * count,
                overlap_with_loop=True,
            )
            for r, place in enumerate(places)
        ]
        for owner, place in enumerate(places):
            terms = [
                self.moved(value, places[r], place, layout)
                for r, mine in enumerate(scattered)
                for value, layout in zip(mine[owner * width : (owner + 1) * width], sent, strict=True)
            ]
            blocks = self.launched("scatter_total", key, terms, place, total, sent * count, members)
            for op, value in zip(sums, blocks, strict=True):
                op.results[owner].replace_all_uses_with(value)

    def gather(
        self, gathers: Sequence[Exchange], places: Sequence[str], bucket: Bucket, goes_alone: bool
    ) -> None:
        """Sends the blocks of each replica to all others, which assemble them."""
        count = len(places)
        dims = [op.dim for op in gathers]
        members = [bucket.attribute(member.layout) for member in bucket.members]
        sent = members if goes_alone else [bucket.attribute(bucket.piece_sharding)]

        def join_blocks(pieces: list[ir.Value]) -> list[ir.Value]:
            blocks = pieces if goes_alone else [block for piece in pieces for block in join(bucket, [piece])]
            arrays = [stablehlo.concatenate(blocks[n :: len(dims)], dim) for n, dim in enumerate(dims)]
            return [
                laid_out(bucket, value, member.layout)
                for value, member in zip(arrays, bucket.members, strict=True)
            ]

        key = bucket, tuple(dims), goes_alone
        values = [[op.operands[r] for op in gathers] for r in range(count)]
        if not goes_alone:
            values = [
                self.launched(
                    "bucket", bucket, mine, place, lambda blocks: cut(bucket, blocks), members, sent
                )
                for mine, place in zip(values, places, strict=True)
            ]
        for place in places:
            arrived = [
                self.moved(value, source, place, layout)
                for mine, source in zip(values, places, strict=True)
                for value, layout in zip(mine, sent, strict=True)
            ]
            arrays = self.launched(
                "gathered", (key, count), arrived, place, join_blocks, sent * count, members
            )
            for op, value in zip(gathers, arrays, strict=True):
                op.results[places.index(place)].replace_all_uses_with(value)


def _block(value: ir.Value, dim: int, number: int, count: int) -> ir.Value:
    """Returns block `number` of `count` equal blocks of a dimension."""
    shape = list(ir.RankedTensorType(value.type).shape)
    starts, limits = [0] * len(shape), list(shape)
    starts[dim], limits[dim] = block_bounds(shape[dim], number, count)
    return stablehlo.slice(value, starts, limits, [1] * len(shape))
