"""Plans that do not fit their devices or their computations are refused when they are loaded."""

import pytest
from small_plans import double, two_slices

from pathways.runtime.plan import plan
from pathways.runtime.xla.compile_cache import CompileError


def test_load_refuses_a_copy_of_other_shards(plan_builder, runner):
    s0, s1 = two_slices(2)
    build = plan_builder(s0, s1)
    y = build.transfer(build.argument((4,), s0), s1)
    with pytest.raises(ValueError, match=r"from P\('x',\) on {'x': 2} to P\(\) on {'x': 2} needs routes"):
        runner.load(build, y, shardings=[(("x",),), ()])


def test_load_refuses_pieces_of_different_types(plan_builder, runner):
    s0, s1 = two_slices(2)
    build = plan_builder(s0, s1)
    x = build.argument((4,), s0)
    y = build.slot(plan.ArrayType((4,), "float32"), s1)
    build.steps.append(plan.Transfer((x,), (y,), s0.name, s1.name, (((0, 0), (0, 1)),)))
    with pytest.raises(ValueError, match=r"pieces of different types: float32\[2\], float32\[4\]"):
        runner.load(build, y, shardings=[(("x",),), ()])


def test_load_names_a_computation_with_another_sharding_by_xla(plan_builder, runner):
    """The module has no shardings, so XLA replicates the operand that the plan splits."""
    s0, _ = two_slices(2)
    build = plan_builder(s0)
    y = build.launch(double, s0, build.argument((4,), s0))
    expected = (
        rf"computation double_ on slice {s0.name}: operand #0 has sharding P\('x',\) on {{'x': 2}}, "
        "but XLA chose"
    )
    with pytest.raises(CompileError, match=expected):
        runner.load(build, y, shardings=[(("x",),), ()])
