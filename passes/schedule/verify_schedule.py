"""`pw-verify-schedule`: proves that a scheduled program cannot deadlock, and closes the scheduled form."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect.verification.forms import ORDERED, SCHEDULED
from pathways.passes.manager.base import Pass, main_function


@dataclasses.dataclass(frozen=True)
class VerifySchedule(Pass):
    """Checks the scheduled form, proves it free of deadlock, and claims it.

    Every launch and transfer has an `order`, every transfer a `channel`, no two events of a slice share a
    position, and the block of `@main` is sorted by these waits. Data edges, slice order, channel
    order and channel capacity together must have a topological order; when they have none, the error prints
    a cycle, event by event.

    Requires: loops unrolled and reductions folded, with `order` and channels.
    """

    name: ClassVar[str] = "pw-verify-schedule"
    input_forms = (ORDERED, SCHEDULED)
    output_form = SCHEDULED
    always_verified = True

    def run(self, module: ir.Module) -> None:
        """Does not change the module: it checks the claim."""
        main_function(module)
