"""Harness that runs random JAX programs behind the proxy server: each has the bits of local JAX.

  python test/fuzz/random_clients.py --seed 0 --count 500 --jobs 2 --keep build/fuzz/clients

Program number n of a seed is always the same, and the same as of `random_programs.py`; every second one is
over a mesh of devices. `--jobs` clients use one server at once. A failure is a different value, an error on
one side only, or a client or server that exits. The exit code is 1 after a failure.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Set before JAX starts; a client has the variables of its server.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PW_CACHE_DIR"] = ""
os.environ["XLA_FLAGS"] = "--xla_allow_excess_precision=false"

import jax
import numpy as np
from flags import parser_of
from random_sketches import random_sketch
from sketches import Sketch, to_json
from verdicts import run_plain

SECONDS = 60.0
"""Wall-clock limit of a program."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Results or error of a program.

    Attributes:
      leaves: the arrays, each with dtype, shape and bytes; other values as text.
      error: the class of the error, and its message.
    """

    leaves: tuple[Any, ...] = ()
    error: tuple[str, str] | None = None


def main() -> int:
    """Runs the harness; returns its exit code."""
    parser = parser_of(__doc__, "clients", 100)
    parser.add_argument("--results", type=Path, help="be the client, and write outcomes there")
    parser.add_argument("--step", type=int, default=1, help="run only each program of so many, as a client")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.count, options.step)
    if options.results is not None:
        _write_outcomes(options.seed, numbers, options.results)
        return 0
    jax.config.update("jax_num_cpu_devices", 16)
    import pathways.proxy

    with tempfile.TemporaryDirectory() as folder, pathways.proxy.serve() as server:
        environment = os.environ | server.environment
        clients = [
            _start(options.seed, numbers[job:], options.jobs, Path(folder) / str(job), environment)
            for job in range(min(options.jobs, len(numbers)))
        ]
        expected = {number: outcome_of(options.seed, number) for number in numbers}
        try:
            for client in clients:
                client.wait(timeout=SECONDS * options.count)
        finally:
            for client in clients:
                client.kill()
                client.wait()
        found = {
            number: outcome for path in Path(folder).iterdir() for number, outcome in _read_outcomes(path)
        }
    return report(options.seed, expected, found, options.keep)


def _start(
    seed: int, numbers: range, jobs: int, results: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    flags = {"seed": seed, "first": numbers.start, "count": len(numbers), "step": jobs, "results": results}
    given = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    return subprocess.Popen([sys.executable, __file__, *given], env=environment)


def _write_outcomes(seed: int, numbers: Sequence[int], path: Path) -> None:
    with path.open("ab") as file:
        for number in numbers:
            pickle.dump((number, outcome_of(seed, number)), file)
            file.flush()


def _read_outcomes(path: Path) -> Iterator[tuple[int, Outcome]]:
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


def sketch_of(seed: int, number: int) -> tuple[Sketch, int | None]:
    """Returns a program, and the slice whose mesh its constraints are over; None for one device."""
    sketch = random_sketch(seed, number)
    return sketch, number // 2 % len(sketch.slices) if number % 2 else None


def outcome_of(seed: int, number: int) -> Outcome:
    """Runs a program on the backend of JAX."""
    sketch, place = sketch_of(seed, number)
    try:
        return Outcome(tuple(map(_leaf, jax.tree.leaves(run_plain(sketch, place)))))
    except Exception as error:
        return Outcome(error=(type(error).__name__, str(error)[:1000]))


def _leaf(x: Any) -> Any:
    if not isinstance(x, jax.Array | np.ndarray | np.generic):
        return repr(x)
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        x = jax.random.key_data(x)
    value = np.asarray(x)
    return str(value.dtype), value.shape, value.tobytes()


def report(seed: int, expected: dict[int, Outcome], found: dict[int, Outcome], keep: Path) -> int:
    """Prints the count of each ending, and keeps programs that failed; returns the exit code."""
    kinds: collections.Counter[str] = collections.Counter()
    failures = 0
    for number, local in expected.items():
        proxied = found.get(number, Outcome(error=("missing", "the client ended")))
        if local.error is None and proxied.error is None:
            kind = "equal" if local.leaves == proxied.leaves else "other values"
        elif local.error is not None and proxied.error is not None:
            kind = "both raise" if local.error[0] == proxied.error[0] else "other errors"
        elif proxied.error is not None and "callback" in proxied.error[1]:
            kind = "callbacks"
        else:
            kind = "one raises"
        kinds[kind] += 1
        if kind not in ("equal", "both raise", "callbacks"):
            failures += 1
            keep.mkdir(parents=True, exist_ok=True)
            sketch, place = sketch_of(seed, number)
            errors = f"local: {local.error}\nproxied: {proxied.error}"
            (keep / f"{number}.txt").write_text(f"{kind}\n{to_json(sketch)}\nmesh of {place}\n{errors}\n")
    for kind, count in kinds.most_common():
        print(f"{count:>6}  {kind}")
    print(f"{len(expected)} programs, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
