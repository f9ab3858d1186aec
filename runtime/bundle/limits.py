"""Limits of a process that does what cannot be trusted: its memory, and its life."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def memory_of_at_most(size: int) -> Iterator[None]:
    """Lets the process have no more than so many bytes of address space while the context is entered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in (size, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits, default=resource.RLIM_INFINITY), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def exit_status(code: int) -> str:
    """Returns how a process ended, by its exit code as `subprocess` has it: `SIGSEGV`, or `exit code 3`."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def end_with(parent: int) -> None:
    """Lets this process be killed when its parent ends, however that does; only Linux knows how.

    Args:
      parent: the id of the process that started this one, from a thread that waits for it.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It ended before this was asked.
        os._exit(1)
