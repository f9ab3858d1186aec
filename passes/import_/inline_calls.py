"""Inlining of the calls of a traced program that are not placed."""

from __future__ import annotations

import dataclasses

from jaxlib.mlir import ir

from pathways.dialect import nested_ops
from pathways.dialect.operations.metadata import CallMetadata
from pathways.passes.analysis.functions import body_block, inline_call, unique_name
from pathways.passes.import_.traced import TracedProgram


class Inliner:
    """Inliner of calls of a program, and of composites over several slices; each function is flattened once.

    Args:
      traced: the program; loops that are copied are added to its symbols.
    """

    def __init__(self, traced: TracedProgram) -> None:
        self.traced = traced
        self.flattened: set[str] = set()
        # The function that holds the marks of each loop.
        self.loop_holders: dict[str, str] = {}

    def inline_calls(self, function: ir.OpView) -> None:
        """Inlines the unplaced calls of a function, callees first, so that each body is copied once."""
        self.move_loops(function, function)
        self.inline_block(body_block(function), function)

    def inline_block(self, block: ir.Block, function: ir.OpView) -> None:
        """Inlines the unplaced calls of a block that is in a function."""
        # What is inlined has no unplaced calls of its own by then: the list need not grow.
        for op in list(block.operations):
            callee = self.inlined_callee(op)
            if callee is None:
                continue
            name = callee.attributes["sym_name"].value
            if name not in self.flattened:
                self.flattened.add(name)
                self.inline_calls(callee)
            self.move_loops(callee, function)
            inline_call(op, callee)

    def inlined_callee(self, op: ir.OpView) -> ir.OpView | None:
        """Returns the function that takes the place of an operation, if one does.

        The decomposition of a composite with placed calls of several slices does: no slice can run all of it.
        """
        if op.operation.name == "func.call" and self.traced.metadata_of(op).is_ordinary:
            return self.traced.symbols[op.attributes["callee"].value]
        if op.operation.name == "stablehlo.composite" and self.traced.spans_slices(op):
            return self.traced.symbols[op.attributes["decomposition"].value]
        return None

    def move_loops(self, function: ir.OpView, target: ir.OpView) -> None:
        """Moves the loops of a function to the function that it is copied to.

        Loops that stand somewhere else already become other loops: each copy works through a batch of its
        own. JAX makes several functions of one as well, such as one for each choice of results that are
        needed.
        """
        source, holder = (f.attributes["sym_name"].value for f in (function, target))
        moved: dict[str, str] = {}
        for op in nested_ops(function):
            if op.operation.name != "func.call":
                continue
            metadata = self.traced.metadata_of(op)
            if metadata.loop is None:
                continue
            if metadata.loop not in moved:
                # The first copy takes the loop along; all further ones find it in another function.
                is_here = self.loop_holders.get(metadata.loop, source) == source
                moved[metadata.loop] = metadata.loop if is_here else self.copy_loop(op, metadata)
                self.loop_holders[moved[metadata.loop]] = holder
            dataclasses.replace(metadata, loop=moved[metadata.loop]).write(op)

    def copy_loop(self, call: ir.OpView, metadata: CallMetadata) -> str:
        loop = self.traced.loop_symbol(call, metadata)
        name = unique_name(metadata.name or loop.sym_name, self.traced.symbols)
        copy = loop.operation.clone(ir.InsertionPoint(self.traced.main)).opview
        copy.sym_name = name
        self.traced.symbols[name] = copy
        return name
