"""Runs a tool in a child process, so that a crash inside MLIR becomes one clear error.

MLIR's C++ trusts its input in places: flipped bits in bytecode, very deep nesting and some passes make it
crash or never return. Python cannot catch that, but the parent of a process that died can report it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

_SIZE = 4096
_activity: mmap.mmap | None = None
"""What the child is doing, in memory that the parent can read after a crash; None without a parent."""


def supervise(tool: str, run: Callable[[], int]) -> int:
    """Calls `run` in a child process and returns its exit code: 1 after a crash, 130 when interrupted."""
    global _activity
    shared = mmap.mmap(-1, _SIZE)
    child = os.fork()
    if child == 0:
        _activity = shared
        code = run()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Tearing down MLIR's bindings takes longer than a small run.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    try:
        _, status = os.waitpid(child, 0)
    except KeyboardInterrupt:
        _stop(child)
        print(f"{tool}: interrupted", file=sys.stderr)
        return 130
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    doing = shared[:].rstrip(b"\0").decode(errors="replace") or "starting"
    number = os.WTERMSIG(status)
    if number == signal.SIGTERM:
        return 128 + number
    how = "did not return" if number == signal.SIGPROF else f"crashed ({signal.Signals(number).name})"
    print(f"{tool}: error: MLIR {how} while {doing}", file=sys.stderr)
    return 1


def supervised() -> bool:
    """Whether this is a child process with a parent that reports for it."""
    return _activity is not None


def doing(what: str) -> None:
    """Notes what a crash from now on would interrupt, such as `running cse`."""
    if _activity is not None:
        _activity[:] = what.encode(errors="replace")[:_SIZE].ljust(_SIZE, b"\0")


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Ends a process whose parent can say so when a block takes longer, in seconds of computing."""
    if _activity is not None:
        signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        if _activity is not None:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _stop(child: int) -> None:
    """Lets a child tidy up after an interruption, but not for long: it may be deep inside MLIR."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGINT)
        for _ in range(100):
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
