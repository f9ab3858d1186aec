"""How the time of all passes grows with the program: ratios within one run.

  python bench/compile.py [--json PATH] [--rounds N]

The programs are pipelines over four slices, forward and backward, with code between the stages and an update
at the end; they are written as StableHLO, as JAX lowers them, so that only the passes are timed. The floor
is parsing and verifying the same text once: what any MLIR tool pays before it does anything.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import jaxlib
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.passes.driver import run_passes
from pathways.passes.pipeline import Options, phases

SLICES = 4
SIZES = (1000, 2000, 4000)
TARGET_SECONDS = 10.0
X = "tensor<64x64xf32>"


def program(launches: int) -> str:
    """A pipeline of so many placed calls: microbatches run forward and backward through four stages."""
    microbatches = launches // (2 * SLICES)
    lines = ['sdy.mesh @mesh = <["x"=1]>']
    lines += [f'"pw.slice"() {{sym_name = "s{s}", mesh = @mesh}} : () -> ()' for s in range(SLICES)]
    weights = ", ".join(f"%w{s}: {X} {{jax.buffer_donor = true}}" for s in range(SLICES))
    batch = ", ".join(f"%x{m}: {X}" for m in range(microbatches))
    lines += [f"func.func public @main({weights}, {batch}) -> ({', '.join([X] * SLICES)}) {{"]
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
    return "module @pipeline {\n" + "\n".join(lines) + "\n}\n"


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


def seconds(text: str) -> tuple[dict[str, float], float]:
    """The time of each pass over a program, and of parsing and verifying it."""
    began = time.perf_counter()
    module = ir.Module.parse(text, make_context())
    module.operation.verify()
    floor = time.perf_counter() - began
    spent: dict[str, float] = {}
    for phase in phases(Options()):
        for item in phase.passes:
            began = time.perf_counter()
            run_passes(module, [item], verify_each=False)
            spent[item.name] = time.perf_counter() - began
    return spent, floor


def main() -> None:
    """Prints the table, and writes it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each size; the median counts")
    options = parser.parse_args()
    print("command: python bench/compile.py")
    print(f"python {platform.python_version()}, jaxlib {jaxlib.__version__}")
    # Libraries that passes load at first use are loaded before anything is timed.
    seconds(program(8 * SLICES))
    rows = []
    for size in SIZES:
        runs = [seconds(program(size)) for _ in range(options.rounds)]
        total = statistics.median(sum(spent.values()) for spent, _ in runs)
        rows.append(
            {
                "launches": size,
                "seconds": total,
                "versus parse and verify": total / statistics.median(floor for _, floor in runs),
                "versus a quarter as large": None,
                "passes": {n: statistics.median(spent[n] for spent, _ in runs) for n in runs[0][0]},
            }
        )
    print(f"{'launches':>9}  {'seconds':>8}  {'us each':>8}  {'x parse':>8}  {'growth':>7}  target")
    for row in rows:
        size, total = row["launches"], row["seconds"]
        growth = (total / size) / (rows[0]["seconds"] / rows[0]["launches"])
        row["versus a quarter as large"] = growth
        target = f"{TARGET_SECONDS:.0f} s" + ("" if total < TARGET_SECONDS else "  over")
        print(
            f"{size:>9}  {total:>8.2f}  {1e6 * total / size:>8.0f}  {row['versus parse and verify']:>8.1f}  "
            f"{growth:>7.2f}  {target}"
        )
    print("growth is the time of each launch against that in the smallest program: 1 is linear")
    for name, spent in rows[-1]["passes"].items():
        print(f"  {name:<22} {spent:>7.2f} s")
    if options.json:
        options.json.write_text(json.dumps({"jaxlib": jaxlib.__version__, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
