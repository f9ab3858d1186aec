"""The driver of passes, where several threads use it."""

import subprocess
import sys
import threading

import pytest
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


# Shardy has no rule for a transfer between meshes, and says so once in a process, under a lock.
AT_ONCE = """
import sys, threading
from jaxlib.mlir import ir
from pathways.dialect import make_context
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.manager.text import parse_pipeline

text = '''
module attributes {pw.form = "placed"} {
  sdy.mesh @mesh_2 = <["x"=2]>
  sdy.mesh @mesh_4 = <["x"=4]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh_2} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh_4} : () -> ()
  func.func @main(%x: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s1}) {
    %t = "pw.transfer"(%x) {slice = @s1} : (tensor<4xf32>) -> tensor<4xf32>
    return %t : tensor<4xf32>
  }
}'''
together = threading.Barrier(8)

def run():
    context = make_context()
    with Diagnostics(context):
        module = ir.Module.parse(text, context)
        passes = parse_pipeline(sys.argv[1], context)
        together.wait()
        run_passes(module, passes)

sys.setswitchinterval(1e-6)  # Handlers lose the GIL as soon as they are called.
threads = [threading.Thread(target=run) for _ in range(together.parties)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.process
@pytest.mark.parametrize("pipeline", ["sdy-propagation-pipeline", "pw-propagate-shardings"])
def test_threads_that_run_passes_at_once_end(pipeline):
    subprocess.run([sys.executable, "-c", AT_ONCE, pipeline], check=True, timeout=60)
