"""Values on random meshes in random shardings arrive on every device as numpy says; no byte goes twice."""

from __future__ import annotations

import dataclasses
import math
import re

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir

from examples import examples
from pathways.dialect import make_context
from pathways.passes.manager.driver import run_passes
from pathways.passes.manager.text import parse_pipeline
from pathways.runtime.local.devices import cluster
from pathways.runtime.local.load import Executable
from pathways.runtime.local.load import load as load_plan
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Plan, Transfer
from pathways.runtime.resources.manager import Binding

DTYPES = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i8": np.dtype(np.int8),
    "i1": np.dtype(bool),
    "complex<f32>": np.dtype(np.complex64),
}
AXES = [(1,), (2,), (3,), (4,), (5,), (6,), (7,), (8,), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (1, 3)]
COLLECTIVES = re.compile(r"all-\w+|collective-\w+|reduce-scatter")


@dataclasses.dataclass(frozen=True)
class Side:
    """Slice with its mesh, and the sharding of the value over it."""

    name: str
    sizes: tuple[int, ...]
    dims: tuple[tuple[str, ...], ...]

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(f"{self.name}{n}" for n in range(len(self.sizes)))

    def splits(self, dim: int) -> int:
        sizes = dict(zip(self.axes, self.sizes, strict=True))
        return math.prod(sizes[axis] for axis in self.dims[dim])

    def declare(self) -> str:
        axes = ", ".join(f'"{axis}"={size}' for axis, size in zip(self.axes, self.sizes, strict=True))
        return (
            f"  sdy.mesh @mesh_{self.name} = <[{axes}]>\n"
            f'  "pw.slice"() {{mesh = @mesh_{self.name}, sym_name = "{self.name}"}} : () -> ()\n'
        )

    def attribute(self, name: str) -> str:
        if math.prod(self.sizes) == 1:
            return ""
        dims = ["{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in self.dims]
        return f", {name} = #sdy.sharding<@mesh_{self.name}, [{', '.join(dims)}]>"

    def sharding(self, devices: list[jax.Device]) -> NamedSharding:
        grid = np.array(devices, dtype=object).reshape(self.sizes)
        return NamedSharding(Mesh(grid, self.axes), PartitionSpec(*(axes or None for axes in self.dims)))


@dataclasses.dataclass(frozen=True)
class Case:
    """A value that moves from one slice to another.

    `apart` puts them on different islands; `few` allows so few pieces that the source may have to gather.
    """

    source: Side
    target: Side
    shape: tuple[int, ...]
    dtype: str
    apart: bool
    few: bool = False

    def text(self) -> str:
        type_ = f"tensor<{''.join(f'{n}x' for n in self.shape)}{self.dtype}>"
        given_, wanted = (s.attribute("sdy.sharding") for s in (self.source, self.target))
        return f"""module @reshard attributes {{pw.form = "placed"}} {{
{self.source.declare()}{self.target.declare()}
  func.func public @main(%x: {type_} {{pw.slice = @a{given_}}}) -> ({type_} {{pw.slice = @b{wanted}}}) {{
    %0 = "pw.transfer"(%x) {{slice = @b{self.target.attribute("sharding")}}} : ({type_}) -> {type_}
    return %0 : {type_}
  }}
}}"""

    def plan(self) -> Plan:
        options = ["islands=all gather-bytes=0"] * self.apart + ["max-pieces=8"] * self.few
        passes = "pw-verify-sharded,pw-unroll-microbatches,pw-schedule,pw-fuse-launches,pw-plan-memory,"
        passes += "pw-verify-schedule"
        pipeline = f"pw-lower-transfers{{{' '.join(options)}}},{passes}"
        context = make_context()
        module = ir.Module.parse(self.text(), context)
        run_passes(module, parse_pipeline(pipeline, context))
        return plan_of(module, "reshard")

    def fewest_bytes(self) -> int:
        """Returns the bytes that must cross: the need of each device, or once that of another island."""
        element = DTYPES[self.dtype].itemsize
        devices = math.prod(self.target.sizes)
        splits = [self.target.splits(dim) for dim in range(len(self.shape))]
        replicas = devices // math.prod(splits)
        if self.apart and any(
            n > 0 and n % (parts * replicas) == 0 for n, parts in zip(self.shape, splits, strict=True)
        ):
            replicas = 1
        return math.prod(self.shape) * element * replicas


@st.composite
def sides(draw: st.DrawFn, name: str, rank: int) -> Side:
    sizes = draw(st.sampled_from(AXES))
    dims: list[tuple[str, ...]] = [()] * rank
    for axis in draw(st.permutations([f"{name}{n}" for n in range(len(sizes))])):
        dim = draw(st.sampled_from([*range(rank), *range(rank), None]))
        if dim is not None:
            dims[dim] = (*dims[dim], axis)
    return Side(name, sizes, tuple(dims))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.sampled_from([0, 1, 1, 2, 2, 2, 3]))
    source, target = draw(sides("a", rank)), draw(sides("b", rank))
    shape = tuple(
        math.lcm(source.splits(dim), target.splits(dim))
        * draw(st.sampled_from([1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 8, 0]))
        for dim in range(rank)
    )
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    return Case(source, target, shape, dtype, draw(st.booleans()), draw(st.booleans()))


def load(plan: Plan, shardings: dict[str, NamedSharding]) -> Executable:
    devices = {device.id: device for device in cluster().devices}
    bindings = {
        name: Binding(
            tuple(devices[handle.id] for handle in s.mesh.devices.flat),
            s.mesh.devices.shape,
            s.mesh.axis_names,
            plan.name,
        )
        for name, s in shardings.items()
    }
    return load_plan(plan, bindings)


def check(case: Case) -> Plan:
    """Runs a case and checks every shard, the bytes that cross, and that cutting and joining are local."""
    plan = case.plan()
    # The slices overlap when they have more than eight devices together.
    source = case.source.sharding(jax.devices()[: math.prod(case.source.sizes)])
    target = case.target.sharding(jax.devices()[8 - math.prod(case.target.sizes) :])
    loaded = load(plan, {"a": source, "b": target})
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2 if case.dtype == "i1" else 100, size=case.shape).astype(DTYPES[case.dtype])
    for _ in range(2):
        (y,) = loaded.run([jax.device_put(x, source).block_until_ready()])
        assert y.sharding.is_equivalent_to(target, y.ndim)
        assert len(y.addressable_shards) == target.num_devices
        where = target.devices_indices_map(case.shape)
        for shard in y.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), x[where[shard.device]])
    transfers = [step for step in plan.steps if isinstance(step, Transfer)]
    assert sum(map(plan.bytes_moved, transfers)) == case.fewest_bytes()
    if case.few:
        assert all(len(t.results) * target.num_devices <= 8 for t in transfers)
    for (name, slice), code in loaded.executables.items():
        # On the target a value that has crossed once is gathered, on the source what has too many pieces.
        if not (case.few if slice == "a" else case.apart):
            assert not COLLECTIVES.findall(code.hlo_modules()[0].to_string()), name
    return plan


@settings(
    max_examples=examples(30), derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(case=cases())
def test_reshard_brings_every_shard(case: Case) -> None:
    plan = check(case)
    event(f"{len(plan.computations)} computations")


@pytest.mark.parametrize(
    ("apart", "few", "replicated"),
    [
        (False, False, "source"),
        (True, True, "source"),
        (False, True, "target"),
        (True, False, "target"),
        (True, False, "both"),
        (False, True, "both"),
        (False, False, "neither"),
        (True, True, "neither"),
    ],
)
def test_reshard_between_the_largest_meshes(apart: bool, few: bool, replicated: str) -> None:
    """Seven devices to eight in two dimensions, and what replication makes of it."""
    sides = {"source": Side("a", (7,), ((), ("a0",))), "target": Side("b", (2, 4), (("b1",), ("b0",)))}
    for which in sides if replicated == "both" else [replicated]:
        if which in sides:
            sides[which] = dataclasses.replace(sides[which], dims=((), ()))
    check(Case(sides["source"], sides["target"], (8, 56), "f32", apart, few))
