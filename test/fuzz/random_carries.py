"""Random loops that pass on several values between iterations, against `jax.jit` of the same function.

    python test/fuzz/random_carries.py --count 300 --keep build/fuzz/carries

Their initial and next values are drawn from arguments, which each slice has a copy of, from other carried
values, and from results of calls on other slices. Loops of all kinds follow each other, and some programs are
differentiated. A case is always the same for its seed and number.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from random_branches import ROWS, SLICES, WEIGHTS, WIDTH, flags, layer, run

import pathways as pw

Fun = Callable[..., Any]

ARGUMENTS = 2
KINDS = ("scan", "scan", "backwards", "nested", "counted", "while")


@dataclasses.dataclass(frozen=True)
class LoopCase:
    """One loop; expressions are of arguments and of the values that it carries, or that were carried before.

    Attributes:
      kind: its kind in JAX.
      count: the number of its iterations.
      starts: the initial expression of each value.
      nexts: the expression of each value for the next iteration.
      rows: the expressions that an iteration stacks.
    """

    kind: str
    count: int
    starts: tuple[Any, ...]
    nexts: tuple[Any, ...]
    rows: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """Program: its loops, its results from the values of the last one, and options of its compilation."""

    loops: tuple[LoopCase, ...]
    results: tuple[Any, ...]
    is_differentiated: bool
    donated: tuple[int, ...]
    chunk: int
    shapes: tuple[int, ...]


def drawn(rng: random.Random, carried: int, depth: int = 2) -> Any:
    """Returns an expression of arguments and of a number of carried values."""
    kinds = ["argument"] + 3 * ["carried"] * bool(carried) + ["call", "call", "sum"] * bool(depth)
    match rng.choice(kinds):
        case "argument":
            return "argument", rng.randrange(ARGUMENTS)
        case "carried":
            return "carried", rng.randrange(carried)
        case "call":
            return "call", rng.randrange(SLICES), drawn(rng, carried, depth - 1)
    return "sum", drawn(rng, carried, depth - 1), drawn(rng, carried, depth - 1)


def case_of(number: int) -> Case:
    """Returns a case by its number."""
    rng = random.Random(f"carries/{number}")
    is_differentiated = rng.random() < 0.3
    loops: list[LoopCase] = []
    carried = 0
    for _ in range(rng.choice([1, 1, 2])):
        before, carried = carried, rng.randint(1, 4)
        # JAX differentiates no loops whose trip count it does not know.
        kind = rng.choice(KINDS[:-1] if is_differentiated else KINDS)
        starts = tuple(drawn(rng, before) for _ in range(carried))
        nexts = tuple(drawn(rng, carried) for _ in range(carried))
        rows = tuple(drawn(rng, carried) for _ in range(rng.randint(0, 2)))
        loops.append(LoopCase(kind, rng.randint(1, 3), starts, nexts, rows))
    results = tuple(drawn(rng, carried) for _ in range(2))
    donated = tuple(n for n in range(ARGUMENTS) if rng.random() < 0.2)
    shapes = tuple(rng.choice([1, 1, 2]) for _ in range(SLICES))
    return Case(tuple(loops), results, is_differentiated, donated, rng.randint(1, 3), shapes)


def value_of(expression: Any, call: Fun, arguments: Sequence[Any], carried: Sequence[Any]) -> Any:
    """Returns the value of an expression; `call` runs the layer of a number."""
    match expression:
        case "argument", number:
            return arguments[number]
        case "carried", number:
            return carried[number]
        case "call", number, operand:
            return call(number, value_of(operand, call, arguments, carried))
    return sum(value_of(term, call, arguments, carried) for term in expression[1:])


def program_of(case: Case, layers: list[Fun]) -> Fun:
    """Returns a function of two arrays, of weights, and of the trip count of loops that get it as a value."""

    def loops(x: Any, y: Any, w: Any, end: Any) -> Any:
        call = lambda number, value: layers[number](w[number], value)  # noqa: E731
        value = lambda each, carried: value_of(each, call, (x, y), carried)  # noqa: E731
        carried: tuple[Any, ...] = ()
        rows: list[Any] = []
        for loop in case.loops:
            carried = tuple(value(start, carried) for start in loop.starts)

            def iterate(state: Any, _: Any, loop: LoopCase = loop) -> Any:
                nexts = tuple(value(each, state) for each in loop.nexts)
                return nexts, tuple(value(row, state) for row in loop.rows)

            def twice(state: Any, _: Any, iterate: Fun = iterate) -> Any:
                return jax.lax.scan(iterate, state, None, length=2)

            if loop.kind == "while":
                one = lambda s, iterate=iterate: (s[0] + 1, iterate(s[1], None)[0])  # noqa: E731
                _, carried = jax.lax.while_loop(lambda s: s[0] < end, one, (0, carried))
            elif loop.kind == "counted":
                one = lambda _, state, iterate=iterate: iterate(state, None)[0]  # noqa: E731
                carried = jax.lax.fori_loop(0, loop.count, one, carried)
            else:
                body = twice if loop.kind == "nested" else iterate
                carried, filled = jax.lax.scan(
                    body, carried, None, length=loop.count, reverse=loop.kind == "backwards"
                )
                rows.append(filled)
        return carried, rows, [value(result, carried) for result in case.results]

    def loss(x: Any, y: Any, w: Any, end: Any) -> Any:
        return sum(jnp.mean(leaf**2) for leaf in jax.tree.leaves(loops(x, y, w, end)))

    return jax.value_and_grad(loss, (0, 1, 2)) if case.is_differentiated else loops


def difference(number: int) -> str:
    """Returns the difference of a case from `jax.jit`; empty if there is none."""
    case = case_of(number)
    devices = pw.make_virtual_device_set()
    placed: list[Fun] = [
        pw.jit(layer, devices=devices.add_slice((size,), ("x",)), in_shardings=(P(None, "x"), P("x")))
        for size in case.shapes
    ]
    program = pw.program(program_of(case, placed), chunk=case.chunk, donate_argnums=case.donated)
    expected = jax.jit(program_of(case, [layer] * SLICES))
    x, y = np.random.default_rng(number).normal(size=(2, ROWS, WIDTH)).astype(np.float32)
    for end in (0, 1, case.chunk + 1):
        pairs = zip(*(jax.tree.leaves(f(x, y, WEIGHTS, end)) for f in (program, expected)), strict=True)
        for n, (result, reference) in enumerate(pairs):
            if (result.shape, result.dtype) != (reference.shape, reference.dtype):
                return f"result {n} is {result.dtype}{result.shape}, not {reference.dtype}{reference.shape}"
            error = np.abs(np.asarray(result) - np.asarray(reference)).max(initial=0)
            scale = 1 + np.abs(reference).max(initial=0)
            if not error <= 1e-4 * scale:
                return f"result {n} differs by {error} of {scale} at end {end}"
    return ""


REFUSED = ("calls no placed function",)
"""Patterns of errors of programs whose calls JAX drops."""


def main(argv: list[str] | None = None) -> int:
    options = flags(__doc__).parse_args(argv)
    pw.connect(cpu_devices=2 * SLICES)
    return run(difference, lambda number: str(case_of(number)), REFUSED, options)


if __name__ == "__main__":
    sys.exit(main())
