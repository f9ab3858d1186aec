"""Random nests of `cond`, `switch`, `scan` and calls over slices, against `jax.jit` of the same function.

    python test/fuzz/random_branches.py --count 300 --keep build/fuzz/branches

Some are differentiated, under `jax.checkpoint` or not, some are the loss of a `pw.accumulate` under one of
several schedules. A case is always the same for its seed and number. Programs that the manual excludes are
rejected, and counted separately.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pathways as pw

Fun = Callable[..., Any]

SLICES, ROWS, WIDTH, MICROBATCHES = 3, 6, 4, 3
POLICIES = ("1f1b", "gpipe", "zb-h1", "eager")
WEIGHTS = [np.random.default_rng(n).normal(0, 0.7, (WIDTH, WIDTH)).astype(np.float32) for n in range(SLICES)]


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def drawn(rng: random.Random, depth: int) -> Any:
    """Returns a random nest: its kind, and its contents."""
    kinds = ["call", "call", "call", "glue"] + (["cond", "switch", "scan", "chain", "chain"] if depth else [])
    match rng.choice(kinds):
        case "call":
            return "call", rng.randrange(SLICES)
        case "glue":
            return "glue", rng.choice(["sin", "double", "norm", "nothing", "weights", "complex"])
        case "cond":
            return "cond", rng.choice(["n", "sum", "both"]), drawn(rng, depth - 1), drawn(rng, depth - 1)
        case "switch":
            return "switch", [drawn(rng, depth - 1) for _ in range(rng.randint(2, 4))]
        case "scan":
            return "scan", rng.randint(1, 3), drawn(rng, depth - 1)
    return "chain", [drawn(rng, depth - 1) for _ in range(rng.randint(2, 3))]


GLUE: dict[str, Fun] = {
    "sin": lambda w, x: jnp.sin(x),
    "double": lambda w, x: 2 * x + 1,
    "norm": lambda w, x: x / (1 + jnp.sqrt(jnp.sum(x**2))),
    "nothing": lambda w, x: x,
    "weights": lambda w, x: x + sum(v.sum() for v in w),
    "complex": lambda w, x: (
        jax.lax.cond(x.sum() > 0, lambda: x * (1 + 2j), lambda: jnp.zeros_like(x, complex)).imag
    ),
}


def apply(nest: Any, layers: list[Fun], w: Any, x: Any, n: Any) -> Any:
    """Applies a nest to an array."""

    def inside(nest: Any, k: Any = 0) -> Fun:
        return lambda x: apply(nest, layers, w, x, n + k)

    match nest:
        case "call", number:
            return layers[number](w[number], x)
        case "glue", name:
            return GLUE[name](w, x)
        case "cond", by, on_true, on_false:
            condition = {"n": n % 2 == 0, "sum": x.sum() > 0, "both": (x.sum() > 0) & (n > 0)}[by]
            return jax.lax.cond(condition, inside(on_true, 1), inside(on_false, 2), x)
        case "switch", nests:
            return jax.lax.switch(n % len(nests), [inside(nest) for nest in nests], x)
        case "scan", count, nest:
            body = lambda x, k: (inside(nest, k)(x), x.sum())  # noqa: E731
            x, sums = jax.lax.scan(body, x, jnp.arange(count))
            return x + sums.mean()
    for each in nest[1]:
        x = inside(each)(x)
    return x


def program_of(rng: random.Random) -> tuple[Fun, str, Any]:
    """Returns a function of layers, weights, a batch and a number; its policy; and its description."""
    nest = ("chain", [("call", 0), drawn(rng, 3), ("call", rng.randrange(SLICES))])
    kind = rng.choice(["value", "gradient", "gradient", "checkpoint", "accumulate"])

    def loss(layers: list[Fun], w: Any, x: Any, n: Any) -> Any:
        fun = lambda w, x: apply(nest, layers, w, x, n)  # noqa: E731
        return jnp.mean((jax.checkpoint(fun) if kind == "checkpoint" else fun)(w, x) ** 2)

    def program(layers: list[Fun], w: Any, x: Any, n: Any) -> Any:
        if kind == "value":
            return apply(nest, layers, w, x, n)
        gradient = jax.value_and_grad(lambda w, x: loss(layers, w, x, n))
        return pw.accumulate(gradient, MICROBATCHES)(w, x) if kind == "accumulate" else gradient(w, x)

    return program, rng.choice(POLICIES), (kind, nest)


def difference(number: int) -> str:
    """Returns the difference of a case from `jax.jit`; empty if there is none."""
    fun, policy, (kind, _) = program_of(random.Random(number))
    devices = pw.make_virtual_device_set()
    placed: list[Fun] = [pw.jit(layer, devices=devices.add_slice((1,), ("x",))) for _ in range(SLICES)]
    program = pw.program(
        lambda w, x, n: fun(placed, w, x, n), schedule=policy if kind == "accumulate" else None
    )
    expected = jax.jit(lambda w, x, n: fun([layer] * SLICES, w, x, n))
    x = np.random.default_rng(number).normal(size=(ROWS, WIDTH)).astype(np.float32)
    for n in (0, 1):
        pairs = zip(*(jax.tree.leaves(f(WEIGHTS, x, n)) for f in (program, expected)), strict=True)
        for result, reference in pairs:
            result, reference = np.asarray(result), np.asarray(reference)
            if (np.isnan(result) != np.isnan(reference)).any():
                return f"is NaN elsewhere with n={n} under {policy}"
            scale = 1 + float(np.nanmax(np.abs(reference), initial=0))
            error = float(np.nanmax(np.abs(result - reference), initial=0))
            if not error <= 1e-4 * scale:
                return f"differs by {error} of {scale} with n={n} under {policy}"
    return ""


REFUSED = (
    "is a jax.lax.scan or fori_loop over several slices inside the function",
    "cannot be scheduled by",
    "or use 'program'",
)
"""Patterns of errors of programs that the manual excludes: a scan over slices in a microbatch, and pipelines
of another shape than a policy supports. Work of a condition on a slice of several stages may connect these,
so that only the order of the program is possible."""


def run(
    check: Callable[[int], str], described: Callable[[int], str], refused: tuple[str, ...], options: Any
) -> int:
    """Checks cases, prints and keeps those that fail, and returns the exit code.

    Args:
      check: returns the failure of a case, by its number; empty if there is none.
      described: describes a case.
      refused: patterns of errors that are no failures.
      options: `seed`, `first`, `count` and `keep` of the command line.
    """
    outcomes: Counter[str] = Counter()
    for n in range(options.first, options.first + options.count):
        number = options.seed * 1_000_003 + n
        try:
            wrong = check(number)
        except pw.PathwaysError as error:
            wrong = f"{type(error).__name__}: {error}"
        except Exception as error:
            wrong = f"a defect: {type(error).__name__}: {error}"
        if any(text in wrong for text in refused):
            outcomes["refused"] += 1
        elif wrong:
            outcomes["failed"] += 1
            print(f"seed {options.seed}, number {n}: {wrong}", flush=True)
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{options.seed}.{n}.txt").write_text(f"{wrong}\n{described(number)}\n")
        else:
            outcomes["equal"] += 1
        jax.clear_caches()
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())), file=sys.stderr)
    return 1 if outcomes["failed"] else 0


def flags(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the flags of `run`."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of all cases")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--count", type=int, default=300, help="how many")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="a folder for those that fail")
    return parser


def described(number: int) -> str:
    """Returns a case in words."""
    _, policy, description = program_of(random.Random(number))
    return f"{policy}: {description}"


def main(argv: list[str] | None = None) -> int:
    options = flags(__doc__).parse_args(argv)
    pw.connect(cpu_devices=SLICES)
    return run(difference, described, REFUSED, options)


if __name__ == "__main__":
    sys.exit(main())
