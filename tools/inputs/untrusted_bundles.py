"""Bundles as untrusted input of the tools, within limits of time and memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pathways.runtime.bundle.examine import allowance, limit_memory
from pathways.runtime.bundle.file import Bundle, read
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.bundle.program import read_program
from pathways.runtime.plan.plan import Plan
from pathways.tools.common import supervisor
from pathways.tools.common.errors import UserError


@contextlib.contextmanager
def within_allowance(bundle: Bundle) -> Iterator[None]:
    """Limits MLIR's time and memory, as when the bundle is loaded, in another process."""
    if not supervisor.supervised():
        yield
        return
    seconds, memory = allowance(bundle)
    try:
        with supervisor.limit_cpu_seconds(seconds), limit_memory(memory):
            yield
    except MemoryError:
        raise UserError(f"{bundle.path}: reading its program takes too much memory") from None


def plan_in(path: str) -> Plan:
    """Returns the plan of the program in a bundle.

    Raises:
      UserError: this release cannot read the file as a bundle.
    """
    supervisor.doing(f"reading {path}")
    try:
        bundle = read(path)
        with within_allowance(bundle):
            program = read_program(bundle)
    except BundleError as error:
        raise UserError(str(error)) from None
    return program.plan
