"""Transfers of values in pieces: cut, sent and joined, without a wait."""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
import time

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.passes.manager.driver import run_passes
from pathways.passes.manager.text import parse_pipeline
from pathways.runtime.local.devices import bind
from pathways.runtime.local.load import load
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Launch, Plan
from pathways.runtime.resources.virtual import make_virtual_device_set
from pathways.runtime.traces import file_trace
from pathways.runtime.xla import pjrt

X = np.arange(24 * 8, dtype=np.float32).reshape(24, 8)
PASSES = (
    "pw-lower-transfers,pw-unroll-microbatches,pw-schedule,pw-plan-memory{donate-bytes=0},pw-verify-schedule"
)


ROWS, COLUMNS = '[{"x"}, {}]', '[{}, {"x"}]'
TYPE = "tensor<24x8xf32>"
SIZES = {"s": 4, "a": 2, "b": 2}


def placement(slice: str, dims: str) -> str:
    return f"pw.slice = @{slice}, sdy.sharding = #sdy.sharding<@mesh_{slice}, {dims}>"


def transfer(name: str, operand: str, slice: str, dims: str) -> str:
    attributes = f"sharding = #sdy.sharding<@mesh_{slice}, {dims}>, slice = @{slice}"
    return f'%{name} = "pw.transfer"(%{operand}) {{{attributes}}} : ({TYPE}) -> {TYPE}'


def double(name: str, operand: str) -> str:
    attributes = "callee = @double, slice = @s"
    return f'%{name} = "pw.launch"(%{operand}) {{{attributes}}} : ({TYPE}) -> {TYPE}'


class Program:
    """Loaded program on a slice of four devices and two slices of two.

    Args:
      body: the operations on its argument `%x`, which is split in rows over the four devices.
      results: the slice and the sharding of each result.
      donated: whether it consumes its argument.
    """

    def __init__(self, *body: str, results: dict[str, tuple[str, str]], donated: bool = False):
        declared = "".join(
            f'sdy.mesh @mesh_{name} = <["x"={size}]>\n'
            f'"pw.slice"() {{mesh = @mesh_{name}, sym_name = "{name}"}} : () -> ()\n'
            for name, size in SIZES.items()
        )
        given = placement("s", ROWS) + ", pw.donated" * donated
        inner = f"{TYPE} {{sdy.sharding = #sdy.sharding<@mesh_s, {ROWS}>}}"
        lines = "\n".join(body)
        text = f"""module @moves attributes {{pw.form = "placed"}} {{
          {declared}
          func.func public @main(%x: {TYPE} {{{given}}})
              -> ({", ".join(f"{TYPE} {{{placement(*where)}}}" for where in results.values())}) {{
            {lines}
            return {", ".join(f"%{name}" for name in results)} : {", ".join([TYPE] * len(results))}
          }}
          func.func private @double(%a: {inner}) -> ({inner}) {{
            %0 = stablehlo.add %a, %a : {TYPE}
            return %0 : {TYPE}
          }}
        }}"""
        context = make_context()
        module = ir.Module.parse(text, context)
        run_passes(module, parse_pipeline(PASSES, context))
        devices = make_virtual_device_set()
        slices = {name: devices.add_slice((size,), ("x",)) for name, size in SIZES.items()}
        bound = bind(list(slices.values()), "moves")
        self.bindings = {name: bound[slice] for name, slice in slices.items()}
        self.load(plan_of(module, "moves"))

    def load(self, plan: Plan) -> None:
        self.plan = plan
        self.loaded = load(plan, self.bindings)
        self.source = self.loaded.inputs[0].sharding

    def __call__(self, x: jax.Array) -> list[jax.Array]:
        return self.loaded.run([x])

    def ready(self) -> jax.Array:
        return jax.device_put(X, self.source).block_until_ready()


@pytest.fixture
def late():
    """Yields a function that doubles an array after an event, and a function that sets the event."""
    released = threading.Event()

    def wait(x: np.ndarray) -> np.ndarray:
        released.wait(60)
        return np.asarray(x) * 2

    def double(x: jax.Array) -> jax.Array:
        call = functools.partial(jax.pure_callback, wait, jax.ShapeDtypeStruct((6, 8), x.dtype))
        return jax.jit(jax.shard_map(call, mesh=x.sharding.mesh, in_specs=P("x"), out_specs=P("x")))(x)

    yield double, released.set
    released.set()


def test_moves_do_not_wait_for_pending_values(late):
    double, release = late
    program = Program(transfer("y", "x", "a", COLUMNS), results={"y": ("a", COLUMNS)})
    (y,) = program(double(program.ready()))
    assert not y.is_ready()
    release()
    np.testing.assert_array_equal(y, X * 2)


def test_moves_are_traced_until_pieces_are_ready(late, tmp_path):
    """No event of the transfer ends before the value is ready."""
    double, release = late
    program = Program(transfer("y", "x", "a", COLUMNS), results={"y": ("a", COLUMNS)})
    with file_trace.trace(tmp_path / "run.json"):
        program(double(program.ready()))
        time.sleep(0.05)
        release()
    events = [event for event in json.loads((tmp_path / "run.json").read_text()) if event["ph"] == "X"]
    assert len(events) == 3
    # Microseconds since the start of the trace.
    assert all(event["ts"] + event["dur"] > 0.05e6 for event in events)


def test_moves_of_a_failed_value_fail_later():
    """The program runs, as with a value that fails later."""

    def refuse(x: np.ndarray) -> np.ndarray:
        raise ValueError("too large")

    program = Program(transfer("y", "x", "a", COLUMNS), results={"y": ("a", COLUMNS)})
    x = program.ready()
    call = functools.partial(jax.pure_callback, refuse, jax.ShapeDtypeStruct((6, 8), x.dtype))
    failed = jax.jit(jax.shard_map(call, mesh=x.sharding.mesh, in_specs=P("x"), out_specs=P("x")))(x)
    while not failed.is_ready():
        time.sleep(0.001)
    (y,) = program(failed)
    with pytest.raises(jax.errors.JaxRuntimeError, match="too large"):
        y.block_until_ready()
    # `jax.jit` keeps a token of the callback, and jax 0.11 would raise its error at every later barrier.
    pjrt.dispatch.runtime_tokens.clear()


def test_moves_to_two_slices_cut_once():
    program = Program(
        transfer("y", "x", "a", COLUMNS),
        transfer("z", "x", "b", COLUMNS),
        results={"y": ("a", COLUMNS), "z": ("b", COLUMNS)},
    )
    for array in program(program.ready()):
        np.testing.assert_array_equal(array, X)


def test_moves_cut_joined_values_again():
    program = Program(
        transfer("y", "x", "a", COLUMNS),
        transfer("z", "x", "b", COLUMNS),
        transfer("w", "z", "s", ROWS),
        results={"y": ("a", COLUMNS), "w": ("s", ROWS)},
    )
    for array in program(program.ready()):
        np.testing.assert_array_equal(array, X)


def test_moves_allow_donation_in_flight():
    program = Program(
        transfer("y", "x", "a", COLUMNS),
        double("z", "x"),
        results={"y": ("a", COLUMNS), "z": ("s", ROWS)},
        donated=True,
    )
    cut, copy, release, join, *rest = program.plan.steps
    donating = next(step for step in rest if isinstance(step, Launch))
    assert program.plan.computations[donating.computation].donated == (0,)
    rest.remove(donating)
    program(program.ready())
    program.load(dataclasses.replace(program.plan, steps=(cut, donating, copy, release, join, *rest)))
    x = program.ready()
    y, z = program(x)
    assert x.is_deleted()
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(z, X * 2)


def test_moves_name_a_deleted_argument():
    program = Program(transfer("y", "x", "a", COLUMNS), results={"y": ("a", COLUMNS)})
    x = program.ready()
    x.delete()
    with pytest.raises(RuntimeError, match=r"program 'moves': argument 0 has been deleted"):
        program(x)


def test_moves_allow_donation_of_joined_values():
    program = Program(
        transfer("y", "x", "a", COLUMNS),
        transfer("z", "y", "s", ROWS),
        double("w", "z"),
        results={"y": ("a", COLUMNS), "w": ("s", ROWS)},
    )
    launches = [step for step in program.plan.steps if isinstance(step, Launch)]
    (donating,) = (step for step in launches if program.plan.computations[step.computation].donated)
    assert donating.computation.startswith("double")
    for _ in range(2):
        y, w = program(program.ready())
        np.testing.assert_array_equal(y, X)
        np.testing.assert_array_equal(w, X * 2)
