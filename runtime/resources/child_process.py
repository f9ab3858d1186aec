"""Child processes: their exit, the last lines of their standard error, and replies of those with limits.

A thread starts each of them, reads its standard error and waits for it, as long as it lives. So it never
waits for its reader, and Linux can kill it when this process exits (`exit_with_parent`): it does that when
the thread exits that has started it.
"""

from __future__ import annotations

import collections
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pathways.runtime.bundle.process_limits import exit_status, exit_with_parent, limit_memory
from pathways.runtime.resources.threads import start_thread

LINES = 20
"""Number of lines kept of those that a process has written to standard error last."""

_HEADER_BYTES = 8
_PIECE_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 16
_EXIT_SECONDS = 10.0
"""Time for the exit of a process that was killed, or has closed its connection."""


class ChildProcess:
    """A child of this process.

    Args:
      command: its command line.
      on_line: is called with each line that it writes to standard error.
      blocked: the signals that it blocks from the beginning.
      options: others of `subprocess.Popen`.

    Attributes:
      pid: the number of the process.

    Raises:
      OSError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        on_line: Callable[[str], object] = lambda line: None,
        blocked: Collection[signal.Signals] = (),
        **options: Any,
    ) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=LINES)
        started = threading.Event()
        outcome: list[subprocess.Popen[bytes] | OSError] = []

        def run() -> None:
            # A process inherits them from the thread.
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
            try:
                process = subprocess.Popen(command, stderr=subprocess.PIPE, **options)
                outcome.append(process)
            except OSError as error:
                outcome.append(error)
                return
            finally:
                started.set()
            self._keep(process, on_line)

        self._thread = start_thread(run, "child process")
        try:
            started.wait()
        except BaseException:
            # Ctrl-C: no one would have the process.
            started.wait()
            for process in outcome:
                if isinstance(process, subprocess.Popen):
                    process.kill()
            raise
        if isinstance(outcome[0], OSError):
            raise outcome[0]
        self._process = outcome[0]
        self.pid = self._process.pid

    def exit_code(self, seconds: float) -> int | None:
        """Returns its exit code, negative if a signal killed it; None if it still runs after some seconds."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kills it, if it has not exited."""
        self._process.kill()

    def last_lines(self) -> Sequence[str]:
        """Returns what it wrote to standard error last."""
        if self._process.poll() is not None:
            # What it wrote last may not have been read yet.
            self._thread.join(timeout=1)
        return tuple(self._lines)

    def _keep(self, process: subprocess.Popen[bytes], on_line: Callable[[str], object]) -> None:
        assert process.stderr is not None
        with process.stderr as pipe:
            # A line may be of any length.
            while raw := pipe.readline(_MAX_LINE_BYTES):
                line = raw.decode(errors="replace")
                self._lines.append(line.rstrip("\n"))
                on_line(line)
        process.wait()


class NoReplyError(Exception):
    """A process gave no reply: says how it ended, as in `crashed (SIGSEGV)`."""


class LimitedProcess:
    """A Python process that replies to requests, one at a time, within limits.

    What MLIR or XLA do with untrusted input cannot harm this process. The other one starts with the first
    request, and again with the next one after a request without a reply. It is killed when this one exits.
    Any thread may call `call`, `kill` and `close`; the caller of `start` sees to it that none starts it too.

    Args:
      module: the module that it runs, which calls `serve_requests`.
    """

    def __init__(self, module: str) -> None:
        # -P: no module in the working directory may be imported.
        self._command = [sys.executable, "-P", "-m", module, str(os.getpid())]
        self._calling = threading.Lock()
        self._running: tuple[ChildProcess, socket.socket] | None = None

    def start(self) -> None:
        """Starts the process, unless it runs."""
        if self._running is not None and self._running[0].exit_code(0) is None:
            return
        self._discard()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                child = ChildProcess(
                    self._command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
                )
            except BaseException:
                ours.close()
                raise
        self._running = child, ours

    def call(self, request: bytes, seconds: float) -> bytes:
        """Returns the reply to a request.

        Raises:
          NoReplyError: the process exited, also before, or took longer than so many seconds.
        """
        deadline = time.monotonic() + seconds
        with self._calling:
            if self._running is None:
                self.start()
            assert self._running is not None
            child, connection = self._running
            try:
                send_piece(connection, request, deadline)
                return receive_piece(connection, deadline)
            except TimeoutError:
                reason = f"did not return within {seconds:g} s"
            except OSError:
                reason = _exit(child)
            except BaseException:
                # Ctrl-C, or no memory for the reply, which would come before the next one.
                self._discard()
                raise
            self._discard()
            raise NoReplyError(reason)

    def kill(self) -> None:
        """Kills the process; a request in flight, and the next one unless `start` is called, has no reply."""
        if (running := self._running) is not None:
            running[0].kill()

    def close(self) -> None:
        """Kills the process, and frees what it took here."""
        self.kill()
        with self._calling:
            self._discard()

    def _discard(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            child, connection = running
            connection.close()
            child.kill()
            child.exit_code(_EXIT_SECONDS)


def serve_requests(handle: Callable[[bytes], bytes], memory: int = resource.RLIM_INFINITY) -> None:
    """Replies to the requests of the `LimitedProcess` that has started this process, until that is closed.

    Args:
      handle: returns the reply to a request.
      memory: the maximum of bytes of address space.
    """
    exit_with_parent(int(sys.argv[1]))
    with socket.socket(fileno=0) as connection, limit_memory(memory), contextlib.suppress(ConnectionError):
        while True:
            send_piece(connection, handle(receive_piece(connection)))


def _exit(child: ChildProcess) -> str:
    """Returns how a process exited that has closed its connection."""
    code = child.exit_code(_EXIT_SECONDS)
    if code is None:
        return "stopped answering"
    last = next((line for line in reversed(child.last_lines()) if line.strip()), "")
    return f"{'crashed' if code < 0 else 'exited'} ({exit_status(code)}{last and ': '}{last.strip()[:300]})"


def send_piece(connection: socket.socket, piece: bytes, deadline: float | None = None) -> None:
    """Sends bytes after their length, until a time of `time.monotonic`.

    Raises:
      OSError: the time is over (TimeoutError), or the connection is closed.
    """
    _set_deadline(connection, deadline)
    connection.sendall(len(piece).to_bytes(_HEADER_BYTES))
    _set_deadline(connection, deadline)
    connection.sendall(piece)


def receive_piece(connection: socket.socket, deadline: float | None = None) -> bytes:
    """Returns the next bytes that `send_piece` has sent; see there."""
    return bytes(_read(connection, int.from_bytes(_read(connection, _HEADER_BYTES, deadline)), deadline))


def _read(connection: socket.socket, size: int, deadline: float | None) -> bytearray:
    # Grows with what is there: the other process may lie about the size.
    received = bytearray()
    while len(received) < size:
        _set_deadline(connection, deadline)
        piece = connection.recv(min(size - len(received), _PIECE_BYTES))
        if not piece:
            raise ConnectionResetError
        received += piece
    return received


def _set_deadline(connection: socket.socket, deadline: float | None) -> None:
    if deadline is None:
        return
    if (seconds := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    connection.settimeout(seconds)
