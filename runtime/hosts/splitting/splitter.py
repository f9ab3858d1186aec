"""Has the programs of clients proved and cut in a process of its own, with limits."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading

from pathways.dialect.errors import PathwaysError
from pathways.runtime.hosts.protocol.programs import BoundProgram, SplitProgram
from pathways.runtime.hosts.splitting.split_pipe import SplitAnswer, SplitRequest, read, write
from pathways.runtime.resources.threads import start_thread

SPLIT_SECONDS = 300.0
"""How long a program may take."""


class RefusedProgramError(PathwaysError, ValueError):
    """A program of a client that does not prove, or cannot be cut."""

    __module__ = "pathways"


class ProgramSplitter:
    """A process that proves and cuts programs, one after the other; another one after it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def split(self, program: BoundProgram, ahead: int | str, *, together: bool) -> SplitProgram:
        """Proves and cuts a program, see `splitting.split`.

        Raises:
          RefusedProgramError: it does not prove, or cannot be cut, or the process has ended over it.
        """
        with self._lock:
            process = self._running()
            is_done = threading.Event()

            def end_late() -> None:
                if not is_done.wait(SPLIT_SECONDS):
                    process.kill()

            start_thread(end_late, "split")
            answer = None
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                with contextlib.suppress(OSError, ValueError):
                    write(process.stdin, SplitRequest(program, ahead, together))
                    answer = read(process.stdout, SplitAnswer)
            finally:
                is_done.set()
                if answer is None:
                    self._end(process)
        if answer is None:
            how = signal.Signals(-process.returncode).name if process.returncode < 0 else process.returncode
            raise RefusedProgramError(
                f"program '{program.name}': the process that proves it ended ({how}), out of memory or "
                f"after {SPLIT_SECONDS:.0f} seconds"
            )
        if answer.parts is None:
            raise RefusedProgramError(answer.error or f"program '{program.name}' cannot be cut")
        return answer.parts

    def close(self) -> None:
        """Ends the process."""
        process = self._process
        if process is not None:
            process.kill()
            with self._lock:
                self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "pathways.runtime.hosts.splitting.split_process"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._process
