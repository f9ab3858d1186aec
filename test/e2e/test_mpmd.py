"""Programs that Shardy's MPMD compiler has partitioned give what `jax.jit` of the same function gives."""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import Any

import jax
import numpy as np
import pytest
from check import assert_close, assert_equal
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from mpmd_programs import CALLS, PROGRAMS, MpmdProgram, normal
from stored_mpmd import STORED, partitioned

import pathways as pw
from pathways.compiler.from_mlir import lower_module
from pathways.compiler.mpmd.from_mpmd import lower_partitioned
from pathways.compiler.stages import Lowered
from pathways.dialect import make_context
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.passes.pipeline import Options
from pathways.runtime.plan.plan import Launch


def check(lowered: Lowered, program: MpmdProgram) -> Any:
    """Runs a program twice and compares with `jax.jit`."""
    run, expected = lowered.compile(), jax.jit(program.plain())(*program.args)
    for _ in range(2):
        args = jax.tree.map(jax.numpy.array, tuple(program.args))
        results = run(*args)
        assert_close(results, expected, 2e-6)
    return args, results


@pytest.mark.feature("front_ends", "values")
@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name, program in PROGRAMS.items() for form in program.forms]
)
def test_from_mpmd_agrees_with_jit(name, form):
    check(lower_partitioned(partitioned(name, form)), PROGRAMS[name])


def test_from_mpmd_deletes_donated_arguments_that_jax_dropped():
    args, results = check(lower_partitioned(partitioned("two_stages", "call")), PROGRAMS["two_stages"])
    assert all(array.is_deleted() for array in jax.tree.leaves((args[0], args[2])))
    assert not args[1].is_deleted()
    assert [next(iter(w.devices())).id for w in results["params"]["w"]] == [0, 1]


def test_from_mpmd_keeps_shardings_of_results():
    first, second = (set(mesh.devices.flat) for mesh in PROGRAMS["sharded"].topology().values())
    for form in PROGRAMS["sharded"].forms:
        loss, params = lower_partitioned(partitioned("sharded", form)).compile().output_shardings
        assert [set(s.device_set) for s in (loss, *params)] == [second, first, second]
        assert [s.spec for s in params] == [jax.P(None, "x"), jax.P("x")]


def test_from_mpmd_keeps_order_and_origins():
    """Each slice runs what its mesh runs, in the order of the schedule."""
    stored = (STORED / "zero_bubble_h1.fragment.mlir").read_text()
    lowered = lower_partitioned(partitioned("zero_bubble_h1", "fragment"))
    launches = [s for s in lowered.compile().plan.steps if isinstance(s, Launch)]
    halves = {"": None, "split_keep": "input", "split_drop": "weight"}
    for stage, kinds in ((0, {None}), (1, set(halves.values()))):
        head = rf'fragment<mesh="mesh{stage}".*call_counter = ([0-9]+) : ui32(?:, (split_[a-z]+))?'
        expected = [(call, halves[half]) for call, half in re.findall(head, stored)]
        ran = [launch.origins[0] for launch in launches if launch.slice.startswith(f"mesh{stage}")]
        assert [(str(origin.microbatch), origin.part) for origin in ran] == expected
        assert {origin.part for origin in ran} == kinds
        assert {origin.stage for origin in ran} == {stage}


def test_from_mpmd_fuses_fragments():
    apart, fused = (lower_partitioned(partitioned("two_stages", "call"), fuse=fuse) for fuse in (False, True))
    check(fused, PROGRAMS["two_stages"])
    assert [one.compile().cost_analysis()["launches"] for one in (apart, fused)] == [4, 3]


def test_from_mpmd_runs_callbacks_once_for_each_launch():
    CALLS.clear()
    check(lower_partitioned(partitioned("with_callbacks", "call")), PROGRAMS["with_callbacks"])
    jax.effects_barrier()
    # Once in the program without the front end, and in two runs of the other.
    assert len(CALLS) == 2 * 3


def test_from_mpmd_shares_slices_of_one_topology():
    one, other = (lower_partitioned(partitioned("two_stages", form)) for form in ("call", "fragment"))
    assert list(one.slices.values()) == list(other.slices.values())
    elsewhere = lower_partitioned(partitioned("sharded", "call"))
    assert not set(elsewhere.slices.values()) & set(one.slices.values())


def test_from_mpmd_accepts_slices_of_user():
    devices = pw.make_virtual_device_set()
    own = {name: devices.add_slice(1, "x") for name in ("mesh0", "mesh1")}
    lowered = lower_partitioned(partitioned("two_stages", "call"), slices=own)
    check(lowered, PROGRAMS["two_stages"])
    assert list(lowered.slices.values()) == list(own.values())
    with pytest.raises(ValueError, match=r"the topology has no mesh 'm', only mesh0, mesh1"):
        lower_partitioned(partitioned("two_stages", "call"), slices={"m": own["mesh0"]})
    with pytest.raises(ValueError, match=r"mesh 'mesh0' has \{'x': 1\}, VirtualSlice.* differs from it"):
        lower_partitioned(partitioned("two_stages", "call"), slices={"mesh0": devices.add_slice(2, "x")})


@pytest.mark.process
def test_from_mpmd_saves_bundle_and_timeline(tmp_path):
    program = PROGRAMS["zero_bubble_h1"]
    lowered = lower_partitioned(partitioned("zero_bubble_h1", "fragment"))
    lowered.save(tmp_path / "step.pwb")
    results = pw.load(tmp_path / "step.pwb")(*program.args)
    expected = jax.jit(program.plain())(*program.args)
    np.testing.assert_allclose(np.array(results[0]), np.array(expected[0]), rtol=2e-5)
    timeline = lowered.compile().timeline()
    timeline.save_html(tmp_path / "step.html")
    assert "W" in (tmp_path / "step.html").read_text()
    assert timeline.step_time > 0


@pytest.mark.feature("front_ends", "error")
def test_from_mpmd_refuses_what_is_not_of_front_end():
    with pytest.raises(TypeError, match=r"from_mpmd takes what mpmd.jit\(f, config\).lower\(\*args\)"):
        pw.from_mpmd(jax.jit(lambda x: x).lower(1.0))


@pytest.mark.needs("no shardy")
def test_from_mpmd_error_explains_how_to_install_front_end():
    with pytest.raises(
        ImportError, match=r"needs Shardy's MPMD front end .*: pip install \"shardy-mpmd @ git"
    ):
        importlib.import_module("pathways.mpmd")


CLOSED_OVER = """
!m = !mpmd.mesh_tensor<"mesh0", tensor<4xf32>>
func.func public @main(%k: !m, %x: !m) -> !m attributes {topology = #mpmd.topology<<"mesh0" : <["x"=1]>>>} {
  %y = mpmd.fragment<mesh="mesh0", origin=["f"]> (%k, %x) (%a: tensor<4xf32>, %b: tensor<4xf32>) {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    mpmd.return %0 : tensor<4xf32>
  } : (!m, !m) -> !m
  return %y : !m
}
"""


@pytest.mark.process
def test_from_mpmd_closed_over_arrays_are_hidden_arguments(tmp_path):
    """JAX lowers them so with `jax_use_simplified_jaxpr_constants`; the argument between is dropped."""
    constant, x = normal(4), normal(2, 2).reshape(4)
    arguments = jax.tree.leaves(jax.jit(lambda unused, x: x).lower(3.0, x).args_info)
    program = dataclasses.replace(
        partitioned("two_stages", "call"),
        bytecode=bytecode_of(ir.Module.parse(CLOSED_OVER, make_context())),
        topology={"mesh0": jax.sharding.Mesh(jax.devices()[:1], ("x",))},
        in_tree=jax.tree.structure((0, 0)),
        arguments=arguments,
        argument_numbers=(1,),
        constants=(constant,),
        out_tree=jax.tree.structure(0),
        out_avals=[jax.core.ShapedArray((4,), np.float32)],
    )
    lowered = lower_partitioned(program)
    lowered.save(tmp_path / "f.pwb")
    for run in (lowered.compile(), pw.load(tmp_path / "f.pwb")):
        np.testing.assert_array_equal(run(3.0, x), constant + x)


@pytest.mark.parametrize(
    ("argument", "operand", "results", "returned"),
    [
        ("any", "any", ["columns", "rows"], ["columns", "rows"]),
        ("any", "any", ["columns", "any"], ["rows", "columns"]),
        ("rows", "any", ["columns", "rows"], ["rows", "columns"]),
        ("rows", "columns", ["rows", "any"], ["columns", "any"]),
        ("columns", "rows", ["any", "any"], ["rows", "columns"]),
    ],
)
def test_mpmd_fragments_reshard_what_they_return(argument, operand, results, returned):
    """Transfers within the mesh, and results in several shardings, keep any value as it is."""
    shardings = {
        "any": "",
        "rows": ', sharding=<@mesh, [{"x"}, {}]>',
        "columns": ', sharding=<@mesh, [{}, {"x"}]>',
    }
    aliases = [
        f'!{name} = !mpmd.mesh_tensor<"m", tensor<4x4xf32>{sharding}>' for name, sharding in shardings.items()
    ]
    types = ", ".join(f"!{name}" for name in returned)
    moves = [
        f"%r{n} = mpmd.transfer %f#{n} : (!{one}) -> !{other}" if one != other else ""
        for n, (one, other) in enumerate(zip(results, returned, strict=True))
    ]
    names = [f"%r{n}" if move else f"%f#{n}" for n, move in enumerate(moves)]
    text = f"""
      {chr(10).join(aliases)}
      module @program {{
        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%a: !{argument}) -> ({types})
            attributes {{topology = #mpmd.topology<<"m" : <["x"=2]>>>}} {{
          %t = mpmd.transfer %a : (!{argument}) -> !{operand}
          %f:2 = mpmd.fragment<mesh="m", origin=["f"]> (%t) (%v: tensor<4x4xf32>) {{
            %0 = stablehlo.add %v, %v : tensor<4x4xf32>
            mpmd.return %0, %v : tensor<4x4xf32>, tensor<4x4xf32>
          }} : (!{operand}) -> (!{results[0]}, !{results[1]})
          {chr(10).join(moves)}
          return {", ".join(names)} : {types}
        }}
      }}
    """
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    arrays = lower_module(ir.Module.parse(text, make_context()), "program", Options()).compile()(x)
    assert_equal(arrays, (2 * x, x))
    specs = {"rows": P("x"), "columns": P(None, "x")}
    for array, name in zip(arrays, returned, strict=True):
        assert name == "any" or array.sharding.spec == specs[name]
