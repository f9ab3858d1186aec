"""What a call costs beside doing the same by hand, or with jax.jit: ratios within one run.

  python bench/dispatch.py [--json PATH] [--rounds N] [--only TEXT]

Each case runs its two sides in turn, in random order, and compares the medians, both of the time until the
call returns and of the time until its results are ready.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pathways
from pathways.runtime import pjrt, plan
from pathways.runtime.cluster import connect
from pathways.runtime.executable import Executable, load
from pathways.runtime.resources import bind
from pathways.runtime.virtual import VirtualSlice, make_virtual_device_set

LENGTH = 128
WIDTH = 8
MANY = 200

BATCHES = 5
# Python specialises the bytecode of a function in its first calls.
WARM_UP = 10

Side = Callable[[], Any]
Pair = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Case:
    """Two ways to do one thing; `target` is the largest ratio of ours to theirs until the call returns."""

    name: str
    versus: str
    target: float
    ours: Side
    theirs: Side
    prepare: Callable[[], None] = lambda: None


@dataclasses.dataclass(frozen=True)
class Measured:
    """Microseconds until our call and theirs return, and until their results are ready."""

    case: str
    versus: str
    target: float
    returned: Pair
    ready: Pair


def tiny(x: jax.Array) -> jax.Array:
    """A computation that takes XLA far less time than its launch."""
    return x * 2 + 1


def total(arrays: list[jax.Array]) -> jax.Array:
    """Uses every array a little."""
    return sum(array[0] for array in arrays)


def chain(x: jax.Array) -> jax.Array:
    """The whole chain as one computation."""
    for _ in range(LENGTH):
        x = tiny(x)
    return x


def lower(fn: Callable[..., Any], operands: int) -> plan.Computation:
    """The computation that `jax.jit` makes of a function of so many vectors, with one result."""
    lowered = jax.jit(lambda *arrays: fn(*arrays)).lower(
        *[jax.ShapeDtypeStruct((WIDTH,), jnp.float32)] * operands
    )
    (out,) = jax.tree.leaves(lowered.out_info)
    types = (plan.ArrayType((WIDTH,), "float32"),) * operands
    module = pjrt.bytecode(lowered.compiler_ir())
    return plan.Computation(fn.__name__, module, types, (plan.ArrayType(out.shape, out.dtype.name),))


def hand_made(computation: plan.Computation, slices: list[VirtualSlice], length: int) -> Executable:
    """A loaded plan of `length` launches, each of the result of the one before, going round the slices."""
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
    made = plan.Plan(
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
    return load(made, {slice.name: binding for slice, binding in bind(slices, made.name).items()})


def bare_loop(loaded: Executable, slices: list[VirtualSlice]) -> Callable[[jax.Array], jax.Array]:
    """What one would write by hand over the same executables: launches, and copies between slices."""
    executables = [loaded.executables[key] for key in loaded.executables]
    shardings = [jax.NamedSharding(bind([slice], "chain")[slice].mesh, jax.P()) for slice in slices]
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
    """Programs through the public interface."""
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
    """All cases of the table."""
    devices = make_virtual_device_set()
    slices = [devices.add_slice(1, "x") for _ in range(2)]
    loops = [bare_loop(hand_made(lower(tiny, 1), used, LENGTH), used) for used in (slices[:1], slices)]
    ours = our_side(slices)
    jitted, jitted_chain, jitted_total = jax.jit(tiny), jax.jit(chain), jax.jit(total)
    sharding = jax.NamedSharding(bind(slices[:1], "chain")[slices[0]].mesh, jax.P())
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
    """Arrays that no call has seen before; `prepare` makes them outside of what is timed."""

    def __init__(self, sharding: jax.NamedSharding) -> None:
        self.sharding = sharding
        self.value = np.ones(WIDTH, np.float32)
        self.arrays: list[jax.Array] = []

    def prepare(self) -> None:
        self.arrays = jax.device_put([self.value] * MANY, self.sharding)
        jax.block_until_ready(self.arrays)


def measure(case: Case, rounds: int) -> Measured:
    """Medians over several batches, in each of which both sides run `rounds` times in random order."""
    batches = [_batch(case, rounds) for _ in range(BATCHES)]
    return Measured(case.name, case.versus, case.target, *map(_middle, zip(*batches, strict=True)))


def _batch(case: Case, rounds: int) -> tuple[Pair, Pair]:
    """Medians in microseconds until our and their calls return, and until their results are ready."""
    sides = (case.ours, case.theirs)
    returned: tuple[list[float], list[float]] = ([], [])
    ready: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + WARM_UP):
        for side in random.sample((0, 1), 2):
            case.prepare()
            began = time.perf_counter()
            results = sides[side]()
            after = time.perf_counter()
            jax.block_until_ready(results)
            end = time.perf_counter()
            if number >= WARM_UP:
                returned[side].append((after - began) * 1e6)
                ready[side].append((end - began) * 1e6)
            del results
    return (_medians(returned), _medians(ready))


def _medians(times: tuple[list[float], list[float]]) -> Pair:
    return statistics.median(times[0]), statistics.median(times[1])


def _middle(pairs: tuple[Pair, ...]) -> Pair:
    """The pair whose ratio is the median of all ratios."""
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]


def report(found: list[Measured]) -> None:
    """Prints the table."""
    print(f"command: {' '.join(['python', *sys.argv])}")
    print(f"python {platform.python_version()}, jax {jax.__version__}, jaxlib {jax.lib.__version__}")
    print(f"{'case':<40}{'versus':<28}{'target':>7}{'return':>8}{'ready':>8}{'ours us':>10}{'theirs us':>11}")
    for row in found:
        ratio, ready = (pair[0] / pair[1] for pair in (row.returned, row.ready))
        print(
            f"{row.case:<40}{row.versus:<28}{row.target:>7.2f}{ratio:>8.2f}{ready:>8.2f}"
            f"{row.returned[0]:>10.1f}{row.returned[1]:>11.1f}"
            f"{'' if max(ratio, ready) <= row.target else '  over'}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rounds", type=int, default=100, help="calls of each side in each of five batches")
    parser.add_argument("--only", default="", help="only cases with this text in their names")
    options = parser.parse_args()
    connect(cpu_devices=2)
    found = [measure(case, options.rounds) for case in cases() if options.only in case.name]
    report(found)
    if options.json:
        rows = [dataclasses.asdict(row) for row in found]
        document = {"jax": jax.__version__, "command": sys.argv, "cases": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
