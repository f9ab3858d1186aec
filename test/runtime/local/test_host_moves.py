"""What is ready moves from CPU to CPU in one pass over memory; what is not ready is not waited for."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent import futures
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.passes.driver import run_passes
from pathways.passes.text import parse_pipeline
from pathways.runtime.local import executable, host_moves, tracing
from pathways.runtime.local.devices import bind
from pathways.runtime.local.host_moves import Role, find_roles
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.parts import Part, read_parts
from pathways.runtime.plan.plan import Launch, Plan, Release, Transfer
from pathways.runtime.resources.virtual import make_virtual_device_set
from pathways.runtime.timelines.trace_file import read_trace
from pathways.runtime.xla import host_memory, pjrt

X = np.arange(24 * 8, dtype=np.float32).reshape(24, 8)
PASSES = "pw-lower-transfers,pw-schedule,pw-plan-memory{donate-bytes=0},pw-verify-schedule"


def read(text: str):
    return read_parts(f"func.func @main{text}".encode())


def test_parts_of_what_is_cut_and_joined():
    """The last row of `%a` and the first element of `%b` next to each other, from the second column on."""
    found = read("""(%a: tensor<2x2xf32>, %b: tensor<1x3xf32>) -> tensor<1x2xf32> {
      %0 = stablehlo.slice %a [1:2, 0:2] : (tensor<2x2xf32>) -> tensor<1x2xf32>
      %1 = stablehlo.slice %b [0:1, 0:1] : (tensor<1x3xf32>) -> tensor<1x1xf32>
      %2 = stablehlo.concatenate %0, %1, dim = 1 : (tensor<1x2xf32>, tensor<1x1xf32>) -> tensor<1x3xf32>
      %3 = stablehlo.slice %2 [0:1, 1:3] : (tensor<1x3xf32>) -> tensor<1x2xf32>
      return %3 : tensor<1x2xf32>
    }""")
    row = (0, 1)
    assert found == [(Part(0, ((1, 2), (1, 2)), (row, (0, 1))), Part(1, (row, (0, 1)), (row, (1, 2))))]


NO_PARTS = {
    "every other element": "%0 = stablehlo.slice %a [0:4:2] : (tensor<4xf32>) -> tensor<2xf32>",
    "arithmetic": """%1 = stablehlo.slice %a [0:2] : (tensor<4xf32>) -> tensor<2xf32>
      %0 = stablehlo.negate %1 : tensor<2xf32>""",
    "a size that the types do not say": """%1 = stablehlo.slice %a [0:2] : (tensor<4xf32>) -> tensor<?xf32>
      %2 = stablehlo.concatenate %1, %1, dim = 0 : (tensor<?xf32>, tensor<?xf32>) -> tensor<4xf32>
      %0 = stablehlo.slice %2 [0:2] : (tensor<4xf32>) -> tensor<2xf32>""",
    "millions of parts": "\n".join(
        [
            "%1 = stablehlo.slice %a [0:1] : (tensor<4xf32>) -> tensor<1xf32>",
            *(
                f"%{n + 1} = stablehlo.concatenate %{n}, %{n}, dim = 0 : (tensor<{2 ** (n - 1)}xf32>, "
                f"tensor<{2 ** (n - 1)}xf32>) -> tensor<{2**n}xf32>"
                for n in range(1, 40)
            ),
            f"%0 = stablehlo.slice %40 [0:2] : (tensor<{2**39}xf32>) -> tensor<2xf32>",
        ]
    ),
}


@pytest.mark.parametrize("body", NO_PARTS.values(), ids=NO_PARTS)
def test_what_is_more_than_cut_and_joined_has_no_parts(body):
    assert read(f"(%a: tensor<4xf32>) -> tensor<2xf32> {{ {body} return %0 : tensor<2xf32> }}") is None


ROWS, COLUMNS, WHOLE = '[{"x"}, {}]', '[{}, {"x"}]', "[{}, {}]"
TYPE = "tensor<24x8xf32>"
SIZES = {"s": 4, "a": 2, "b": 2}


def lies(slice: str, dims: str) -> str:
    return f"pw.slice = @{slice}, sdy.sharding = #sdy.sharding<@mesh_{slice}, {dims}>"


def transfer(name: str, operand: str, slice: str, dims: str) -> str:
    attributes = f"sharding = #sdy.sharding<@mesh_{slice}, {dims}>, slice = @{slice}"
    return f'%{name} = "pw.transfer"(%{operand}) {{{attributes}}} : ({TYPE}) -> {TYPE}'


def double(name: str, operand: str) -> str:
    attributes = 'callee = @double, slice = @s, phase = "glue"'
    return f'%{name} = "pw.launch"(%{operand}) {{{attributes}}} : ({TYPE}) -> {TYPE}'


class Program:
    """A loaded program on slices of four devices and twice two.

    Args:
      body: what it does with its argument `%x`, which lies in rows over the four.
      results: the slice and the sharding of each result.
      donated: whether it consumes its argument.
    """

    def __init__(self, *body: str, results: dict[str, tuple[str, str]], donated: bool = False):
        declared = "".join(
            f'sdy.mesh @mesh_{name} = <["x"={size}]>\n'
            f'"pw.slice"() {{mesh = @mesh_{name}, sym_name = "{name}"}} : () -> ()\n'
            for name, size in SIZES.items()
        )
        given = lies("s", ROWS) + ", pw.donated" * donated
        inner = f"{TYPE} {{sdy.sharding = #sdy.sharding<@mesh_s, {ROWS}>}}"
        lines = "\n".join(body)
        text = f"""module @moves attributes {{pw.form = "placed"}} {{
          {declared}
          func.func public @main(%x: {TYPE} {{{given}}})
              -> ({", ".join(f"{TYPE} {{{lies(*where)}}}" for where in results.values())}) {{
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
        self.loaded = executable.load(plan, self.bindings)
        self.source = self.loaded.inputs[0].sharding

    def __call__(self, x: jax.Array) -> list[jax.Array]:
        return self.loaded.run([x])

    def ready(self) -> jax.Array:
        return jax.device_put(X, self.source).block_until_ready()


def test_devices_that_hold_the_same_share_memory():
    """Only a value that moves through the host can do that: a join makes an array on each device."""
    program = Program(transfer("y", "x", "a", WHOLE), results={"y": ("a", WHOLE)})
    (y,) = program(program.ready())
    np.testing.assert_array_equal(y, X)
    first, second = (shard.data.unsafe_buffer_pointer() for shard in y.addressable_shards)
    assert first == second


def test_parts_are_read_from_bundles_too():
    """There a computation is a portable artifact."""
    program = Program(transfer("y", "x", "a", COLUMNS), results={"y": ("a", COLUMNS)})
    modules = [computation.module for computation in program.plan.computations.values()]
    assert len(modules) == 2
    for module in modules:
        parts = read_parts(module)
        assert parts is not None
        assert read_parts(pjrt.portable_artifact(module)) == parts


@pytest.fixture
def moved(monkeypatch) -> list[int]:
    """For each value that went through the host, how many shards it got."""
    fill, found = host_memory.fill, []

    def watched(*args: Any) -> Callable[[Any], Any]:
        make = fill(*args)

        def count(views: Any) -> Any:
            found.append(len(make(views)))
            return make(views)

        return count

    monkeypatch.setattr(host_memory, "fill", watched)
    return found


def test_several_threads_fill_large_shards(monkeypatch):
    with futures.ThreadPoolExecutor() as threads:
        monkeypatch.setattr(host_memory, "_LARGE", 0)
        monkeypatch.setattr(host_memory, "_copiers", lambda: threads)
        program = Program(transfer("y", "x", "a", COLUMNS), results={"y": ("a", COLUMNS)})
        (y,) = program(program.ready())
        np.testing.assert_array_equal(y, X)
        assert threads._threads or os.cpu_count() == 1


def test_one_thread_fills_them_when_the_interpreter_shuts_down(monkeypatch):
    threads = futures.ThreadPoolExecutor()
    threads.shutdown()
    monkeypatch.setattr(host_memory, "_LARGE", 0)
    monkeypatch.setattr(host_memory, "_copiers", lambda: threads)
    program = Program(transfer("y", "x", "a", COLUMNS), results={"y": ("a", COLUMNS)})
    (y,) = program(program.ready())
    np.testing.assert_array_equal(y, X)


def test_large_memory_is_used_again_when_nothing_looks_at_it(monkeypatch):
    monkeypatch.setattr(host_memory, "_HEAP", 0)
    monkeypatch.setattr(host_memory, "_spare", {})
    program = Program(transfer("y", "x", "a", WHOLE), results={"y": ("a", WHOLE)})

    def run(x: jax.Array) -> tuple[jax.Array, int]:
        (y,) = program(x)
        return y, y.addressable_shards[0].data.unsafe_buffer_pointer()

    x = program.ready()
    y, first = run(x)
    seen = np.asarray(y.addressable_shards[1].data)
    _, second = run(x * 2)
    assert first != second
    np.testing.assert_array_equal(y, X)
    del y
    gc.collect()
    _, third = run(x * 3)
    assert first != third
    np.testing.assert_array_equal(seen, X)
    del seen
    gc.collect()
    assert run(x * 4)[1] == first


@pytest.fixture
def late():
    """A function that doubles an array, but not before it is told to; and how to tell it."""
    told = threading.Event()

    def wait(x: np.ndarray) -> np.ndarray:
        told.wait(60)
        return np.asarray(x) * 2

    def double(x: jax.Array) -> jax.Array:
        call = functools.partial(jax.pure_callback, wait, jax.ShapeDtypeStruct((6, 8), x.dtype))
        return jax.jit(jax.shard_map(call, mesh=x.sharding.mesh, in_specs=P("x"), out_specs=P("x")))(x)

    yield double, told.set
    told.set()


def test_what_is_not_ready_is_not_waited_for(late):
    double, tell = late
    program = Program(transfer("y", "x", "a", COLUMNS), results={"y": ("a", COLUMNS)})
    (y,) = program(double(program.ready()))
    assert not y.is_ready()
    tell()
    np.testing.assert_array_equal(y, X * 2)


def test_a_trace_waits_for_pieces(late, tmp_path):
    """Nothing of the move ends before the value is there."""
    double, tell = late
    program = Program(transfer("y", "x", "a", COLUMNS), results={"y": ("a", COLUMNS)})
    with tracing.trace(tmp_path / "run.json"):
        program(double(program.ready()))
        time.sleep(0.05)
        tell()
    (timeline,) = read_trace((tmp_path / "run.json").read_bytes())
    assert len(timeline.events) == 3
    assert all(event.end > 0.05 for event in timeline.events)


def test_a_value_whose_computation_failed_fails_what_depends_on_it():
    """The program runs, as it does with what fails later."""

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


def test_several_transfers_of_one_cut_go_through_the_host(moved):
    program = Program(
        transfer("y", "x", "a", COLUMNS),
        transfer("z", "x", "b", COLUMNS),
        results={"y": ("a", COLUMNS), "z": ("b", COLUMNS)},
    )
    for array in program(program.ready()):
        np.testing.assert_array_equal(array, X)
    assert moved == [2, 2]


def test_a_cut_makes_pieces_for_all_when_one_needs_them(moved):
    """What arrives on `@b` is cut again there, and is no array that there could be views of."""
    program = Program(
        transfer("y", "x", "a", COLUMNS),
        transfer("z", "x", "b", COLUMNS),
        transfer("w", "z", "s", ROWS),
        results={"y": ("a", COLUMNS), "w": ("s", ROWS)},
    )
    for array in program(program.ready()):
        np.testing.assert_array_equal(array, X)
    assert moved == []


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A cut, a transfer and a join."""
    return Program(transfer("y", "x", "a", COLUMNS), results={"y": ("a", COLUMNS)}).plan


def roles(
    plan: Plan,
    slices: Set[str] = frozenset("sa"),
    arrays: Sequence[int] = (),
    replicas: Sequence[int] = range(4),
) -> Mapping[int, Role]:
    """The roles of its steps, where the first and the last slot hold an array, and `arrays` do."""
    (y,) = plan.results[0].slots.values()
    return find_roles(plan, slices, set(range(len(plan.slot_types))) - {0, y, *arrays}, lambda _: replicas)


def test_the_first_step_looks_and_the_last_one_fills(plan):
    cut, copy, join = (roles(plan)[step.results[0]] for step in moving(plan))
    assert [cut.begins, copy.begins, join.begins] == [True, False, False]
    assert cut.shards is copy.shards is None
    assert [len(shard) for shard in join.shards] == [4, 4]


def test_replicas_are_taken_for_one_another(plan):
    """So that devices whose shards come from different replicas share an array."""
    (join,) = (role for role in roles(plan, replicas=[0, 0, 2, 2]).values() if role.shards is not None)
    assert {part.source for shard in join.shards for part in shard} == {0, 2}


def moving(plan: Plan) -> list[Launch | Transfer]:
    return [step for step in plan.steps if not isinstance(step, Release)]


@pytest.mark.parametrize("on_cpu", [{"s"}, {"a"}, set()], ids=str)
def test_slices_on_other_platforms_share_no_memory(plan, on_cpu):
    assert roles(plan, slices=on_cpu) == {}


def test_pieces_that_others_need_are_made(plan):
    cut, copy, join = moving(plan)
    for slot in (cut.results[0], copy.results[0]):
        assert roles(plan, arrays=[slot]) == {}
    again = dataclasses.replace(join, label="again")
    assert roles(dataclasses.replace(plan, steps=(cut, copy, join, again))) == {}


def test_a_computation_that_does_more_has_no_role(plan, monkeypatch):
    monkeypatch.setattr(host_moves, "read_parts", lambda module: None)
    assert roles(plan) == {}


def test_a_value_that_is_donated_while_it_moves_goes_in_pieces(moved):
    """Views of an array would keep XLA from writing over it."""
    program = Program(
        transfer("y", "x", "a", COLUMNS),
        double("z", "x"),
        results={"y": ("a", COLUMNS), "z": ("s", ROWS)},
        donated=True,
    )
    cut, copy, release, join, *others = program.plan.steps
    donating = next(step for step in others if isinstance(step, Launch))
    assert program.plan.computations[donating.computation].donated == (0,)
    others.remove(donating)
    program(program.ready())
    assert moved == [2]
    program.load(dataclasses.replace(program.plan, steps=(cut, donating, copy, release, join, *others)))
    x = program.ready()
    y, z = program(x)
    assert x.is_deleted()
    assert moved == [2]
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(z, X * 2)


def test_an_array_that_was_deleted_is_named():
    program = Program(transfer("y", "x", "a", COLUMNS), results={"y": ("a", COLUMNS)})
    x = program.ready()
    x.delete()
    with pytest.raises(RuntimeError, match=r"program 'moves': argument 0 has been deleted"):
        program(x)


def test_what_arrived_through_the_host_may_be_donated(moved):
    """XLA owns no memory of the host and makes a copy to write into."""
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
    assert moved == [2, 4] * 2


def test_64_bits_stay_64_bits():
    """Without x64 JAX narrows arrays of the host, but programs may have been traced with it."""
    sharding = NamedSharding(jax.make_mesh((2,), ("x",), devices=jax.devices()[:2]), P("x"))
    third = np.full(8, 1 / 3)
    array = pjrt.from_host(jax.core.ShapedArray((16,), np.dtype(np.float64)), sharding)([third, third])
    assert not jax.config.jax_enable_x64
    np.testing.assert_array_equal(array.addressable_shards[1].data, third)
