"""Limits of a process for untrusted input: its memory and its lifetime; see `resources.child_process`."""

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
def limit_memory(size: int) -> Iterator[None]:
    """Limits the process to a number of bytes of address space while the context is entered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in (size, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits, default=resource.RLIM_INFINITY), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def exit_status(code: int) -> str:
    """Returns the exit status for a return code of `subprocess`: `SIGSEGV`, or `exit code 3`."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def exit_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent exits; only Linux can.

    Args:
      parent: the id of the parent process. The thread of it that started this process must wait for it: the
        kernel kills at the exit of that thread.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The parent exited before the call above, which then never takes effect.
        os._exit(1)
