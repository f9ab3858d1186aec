"""Harness that loads, compiles and runs mutated bundles: each gives results or one clear error.

  python test/fuzz/mutate_bundles.py --seed 0 --count 5000 --jobs 2 --keep build/fuzz/bundles

The digests of the bundles are right. Case number n of a seed is always the same, for the same sources. Each
runs in a child process, which stands for two: first for the process that examines and compiles an untrusted
bundle, where a crash or a hang counts as a rejection, then for the process that loads and runs it, where they
are failures. The exit code is 1 after a traceback, a crash or a hang.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from bundle_mutations import mutated, texts
from bundle_seeds import DEVICES, Parts, seeds_of_child
from corpus import ROOT, Corpus
from flags import parser_of
from forked import Ending, run_all

import pathways as pw
from pathways.compiler import loaded
from pathways.runtime.bundle.file import read
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.xla import compile_cache, rehearse

SECONDS = 30.0
MEMORY = 16 << 30
"""Limit of address space: XLA reserves more than it uses."""

REFUSALS = (BundleError, ResourceError, compile_cache.CompileError)
BAD = ("traceback", "crash", "hang")
BUNDLE, VERDICT = "mutated.pwb", "verdict.json"
_MAKING, _APART, _LOADING, _RUNNING = "making", "examining apart", "loading", "running"


def main() -> int:
    """Runs the harness; returns its exit code."""
    parser = parser_of(__doc__, "bundles", 200)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    numbers = range(options.first, options.first + options.count)
    kinds, failures = fuzz(options.seed, numbers, options.jobs, options.keep)
    for (kind, reason), count in sorted(kinds.items(), key=lambda item: (item[0][0] not in BAD, -item[1])):
        print(f"{count:>6}  {kind:<10} {reason}")
    print(f"{options.count} cases, {failures} failures")
    return 1 if failures else 0


def fuzz(
    seed: int, numbers: range, jobs: int, keep: Path
) -> tuple[collections.Counter[tuple[str, str]], int]:
    """Runs random cases; returns the count of each ending, and the number of failures."""
    kinds: collections.Counter[tuple[str, str]] = collections.Counter()
    seeds = seeds_of_child(10 * SECONDS, MEMORY)
    corpus = texts(seeds)
    tasks = ((number, functools.partial(_task, number, seed, seeds, corpus)) for number in numbers)
    began = time.monotonic()
    for number, ending in run_all(tasks, jobs, SECONDS, MEMORY):
        kind, reason = judge(ending)
        if kind in BAD:
            keep.mkdir(parents=True, exist_ok=True)
            if (ending.folder / BUNDLE).exists():
                (keep / f"{kind}.{number}.pwb").write_bytes((ending.folder / BUNDLE).read_bytes())
            (keep / f"{kind}.{number}.txt").write_text(f"{kind}: {reason}\n{ending.stderr}")
        kinds[kind, reason] += 1
        done = sum(kinds.values())
        if done % 200 == 0:
            print(f"{done} cases, {done / (time.monotonic() - began):.1f} a second", file=sys.stderr)
    return kinds, sum(count for (kind, _), count in kinds.items() if kind in BAD)


def judge(ending: Ending) -> tuple[str, str]:
    """Returns the kind of an ending, and its place or reason."""
    if (ending.folder / VERDICT).exists():
        kind, reason = json.loads((ending.folder / VERDICT).read_text())
        return kind, reason
    reason = "too long" if ending.late else ending.signal.name if ending.signal else "exit"
    if ending.note == _MAKING:
        return "unmade", reason
    if ending.note == _APART:
        return "apart", reason
    if ending.note == _RUNNING and ending.late:
        return "runs", reason  # Any program may loop.
    return ("hang" if ending.late else "crash"), f"{ending.note}: {reason}"


def _task(
    number: int,
    seed: int,
    seeds: tuple[Parts, ...],
    corpus: Corpus,
    folder: Path,
    note: Callable[[str], None],
) -> None:
    note(_MAKING)
    path = folder / BUNDLE
    mutated(random.Random(f"{seed} {number}"), seeds, corpus).write(path)
    (folder / VERDICT).write_text(json.dumps(execute(path, note)))


def execute(path: Path, note: Callable[[str], None]) -> tuple[str, str]:
    """Loads and runs a bundle as `pathways.load` does, but in one process."""
    stage = _APART
    try:
        note(stage)
        bundle = read(path)
        if bundle.manifest.platform != "cpu":
            return "refused", "platform"
        rehearse.rehearse(bundle, DEVICES)
        stage = _LOADING
        note(stage)
        pw.connect(cpu_devices=DEVICES)
        loaded.rehearse_apart = lambda bundle, devices: None
        program = loaded.load_bundle(bundle)
        stage = _RUNNING
        note(stage)
        buffers = {leaf.name: leaf.buffer for leaf in bundle.manifest.arguments}
        arrays = {name: np.zeros(buffer.shape, buffer.dtype) for name, buffer in buffers.items()}
        jax.block_until_ready(program.by_name(program.from_buffers(arrays)))
    except REFUSALS as error:
        if "\n" in str(error):
            return "traceback", f"{stage}: an error of more than one line"
        return "refused", f"{stage}: {type(error).__name__}"
    except MemoryError:
        return "refused", f"{stage}: memory"
    except jax.errors.JaxRuntimeError as error:
        # An error of XLA while a program runs.
        return ("ran", "an error of XLA") if stage == _RUNNING else ("traceback", f"{stage}: {error}"[:200])
    except Exception as error:
        traceback.print_exc()
        frames = [f for f in traceback.extract_tb(error.__traceback__) if str(ROOT) in f.filename]
        last = f"{Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].lineno}" if frames else ""
        return "traceback", f"{stage}: {type(error).__name__} {last}"
    return "ran", ""


if __name__ == "__main__":
    os.environ["PW_CACHE_DIR"] = ""  # Other processes have no use for this code.
    sys.exit(main())
