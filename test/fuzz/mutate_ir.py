"""Harness that runs the tools on mutated IR: each run must give a result or one clear error.

  python test/fuzz/mutate_ir.py --seed 0 --count 5000 --jobs 2 --keep build/fuzz/kept
  python test/fuzz/mutate_ir.py --replay build/fuzz/kept

Case number n of a seed is always the same, for the same sources. Each runs in a child process. A failure is a
traceback, a crash, more than 10 s or 2 GiB, exit code 1 without an error, or output that the tools reject.
Failures of one cause are counted together; the smallest example of each cause is reduced and kept. The exit
code is 1 after a failure that is not one of MLIR itself; those of MLIR that `stock/README.md` does not list
are marked. Ctrl-C or SIGTERM ends a run early.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import kept
from buckets import SECONDS, Bucket, Buckets, add, finish, is_stock, write_and_execute
from cases import GOOD, Case, execute, judge, prepare, quiet_context, random_case
from corpus import Corpus, read_corpus
from flags import parser_of
from forked import run_all
from jaxlib.mlir import ir


def main() -> int:
    """Runs the harness; returns its exit code."""
    parser = parser_of(__doc__, "kept", 1000)
    parser.add_argument(
        "--replay", type=Path, help="run the files of a folder, with the passes they name, instead"
    )
    options = parser.parse_args()
    # Handled so that folders of cases are removed, and the cases so far are reported.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.replay is not None:
        return replay(options.replay, options.jobs)
    return fuzz(options.seed, range(options.first, options.first + options.count), options.jobs, options.keep)


def fuzz(seed: int, numbers: range, jobs: int, keep: Path) -> int:
    """Runs random cases; returns the exit code."""
    corpus = read_corpus()
    # For all children, which get copies of them; not entered, so that the tools do not find them.
    context, contexts = quiet_context(), prepare(corpus)
    tasks = (
        (number, functools.partial(_make_and_execute, number, seed, corpus, context, contexts))
        for number in numbers
    )
    kinds: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    buckets: Buckets = {}
    progress = _Progress(len(numbers))
    # Cases until an interruption are reported, too.
    with contextlib.suppress(KeyboardInterrupt):
        for number, ending in run_all(tasks, jobs, SECONDS):
            verdict = judge(ending)
            kinds[verdict.kind] += 1
            if verdict.kind == "refused":
                refused[verdict.note] += 1
            if verdict.kind not in GOOD:
                add(buckets, number, Case.read(ending.folder), verdict)
            progress.show(sum(kinds.values()), f"{len(buckets)} buckets")
    done = max(sum(kinds.values()), 1)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    each = (used.ru_utime + used.ru_stime) / done * 1000
    speed = f"{progress.rate(done):.0f} a second, {each:.0f} ms of computing each"
    progress.end()
    # Before the reduction, which takes a while and may be interrupted.
    paths = {key: kept.write(bucket, keep) for key, bucket in buckets.items()}
    print(f"making {len(buckets)} examples smaller ...", file=sys.stderr)
    for key, bucket in finish(buckets, jobs):
        buckets[key] = bucket
        paths[key].unlink()
        kept.write(bucket, keep)
    _report(kinds, refused, buckets, speed)
    return 1 if any(not bucket.stock for bucket in buckets.values()) else 0


def _make_and_execute(
    number: int,
    seed: int,
    corpus: Corpus,
    context: ir.Context,
    contexts: Sequence[ir.Context],
    folder: Path,
    note: Callable[[str], None],
) -> None:
    execute(random_case(number, seed, corpus, context, folder, note), folder, note, contexts)


def replay(folder: Path, jobs: int) -> int:
    """Runs kept examples; returns the exit code."""
    kinds: collections.Counter[str] = collections.Counter()
    failures: dict[tuple[Path, str], list[Case]] = {}
    tasks = (((path, case), functools.partial(write_and_execute, case)) for path, case in kept.read(folder))
    for (path, case), ending in run_all(tasks, jobs, SECONDS):
        verdict = judge(ending)
        stock = verdict.kind not in GOOD and is_stock(case, verdict)
        kinds[f"{verdict.kind}{' of MLIR' * stock}"] += 1
        if verdict.kind not in GOOD and not stock:
            failures.setdefault((path, f"{verdict.kind} {verdict.bucket}"), []).append(case)
    for (path, bucket), cases in sorted(failures.items(), key=lambda failure: failure[0]):
        pipeline = ",".join(min(cases, key=lambda case: len(case.pipeline)).pipeline)
        print(f"{path.relative_to(folder)}: {bucket}, with {len(cases)} pipelines such as '{pipeline}'")
    files = len({path for path, _ in failures})
    print(f"{', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}; {files} files failed")
    return 1 if failures else 0


def _report(
    kinds: collections.Counter[str], refused: collections.Counter[str], buckets: Buckets, speed: str
) -> None:
    total = sum(kinds.values())
    known = kept.known()
    print(f"{total} cases, {speed}")
    for kind, count in kinds.most_common():
        print(f"  {kind:<10} {count:>6}  {count / total:.1%}")
    print("refused while")
    for note, count in refused.most_common(12):
        print(f"  {count:>6}  {note}")
    for title, stock in (("failures", False), ("failures of MLIR alone", True)):
        chosen = sorted((b for b in buckets.values() if b.stock == stock), key=_by_count)
        print(f"{title}: {len(chosen)} buckets, {sum(b.count for b in chosen)} cases")
        for bucket in chosen:
            verdict = bucket.verdict
            message = verdict.message.split("\n")[0][:80]
            new = " NEW" if stock and kept.cause(verdict) not in known else ""
            print(
                f"  {bucket.count:>5}  {verdict.kind:<9} {verdict.bucket}  [{bucket.number}]{new} {message}"
            )


def _by_count(bucket: Bucket) -> tuple[int, str]:
    return -bucket.count, bucket.verdict.bucket


class _Progress:
    """Line on standard error that is rewritten, or added to at intervals."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.started = time.monotonic()
        self.shown = self.started

    def rate(self, done: int) -> float:
        """Returns the cases per second so far."""
        return done / max(time.monotonic() - self.started, 1e-3)

    def show(self, done: int, state: str) -> None:
        """Shows the progress, if it is time."""
        terminal = sys.stderr.isatty()
        if time.monotonic() - self.shown < (0.2 if terminal else 20):
            return
        self.shown = time.monotonic()
        text = f"{done}/{self.total} cases, {self.rate(done):.0f} a second, {state}"
        print(f"\r{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Ends the line."""
        if sys.stderr.isatty():
            print(file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
