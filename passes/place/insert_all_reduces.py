"""`pw-insert-all-reduces`: sums over microbatches become sums over replicas, too."""

from __future__ import annotations

import dataclasses
import itertools
from typing import ClassVar

from jaxlib.mlir import ir

from pathways.dialect import AllReduceOp, ReduceOp, symbol_table
from pathways.dialect.verification.forms import LOCATED
from pathways.passes.analysis.functions import body_block
from pathways.passes.analysis.replicas import replica_count
from pathways.passes.manager.base import Pass, main_function


@dataclasses.dataclass(frozen=True)
class InsertAllReduces(Pass):
    """Inserts a `pw.all_reduce` after every sum over the microbatches of a batch, if slices have replicas.

    Each replica works on its share of the microbatches. Until `pw-replicate` makes one copy per replica, the
    code and the sum represent all of them. A program that has a `pw.all_reduce` has been through this pass,
    and is left as it is: a second sum would be another value.

    ```mlir
    // before
    %1 = pw.reduce sum %0 in @batch on @s0
    %2 = pw.reduce concat %0 in @batch on @s0
    // after
    %1 = pw.reduce sum %0 in @batch on @s0
    %2 = pw.all_reduce %1 on @s0
    %3 = pw.reduce concat %0 in @batch on @s0
    ```

    Requires: placement from `pw-infer-placement`; one number of replicas for all slices.
    Guarantees: all readers of a sum over microbatches read the sum over all replicas, once.
    """

    name: ClassVar[str] = "pw-insert-all-reduces"
    input_forms = (LOCATED,)

    def run(self, module: ir.Module) -> None:
        if replica_count(module) == 1:
            return
        symbols = symbol_table(module)
        operations = list(body_block(main_function(module)).operations)
        if any(isinstance(op, AllReduceOp) for op in operations):
            return
        for op, following in itertools.pairwise(operations):
            # Every replica runs all iterations of a sequential loop: there is nothing to add up.
            if not isinstance(op, ReduceOp) or op.kind != "sum" or symbols[op.loop].sequential:
                continue
            # Collected before the all-reduce exists, which still reads the sum of one replica.
            readers = [(use.owner, use.operand_number) for use in op.results[0].uses]
            total = AllReduceOp.build(
                list(op.results),
                [op.results[0].type],
                slice=op.slice,
                loop=op.outer,
                loc=op.operation.location,
                ip=ir.InsertionPoint(following),
            )
            for reader, number in readers:
                reader.operands[number] = total.results[0]
