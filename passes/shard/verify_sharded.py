"""`pw-verify-sharded`: closes the sharded form."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect.verification.forms import PLACED, SHARDED
from pathways.passes.manager.base import Pass, main_function


@dataclasses.dataclass(frozen=True)
class VerifySharded(Pass):
    """Checks the sharded form and claims it.

    It is the placed form in which a transfer without `routes` copies shards as they are: device by device it
    moves just the shards that the other side needs.
    """

    name: ClassVar[str] = "pw-verify-sharded"
    input_forms = (PLACED, SHARDED)
    output_form = SHARDED
    always_verified = True

    def run(self, module: ir.Module) -> None:
        """Does not change the module: it checks the claim."""
        main_function(module)
