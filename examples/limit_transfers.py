"""A pass of your own: it fails where a transfer moves more bytes than a limit.

    pw-opt --load-pass-plugin examples/limit_transfers.py:LimitTransfers \\
        examples/two_slices.mlir --pw-insert-transfers --demo-limit-transfers=max-bytes=4

docs/extending.md explains each line.
"""

import dataclasses

from jaxlib.mlir import ir

from pathways.extending import FORMS, Pass, byte_size, fail, main_function, nested_ops, option, remark
from pathways.tools import pw_opt


@dataclasses.dataclass(frozen=True)
class LimitTransfers(Pass):
    """Fails where a transfer moves more bytes than a limit; without a limit, a remark states the bytes."""

    name = "demo-limit-transfers"
    input_forms = tuple(FORMS[name] for name in ("placed", "sharded", "ordered", "scheduled"))
    max_bytes: int = option(0, "the limit of each transfer; 0 for remarks alone")

    def run(self, module: ir.Module) -> None:
        for op in nested_ops(main_function(module)):
            if op.operation.name != "pw.transfer":
                continue
            size = byte_size(op.operands[0].type)
            if 0 < self.max_bytes < size:
                fail(op, f"moves {size} bytes, more than {self.max_bytes}")
            remark(op, f"moves {size} bytes")


if __name__ == "__main__":
    passes = ["--pw-insert-transfers", "--demo-limit-transfers", "--pretty"]
    pw_opt.main(["--load-pass-plugin", f"{__file__}:LimitTransfers", "examples/two_slices.mlir", *passes])
