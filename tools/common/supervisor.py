"""Supervision of a tool in a child process, so that a crash inside MLIR becomes one clear error.

MLIR's C++ trusts its input in places: flipped bits in bytecode, very deep nesting and some passes make it
crash, never return or fill any memory. Python cannot catch that, but the parent of such a process can
terminate and report it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pathways.tools.common.errors import UserError

MEMORY_LIMIT = "PW_MEMORY_LIMIT"
"""Environment variable of the limit of a tool's memory, in bytes."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_POLL_INTERVAL_MS = 50
_SIZE = 4096
_activity: mmap.mmap | None = None
"""The child's current operation, in memory that the parent can read after a crash; None without a parent."""
_file_of_crash: mmap.mmap | None = None
"""The file that a crash leaves behind, likewise; see `keep_after_crash`."""


def supervise(tool: str, run: Callable[[], int]) -> int:
    """Calls `run` in a child process and returns its exit code: 1 after a crash, 130 when interrupted.

    The child is terminated with this process, and when it takes more memory than `memory_limit`.
    """
    global _activity, _file_of_crash
    # XLA and MLIR would log the same error before our one line.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        limit = memory_limit()
    except UserError as error:
        print(f"{tool}: error: {error}", file=sys.stderr)
        return 1
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt_once)
    shared, file_of_crash = mmap.mmap(-1, _SIZE), mmap.mmap(-1, _SIZE)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _activity, _file_of_crash = shared, file_of_crash
        _end_with(parent)
        code = run()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Tearing down MLIR's bindings takes longer than a small run.
    # After the fork, so that the child keeps the default action of the signal.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    try:
        modest = _stays_below(limit, child)
        if not modest:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    except KeyboardInterrupt:
        _stop(child)
        _keep(tool, file_of_crash, child, crashed=False)
        print(f"{tool}: interrupted", file=sys.stderr)
        return 130
    doing = _read(shared) or "starting"
    if not modest:
        _keep(tool, file_of_crash, child, crashed=True)
        print(
            f"{tool}: error: took more than {_text_of(limit)} of memory while {doing}; {MEMORY_LIMIT} sets "
            "another limit",
            file=sys.stderr,
        )
        return 1
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    _keep(tool, file_of_crash, child, crashed=number != signal.SIGTERM)
    if number == signal.SIGTERM:
        return 128 + number
    # SIGPROF is the signal of the timer in `limit_cpu_seconds`.
    outcome = "did not return" if number == signal.SIGPROF else f"crashed ({signal.Signals(number).name})"
    print(f"{tool}: error: MLIR {outcome} while {doing}", file=sys.stderr)
    return 1


def memory_limit(environment: Mapping[str, str] = os.environ) -> int:
    """Returns the limit of a tool's memory in bytes, by default half of the machine's; an empty value sets
    none.

    Raises:
      UserError: the environment variable is not a size.
    """
    text = environment.get(MEMORY_LIMIT)
    if text is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    if not text:
        return sys.maxsize
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)B?", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        raise UserError(f"{MEMORY_LIMIT} must be a size such as 500M or 8G, got '{text}'")
    return int(match[1]) * _UNITS[match[2].upper()]


def supervised() -> bool:
    """Returns whether this is a child process with a parent that reports for it."""
    return _activity is not None


def doing(operation: str) -> None:
    """Notes the operation that a crash from now on would interrupt, such as `running cse`."""
    if _activity is not None:
        _activity[:] = operation.encode(errors="replace")[:_SIZE].ljust(_SIZE, b"\0")


def pending(path: str, process: int | None = None) -> Path:
    """Returns the path at which a process writes the file that `keep_after_crash` may move."""
    return Path(f"{path}.{process or os.getpid()}.pending")


def keep_after_crash(path: str) -> None:
    """Makes a crash from now on move `pending(path)` to a path; an empty path turns that off."""
    if _file_of_crash is not None:
        _file_of_crash[:] = os.fsencode(path)[:_SIZE].ljust(_SIZE, b"\0")


def _keep(tool: str, file_of_crash: mmap.mmap, child: int, crashed: bool) -> None:
    """Handles the file of an exited child, as the child can no longer do it."""
    path = os.fsdecode(file_of_crash[:].rstrip(b"\0"))
    if not path:
        return
    if not crashed:
        pending(path, child).unlink(missing_ok=True)
        return
    with contextlib.suppress(OSError):
        pending(path, child).replace(path)
        print(f"{tool}: note: pipeline failed: reproducer generated at '{path}'", file=sys.stderr)


def _read(shared: mmap.mmap) -> str:
    return shared[:].rstrip(b"\0").decode(errors="replace")


@contextlib.contextmanager
def limit_cpu_seconds(seconds: float) -> Iterator[None]:
    """Terminates a process with a supervising parent when a block takes longer, in seconds of CPU."""
    if _activity is not None:
        signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        if _activity is not None:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _interrupt_once(*_: object) -> None:
    """Defers further interrupts during cleanup: Ctrl-C reaches a child twice, also through its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with(parent: int) -> None:
    # Not at the top: the parent does not load it.
    from pathways.runtime.resources.process_limits import exit_with_parent

    exit_with_parent(parent)


def _stays_below(limit: int, child: int) -> bool:
    """Waits until a child exits, or takes more memory than a limit in bytes; returns whether it exited.

    Resident memory counts: threads and GPUs reserve much address space without using it. Only Linux reports
    the memory of another process.
    """
    if not sys.platform.startswith("linux"):
        return True
    descriptor = os.pidfd_open(child)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    try:
        with Path(f"/proc/{child}/statm").open("rb", buffering=0) as figures:
            while not poll.poll(_POLL_INTERVAL_MS):
                figures.seek(0)
                # The second figure counts resident pages.
                if int(figures.read().split()[1]) * mmap.PAGESIZE > limit:
                    return False
        return True
    finally:
        os.close(descriptor)


def _text_of(size: int) -> str:
    """Returns a number of bytes as `memory_limit` reads it."""
    unit = max((u for u, factor in _UNITS.items() if size >= factor), key=_UNITS.__getitem__, default="")
    return f"{size / _UNITS[unit]:.3g}{unit or ' bytes'}"


def _stop(child: int) -> None:
    """Lets a child clean up after an interruption, but not for long: it may be deep inside MLIR."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGINT)
        for _ in range(100):
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
