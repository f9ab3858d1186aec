"""Builder of the launches and transfers that exchanges between replicas have in common."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from pathways.dialect import LaunchOp, TransferOp, slices_of
from pathways.dialect.attributes.shardings import SliceMesh
from pathways.dialect.relations.layouts import Layouts
from pathways.passes.analysis.computations import Body, Computations, Layout
from pathways.passes.schedule.replicas.buckets import Exchange, Member, spread_out

WIRES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
"""MLIR's names of the dtypes for transfers."""


class Exchanger:
    """Writer of launches and transfers of exchanges.

    Args:
      layouts: the shardings of values.
      computations: the computations of the module, to which new ones are added.
      whole_bytes: the size up to which buckets are sent as a whole to each replica; larger arrays may be sent
        alone.
      dtype: the dtype of terms and sums in transfers, for wider floats; empty for no conversion.
    """

    def __init__(self, layouts: Layouts, computations: Computations, whole_bytes: int, dtype: str) -> None:
        self.layouts = layouts
        self.computations = computations
        self.whole_bytes = whole_bytes
        self.dtype = dtype
        self.loop: str | None = None
        """The loop of the current exchange."""

    def places(self, op: Exchange) -> list[str]:
        """Returns the slices between which values are exchanged, in the order of the replicas."""
        return [(slices_of(value) or ("",))[0] for value in op.operands]

    def member(self, value: ir.Value, place: str, home: SliceMesh) -> Member:
        """Returns an array of a bucket."""
        type_ = ir.RankedTensorType(value.type)
        layout = self.layouts.of(value, place)
        spread = spread_out(layout, type_.shape, home.mesh)
        splits = spread.splits(home.mesh)
        shard = tuple(n // shards for n, shards in zip(type_.shape, splits, strict=True))
        return Member(type_, layout, spread, shard)

    def wire(self, member: Member) -> ir.Type:
        """Returns the type of the elements of an array in transfers."""
        element = member.element
        if not self.dtype or not isinstance(element, ir.F64Type | ir.F32Type | ir.F16Type | ir.BF16Type):
            return element
        wire = ir.Type.parse(WIRES[self.dtype])
        return wire if wire.width < element.width else element

    def moved(self, value: ir.Value, source: str, target: str, sharding: ir.Attribute | None) -> ir.Value:
        """Returns a value on another slice."""
        if source == target:
            return value
        return TransferOp.build(
            [value], [value.type], slice=target, sharding=sharding, loop=self.loop
        ).results[0]

    def sent(
        self, values: Sequence[ir.Value], places: Sequence[str], sharding: ir.Attribute | None
    ) -> list[list[ir.Value]]:
        """Sends the values of all replicas to each of them."""
        return [
            [self.moved(value, places[r], place, sharding) for r, value in enumerate(values)]
            for place in places
        ]

    def launched(
        self,
        base: str,
        key: object,
        operands: Sequence[ir.Value],
        place: str,
        body: Body,
        arguments: Sequence[Layout],
        results: Sequence[Layout],
        *,
        overlap_with_loop: bool = False,
    ) -> list[ir.Value]:
        """Launches a computation, which equal keys share; see `Computations.make`."""
        name = self.computations.make(
            base,
            [value.type for value in operands],
            body,
            ir.Location.current,
            arguments=arguments,
            results=results,
            key=key,
        )
        types = self.layouts.symbols[name].type.results
        # In a loop, a launch belongs to an iteration.
        overlaps = True if overlap_with_loop and self.loop is None else None
        launch = LaunchOp.build(
            operands, types, callee=name, slice=place, loop=self.loop, overlap_with_loop=overlaps
        )
        return list(launch.results)
