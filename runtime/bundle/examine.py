"""Examines the program of a bundle in a process of its own: a hostile file may crash MLIR or keep it busy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

from pathways.runtime.bundle.file import Bundle, read
from pathways.runtime.bundle.limits import end_with, exit_status, memory_of_at_most
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.bundle.program import StoredProgram, check_artifacts, read_program


def allowance(bundle: Bundle) -> tuple[float, int]:
    """The seconds and the bytes of memory that reading the MLIR of a bundle may take.

    A megabyte of MLIR takes about a second. A few lines of it can name a type whose text fills any memory.
    """
    size = sum(map(len, bundle.members.values()))
    return 30 + size / 1e6, 4 * 2**30 + 64 * size


def examine(bundle: Bundle) -> StoredProgram:
    """Checks all that an untrusted bundle passes to MLIR and XLA, in this process; returns its program.

    Raises:
      BundleError: says what is wrong.
    """
    program = read_program(bundle)
    check_artifacts(bundle, program)
    return program


def examine_within_limits(bundle: Bundle) -> StoredProgram:
    """The same with the memory that reading the bundle may take, for a process that does little else.

    Raises:
      BundleError: says what is wrong, also that it takes too much memory.
    """
    try:
        with memory_of_at_most(allowance(bundle)[1]):
            return examine(bundle)
    except MemoryError:
        raise BundleError(f"{bundle.path}: reading its program takes too much memory") from None


def examine_apart(
    bundle: Bundle,
    module: str = "pathways.runtime.bundle.examine",
    *flags: str,
    doing: str = "reading its program",
    seconds: float | None = None,
) -> None:
    """The same in a new process, so that no input can harm this one.

    Args:
      bundle: the bundle.
      module: what the process runs; it gets the id of this one, the path of the bundle and `flags`, and
        ends in `run_checks`.
      *flags: the rest of its command line.
      doing: what to call that in messages.
      seconds: how long it may take; by default the allowance of the bundle.

    Raises:
      BundleError: says what is wrong; also when the process crashed or took too long.
    """
    # -P: what lies beside the file must not be imported.
    command = [sys.executable, "-P", "-m", module, str(os.getpid()), bundle.path, *flags]
    limit = allowance(bundle)[0] if seconds is None else seconds
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise BundleError(f"{bundle.path}: {doing} takes too long") from None
    if done.returncode < 0:
        how = exit_status(done.returncode)
        raise BundleError(f"{bundle.path}: {doing} crashed MLIR or XLA ({how})")
    try:
        verdict = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise BundleError(f"{bundle.path}: {doing} failed: {last[:500]}") from None
    if "error" in verdict:
        raise BundleError(verdict["error"])
    if verdict["digest"] != bundle.digest:
        raise BundleError(f"{bundle.path}: the file was changed while it was read")


def run_checks(check: Callable[[Bundle], object]) -> int:
    """Checks the bundle of the command line, and prints a verdict as JSON; ends with the process that asked.

    `check` raises a `BundleError` that says what is wrong.
    """
    end_with(int(sys.argv[1]))
    try:
        bundle = read(sys.argv[2])
        check(bundle)
        verdict = {"digest": bundle.digest}
    except BundleError as error:
        verdict = {"error": str(error)}
    print(json.dumps(verdict), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_checks(examine_within_limits))
