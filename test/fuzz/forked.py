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
import re
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
"""Default limit of a child's address space in bytes."""

_WALL_TIME_FACTOR = 3
"""Wall-clock limit of a child as a multiple of its processor time, since other processes compute, too."""

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # A child that hangs must not outlive a parent that is killed.
_ROOT = Path(__file__).resolve().parents[2]
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_NOTE = 1024
_BROKEN = 70
"""Exit code of a child whose task raised."""

Task = Callable[[Path, Callable[[str], None]], None]
"""Function that runs in a child: it gets its own folder, and a function that notes its current work."""


@dataclasses.dataclass(frozen=True)
class Ending:
    """End of a task.

    Attributes:
      folder: the folder of the task, which exists until the next ending is requested.
      signal: the signal that killed it; None if it returned.
      late: whether it was killed at its time limit.
      note: its last note.
      stderr: its standard error, with MLIR's; after a signal or at the time limit, with the stack.
      seconds: its duration.
    """

    folder: Path
    signal: signal.Signals | None
    late: bool
    note: str
    stderr: str
    seconds: float

    def frames(self) -> list[tuple[str, int, str]]:
        """Returns the frames of the stack in `stderr`, innermost first: file, line and function."""
        return [(file, int(line), name) for file, line, name in _FRAME.findall(self.stderr)]

    def project_frames(self) -> Iterator[tuple[Path, int, str]]:
        """Yields the frames that are in the project but not in tests, with paths relative to it."""
        for file, line, name in self.frames():
            if file.startswith(str(_ROOT)) and "/.venv/" not in file and "/test/" not in file:
                yield Path(file).relative_to(_ROOT), line, name


@dataclasses.dataclass
class _Slot:
    """Slot for one task at a time."""

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
    """Runs tasks, several at a time; yields their endings, in the order in which they end.

    Args:
      tasks: the tasks, each with a tag.
      jobs: the number of tasks that run at the same time.
      seconds: the limit of processor time of each.
      memory: the limit of address space of each, in bytes.

    Raises:
      RuntimeError: a task raised, which is a bug in it.
    """
    # In memory if there is such a folder, since a case writes many small files.
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
                for child, late in _ended(running, _WALL_TIME_FACTOR * seconds):
                    yield child.tag, _ending_of(child, late)
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
    """Runs numbered cases, several in each child; cases after one that ends its child run in another child.

    Args:
      numbers: the cases.
      size: the maximum of cases in a child.
      jobs: the number of children that run at the same time.
      seconds: the limit of processor time of each case; a child has the time of `size` cases.
      memory: the limit of address space of each child, in bytes.
      run: runs cases in a child; for each finished case, it writes a line of JSON to the file `verdicts` of
        its folder: the number and a verdict.

    Yields:
      The ending of a child, the verdicts of its cases, and the number of the case that ended it.
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
    # Pages of the parent are shared with the child: a garbage collection would copy them.
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        _live(task, slot, seconds, memory)
    return _Child(pid, os.pidfd_open(pid), slot, time.monotonic(), tag)


def _live(task: Task, slot: _Slot, seconds: float, memory: int) -> None:
    """Runs a task in a child; does not return."""
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

        def note(text: str) -> None:
            slot.note[:] = text.encode(errors="replace")[:_NOTE].ljust(_NOTE, b"\0")

        task(slot.folder, note)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(running: dict[int, _Child], seconds: float) -> Iterator[tuple[_Child, bool]]:
    """Waits until a child ends or is late; yields those children, and removes them."""
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


def _ending_of(child: _Child, late: bool) -> Ending:
    if late:
        os.kill(child.pid, signal.SIGUSR1)  # The child prints its stack.
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
