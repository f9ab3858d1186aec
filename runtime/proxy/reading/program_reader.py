"""Reader of clients' programs, in separate processes that cannot harm the server."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable

from pathways.runtime.bundle.file import is_artifact
from pathways.runtime.proxy.reading.read_process import (
    ARTIFACT,
    BUNDLE,
    IFRT,
    MODULE,
    allowed_seconds,
    allowed_wall_seconds,
)
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.resources.child_process import receive_piece, send_piece

_COMMAND = (sys.executable, "-P", "-m", "pathways.runtime.proxy.reading.read_process")

_GRACE_S = 30.0
"""Time that the server waits in addition to the limit of a program, since the process has to start."""

_MAX_IDLE = 2
"""Number of idle processes that are kept for further programs."""


class ProgramReader:
    """Pool of `read_process` processes. The first program starts the process that forks them.

    Any number of threads may read at the same time; no program waits for another one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._starter: socket.socket | None = None
        self._terminate: Callable[[], object] = lambda: None
        self._idle: list[socket.socket] = []

    def read_stablehlo(self, program: bytes) -> bytes:
        """Returns a module of StableHLO as bytecode that MLIR itself has written.

        Args:
          program: the module of a client: text, bytecode, or a portable artifact.

        Raises:
          StatusError: the program is invalid, or cannot be read.
        """
        kind = ARTIFACT if is_artifact(program) else MODULE
        return self._read(kind, program, "the program is not StableHLO")

    def read_ifrt(self, program: bytes) -> bytes:
        """Returns a module in IFRT IR as bytecode that MLIR itself has written.

        Args:
          program: the module of a client: text or bytecode.

        Raises:
          StatusError: the program is invalid, or cannot be read.
        """
        return self._read(IFRT, program, "no valid program in IFRT IR")

    def check_bundle(self, bundle: bytes) -> None:
        """Checks everything in a bundle that MLIR and XLA read.

        Raises:
          StatusError: a check failed, or it cannot be read.
        """
        self._read(BUNDLE, bundle, "no valid program of Pathways")

    def close(self) -> None:
        """Terminates all processes; programs that they are reading get an error."""
        with self._lock:
            self._is_closed = True
            self._terminate()

    def _read(self, kind: bytes, program: bytes, problem: str) -> bytes:
        is_valid, content = self._read_reply(kind, program)
        if not is_valid:
            text = " ".join(content.decode(errors="replace").split())
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"{problem}: {text[:300]}")
        return content

    def _read_reply(self, kind: bytes, program: bytes) -> tuple[bool, bytes]:
        """Returns the result of `read_program` in a process."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        reply = self._request(connection, kind, program) if connection is not None else None
        if reply is None:
            # The process may have been killed, or an earlier program may have corrupted its memory.
            reply = self._request(self._start(), kind, program)
        if reply is None:
            raise _unreadable("the process that reads it crashed, or has too little memory")
        return reply

    def _request(self, connection: socket.socket, kind: bytes, program: bytes) -> tuple[bool, bytes] | None:
        """Requests a process to read a program; returns its reply, or None if it exits without one.

        Raises:
          StatusError: reading takes too long.
        """
        seconds = allowed_seconds(len(program))
        start = time.monotonic()
        deadline = start + allowed_wall_seconds(len(program)) + _GRACE_S
        try:
            send_piece(connection, kind + program, deadline)
            reply = receive_piece(connection, deadline)
        except OSError:
            connection.close()
            if time.monotonic() - start < seconds:
                return None
            raise _unreadable(f"it takes longer than {seconds:.0f} seconds") from None
        is_valid = reply[:1] == b"\1"
        with self._lock:
            if is_valid and not self._is_closed and len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
            else:
                connection.close()
        return is_valid, reply[1:]

    def _start(self) -> socket.socket:
        """Returns a connection to a new process."""
        connection, of_process = socket.socketpair()
        try:
            with of_process, self._lock:
                self._fork(of_process)
        except BaseException:
            connection.close()
            raise
        return connection

    def _fork(self, of_process: socket.socket) -> None:
        """Forks a process that reads from a socket; first starts the process that forks, if needed."""
        if self._starter is not None:
            with contextlib.suppress(OSError):
                socket.send_fds(self._starter, [b"."], [of_process.fileno()])
                return
            self._terminate()
        if self._is_closed:
            raise StatusError(StatusCode.CANCELLED, "the server is closed")
        self._starter, of_starter = socket.socketpair()
        with of_starter:
            process = subprocess.Popen(
                _COMMAND,
                stdin=of_starter.fileno(),
                stdout=subprocess.DEVNULL,
                # Ctrl-C in the terminal must reach the server alone.
                start_new_session=True,
            )
        self._terminate = weakref.finalize(self, _terminate, process, self._starter, self._idle)
        socket.send_fds(self._starter, [b"."], [of_process.fileno()])


def _terminate(process: subprocess.Popen[bytes], starter: socket.socket, idle: list[socket.socket]) -> None:
    starter.close()
    while idle:
        idle.pop().close()
    process.kill()
    process.wait()


def _unreadable(reason: str) -> StatusError:
    return StatusError(StatusCode.INVALID_ARGUMENT, f"the program could not be read: {reason}")
