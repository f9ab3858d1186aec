"""Runs a tool in a child process, so that a crash inside MLIR becomes one clear error.

MLIR's C++ trusts its input in places: flipped bits in bytecode, very deep nesting and some passes make it
crash, never return or fill any memory. Python cannot catch that, but the parent of such a process can end and
report it.
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
"""The environment variable that says how many bytes of memory a tool may take."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_LOOK_EVERY_MS = 50
_SIZE = 4096
_activity: mmap.mmap | None = None
"""What the child is doing, in memory that the parent can read after a crash; None without a parent."""
_kept: mmap.mmap | None = None
"""The file that a crash leaves behind, likewise; see `keep_after_crash`."""


def supervise(tool: str, run: Callable[[], int]) -> int:
    """Calls `run` in a child process and returns its exit code: 1 after a crash, 130 when interrupted.

    The child ends with this process, however that ends, and when it takes more memory than `memory_limit`.
    """
    global _activity, _kept
    # What XLA and MLIR log would precede the one line of ours that says the same.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        limit = memory_limit()
    except UserError as error:
        print(f"{tool}: error: {error}", file=sys.stderr)
        return 1
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt_once)
    shared, kept = mmap.mmap(-1, _SIZE), mmap.mmap(-1, _SIZE)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _activity, _kept = shared, kept
        _end_with(parent)
        code = run()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Tearing down MLIR's bindings takes longer than a small run.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    try:
        modest = _stays_below(limit, child)
        if not modest:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    except KeyboardInterrupt:
        _stop(child)
        _keep(tool, kept, child, crashed=False)
        print(f"{tool}: interrupted", file=sys.stderr)
        return 130
    doing = _read(shared) or "starting"
    if not modest:
        _keep(tool, kept, child, crashed=True)
        print(
            f"{tool}: error: took more than {_text_of(limit)} of memory while {doing}; {MEMORY_LIMIT} sets "
            "another limit",
            file=sys.stderr,
        )
        return 1
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    _keep(tool, kept, child, crashed=number != signal.SIGTERM)
    if number == signal.SIGTERM:
        return 128 + number
    how = "did not return" if number == signal.SIGPROF else f"crashed ({signal.Signals(number).name})"
    print(f"{tool}: error: MLIR {how} while {doing}", file=sys.stderr)
    return 1


def memory_limit(environment: Mapping[str, str] = os.environ) -> int:
    """Returns the bytes of memory that a tool may take, by default half of what the machine has; empty: any
    number.

    Raises:
      UserError: the environment names no size.
    """
    text = environment.get(MEMORY_LIMIT)
    if text is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    if not text:
        return sys.maxsize
    parts = re.fullmatch(r"(\d{1,15})([KMGT]?)B?", text.strip(), re.ASCII | re.IGNORECASE)
    if parts is None:
        raise UserError(f"{MEMORY_LIMIT} must be a size such as 500M or 8G, got '{text}'")
    return int(parts[1]) * _UNITS[parts[2].upper()]


def supervised() -> bool:
    """Returns whether this is a child process with a parent that reports for it."""
    return _activity is not None


def doing(what: str) -> None:
    """Notes what a crash from now on would interrupt, such as `running cse`."""
    if _activity is not None:
        _activity[:] = what.encode(errors="replace")[:_SIZE].ljust(_SIZE, b"\0")


def pending(path: str, process: int | None = None) -> Path:
    """Returns where this process, or another, writes what `keep_after_crash` may move to a path."""
    return Path(f"{path}.{process or os.getpid()}.pending")


def keep_after_crash(path: str) -> None:
    """Lets a crash from now on move what is in `pending(path)` to a path; to none when it is empty."""
    if _kept is not None:
        _kept[:] = os.fsencode(path)[:_SIZE].ljust(_SIZE, b"\0")


def _keep(tool: str, kept: mmap.mmap, child: int, crashed: bool) -> None:
    """Does for a child that has ended what it can no longer do for its file."""
    path = os.fsdecode(kept[:].rstrip(b"\0"))
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
def at_most(seconds: float) -> Iterator[None]:
    """Ends a process whose parent can say so when a block takes longer, in seconds of computing."""
    if _activity is not None:
        signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        if _activity is not None:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _interrupt_once(*_: object) -> None:
    """Puts off interrupts while tidying up: Ctrl-C reaches a child twice, by its parent too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with(parent: int) -> None:
    # Not at the top: the parent loads none of it.
    from pathways.runtime.bundle.limited_process import exit_with_parent

    exit_with_parent(parent)


def _stays_below(limit: int, child: int) -> bool:
    """Waits until a child ends, or takes more memory than a limit in bytes; whether it ended.

    What it holds is counted: address space tells nothing, threads and GPUs reserve plenty of it. Only Linux
    tells how much another process holds.
    """
    if not sys.platform.startswith("linux"):
        return True
    descriptor = os.pidfd_open(child)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    try:
        with Path(f"/proc/{child}/statm").open("rb", buffering=0) as figures:
            while not poll.poll(_LOOK_EVERY_MS):
                figures.seek(0)
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
    """Lets a child tidy up after an interruption, but not for long: it may be deep inside MLIR."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGINT)
        for _ in range(100):
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
