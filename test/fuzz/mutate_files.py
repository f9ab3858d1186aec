"""Harness that mutates each file that a tool reads: the tool gives a result, or one clear error.

  python test/fuzz/mutate_files.py --seed 0 --count 400 --jobs 2 --keep build/fuzz/files
  python test/fuzz/mutate_files.py --only 'pw-viz --trace'

`--count` is the number of mutants of each kind of file in `file_kinds.py`; mutant number n of a seed is
always the same, for the same sources. Mutants run in batches, each in a child process. A failure is a
traceback, a crash, a hang, an exit code that is neither 0 nor 1, an error without a message, or one in
Python's words, such as `KeyError: 'x'`. If a file that MLIR reads itself crashes the child, the tool reads it
again as users run it. The exit code is 1 after a failure.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

# Before JAX starts.
os.environ |= {"JAX_PLATFORMS": "cpu", "PW_CACHE_DIR": ""}
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from file_kinds import KINDS, FileKind, words_of, write_seeds
from flags import parser_of
from forked import Ending, run_all, run_batches

from pathways.compiler import loaded
from pathways.runtime.bundle.examine import examine_within_limits
from pathways.tools.drivers import bundle as _bundle  # noqa: F401 (children share them)
from pathways.tools.drivers import compile, opt, run, sim, viz  # noqa: F401 (likewise)

BATCH = 50
SECONDS = 10.0
"""Limit of processor time of a mutant."""

MEMORY = 24 << 30
"""Limit of address space in bytes: XLA reserves more than it uses."""

GOOD = ("ok", "refused", "unmade")
"""Verdicts other than failures; the last is on a mutation that crashed MLIR."""

Note = Callable[[str], None]
_MAKING, _OUTPUT = "making", "output"

_PYTHON = re.compile(
    r"\b(?:Key|Type|Value|Attribute|Index|Overflow|Recursion|UnicodeDecode|Assertion|Name)Error\b"
    r"|NoneType|__\w+__\(\)|object has no attribute|unhashable|not subscriptable|not iterable|codec can't"
    r"|invalid literal for|\[Errno|positional argument|<class '"
)
"""Words of Python in errors, which say nothing to users."""


def main() -> int:
    """Runs the harness; returns its exit code."""
    parser = parser_of(__doc__, "files", 20)
    parser.add_argument("--only", default="", metavar="TEXT", help="kinds with this text in their names")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    kinds = [kind for kind in KINDS if options.only in kind.name]
    failures = total = 0
    with tempfile.TemporaryDirectory() as folder:
        ((_, ending),) = run_all([(0, lambda *_: write_seeds(Path(folder)))], 1, 300, MEMORY)
        assert ending.signal is None, ending.stderr
        for kind in kinds:
            numbers = range(options.first, options.first + options.count)
            began = time.monotonic()
            verdicts = fuzz(kind, numbers, options.seed, options.jobs, Path(folder), options.keep)
            failed = sum(count for verdict, count in verdicts.items() if verdict not in GOOD)
            shown = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
            print(f"{kind.name:<34} {time.monotonic() - began:5.0f} s  {shown}", flush=True)
            failures += failed
            total += sum(verdicts.values())
    print(f"{total} mutants of {len(kinds)} kinds, {failures} failures")
    return 1 if failures else 0


def fuzz(
    kind: FileKind, numbers: Sequence[int], seed: int, jobs: int, seeds: Path, keep: Path
) -> collections.Counter[str]:
    """Runs mutants of a kind of file; returns the number of each verdict."""
    verdicts: collections.Counter[str] = collections.Counter()
    work = functools.partial(_run_batch, kind, seed, seeds, keep.absolute())
    for ending, done, killer in run_batches(numbers, BATCH, jobs, SECONDS, MEMORY, work):
        verdicts.update(done.values())
        if killer is not None:
            # A stack is in the output of the tool, unless the first mutation crashed.
            log = ending.folder / _OUTPUT
            output = log.read_text(errors="replace") if log.exists() else ending.stderr
            path = Path(str(killer), kind.seed)
            verdict = _verdict_of(ending, kind, path)
            verdicts[verdict] += 1
            if verdict not in GOOD:
                _keep(kind, killer, (ending.folder / path).read_bytes(), verdict, output, keep)
    return verdicts


def _verdict_of(ending: Ending, kind: FileKind, path: Path) -> str:
    """Returns the verdict on a mutant that ended its process."""
    if ending.note == _MAKING:
        return "unmade"
    if not kind.is_trusted_to_mlir:
        return "hang" if ending.late else f"crash {ending.signal}"
    # The tool itself has a parent that reports crashes, and examines bundles in a separate process.
    return _verdict_of_process(kind, path, ending.folder) if kind.command else "refused"


def _verdict_of_process(kind: FileKind, path: Path, folder: Path) -> str:
    """Returns the verdict on a mutant that the tool reads in separate processes, as users run it."""
    tool, *words = words_of(kind.command, str(path))
    command = [Path(sys.executable).with_name(tool), *words]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=6 * SECONDS)
    except subprocess.TimeoutExpired:
        return "hang"
    text = (done.stdout + done.stderr).decode(errors="replace")
    return verdict_of(done.returncode, text, kind.runs_code)


def _keep(kind: FileKind, number: int, data: bytes, verdict: str, output: str, folder: Path) -> None:
    """Writes an example of a failure to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "_", kind.name)
    (folder / f"{name}.{number}{Path(kind.seed).suffix}").write_bytes(data)
    (folder / f"{name}.{number}.txt").write_text(f"{kind.name}: {verdict}\n{output}", errors="replace")


def _run_batch(
    kind: FileKind, seed: int, seeds: Path, keep: Path, numbers: list[int], folder: Path, note: Note
) -> None:
    # Compiling a bundle in a separate process takes seconds; its checks are quick.
    loaded.rehearse_apart = lambda bundle, devices: examine_within_limits(bundle)
    shutil.copytree(seeds, folder, dirs_exist_ok=True)
    os.chdir(folder)
    original = (seeds / kind.seed).read_bytes()
    with Path("verdicts").open("w") as file:
        for number in numbers:
            note(_MAKING)
            data = kind.mutation(random.Random(f"{seed} {kind.name} {number}"), original)
            path = Path(str(number), kind.seed)
            path.parent.mkdir()
            path.write_bytes(data)
            path.chmod(0o600)
            note("reading")
            verdict, output = execute(kind, str(path))
            if verdict not in GOOD:
                _keep(kind, number, data, verdict, output, keep)
            file.write(json.dumps([number, verdict]) + "\n")
            file.flush()
            shutil.rmtree(path.parent)


def execute(kind: FileKind, path: str) -> tuple[str, str]:
    """Reads a file as its tool does; returns the verdict and the output."""
    code: int | None = None
    with Path(_OUTPUT).open("w+b") as log:
        with _redirected(log.fileno()):
            try:
                code = kind.run(path)
            except BaseException:
                traceback.print_exc()
        log.seek(0)
        text = log.read().decode(errors="replace")
    return verdict_of(code, text, kind.runs_code), text[-3000:]


def verdict_of(code: int | None, text: str, quotes_python: bool = False) -> str:
    """Returns the verdict on an exit code, None after an exception, and the output of a tool."""
    if code is None or "Traceback (most recent call last)" in text:
        return "traceback"
    if code not in (0, 1):
        return f"exit code {code}"
    errors = [line for line in text.splitlines() if re.search(r"\berror: ", line)]
    if code == 0:
        return "ok"
    if not errors:
        return "silent"
    return "in Python's words" if not quotes_python and any(map(_PYTHON.search, errors)) else "refused"


@contextlib.contextmanager
def _redirected(file: int):  # type: ignore[no-untyped-def]
    """Sends standard output and error to a file."""
    kept = [os.dup(1), os.dup(2)]
    try:
        for number in (1, 2):
            os.dup2(file, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)


if __name__ == "__main__":
    sys.exit(main())
