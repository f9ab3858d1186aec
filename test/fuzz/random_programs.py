"""Harness that runs random programs over slices: each has the results of `jax.jit`, or is rejected clearly.

  python test/fuzz/random_programs.py --seed 0 --count 1000 --jobs 2 --keep build/fuzz/programs
  python test/fuzz/random_programs.py --replay build/fuzz/programs
  python test/fuzz/random_programs.py --hosts 2 --count 1000 --jobs 1
  python test/fuzz/random_programs.py --hosts 4 --hosts-per-island 2 --count 1000 --jobs 1

Program number n of a seed is always the same. Programs run in batches, each in a separate process. A failure
is a wrong value, an exception that is neither ours nor the one that JAX raises for the same function, a
crash, or more than a minute. The smallest program of each cause is reduced and kept. The exit code is 1 after
a failure. With `--hosts`, each batch has its own workers, over which slices are spread; a worker that
outlives its batch is a failure, too. With `--hosts-per-island`, some slices are on two hosts. Some programs
are steps of training on replicas; with `--training`, all of them are.
"""

from __future__ import annotations

import collections
import dataclasses
import faulthandler
import functools
import gc
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# Set before JAX starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PW_CACHE_DIR"] = ""
os.environ["XLA_FLAGS"] = "--xla_allow_excess_precision=false"

import jax
from flags import parser_of
from forked import Ending, run_all
from random_sketches import random_sketch
from random_training import random_training
from sketches import Sketch, from_json, smaller, to_json
from verdicts import ProgramVerdict, judge

import pathways as pw
from pathways.runtime.clusters.connect import controller

jax.config.update("jax_num_cpu_devices", 16)
# Verdicts use the frames of errors.
jax.config.update("jax_traceback_filtering", "off")

FAILURES = ("wrong", "traceback", "crash", "hang", "left")
BATCH = 20
SECONDS = 60.0
"""Wall-clock limit of a program."""

MEMORY = 64 << 30
"""Limit of address space of a batch in bytes: XLA reserves much more than it uses."""

DEVICES = 8
"""Number of devices that the slices of an island may need: two slices of four devices."""

_GOODBYE = 20.0
"""Seconds in which workers exit after their controller."""

_LOST_A_WORKER = "lost a worker"
"""Note of a batch that ends early, since its other programs would fail for the same reason."""

_TRAINING = 0.1
"""Share of programs that are steps of training."""

_EFFORT = 150.0
"""Seconds for the reduction of an example."""

Numbered = tuple[int, Sketch]


@dataclasses.dataclass(frozen=True)
class Workers:
    """Workers of programs: islands of hosts, or none for the devices of this process."""

    islands: int = 0
    hosts: int = 1

    def island(self) -> pw.Island:
        """Returns an island; if it has several hosts, some slices need devices of two of them."""
        return pw.Island(self.hosts, DEVICES if self.hosts == 1 else DEVICES // self.hosts + 1)


NONE = Workers()


def main() -> int:
    """Runs the harness; returns its exit code."""
    parser = parser_of(__doc__, "programs", 200)
    parser.add_argument("--replay", type=Path, help="run the files of a folder, or one file, instead")
    parser.add_argument("--no-reduce", action="store_true", help="keep examples as they are")
    parser.add_argument("--training", action="store_true", help="run steps of training alone")
    parser.add_argument("--hosts", type=int, default=0, help="run on workers (default: in one process)")
    parser.add_argument("--hosts-per-island", type=int, default=1, help="of these (default: 1)")
    options = parser.parse_args()
    if options.hosts % options.hosts_per_island:
        parser.error("--hosts-per-island has to divide --hosts")
    workers = Workers(options.hosts // options.hosts_per_island, options.hosts_per_island)
    if options.replay is not None:
        files = sorted(options.replay.glob("*.json")) if options.replay.is_dir() else [options.replay]
        sketches = [from_json(file.read_text().split("\n")[0]) for file in files]
    else:
        numbers = range(options.first, options.first + options.count)
        sketches = [_numbered(options.seed, n, options.training) for n in numbers]
    programs = list(enumerate(sketches, options.first))
    return fuzz(programs, options.jobs, options.keep, not options.no_reduce, workers)


def _numbered(seed: int, number: int, training: bool) -> Sketch:
    """Returns the sketch of a seed with a number, independent of other numbers."""
    chosen = training or random.Random(f"kind/{seed}/{number}").random() < _TRAINING
    return random_training(seed, number) if chosen else random_sketch(seed, number)


def fuzz(programs: list[Numbered], jobs: int, keep: Path, reduce: bool, workers: Workers) -> int:
    """Runs programs; returns the exit code."""
    verdicts: dict[int, ProgramVerdict] = {}
    sketches = dict(programs)
    started = shown = time.monotonic()
    for number, verdict in run_programs(programs, jobs, workers):
        verdicts[number] = verdict
        if verdict.kind in FAILURES:
            # Written at once, since a long run may be interrupted.
            write(keep, number, sketches[number], verdict)
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            failed = sum(v.kind in FAILURES for v in verdicts.values())
            rate = len(verdicts) / (shown - started)
            print(f"{len(verdicts)}/{len(programs)}, {rate:.1f} a second, {failed} failed", file=sys.stderr)
    seconds = time.monotonic() - started
    report(verdicts, seconds)
    failed: dict[tuple[str, str], list[int]] = {}
    for number, verdict in verdicts.items():
        if verdict.kind in FAILURES:
            failed.setdefault((verdict.kind, verdict.bucket), []).append(number)
    for numbers in failed.values():
        number = min(numbers, key=lambda n: len(to_json(sketches[n])))
        if reduce:
            small = reduced(sketches[number], verdicts[number], workers)
            write(keep, number, small, verdicts[number])
        for other in numbers:
            if other != number:
                path_of(keep, other, verdicts[other]).unlink()
    return 1 if failed else 0


def path_of(keep: Path, number: int, verdict: ProgramVerdict) -> Path:
    """Returns the file for a program that failed."""
    name = re.sub(r"\W+", "_", f"{verdict.kind}_{verdict.bucket}").strip("_")[:80]
    return keep / f"{name}.{number}.json"


def write(keep: Path, number: int, sketch: Sketch, verdict: ProgramVerdict) -> None:
    """Writes a program that failed: as data on the first line, and for a reader below."""
    keep.mkdir(parents=True, exist_ok=True)
    text = f"{to_json(sketch)}\n{verdict.message}\n{_shown(sketch)}\n"
    path_of(keep, number, verdict).write_text(text)


def run_programs(
    programs: list[Numbered], jobs: int, workers: Workers = NONE
) -> Iterator[tuple[int, ProgramVerdict]]:
    """Runs programs in batches; programs after one that ended their batch run again."""
    waiting = collections.deque(
        programs[n : n + min(BATCH, max(1, len(programs) // jobs))]
        for n in range(0, len(programs), min(BATCH, max(1, len(programs) // jobs)))
    )

    class Batches:
        def __iter__(self) -> Batches:
            return self

        def __next__(self) -> tuple[list[Numbered], Callable[..., None]]:
            if not waiting:
                raise StopIteration
            batch = waiting.popleft()
            return batch, functools.partial(_run_batch, batch, workers)

    for batch, ending in run_all(Batches(), jobs, SECONDS * BATCH, MEMORY):
        done = _verdicts(ending)
        left = _left(ending)
        if left and done:
            done[max(done)] = ProgramVerdict("left", "workers outlive their controller", str(left))
        yield from done.items()
        rest = [(number, sketch) for number, sketch in batch if number not in done]
        if ending.note == _LOST_A_WORKER:
            waiting.append(rest)
        elif rest:
            yield rest[0][0], _judge_ending(ending)
            if rest[1:]:
                waiting.append(rest[1:])


def _run_batch(batch: list[Numbered], workers: Workers, folder: Path, note: Callable[[str], None]) -> None:
    """Runs a batch in a child, whose workers are its children."""
    os.chdir(folder)
    if workers.islands:
        pw.connect(islands=[workers.island()] * workers.islands)
    connected = controller()
    if connected is not None:
        pids = [host.process.pid for host in connected.hosts]
        Path("workers").write_text(json.dumps({pid: _started(pid) for pid in pids}))
    with Path("verdicts").open("a") as file:
        for number, sketch in batch:
            note(str(number))
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            verdict = judge(sketch, workers.islands)
            faulthandler.cancel_dump_traceback_later()
            file.write(json.dumps([number, dataclasses.asdict(verdict)]) + "\n")
            file.flush()
            # Releases the devices of slices.
            gc.collect()
            if connected is not None and not connected.is_whole():
                note(_LOST_A_WORKER)
                return


def _left(ending: Ending) -> list[int]:
    """Returns the workers that outlive their batch."""
    path = ending.folder / "workers"
    workers = json.loads(path.read_text()) if path.exists() else {}
    deadline = time.monotonic() + _GOODBYE
    # Another process may have the id of one that has exited.
    while left := [int(pid) for pid, started in workers.items() if started and _started(pid) == started]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return left


def _started(pid: int | str) -> str | None:
    """Returns the start of a process in ticks of the system's clock; None if it has exited."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else fields[18]


def _verdicts(ending: Ending) -> dict[int, ProgramVerdict]:
    path = ending.folder / "verdicts"
    lines = path.read_text().split("\n") if path.exists() else []
    return {number: ProgramVerdict(**fields) for number, fields in map(json.loads, filter(None, lines))}


def _judge_ending(ending: Ending) -> ProgramVerdict:
    """Returns the verdict on the program that ended its batch."""
    place = next((f"{path}:{line} {name}" for path, line, name in ending.project_frames()), "?")
    tail = ending.stderr[-3000:]
    if ending.signal is None or ending.late:
        return ProgramVerdict("hang", place, tail)
    fatal = re.search(r"(?m)^F\d.*?\] (.*)$|Check failed.*$|RET_CHECK.*$", ending.stderr)
    return ProgramVerdict("crash", f"{ending.signal.name} {place} {fatal[0][:80] if fatal else ''}", tail)


def verdict_of(sketch: Sketch, workers: Workers = NONE) -> ProgramVerdict:
    """Runs one program in a process of its own."""
    ((_, verdict),) = run_programs([(0, sketch)], 1, workers)
    return verdict


def reduced(sketch: Sketch, verdict: ProgramVerdict, workers: Workers = NONE) -> Sketch:
    """Returns the smallest sketch with the same verdict."""
    deadline = time.monotonic() + _EFFORT
    at = in_vain = 0
    # A step that failed before seldom succeeds right after another one did.
    while in_vain < len(candidates := [*smaller(sketch)]) and time.monotonic() < deadline:
        candidate = candidates[at % len(candidates)]
        outcome = verdict_of(candidate, workers)
        if (outcome.kind, outcome.bucket) == (verdict.kind, verdict.bucket):
            sketch, in_vain = candidate, 0
        else:
            at, in_vain = at + 1, in_vain + 1
    return sketch


def _shown(sketch: Sketch) -> str:
    """Returns a sketch for a reader, without defaults."""
    lines = [f"slices {sketch.slices}"]
    for field in dataclasses.fields(sketch):
        value = getattr(sketch, field.name)
        if field.default is not dataclasses.MISSING and value != field.default:
            lines.append(f"{field.name} = {value}")
    for n, each in enumerate(sketch.inputs):
        lines.append(f"v{n} = {each}")
    lines += [str(piece) for piece in sketch.pieces]
    return "\n".join([*lines, f"return {sketch.results}"])


def report(verdicts: dict[int, ProgramVerdict], seconds: float) -> None:
    """Prints the count of each ending."""
    kinds = collections.Counter(v.kind for v in verdicts.values())
    print(f"{len(verdicts)} programs, {len(verdicts) / max(seconds, 1e-3):.1f} a second")
    for kind, count in kinds.most_common():
        print(f"  {kind:<12} {count:>6}  {count / len(verdicts):.1%}")
    for kind in ("refused", "more", "both wrong", *FAILURES):
        members: dict[str, list[int]] = {}
        for number, verdict in sorted(verdicts.items()):
            if verdict.kind == kind:
                members.setdefault(verdict.bucket, []).append(number)
        if members:
            print(kind)
        for bucket, numbers in sorted(members.items(), key=lambda item: -len(item[1])):
            print(f"  {len(numbers):>5}  {bucket}  {numbers[:4]}")


if __name__ == "__main__":
    sys.exit(main())
