"""Tasks in child processes with limits of time and memory, whose crashes and stacks are caught."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import faulthandler
import functools
import gc
import json
import math
import mmap
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

MEMORY = 2 << 30
"""Bytes of address space that a child may take, unless more is asked for."""

_PATIENCE = 3
"""By how much a child may take longer than it computes: other processes want the processors too."""

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # Nobody else would end what hangs when its parent is killed.
_NOTE = 1024
_BROKEN = 70
"""The exit code of a child in which the task itself raised."""

Task = Callable[[Path, Callable[[str], None]], None]
"""What runs in a child: it gets a folder of its own, and a function that notes what it is about to do."""


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a task ended.

    Attributes:
      folder: the folder of the task, which is there until the next ending is asked for.
      signal: what killed it; None when it returned.
      late: whether it was killed because it took too long.
      note: what it noted last.
      stderr: what it, and MLIR in it, wrote there; after a signal or too long a time with the stack.
      seconds: how long it took.
    """

    folder: Path
    signal: signal.Signals | None
    late: bool
    note: str
    stderr: str
    seconds: float


@dataclasses.dataclass
class _Slot:
    """A place in which one task at a time runs."""

    folder: Path
    note: mmap.mmap


@dataclasses.dataclass
class _Child:
    pid: int
    descriptor: int
    slot: _Slot
    started: float
    tag: Any


def run_all[T](
    tasks: Iterable[tuple[T, Task]], jobs: int, seconds: float, memory: int = MEMORY
) -> Iterator[tuple[T, Ending]]:
    """Runs tasks, several at a time; yields how they ended, in the order in which they did.

    Args:
      tasks: each with what names it.
      jobs: how many run at the same time.
      seconds: how long each may compute.
      memory: bytes of address space that each may take.

    Raises:
      RuntimeError: when a task raised, which is a mistake in it.
    """
    # In memory where there is such a folder: a case writes many small files.
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=shared) as root:
        free = [_Slot(Path(root) / str(n), mmap.mmap(-1, _NOTE)) for n in range(jobs)]
        running: dict[int, _Child] = {}
        waiting = iter(tasks)
        try:
            while True:
                while free and (named := next(waiting, None)) is not None:
                    child = _start(*named, free.pop(), seconds, memory)
                    running[child.descriptor] = child
                if not running:
                    return
                for child, late in _ended(running, _PATIENCE * seconds):
                    yield child.tag, _bury(child, late)
                    shutil.rmtree(child.slot.folder, ignore_errors=True)
                    free.append(child.slot)
        finally:
            for child in running.values():
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)


def run_batches(
    numbers: Sequence[int],
    size: int,
    jobs: int,
    seconds: float,
    memory: int,
    run: Callable[[list[int], Path, Callable[[str], None]], None],
) -> Iterator[tuple[Ending, dict[int, Any], int | None]]:
    """Runs numbered cases, several in each child; those after a case that ends its child run in another one.

    Args:
      numbers: the cases.
      size: how many a child runs at most.
      jobs: how many children run at the same time.
      seconds: how long each case may compute; its child has as long as `size` of them.
      memory: bytes of address space that each child may take.
      run: runs cases in a child; for each that is done it writes a line to the file `verdicts` of its folder,
        in JSON: the number and a verdict.

    Yields:
      how a child ended, the verdicts of its cases, and the number of the case that ended it.
    """
    step = min(size, max(1, len(numbers) // jobs))
    waiting = collections.deque(list(numbers[n : n + step]) for n in range(0, len(numbers), step))

    def tasks() -> Iterator[tuple[list[int], Task]]:
        while waiting:
            batch = waiting.popleft()
            yield batch, functools.partial(run, batch)

    while waiting:
        for batch, ending in run_all(tasks(), jobs, seconds * size, memory):
            path = ending.folder / "verdicts"
            lines = path.read_text().split("\n") if path.exists() else []
            done = dict(map(json.loads, filter(None, lines)))
            rest = [number for number in batch if number not in done]
            if rest[1:]:
                waiting.append(rest[1:])
            yield ending, done, rest[0] if rest else None


def _start(tag: Any, task: Task, slot: _Slot, seconds: float, memory: int) -> _Child:
    slot.folder.mkdir(parents=True)
    slot.note[:] = bytes(_NOTE)
    sys.stdout.flush()
    sys.stderr.flush()
    # What the parent has is shared with the child: collecting it would copy it.
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        _live(task, slot, seconds, memory)
    return _Child(pid, os.pidfd_open(pid), slot, time.monotonic(), tag)


def _live(task: Task, slot: _Slot, seconds: float, memory: int) -> None:
    """Returns the life of a child; does not return."""
    code = _BROKEN
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(slot.folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        faulthandler.enable(2)
        faulthandler.register(signal.SIGUSR1, 2)
        faulthandler.register(signal.SIGXCPU, 2, chain=True)
        computing = math.ceil(seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (computing, computing + 1))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        def note(what: str) -> None:
            slot.note[:] = what.encode(errors="replace")[:_NOTE].ljust(_NOTE, b"\0")

        task(slot.folder, note)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(running: dict[int, _Child], seconds: float) -> Iterator[tuple[_Child, bool]]:
    """Waits until a child ends or is late; yields, and forgets, those that are."""
    poll = select.poll()
    for descriptor in running:
        poll.register(descriptor, select.POLLIN)
    first = min(child.started for child in running.values()) + seconds
    ready = {descriptor for descriptor, _ in poll.poll(max(0.0, first - time.monotonic()) * 1000 + 1)}
    for descriptor, child in list(running.items()):
        late = descriptor not in ready and time.monotonic() >= child.started + seconds
        if descriptor in ready or late:
            del running[descriptor]
            yield child, late


def _bury(child: _Child, late: bool) -> Ending:
    if late:
        os.kill(child.pid, signal.SIGUSR1)  # Prints where it is.
        time.sleep(0.2)
        os.kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    os.close(child.descriptor)
    log = (child.slot.folder / "stderr").read_text(errors="replace")
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _BROKEN:
        raise RuntimeError(f"a task raised:\n{log}")
    killed = signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
    return Ending(
        child.slot.folder,
        killed,
        late or killed == signal.SIGXCPU,
        child.slot.note[:].rstrip(b"\0").decode(errors="replace"),
        log,
        time.monotonic() - child.started,
    )
