"""Examination of untrusted bundles in a separate process: a hostile file may crash MLIR or never end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

from pathways.runtime.bundle.file import Bundle, read
from pathways.runtime.bundle.limited_process import exit_status, exit_with_parent, limit_memory
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.bundle.program import StoredProgram, check_artifacts, read_program


def allowance(bundle: Bundle) -> tuple[float, int]:
    """Returns the seconds and the bytes of memory that reading the MLIR of a bundle may need.

    MLIR reads about a megabyte per second. A few lines of text can name a type whose printed form fills any
    memory.
    """
    size = sum(map(len, bundle.members.values()))
    return 30 + size / 1e6, 4 * 2**30 + 64 * size


def examine(bundle: Bundle) -> StoredProgram:
    """Checks everything in an untrusted bundle that MLIR and XLA read, in this process; returns its program.

    Raises:
      BundleError: a check failed.
    """
    program = read_program(bundle)
    check_artifacts(bundle, program)
    return program


def examine_within_limits(bundle: Bundle) -> StoredProgram:
    """Calls `examine` with the memory of `allowance` alone, for a process that does little else.

    Raises:
      BundleError: a check failed, or reading needs more memory.
    """
    try:
        with limit_memory(allowance(bundle)[1]):
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
    """Runs the checks in a new process, so that no input can harm this one.

    Args:
      bundle: the bundle.
      module: the module that the process runs, which must call `run_checks`. Its arguments are the id of this
        process, the path of the bundle, and `flags`.
      *flags: the rest of its command line.
      doing: the name of the work, for messages.
      seconds: the time limit; by default the allowance of the bundle.

    Raises:
      BundleError: a check failed, or the process crashed or exceeded the time limit.
    """
    # -P: no module in the folder of the file may be imported.
    command = [sys.executable, "-P", "-m", module, str(os.getpid()), bundle.path, *flags]
    limit = allowance(bundle)[0] if seconds is None else seconds
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise BundleError(f"{bundle.path}: {doing} takes too long") from None
    if done.returncode < 0:
        status = exit_status(done.returncode)
        raise BundleError(f"{bundle.path}: {doing} crashed MLIR or XLA ({status})")
    try:
        verdict = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise BundleError(f"{bundle.path}: {doing} failed: {last[:500]}") from None
    if "error" in verdict:
        raise BundleError(verdict["error"])
    # The process read the path itself: its verdict holds only for the same bytes.
    if verdict["digest"] != bundle.digest:
        raise BundleError(f"{bundle.path}: the file was changed while it was read")


def run_checks(check: Callable[[Bundle], object]) -> int:
    """Checks the bundle of the command line, and prints the verdict as JSON; returns the exit code.

    Args:
      check: raises a `BundleError` if something is wrong.
    """
    exit_with_parent(int(sys.argv[1]))
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
