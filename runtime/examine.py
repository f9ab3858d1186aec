"""Examines the program of a bundle in a process of its own: a hostile file may crash MLIR or keep it busy."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from pathways.runtime.bundle import Bundle, BundleError, read
from pathways.runtime.bundle_program import check_artifacts, read_program


def examine(bundle: Bundle) -> None:
    """Checks all that an untrusted bundle hands to MLIR and XLA, in this process.

    Raises:
      BundleError: says what is wrong.
    """
    _, plan = read_program(bundle)
    check_artifacts(bundle, plan)


def examine_apart(bundle: Bundle) -> None:
    """The same in a new process, so that no input can harm this one.

    Raises:
      BundleError: says what is wrong; also when the process crashed or took too long.
    """
    # -P: what lies beside the file must not be imported.
    command = [sys.executable, "-P", "-m", "pathways.runtime.examine", bundle.path]
    # A megabyte of MLIR takes about a second.
    seconds = 30 + sum(map(len, bundle.members.values())) / 1e6
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise BundleError(f"{bundle.path}: reading its program takes too long") from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise BundleError(f"{bundle.path}: reading its program crashed MLIR ({name})")
    try:
        verdict = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise BundleError(f"{bundle.path}: its program cannot be read: {last[:500]}") from None
    if "error" in verdict:
        raise BundleError(verdict["error"])
    if verdict["digest"] != bundle.digest:
        raise BundleError(f"{bundle.path}: the file was changed while it was read")


def main() -> int:
    """Examines the file that the command line names; prints a verdict as JSON."""
    try:
        bundle = read(sys.argv[1])
        examine(bundle)
        verdict = {"digest": bundle.digest}
    except BundleError as error:
        verdict = {"error": str(error)}
    print(json.dumps(verdict))
    return 0


if __name__ == "__main__":
    sys.exit(main())
