"""Random programs of loops over slices whose end depends on values, against `jax.jit` of the same function.

    python test/fuzz/random_while_loops.py --count 300 --keep build/fuzz/while_loops [--hosts 2]

Loops follow each other, with nests of conditions, scans and calls in their bodies; they carry numbers, flags,
small floats and keys, end by a count or by a value, and run in chunks of any size. They read an array that
the program closes over. Arguments may be donated, and slices may have replicas, or several devices. A case is
always the same for its seed and number.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from random_branches import ROWS, SLICES, WEIGHTS, WIDTH, apply, drawn, flags, layer, run

import pathways as pw

Fun = Callable[..., Any]

MAX_ITERATIONS = 9
EXTRAS: dict[str, tuple[Fun, Fun]] = {
    "flag": (lambda: jnp.array(False), lambda v, x: v ^ (x.sum() > 0)),
    "small": (lambda: jnp.zeros((3,), jnp.bfloat16), lambda v, x: v + x[0, :3].astype(v.dtype)),
    "byte": (lambda: jnp.int8(1), lambda v, x: v + jnp.int8(3)),
    "rows": (lambda: jnp.zeros((4, WIDTH)), lambda v, x: v.at[1].set(x[0])),
    "kept": (lambda: jnp.arange(5), lambda v, x: v),
    "key": (lambda: jax.random.key(7), lambda v, x: jax.random.fold_in(v, jnp.int32(x.sum() * 0))),
    "swap": (lambda: (jnp.float32(1), jnp.float32(2)), lambda v, x: (v[1], v[0])),
}
"""Further values that a loop carries: the initial value, and the update of an iteration."""

TABLE = np.random.default_rng(0).normal(size=(1024, WIDTH)).astype(np.float32)
"""Array that is too large to be a constant of a computation."""


@dataclasses.dataclass(frozen=True)
class LoopCase:
    """Loop: its body, its condition, its carried values, the nest before it, and the readers of `TABLE`."""

    body: Any
    ends_by: str
    extras: tuple[str, ...]
    before: Any
    restarts: bool
    readers: frozenset[str]

    def read(self, reader: str, x: Any) -> Any:
        """Adds some of the table, if `reader` is one of its readers."""
        return x + TABLE[:ROWS] / 8 if reader in self.readers else x


@dataclasses.dataclass(frozen=True)
class Case:
    """Program of loops, with the options of its compilation and calls."""

    loops: tuple[LoopCase, ...]
    chunk: int
    donated: tuple[int, ...]
    replicas: int
    threads: int
    shapes: tuple[int, ...]
    ends: tuple[int, ...]


def case_of(number: int) -> Case:
    """Returns a case by its number."""
    rng = random.Random(f"while/{number}")
    chunk = rng.randint(1, 5)
    loops = tuple(
        LoopCase(
            ("chain", [("call", rng.randrange(SLICES)), drawn(rng, 2), ("call", rng.randrange(SLICES))]),
            rng.choice(["count", "count", "value", "both"]),
            tuple(sorted(rng.sample(list(EXTRAS), rng.randint(0, 3)))),
            drawn(rng, 1),
            rng.random() < 0.3,
            frozenset(rng.sample(["before", "condition", "body", "result"], rng.choice([0, 0, 1, 2]))),
        )
        for _ in range(rng.choice([1, 1, 2, 3]))
    )
    ends = tuple(sorted(rng.sample([0, 1, chunk, chunk + 1, 2 * chunk], 3)))
    donated = tuple(n for n in (0, 1) if rng.random() < 0.3)
    replicas, threads = rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 2])
    # There are two devices for each slice.
    shapes = tuple(rng.choice([1, 1, 2]) if replicas == 1 else 1 for _ in range(SLICES))
    return Case(loops, chunk, donated, replicas, threads, shapes, ends)


def program_of(case: Case, layers: list[Fun]) -> Fun:
    """Returns a function of weights, rows and the trip count."""

    def program(w: Any, x: Any, end: Any) -> Any:
        started, results = x, []
        for loop in case.loops:
            x = loop.read("before", apply(loop.before, layers, w, started if loop.restarts else x, end))

            def continues(state: Any, loop: LoopCase = loop) -> Any:
                n, x, _ = state
                by_count, by_value = n < end, jnp.abs(loop.read("condition", x)).sum() > 0.5 * end
                return ({"count": by_count, "value": by_value, "both": by_count | by_value}[loop.ends_by]) & (
                    n < MAX_ITERATIONS
                )

            def body(state: Any, loop: LoopCase = loop) -> Any:
                n, x, extras = state
                x = apply(loop.body, layers, w, loop.read("body", x), n) * 0.7
                return n + 1, x, tuple(EXTRAS[e][1](v, x) for e, v in zip(loop.extras, extras, strict=True))

            n, x, extras = jax.lax.while_loop(
                continues, body, (0, x, tuple(EXTRAS[e][0]() for e in loop.extras))
            )
            results.append((jnp.asarray(TABLE) if "result" in loop.readers else None, n, extras))
        return x, results

    return program


def difference(number: int) -> str:
    """Returns the difference of a case from `jax.jit`; empty if there is none."""
    case = case_of(number)
    devices = pw.make_virtual_device_set(replicas=case.replicas)
    placed: list[Fun] = [
        pw.jit(layer, devices=devices.add_slice((size,), ("x",)), in_shardings=(P(None, "x"), P("x")))
        for size in case.shapes
    ]
    program = pw.program(program_of(case, placed), chunk=case.chunk, donate_argnums=case.donated)
    expected = jax.jit(program_of(case, [layer] * SLICES))
    x = np.random.default_rng(number).normal(size=(ROWS, WIDTH)).astype(np.float32)
    wrong: list[str] = []

    def check(end: int) -> None:
        pairs = zip(*(jax.tree.leaves(f(WEIGHTS, x, end)) for f in (program, expected)), strict=True)
        for n, (result, reference) in enumerate(pairs):
            if jax.dtypes.issubdtype(reference.dtype, jax.dtypes.prng_key):
                # For keys on hosts, numpy gets their data.
                result, reference = (
                    jax.random.key_data(a) if isinstance(a, jax.Array) else np.asarray(a)
                    for a in (result, reference)
                )
            if (result.shape, result.dtype) != (reference.shape, reference.dtype):
                wrong.append(
                    f"result {n} is {result.dtype}{result.shape}, not {reference.dtype}{reference.shape}"
                )
                continue
            values, references = (np.asarray(a).astype(np.float64) for a in (result, reference))
            error, scale = np.abs(values - references).max(initial=0), 1 + np.abs(references).max(initial=0)
            tolerance = 2e-2 if reference.dtype == jnp.bfloat16 else 1e-4
            if not error <= tolerance * scale:
                wrong.append(f"result {n} differs by {error} of {scale} at end {end}")

    for end in case.ends:
        with ThreadPoolExecutor(case.threads) as threads:
            list(threads.map(check, [end] * case.threads))
    return "; ".join(wrong)


def main(argv: list[str] | None = None) -> int:
    parser = flags(__doc__)
    parser.add_argument("--hosts", type=int, default=0, help="run on so many workers")
    options = parser.parse_args(argv)
    if options.hosts:
        pw.connect(hosts=options.hosts, devices_per_host=2 * -(-SLICES // options.hosts))
    else:
        pw.connect(cpu_devices=2 * SLICES)
    return run(difference, lambda number: str(case_of(number)), (), options)


if __name__ == "__main__":
    sys.exit(main())
