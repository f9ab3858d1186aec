"""Cost of a call beside the same by hand, or with jax.jit: ratios within one run.

  python bench/dispatch.py [--json PATH] [--rounds N] [--only TEXT]

Each case runs its two sides in turn, in random order, and compares the medians, both of the time until the
call returns and of the time until its results are ready.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _ratios import Case, run

import pathways
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.local.devices import bind, mesh_of
from pathways.runtime.local.load import Executable, load
from pathways.runtime.plan import plan
from pathways.runtime.resources.virtual import VirtualSlice, make_virtual_device_set
from pathways.runtime.xla import pjrt

LENGTH = 128
WIDTH = 8
MANY = 200


def tiny(x: jax.Array) -> jax.Array:
    """Returns a computation that takes XLA far less time than its launch."""
    return x * 2 + 1


def total(arrays: list[jax.Array]) -> jax.Array:
    """Reads every array a little."""
    return sum(array[0] for array in arrays)


def chain(x: jax.Array) -> jax.Array:
    """Runs the whole chain as one computation."""
    for _ in range(LENGTH):
        x = tiny(x)
    return x


def lower(fn: Callable[..., Any], operands: int) -> plan.Computation:
    """Returns the computation to which `jax.jit` lowers a function of some vectors, with one result."""
    lowered = jax.jit(lambda *arrays: fn(*arrays)).lower(
        *[jax.ShapeDtypeStruct((WIDTH,), jnp.float32)] * operands
    )
    (out,) = jax.tree.leaves(lowered.out_info)
    types = (plan.ArrayType((WIDTH,), "float32"),) * operands
    module = bytecode_of(lowered.compiler_ir())
    return plan.Computation(fn.__name__, module, types, (plan.ArrayType(out.shape, out.dtype.name),))


def chained_plan(computation: plan.Computation, slices: list[VirtualSlice], length: int) -> Executable:
    """Returns a loaded plan of `length` launches that go round the slices, each of the result of the one
    before."""
    count = len(computation.operands)
    steps: list[plan.Step] = []
    operands, slot = tuple(range(count)), count
    for number in range(length):
        here, next_ = slices[number % len(slices)], slices[(number + 1) % len(slices)]
        steps += [plan.Launch(computation.name, here.name, operands, (slot,), f"{number} on {here.name}")]
        steps += [plan.Release(operands)]
        if next_ is not here and number + 1 < length:
            steps += [plan.Transfer((slot,), (slot + 1,), here.name, next_.name), plan.Release((slot,))]
            slot += 1
        operands, slot = (slot,), slot + 1
    last = slices[(length - 1) % len(slices)]
    chained = plan.Plan(
        name="chain",
        slices={slice.name: slice.spec for slice in slices},
        computations={computation.name: computation},
        arguments=tuple(
            plan.Argument(type_, {slices[0].name: number})
            for number, type_ in enumerate(computation.operands)
        ),
        results=(plan.Result(computation.results[0], {last.name: slot - 1}),),
        steps=tuple(steps),
        slot_types=(computation.operands[0],) * (slot - 1) + computation.results,
    )
    return load(chained, {slice.name: binding for slice, binding in bind(slices, chained.name).items()})


def bare_loop(loaded: Executable, slices: list[VirtualSlice]) -> Callable[[jax.Array], jax.Array]:
    """Returns a hand-written loop over the same executables: launches, and copies between slices."""
    executables = [loaded.executables[key] for key in loaded.executables]
    shardings = [jax.NamedSharding(mesh_of(bind([slice], "chain")[slice]), jax.P()) for slice in slices]
    aval = jax.core.ShapedArray((WIDTH,), jnp.float32)
    handlers = [[pjrt.result_handler(aval, sharding, "bare")] for sharding in shardings]
    devices = [[pjrt.device_list(list(sharding.mesh.devices.flat))] for sharding in shardings]
    copy = pjrt.copy_arrays
    ways = [
        (executable.execute_sharded, handler, devices[k - 1], [shardings[k - 1]], [pjrt.ALWAYS_COPY])
        for k, (executable, handler) in enumerate(zip(executables, handlers, strict=True))
    ]

    def alone(x: jax.Array) -> jax.Array:
        execute, handler = ways[0][:2]
        for _ in range(LENGTH):
            (x,) = execute([x]).consume_with_handlers(handler)
        return x

    def in_turn(x: jax.Array) -> jax.Array:
        for _ in range(LENGTH // 2 - 1):
            for execute, handler, to, sharding, how in ways:
                (x,) = execute([x]).consume_with_handlers(handler)
                (x,) = copy([x], to, sharding, how)
        execute, handler, to, sharding, how = ways[0]
        (x,) = execute([x]).consume_with_handlers(handler)
        (x,) = copy([x], to, sharding, how)
        (x,) = ways[1][0]([x]).consume_with_handlers(ways[1][1])
        return x

    return alone if len(slices) == 1 else in_turn


@dataclasses.dataclass(frozen=True)
class Ours:
    """Our side of each case: functions of arrays that live on the first slice."""

    chain: Callable[[jax.Array], Any]
    fused: Callable[[jax.Array], Any]
    alternating: Callable[[jax.Array], Any]
    many: Callable[[list[jax.Array]], Any]
    one: Callable[[jax.Array], Any]


def our_side(slices: list[VirtualSlice]) -> Ours:
    """Returns programs through the public interface."""
    placed = [pathways.jit(tiny, devices=slice) for slice in slices]
    whole = pathways.jit(total, devices=slices[0])

    def along(x: jax.Array) -> jax.Array:
        for _ in range(LENGTH):
            x = placed[0](x)
        return x

    @pathways.program(fuse=False)
    def alternating(x: jax.Array) -> jax.Array:
        for number in range(LENGTH):
            x = placed[number % 2](x)
        return x

    return Ours(
        pathways.program(along, fuse=False),
        pathways.program(along, fuse=True),
        alternating,
        pathways.program(lambda arrays: whole(arrays)),
        pathways.program(lambda x: placed[0](x)),
    )


def cases() -> Iterator[Case]:
    """Yields all cases of the table."""
    devices = make_virtual_device_set()
    slices = [devices.add_slice(1, "x") for _ in range(2)]
    loops = [bare_loop(chained_plan(lower(tiny, 1), used, LENGTH), used) for used in (slices[:1], slices)]
    ours = our_side(slices)
    jitted, jitted_chain, jitted_total = jax.jit(tiny), jax.jit(chain), jax.jit(total)
    sharding = jax.NamedSharding(mesh_of(bind(slices[:1], "chain")[slices[0]]), jax.P())
    x = jax.device_put(np.ones(WIDTH, np.float32), sharding)

    def jit_loop() -> jax.Array:
        value = x
        for _ in range(LENGTH):
            value = jitted(value)
        return value

    name = f"{LENGTH} tiny computations, one slice"
    yield Case(name, "bare loop", 1.10, lambda: ours.chain(x), lambda: loops[0](x))
    yield Case(name, f"jax.jit called {LENGTH} times", 1.0, lambda: ours.chain(x), jit_loop)
    yield Case(f"{name}, fused", "one jax.jit", 1.3, lambda: ours.fused(x), lambda: jitted_chain(x))
    name = f"{LENGTH} alternating between two slices"
    yield Case(name, "bare loop", 1.10, lambda: ours.alternating(x), lambda: loops[1](x))
    fresh = Fresh(sharding)
    yield Case(
        f"call with {MANY} arrays",
        "jax.jit",
        1.5,
        lambda: ours.many(fresh.arrays),
        lambda: jitted_total(fresh.arrays),
        fresh.prepare,
    )
    yield Case("call with one array", "jax.jit", 2.0, lambda: ours.one(x), lambda: jitted(x))


class Fresh:
    """Arrays that no call has seen before; `prepare` creates them outside of the timed interval."""

    def __init__(self, sharding: jax.NamedSharding) -> None:
        self.sharding = sharding
        self.value = np.ones(WIDTH, np.float32)
        self.arrays: list[jax.Array] = []

    def prepare(self) -> None:
        self.arrays = jax.device_put([self.value] * MANY, self.sharding)
        jax.block_until_ready(self.arrays)


if __name__ == "__main__":
    run(__doc__.partition("\n")[0], cases, cpu_devices=2, rounds=100)
