"""Progress line of slow passes."""

from __future__ import annotations

import time

from jaxlib.mlir import ir

from pathways.dialect import ops_named
from pathways.passes.manager.text import Item, item_name
from pathways.passes.schedule.unroll.unroll_microbatches import UnrollMicrobatches
from pathways.runtime.xla.compile_threads import StatusLine

PATIENCE_S = 3.0
"""Seconds after which the line appears."""

MANY_ITERATIONS = 2000
"""Iterations of a loop that take seconds to unroll, and more in the passes after that."""


class LoweringProgress:
    """Line on standard error about the pass that runs, once passes take long or are about to."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._line = StatusLine()
        self._began = time.monotonic()

    def before_pass(self, item: Item, module: ir.Module) -> None:
        """Shows the next pass, if it is time for that."""
        activity = item_name(item)
        is_due = time.monotonic() - self._began >= PATIENCE_S
        if isinstance(item, UnrollMicrobatches):
            iterations = max((loop.iterations for loop in ops_named(module, ["pw.loop"])), default=0)
            if iterations >= MANY_ITERATIONS:
                activity, is_due = f"unrolling a loop of {iterations:,} iterations", True
        if is_due:
            self._line.write(f"pathways: lowering program '{self._program}': {activity} ...")

    def close(self) -> None:
        """Removes the line from a terminal."""
        self._line.close()
