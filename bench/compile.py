"""Growth of the time of all passes with the program: seconds of CPU, and ratios within one run.

  python bench/compile.py [--json PATH] [--rounds N]

A pipeline runs microbatches forward and backward through four slices, with code between the stages and an
update at the end. An update is code of the program alone, one operation after the other, of as many
parameters as fit. Conditions follow each other, each over two slices. All are written as StableHLO, as JAX
lowers them, so that only the passes are timed. The floor is parsing and verifying the same text once by MLIR:
the cost of any MLIR tool before it does anything.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxlib
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.passes.manager.driver import run_passes
from pathways.passes.pipeline import Options, phases

SLICES = 4
X = "tensor<64x64xf32>"


@dataclasses.dataclass(frozen=True)
class Family:
    """Programs of one kind.

    Attributes:
      what: the unit of their size.
      write: returns the text of one of a size.
      sizes: the sizes that are timed.
      max_seconds: the target for the largest one, if there is one.
      max_growth: the target for its time per unit, against that of the smallest one.
    """

    what: str
    write: Callable[[int], str]
    sizes: tuple[int, ...]
    max_seconds: float | None
    max_growth: float


def pipeline(launches: int) -> str:
    """Returns a pipeline of some placed calls: microbatches run forward and backward through four stages."""
    microbatches = launches // (2 * SLICES)
    weights = ", ".join(f"%w{s}: {X} {{jax.buffer_donor = true}}" for s in range(SLICES))
    batch = ", ".join(f"%x{m}: {X}" for m in range(microbatches))
    lines = [f"func.func public @main({weights}, {batch}) -> ({', '.join([X] * SLICES)}) {{"]
    lines += list(_body(microbatches))
    lines += [f"return {', '.join(f'%new{s}' for s in range(SLICES))} : {', '.join([X] * SLICES)}", "}"]
    lines += [
        f"func.func private @fwd(%w: {X}, %x: {X}) -> {X} {{",
        f"%y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({X}, {X}) -> {X}",
        f"return %y : {X}",
        "}",
        f"func.func private @bwd(%w: {X}, %x: {X}, %g: {X}) -> ({X}, {X}) {{",
        f"%dw = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : ({X}, {X}) -> {X}",
        f"%dx = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : ({X}, {X}) -> {X}",
        f"return %dw, %dx : {X}, {X}",
        "}",
    ]
    return _module("pipeline", lines)


def update(operations: int) -> str:
    """Returns operations that update parameters, whose gradients come from one placed call on each slice."""
    leaves = operations // (len(_RULE) * SLICES)
    names = {s: [f"{s}_{n}" for n in range(leaves)] for s in range(SLICES)}
    every = [leaf for of_slice in names.values() for leaf in of_slice]
    arguments = [f"%{kind}{leaf}: {X} {{jax.buffer_donor = true}}" for leaf in every for kind in "pm"]
    types = ", ".join([X] * leaves)
    lines = [f"func.func public @main({', '.join(arguments)}) -> ({', '.join([X] * 2 * len(every))}) {{"]
    for s in range(SLICES):
        taken = ", ".join(f"%p{leaf}" for leaf in names[s])
        attributes = (
            f'{{mhlo.frontend_attributes = {{pw.slice = "s{s}", pw.name = "grads", pw.kind = "fwd"}}}}'
        )
        lines.append(f"%all{s}:{leaves} = call @grads({taken}) {attributes} : ({types}) -> ({types})")
    for s, of_slice in names.items():
        for n, leaf in enumerate(of_slice):
            lines += [line.format(leaf=leaf, grad=f"%all{s}#{n}", X=X) for line in _RULE]
    results = ", ".join(f"%new{leaf}, %mean{leaf}" for leaf in every)
    lines += [f"return {results} : {', '.join([X] * 2 * len(every))}", "}"]
    lines.append(
        f"func.func private @grads({', '.join(f'%p{n}: {X}' for n in range(leaves))}) -> ({types}) {{"
    )
    lines += [f"%g{n} = stablehlo.tanh %p{n} : {X}" for n in range(leaves)]
    lines += [f"return {', '.join(f'%g{n}' for n in range(leaves))} : {types}", "}"]
    return _module("update", lines)


def conditions(count: int) -> str:
    """Returns consecutive conditions, each with calls on two slices and glue between them."""
    placed = (
        '{{mhlo.frontend_attributes = {{pw.slice = "s{}", pw.name = "f", pw.kind = "fwd", pw.call = "{}"}}}}'
    )
    lines = [f"func.func public @main(%x0: {X}, %n: tensor<i32>) -> {X} {{"]
    for n in range(count):
        first, second = (placed.format((n + k) % SLICES, f"{n}.{k}") for k in range(2))
        lines += [
            f'%x{n + 1} = "stablehlo.case"(%n) ({{',
            f"stablehlo.return %x{n} : {X}",
            "}, {",
            f"%y = func.call @f(%x{n}) {first} : ({X}) -> {X}",
            f"%z = stablehlo.sine %y : {X}",
            f"%w = func.call @f(%z) {second} : ({X}) -> {X}",
            f"stablehlo.return %w : {X}",
            f"}}) : (tensor<i32>) -> {X}",
        ]
    lines += [f"return %x{count} : {X}", "}", f"func.func private @f(%x: {X}) -> {X} {{"]
    lines += [f"%y = stablehlo.tanh %x : {X}", f"return %y : {X}", "}"]
    return _module("conditions", lines)


_RULE = (
    "%difference{leaf} = stablehlo.subtract {grad}, %m{leaf} : {X}",
    "%mean{leaf} = stablehlo.add %m{leaf}, %difference{leaf} : {X}",
    "%square{leaf} = stablehlo.multiply {grad}, {grad} : {X}",
    "%root{leaf} = stablehlo.sqrt %square{leaf} : {X}",
    "%step{leaf} = stablehlo.divide %mean{leaf}, %root{leaf} : {X}",
    "%new{leaf} = stablehlo.subtract %p{leaf}, %step{leaf} : {X}",
)


def _module(name: str, functions: list[str]) -> str:
    lines = ['sdy.mesh @mesh = <["x"=1]>']
    lines += [f'"pw.slice"() {{sym_name = "s{s}", mesh = @mesh}} : () -> ()' for s in range(SLICES)]
    return f"module @{name} {{\n" + "\n".join([*lines, *functions]) + "\n}\n"


def _body(microbatches: int) -> Iterator[str]:
    def call(function: str, s: int, m: int, phase: str) -> str:
        return (
            f'@{function} {{mhlo.frontend_attributes = {{pw.slice = "s{s}", pw.name = "stage", '
            f'pw.kind = "{phase}", pw.call = "{m}.{s}"}}}}'
        )

    for m in range(microbatches):
        yield f"%h{m}_0 = stablehlo.tanh %x{m} : {X}"
        for s in range(SLICES):
            name, _, attributes = call("fwd", s, m, "fwd").partition(" ")
            yield f"%y{m}_{s} = call {name}(%w{s}, %h{m}_{s}) {attributes} : ({X}, {X}) -> {X}"
            yield f"%h{m}_{s + 1} = stablehlo.tanh %y{m}_{s} : {X}"
        yield f"%g{m}_{SLICES} = stablehlo.negate %h{m}_{SLICES} : {X}"
        for s in reversed(range(SLICES)):
            yield f"%t{m}_{s} = stablehlo.multiply %g{m}_{s + 1}, %h{m}_{s + 1} : {X}"
            name, _, attributes = call("bwd", s, m, "bwd").partition(" ")
            yield (
                f"%d{m}_{s}:2 = call {name}(%w{s}, %h{m}_{s}, %t{m}_{s}) {attributes} : "
                f"({X}, {X}, {X}) -> ({X}, {X})"
            )
            yield f"%g{m}_{s} = stablehlo.negate %d{m}_{s}#1 : {X}"
            previous = f"%sum{m - 1}_{s}" if m else f"%w{s}"
            yield f"%sum{m}_{s} = stablehlo.add {previous}, %d{m}_{s}#0 : {X}"
    for s in range(SLICES):
        yield f"%new{s} = stablehlo.subtract %w{s}, %sum{microbatches - 1}_{s} : {X}"


FAMILIES = (
    Family("launches", pipeline, (1000, 2000, 4000), 2.5, 1.15),
    Family("operations", update, (500, 2000, 8000), None, 1.15),
    Family("conditions", conditions, (40, 80, 160), None, 2.0),
)


def seconds(text: str) -> tuple[dict[str, float], float]:
    """Returns the CPU time of each pass over a program, and of parsing and verifying it by MLIR."""
    began = time.process_time()
    module = ir.Module.parse(text, make_context())
    module.operation.verify()
    floor = time.process_time() - began
    spent: dict[str, float] = {}
    for phase in phases(Options()):
        for item in phase.passes:
            began = time.process_time()
            run_passes(module, [item], verify_each=False)
            spent[item.name] = time.process_time() - began
    return spent, floor


def measure(family: Family, rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each size; sizes take turns, so that all of them see the machine alike."""
    runs = [[seconds(family.write(size)) for size in family.sizes] for _ in range(rounds)]
    rows: list[dict[str, Any]] = []
    for size, of_size in zip(family.sizes, zip(*runs, strict=True), strict=True):
        total = statistics.median(sum(spent.values()) for spent, _ in of_size)
        floor = statistics.median(floor for _, floor in of_size)
        rows.append(
            {
                "what": family.what,
                "size": size,
                "seconds": total,
                "us each": 1e6 * total / size,
                "floor us each": 1e6 * floor / size,
                "versus parse and verify": total / floor,
                "passes": {n: statistics.median(spent[n] for spent, _ in of_size) for n in of_size[0][0]},
            }
        )
    for row in rows:
        row["growth"] = row["us each"] / rows[0]["us each"]
    return rows


def report(family: Family, rows: list[dict[str, Any]]) -> None:
    """Prints the rows of a family, and the passes over its largest program."""
    for row in rows:
        is_last = row is rows[-1]
        targets = [(row["growth"], family.max_growth, "growth {:.2f}")]
        if family.max_seconds is not None:
            targets.append((row["seconds"], family.max_seconds, "{:.1f} s"))
        target = ", ".join(
            text.format(limit) + "  over" * (is_now > limit) for is_now, limit, text in targets
        )
        print(
            f"{row['size']:>6} {row['what']:<11} {row['seconds']:>8.2f} {row['us each']:>8.0f} "
            f"{row['floor us each']:>8.1f} {row['versus parse and verify']:>8.1f} {row['growth']:>7.2f}"
            + (f"  {target}" if is_last else "")
        )
    for name, spent in rows[-1]["passes"].items():
        print(f"    {name:<24} {spent:>7.2f} s")


def main() -> None:
    """Prints the tables, and writes them as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the tables to this file")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each size; the median counts")
    options = parser.parse_args()
    print("command: python bench/compile.py")
    print(f"python {platform.python_version()}, jaxlib {jaxlib.__version__}")
    print(f"{'':<18} {'CPU s':>8} {'us each':>8} {'floor us':>8} {'x floor':>8} {'growth':>7}  target")
    every = []
    for family in FAMILIES:
        # Libraries that passes load at first use are loaded before anything is timed.
        seconds(family.write(100))
        rows = measure(family, options.rounds)
        report(family, rows)
        every += rows
    print("the floor is parsing and verifying the text once by MLIR")
    print("growth is the time of each piece against that in the smallest program: 1 is linear")
    if options.json:
        options.json.write_text(json.dumps({"jaxlib": jaxlib.__version__, "rows": every}, indent=2) + "\n")


if __name__ == "__main__":
    main()
