"""Examination of untrusted bundles, in a process with limits: a hostile file may crash MLIR or never end."""

from __future__ import annotations

from pathways.runtime.bundle.file import Bundle
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.bundle.program import StoredProgram, check_artifacts, read_program
from pathways.runtime.resources.process_limits import limit_memory


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
