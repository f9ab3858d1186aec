"""Child processes: their exit, the end of their standard error, and requests with limits.

One thread starts each child, reads its standard error and waits until it has exited. So the child never
blocks on a full pipe. The thread must live as long as the child: `exit_with_parent` has Linux kill a child as
soon as the thread that started it exits.
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

from pathways.runtime.resources.process_limits import exit_status, exit_with_parent, limit_memory
from pathways.runtime.resources.threads import start_thread

LINES = 20
"""Number of last lines of standard error that are kept of a process."""

_HEADER_BYTES = 8
_PIECE_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 16
_EXIT_SECONDS = 10.0
"""Time in which a process must exit after it was killed or has closed its connection."""


class ChildProcess:
    """Child of this process.

    Args:
      on_line: called with each line that it writes to standard error.
      blocked: the signals that it blocks from its start.
      options: other options of `subprocess.Popen`.

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
            # The child inherits the blocked signals of the thread that starts it.
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
            try:
                process = subprocess.Popen(command, stderr=subprocess.PIPE, **options)
                outcome.append(process)
            except OSError as error:
                outcome.append(error)
                return
            finally:
                started.set()
            self._read_until_exit(process, on_line)

        self._thread = start_thread(run, "child process")
        try:
            started.wait()
        except BaseException:
            # Ctrl-C: the caller gets no object with which to kill the process.
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
        """Returns the last lines that it wrote to standard error."""
        if self._process.poll() is not None:
            # The thread may not have read all of the pipe yet.
            self._thread.join(timeout=1)
        return tuple(self._lines)

    def _read_until_exit(self, process: subprocess.Popen[bytes], on_line: Callable[[str], object]) -> None:
        assert process.stderr is not None
        with process.stderr as pipe:
            # A line may have any length: longer ones are read as multiple lines.
            while raw := pipe.readline(_MAX_LINE_BYTES):
                line = raw.decode(errors="replace")
                self._lines.append(line.rstrip("\n"))
                on_line(line)
        process.wait()


class NoReplyError(Exception):
    """Error for a request without a reply. Its text is a predicate, such as `crashed (SIGSEGV)`."""


class LimitedProcess:
    """Python process that replies to requests, one at a time, within limits.

    It isolates MLIR and XLA: if untrusted input crashes them, this process is not affected. It starts with
    the first request, starts again with the next request after one without a reply, and is killed when this
    process exits.
    Any thread may call `call`, `kill` and `close`; the caller of `start` sees to it that none starts it too.

    Args:
      module: the module that it runs, which calls `serve_requests`.
      on_line: called with each line that it writes to standard error.
    """

    def __init__(self, module: str, on_line: Callable[[str], object] = lambda line: None) -> None:
        # -P keeps the working directory off the path of modules: files there may be untrusted.
        self._command = [sys.executable, "-P", "-m", module, str(os.getpid())]
        self._on_line = on_line
        self._calling = threading.Lock()
        self._running: tuple[ChildProcess, socket.socket] | None = None

    def start(self) -> None:
        """Starts the process, unless it runs."""
        if self._running is not None and self._running[0].exit_code(0) is None:
            return
        self._discard()
        connection, child_end = socket.socketpair()
        with child_end:
            try:
                child = ChildProcess(
                    self._command,
                    on_line=self._on_line,
                    stdin=child_end.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except BaseException:
                connection.close()
                raise
        self._running = child, connection

    def call(self, request: bytes, seconds: float) -> bytes:
        """Returns the reply to a request.

        Raises:
          NoReplyError: the process exited, maybe before the call, or took longer than so many seconds.
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
                # After Ctrl-C, or without memory for the reply, the next call would receive this reply.
                self._discard()
                raise
            self._discard()
            raise NoReplyError(reason)

    def kill(self) -> None:
        """Kills the process.

        A pending request gets no reply, and neither does the next one unless `start` is called before it.
        """
        if (running := self._running) is not None:
            running[0].kill()

    def close(self) -> None:
        """Kills the process, and closes the connection to it."""
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
    """Replies to the requests of the `LimitedProcess` that started this process, until it is closed.

    Args:
      handle: returns the reply to a request.
      memory: the limit of the address space, in bytes.
    """
    exit_with_parent(int(sys.argv[1]))
    with socket.socket(fileno=0) as connection, limit_memory(memory), contextlib.suppress(ConnectionError):
        while True:
            send_piece(connection, handle(receive_piece(connection)))


def _exit(child: ChildProcess) -> str:
    """Returns the predicate of a sentence about the exit of a process that has closed its connection."""
    code = child.exit_code(_EXIT_SECONDS)
    if code is None:
        return "stopped answering"
    last = next((line for line in reversed(child.last_lines()) if line.strip()), "")
    return f"{'crashed' if code < 0 else 'exited'} ({exit_status(code)}{last and ': '}{last.strip()[:300]})"


def send_piece(connection: socket.socket, piece: bytes, deadline: float | None = None) -> None:
    """Sends bytes, preceded by their length.

    Args:
      piece: the bytes.
      deadline: the time by which they must be sent, on the clock of `time.monotonic`; None for no limit.

    Raises:
      OSError: the deadline has passed (TimeoutError), or the connection is closed.
    """
    _set_deadline(connection, deadline)
    connection.sendall(len(piece).to_bytes(_HEADER_BYTES))
    _set_deadline(connection, deadline)
    connection.sendall(piece)


def receive_piece(connection: socket.socket, deadline: float | None = None) -> bytes:
    """Returns the next bytes that `send_piece` sent, whose arguments and errors it shares."""
    return bytes(_read(connection, int.from_bytes(_read(connection, _HEADER_BYTES, deadline)), deadline))


def _read(connection: socket.socket, size: int, deadline: float | None) -> bytearray:
    # The buffer grows with the received bytes: the stated size may be wrong, and would be allocated at once.
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
