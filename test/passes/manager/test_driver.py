"""The driver of passes, where several threads use it."""

import threading

from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.manager.text import parse_pipeline

# The loop has no launches, which pw-schedule remarks.
TEXT = """
module attributes {{pw.form = "unrolled"}} {{
  "pw.loop"() {{sym_name = "{name}", count = 2}} : () -> ()
  func.func @main() {{
    return
  }}
}}
"""


def test_diagnostics_belong_to_the_context_of_the_module():
    names = ["a", "b"]
    together = threading.Barrier(len(names), timeout=60)
    remarks: dict[str, list[str]] = {}

    def lower(name: str) -> None:
        context = make_context()
        with Diagnostics(context) as seen:
            module = ir.Module.parse(TEXT.format(name=name), context)
            together.wait()  # Both threads listen while both passes run.
            for _ in range(10):
                run_passes(module.operation.clone().opview, parse_pipeline("pw-schedule", context))
            together.wait()
        remarks[name] = [d.message for d in seen.all if "has no launches" in d.message]

    threads = [threading.Thread(target=lower, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: len(messages) for name, messages in remarks.items()} == {"a": 10, "b": 10}
