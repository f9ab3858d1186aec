"""`pw-verify-placed`: closes the placed form."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect.verification.forms import OUTLINED, PLACED
from pathways.passes.manager.base import Pass, main_function


@dataclasses.dataclass(frozen=True)
class VerifyPlaced(Pass):
    """Checks the placed form and claims it.

    In it `@main` holds only launches, transfers, mirrors, the splits and reductions of loops, and its
    return; every argument and result is placed; every launch reads values of its own slice, in the
    shardings that it takes; a value moves to a slice at most once; computations hold no `pw` operation.
    """

    name: ClassVar[str] = "pw-verify-placed"
    input_forms = (OUTLINED, PLACED)
    output_form = PLACED

    def run(self, module: ir.Module) -> None:
        """Does not change the module: it checks the claim."""
        main_function(module)
