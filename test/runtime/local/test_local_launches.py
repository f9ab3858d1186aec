"""Local computations, which are launched on each device by itself."""

import dataclasses

import jax
import numpy as np
import pytest
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import run_passes
from pathways.passes.manager.text import parse_pipeline
from pathways.runtime.local.devices import bind
from pathways.runtime.local.load import Executable
from pathways.runtime.local.load import load as load_plan
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Plan
from pathways.runtime.resources.virtual import make_virtual_device_set

ROWS, COLUMNS = '<@mesh, [{"x"}, {}]>', '<@mesh, [{}, {"x"}]>'
KEEP = "%done = stablehlo.slice %mine [0:4, 0:4] : (tensor<4x4xf32>) -> tensor<4x4xf32>"
ADD = "%done = stablehlo.add %mine, %mine : tensor<4x4xf32>"
X = np.arange(32, dtype=np.float32).reshape(8, 4)


def function(name: str, body: str, held: str = ROWS) -> str:
    """Returns the text of a function of an 8x4 array that returns its value `%0`."""
    return f"""
  func.func private @{name}(%a: tensor<8x4xf32> {{sdy.sharding = #sdy.sharding{held}}})
      -> (tensor<8x4xf32> {{sdy.sharding = #sdy.sharding{ROWS}}}) {{
    {body}
    return %0 : tensor<8x4xf32>
  }}"""


def on_shards(body: str, axes: str = '"x", "y"') -> str:
    return f"""%0 = sdy.manual_computation(%a) in_shardings=[{ROWS}] out_shardings=[{ROWS}]
        manual_axes={{{axes}}} (%mine: tensor<4x4xf32>) {{
      {body}
      sdy.return %done : tensor<4x4xf32>
    }} : (tensor<8x4xf32>) -> tensor<8x4xf32>"""


LOCAL = function("f", on_shards(KEEP))


def plan(functions: str, calls: list[tuple[str, str, str]], *results: str, donate_bytes: int = 1000) -> Plan:
    """Returns the plan of a program of launches, each a result, a callee and an operand."""
    launches = "\n    ".join(
        f'%{result} = "pw.launch"(%{operand}) {{callee = @{callee}, slice = @s0}}'
        " : (tensor<8x4xf32>) -> tensor<8x4xf32>"
        for result, callee, operand in calls
    )
    placement = f"{{pw.slice = @s0, sdy.sharding = #sdy.sharding{ROWS}}}"
    text = f"""module @local attributes {{pw.form = "unrolled"}} {{
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  "pw.slice"() {{mesh = @mesh, sym_name = "s0"}} : () -> ()
  func.func public @main(%x: tensor<8x4xf32> {placement})
      -> ({", ".join([f"tensor<8x4xf32> {placement}"] * len(results))}) {{
    {launches}
    return {", ".join(f"%{r}" for r in results)} : {", ".join(["tensor<8x4xf32>"] * len(results))}
  }}{functions}
}}"""
    context = make_context()
    module = ir.Module.parse(text, context)
    passes = f"pw-schedule,pw-plan-memory{{donate-bytes={donate_bytes}}},pw-verify-schedule"
    run_passes(module, parse_pipeline(passes, context))
    return plan_of(module, "local")


def load(planned: Plan) -> Executable:
    slice = make_virtual_device_set().add_slice((2, 2), ("x", "y"))
    return load_plan(planned, {"s0": bind([slice], "local")[slice]})


def run(loaded: Executable) -> list[jax.Array]:
    return loaded.run([jax.device_put(X, loaded.inputs[0].sharding)])


def test_local_launches_join_shards_that_are_read():
    """A local launch is read by another, by a launch on all devices, and by the caller."""
    double = function("g", "%0 = stablehlo.add %a, %a : tensor<8x4xf32>")
    calls = [("inner", "f", "x"), ("seen", "f", "inner"), ("twice", "g", "seen"), ("last", "f", "twice")]
    planned = plan(LOCAL + double, calls, "seen", "last")
    assert {name: c.local for name, c in planned.computations.items()} == {"f": True, "g": False}
    assert planned.computations["f"].operands[0].shape == (4, 4)
    loaded = load(planned)
    assert {key[0]: len(code.local_devices()) for key, code in loaded.executables.items()} == {"f": 1, "g": 4}
    for _ in range(2):
        seen, last = run(loaded)
        np.testing.assert_array_equal(seen, X)
        np.testing.assert_array_equal(last, X * 2)
        for array in (seen, last):
            assert array.sharding.is_equivalent_to(loaded.inputs[0].sharding, 2)
            assert [shard.data.shape for shard in array.addressable_shards] == [(4, 4)] * 4


NEEDS_ALL = {
    "it computes": function("f", on_shards(ADD)),
    "an axis is left to XLA": function("f", on_shards(KEEP, axes='"x"')),
    "more is done": function(
        "f", on_shards(KEEP).replace("%0", "%1") + "\n    %0 = stablehlo.negate %1 : tensor<8x4xf32>"
    ),
}


@pytest.mark.parametrize("text", NEEDS_ALL.values(), ids=NEEDS_ALL)
def test_local_launches_exclude_other_computations(text):
    assert not plan(text, [("y", "f", "x")], "y").computations["f"].local


def test_local_launches_refuse_an_argument_with_another_sharding():
    text = function("f", on_shards(KEEP), held=COLUMNS)
    refused = r'operand #0 has the sharding \[\{"x"\}, \{\}\] on @s0, but @f takes \[\{\}, \{"x"\}\]'
    with pytest.raises(PassFailure, match=refused):
        plan(text, [("y", "f", "x")], "y")


def test_local_launches_exclude_donating_computations():
    planned = plan(LOCAL, [("y", "f", "x"), ("z", "f", "y")], "z", donate_bytes=0)
    assert sorted((c.donated, c.local) for c in planned.computations.values()) == [((), True), ((0,), False)]
    (z,) = run(load(planned))
    np.testing.assert_array_equal(z, X)


def test_local_launches_refuse_other_shards():
    planned = plan(LOCAL, [("y", "f", "x")], "y")
    whole = dataclasses.replace(planned, slot_shardings=((), ()))
    with pytest.raises(
        ValueError, match=r"f on slice s0 is for shards float32\[4, 4\], but gets float32\[8, 4\]"
    ):
        load(whole)
