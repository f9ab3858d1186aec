"""Cost of moving an array to another slice in another sharding, against `jax.device_put`: ratios.

  python bench/reshard.py [--json PATH] [--rounds N] [--only TEXT]

Also the cost of a move inside a program, between two computations, and of a launch of a sharded computation
against the same function under `jax.jit`. Both sides of a case run in turn, in random order; the table
compares medians, of the time until the call returns and of the time until the result is ready.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _ratios import Case, Measured, run
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib.mlir import ir

import pathways
from pathways.dialect import make_context
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.manager.text import parse_pipeline
from pathways.runtime.local.devices import bind, mesh_of, release
from pathways.runtime.local.load import load
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.resources.virtual import VirtualSlice, make_virtual_device_set

PASSES = "pw-lower-transfers,pw-verify-placed,pw-schedule,pw-fuse-launches,pw-plan-memory,pw-verify-schedule"
SIZES = {"1 MB": (768, 336), "64 MB": (6144, 2688)}
# Threads gather and wake in these cases, so that single times vary by half.
MORE = 10

P = PartitionSpec
COPIES = "the copies"
RESHARD = "launches on each device, and 2 or 3 passes over memory: cut, copy, join"


@dataclasses.dataclass(frozen=True)
class Move:
    """Move of an array from one mesh to another.

    `inside` also measures it between two computations.
    """

    name: str
    source: tuple[int, ...]
    source_spec: PartitionSpec
    target: tuple[int, ...]
    target_spec: PartitionSpec
    limit: str
    inside: bool = False

    def largest_ratio(self, size: str) -> float | None:
        """Returns the largest ratio to `jax.device_put`; None if the ratio is only reported.

        A reshard of a value that is ready and that a caller waits for has nothing to hide its passes behind.
        With 64 MB, the system's allocation of fresh pages decides: one side alone varies by ten times.
        """
        if self.limit is COPIES:
            return 1.1
        return 1.5 if size == "1 MB" else None


MOVES = [
    Move("4 to 4, equal", (4,), P("x"), (4,), P("x"), COPIES),
    Move("2x2 to 2x2, equal", (2, 2), P("x", "y"), (2, 2), P("x", "y"), COPIES),
    Move("4 to 4, rows to columns", (4,), P("x"), (4,), P(None, "x"), RESHARD, inside=True),
    Move("2x2 tiles to 4 rows", (2, 2), P("x", "y"), (4,), P("x"), RESHARD, inside=True),
    Move("4 to 2", (4,), P("x"), (2,), P("x"), RESHARD),
    Move("2 to 4", (2,), P("x"), (4,), P("x"), RESHARD),
    Move("3 to 2", (3,), P("x"), (2,), P("x"), RESHARD, inside=True),
    Move("4 to 2, replicated", (4,), P("x"), (2,), P(), RESHARD),
]


def text(move: Move, slices: list[VirtualSlice], shape: tuple[int, ...]) -> str:
    """Returns a program that moves an array and does nothing else."""
    type_ = f"tensor<{'x'.join(map(str, shape))}xf32>"
    declared = []
    written = []
    for number, (slice, spec) in enumerate(zip(slices, (move.source_spec, move.target_spec), strict=True)):
        axes = ", ".join(f'"{name}"={size}' for name, size in zip(slice.axis_names, slice.shape, strict=True))
        declared.append(f"sdy.mesh @mesh_{number} = <[{axes}]>")
        declared.append(f'"pw.slice"() {{mesh = @mesh_{number}, sym_name = "{slice.name}"}} : () -> ()')
        dims = [*spec, *[None] * (len(shape) - len(spec))]
        entries = ", ".join("{}" if axis is None else f'{{"{axis}"}}' for axis in dims)
        written.append(f"#sdy.sharding<@mesh_{number}, [{entries}]>")
    source, target = (slice.name for slice in slices)
    lines = "\n  ".join(declared)
    return f"""module @move attributes {{pw.form = "placed"}} {{
  {lines}
  func.func public @main(%x: {type_} {{pw.slice = @{source}, sdy.sharding = {written[0]}}})
      -> ({type_} {{pw.slice = @{target}, sdy.sharding = {written[1]}}}) {{
    %0 = "pw.transfer"(%x) {{sharding = {written[1]}, slice = @{target}}} : ({type_}) -> {type_}
    return %0 : {type_}
  }}
}}"""


def moves() -> Iterator[Case]:
    """Yields every move with both sizes."""
    for move in MOVES:
        devices = make_virtual_device_set()
        names = ("x", "y")
        slices = [devices.add_slice(shape, names[: len(shape)]) for shape in (move.source, move.target)]
        bindings = bind(slices, "move")
        shardings = [
            NamedSharding(mesh_of(bindings[slice]), spec)
            for slice, spec in zip(slices, (move.source_spec, move.target_spec), strict=True)
        ]
        for size, shape in SIZES.items():
            context = make_context()
            module = ir.Module.parse(text(move, slices, shape), context)
            with Diagnostics(context):
                run_passes(module, parse_pipeline(PASSES, context))
            loaded = load(plan_of(module, "move"), {slice.name: bindings[slice] for slice in slices})
            fresh = Fresh(shape, shardings[0])

            def ours(run: Callable[..., Any] = loaded.run, fresh: Fresh = fresh) -> Any:
                return run([fresh.array])

            def theirs(fresh: Fresh = fresh, sharding: NamedSharding = shardings[1]) -> Any:
                return jax.device_put(fresh.array, sharding)

            check(ours()[0], theirs())
            yield Case(
                f"{move.name}, {size}",
                "jax.device_put",
                move.largest_ratio(size),
                ours,
                theirs,
                fresh.prepare,
                move.limit,
                rounds=MORE if size == "1 MB" else 3,
            )
        for slice in slices:
            release(slice)


def between() -> Iterator[Case]:
    """Yields moves between a computation and another: cutting and joining are fused into them."""

    def scale(x: jax.Array) -> jax.Array:
        return x * 2 + 1

    for move in MOVES:
        if not move.inside:
            continue
        devices = make_virtual_device_set()
        names = ("x", "y")
        slices = [devices.add_slice(shape, names[: len(shape)]) for shape in (move.source, move.target)]
        bindings = bind(slices, "between")
        specs = (move.source_spec, move.target_spec)
        source, target = (
            NamedSharding(mesh_of(bindings[slice]), spec) for slice, spec in zip(slices, specs, strict=True)
        )
        placed = [
            pathways.jit(scale, devices=slice, in_shardings=spec, out_shardings=spec)
            for slice, spec in zip(slices, specs, strict=True)
        ]

        def chain(x: jax.Array, placed: list[Any] = placed) -> jax.Array:
            return placed[1](placed[0](x))

        program = pathways.program(chain, in_shardings=specs[0], out_shardings=specs[1])
        jitted = [jax.jit(scale, out_shardings=sharding) for sharding in (source, target)]
        for size, shape in SIZES.items():
            fresh = Fresh(shape, source)

            def ours(fresh: Fresh = fresh, program: Any = program) -> Any:
                return program(fresh.array)

            def theirs(fresh: Fresh = fresh, jitted: list[Any] = jitted, to: NamedSharding = target) -> Any:
                return jitted[1](jax.device_put(jitted[0](fresh.array), to))

            check(ours(), theirs())
            yield Case(
                f"{move.name}, {size}, inside",
                "jit, put, jit",
                1.1,
                ours,
                theirs,
                limit="3 passes over memory: compute and cut, copy, join and compute",
            )
        for slice in slices:
            release(slice)


class Fresh:
    """Array that no call has seen before: `jax.device_put` would find the host copy that it left there."""

    def __init__(self, shape: tuple[int, ...], sharding: NamedSharding) -> None:
        self.make = jax.jit(
            lambda: jnp.arange(math.prod(shape), dtype=jnp.float32).reshape(shape), out_shardings=sharding
        )
        self.prepare()

    def prepare(self) -> None:
        self.array = self.make().block_until_ready()
        # JAX frees host memory of a call with other garbage, or else in a later call, which may be the other
        # side's.
        gc.collect(0)


def check(ours: jax.Array, theirs: jax.Array) -> None:
    """Checks that both sides put the same on every device."""
    for a, b in zip(ours.addressable_shards, theirs.addressable_shards, strict=True):
        assert a.device == b.device
        np.testing.assert_array_equal(a.data, b.data)


def launches() -> Iterator[Case]:
    """Yields a computation over a 2x2 mesh, with a collective in it, small and large."""
    devices = make_virtual_device_set()
    slice = devices.add_slice((2, 2), ("x", "y"))
    mesh = mesh_of(bind([slice], "launch")[slice])
    specs = P("x", None), P(None, "y")

    def multiply(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    placed = pathways.jit(multiply, devices=slice, in_shardings=specs, out_shardings=P("x", "y"))
    program = pathways.program(lambda x, w: placed(x, w), in_shardings=specs, out_shardings=P("x", "y"))
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    jitted = jax.jit(multiply, in_shardings=shardings, out_shardings=NamedSharding(mesh, P("x", "y")))
    for size, rounds in ((64, MORE), (1024, 2)):
        arrays = [jax.device_put(np.ones((size, size), np.float32), sharding) for sharding in shardings]
        check(program(*arrays), jitted(*arrays))

        def ours(arrays: list[jax.Array] = arrays) -> Any:
            return program(*arrays)

        def theirs(arrays: list[jax.Array] = arrays) -> Any:
            return jitted(*arrays)

        name = f"sharded computation, {size} x {size} on 2x2"
        limit = "the partitioned executable"
        yield Case(name, "jax.jit", 1.05, ours, theirs, limit=limit, rounds=rounds)


def every() -> Iterator[Case]:
    """Yields all cases of the table."""
    for cases in (moves, between, launches):
        yield from cases()


def summarize(found: list[Measured]) -> None:
    """Prints the bounds of our side of each case, and the median of the bare moves."""
    print("what bounds our side:")
    for limit in dict.fromkeys(row.limit for row in found):
        bounded = dict.fromkeys(
            row.case.rpartition(" MB")[0].rpartition(", ")[0] or row.case
            for row in found
            if row.limit == limit
        )
        print(f"  {limit}: {'; '.join(bounded)}")
    ratios = [row.ready[0] / row.ready[1] for row in found if row.versus == "jax.device_put"]
    if ratios:
        print(f"median ratio to jax.device_put until ready: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    summarize(run(__doc__.partition("\n")[0], every, cpu_devices=8, rounds=20))
