"""Computations that the unrolling of loops adds: blocks of split values, copies, sums, concatenations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.dialect.attributes.meshes import Sharding
from pathways.dialect.attributes.shardings import make_sharding
from pathways.dialect.relations.layouts import Layouts
from pathways.passes.analysis.computations import Computations

type Boundary = dialect.SplitOp | dialect.CarryOp | dialect.NextOp | dialect.ReduceOp
"""Operation by which a value enters or leaves an iteration."""

Body = Callable[[list[ir.Value]], ir.Value]
"""Builder of a computation: from its arguments to its result."""


class LoopComputations:
    """Computations that unrolling adds to a module, and launches of them; equal computations are shared."""

    def __init__(self, module: ir.Module) -> None:
        self.layouts = Layouts(module)
        self.computations = Computations(module, self.layouts.symbols)

    def attribute(self, slice: str, sharding: Sharding) -> ir.Attribute | None:
        """Returns the attribute of a sharding on a slice; None on a slice of one device."""
        home = self.layouts.meshes[slice]
        return make_sharding(home.symbol, sharding) if home.mesh.size > 1 else None

    def launch(
        self,
        base: str,
        operands: Sequence[ir.Value],
        body: Body,
        like: Boundary,
        ip: ir.InsertionPoint,
        results: Sharding,
        microbatch: int | None = None,
    ) -> ir.Value:
        """Launches a computation on the slice and for the loop of `like`; returns its result."""
        layouts = [self.layouts.of(v, like.slice) for v in operands]
        types = [v.type for v in operands]
        mesh = self.layouts.meshes[like.slice]
        name = self.computations.make(
            base,
            types,
            lambda arguments: [body(arguments)],
            like.operation.location,
            arguments=[self.attribute(like.slice, layout) for layout in layouts],
            results=self.attribute(like.slice, results),
            key=(tuple(types), tuple(layouts), results, mesh, like.results[0].type),
        )
        launch = dialect.LaunchOp.build(
            operands,
            self.layouts.symbols[name].type.results,
            callee=name,
            slice=like.slice,
            loop=None if microbatch is None else like.loop,
            microbatch=microbatch,
            loc=like.operation.location,
            ip=ip,
        )
        return launch.results[0]
