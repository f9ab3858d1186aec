"""Process that reads programs for the server: MLIR's reader of bytecode does not check all of its input.

The process loads MLIR, and forks processes that read one program after the other, each with limits of time
and memory. They print each program as text and parse the text, which checks everything, such as the number of
bytes of each constant. The server gets bytecode of the result, so that it reads only bytes that MLIR has
written.

The server sends one end of a pair of sockets for each process that it needs.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import warnings

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect.operations.bindings import load_ifrt, make_context
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.dialect.syntax.stablehlo import parse_module
from pathways.runtime.bundle.examine import examine
from pathways.runtime.bundle.file import parse
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.resources.child_process import receive_piece, send_piece
from pathways.runtime.resources.process_limits import exit_with_parent, limit_memory

MODULE, ARTIFACT, IFRT, BUNDLE = b"m", b"a", b"i", b"b"
"""Kinds of programs: StableHLO as text or bytecode, a portable artifact of it, IFRT IR, or a bundle."""


def allowed_seconds(size: int) -> float:
    """Returns the limit of processor time for a program of `size` bytes; a megabyte takes about a second."""
    return 3 + size / 1e5


def allowed_wall_seconds(size: int) -> float:
    """Returns the limit of wall-clock time, which is larger since other processes compute, too."""
    return 20 * allowed_seconds(size)


def allowed_bytes(size: int) -> int:
    """Returns the limit of memory for a program of `size` bytes; the process itself has 0.4 GiB."""
    return (2 << 30) + 64 * size


def max_text_bytes(size: int) -> int:
    """Returns the limit of the text of a program of `size` bytes: the text of a type may have any length."""
    return (64 << 20) + 64 * size


_MAX_PROGRAMS = 16
_MAX_BYTES = 1 << 20
"""Programs, and bytes of them, after which contexts are replaced, which never free types and attributes."""


class ProgramContexts:
    """Pairs of MLIR contexts: the first reads a program, the second parses its text."""

    def __init__(self) -> None:
        self._pairs: dict[bool, tuple[ir.Context, ir.Context]] = {}
        self._programs = 0
        self._bytes = 0

    def pair(self, kind: bytes) -> tuple[ir.Context, ir.Context]:
        """Returns the contexts for a kind of program."""
        is_ifrt = kind == IFRT
        if is_ifrt not in self._pairs:
            self._pairs[is_ifrt] = make_context(), make_context()
            for context in self._pairs[is_ifrt]:
                if is_ifrt:
                    load_ifrt(context)
                else:
                    context.allow_unregistered_dialects = False
        return self._pairs[is_ifrt]

    def prepare(self) -> None:
        """Creates the contexts and has MLIR load its dialects, which takes longer than reading a program."""
        module = parse_module(b"func.func @main() { return }", self.pair(MODULE)[0])
        version = stablehlo.get_minimum_version()
        read_program(ARTIFACT, stablehlo.serialize_portable_artifact(module, version), self)

    def count(self, size: int) -> None:
        """Counts a program of `size` bytes; replaces the contexts at the limit."""
        self._programs += 1
        self._bytes += size
        if self._programs >= _MAX_PROGRAMS or self._bytes > _MAX_BYTES:
            self._programs = self._bytes = 0
            self._pairs.clear()
            self.prepare()


def read_program(kind: bytes, data: bytes, contexts: ProgramContexts) -> tuple[bool, bytes]:
    """Reads a program.

    Args:
      data: the program of a client.

    Returns:
      Whether it is valid, and its bytecode, written by MLIR, or the error; for a bundle no bytecode.
    """
    if kind == BUNDLE:
        return _examined(data)
    of_program, of_text = contexts.pair(kind)
    try:
        module = parse_module(data, of_program, is_artifact=kind == ARTIFACT)
        text = module.operation.get_asm(binary=True, enable_debug_info=True, print_generic_op_form=True)
        if len(text) > max_text_bytes(len(data)):
            return False, b"its text has %d MiB" % (len(text) >> 20)
        return True, bytecode_of(parse_module(text, of_text))
    except ValueError as error:
        return False, str(error).encode(errors="replace")


def _examined(data: bytes) -> tuple[bool, bytes]:
    """Examines a bundle, whose program is text that MLIR parses, and artifacts."""
    try:
        examine(parse(data, "the program"))
    except BundleError as error:
        return False, str(error).encode(errors="replace")
    return True, b""


def _read_all(connection: socket.socket, contexts: ProgramContexts) -> None:
    """Reads programs until one is invalid, after which the memory of this process may be corrupt.

    A request is a kind and a program. A reply is a byte, 1 for a valid program or 0, and the bytecode of the
    program or the error.

    Raises:
      OSError: the server has closed the connection.
    """
    is_valid = True
    while is_valid:
        request = receive_piece(connection)
        kind, data, size = request[:1], request[1:], len(request) - 1
        # The default actions of their signals terminate the process.
        signal.setitimer(signal.ITIMER_PROF, allowed_seconds(size))
        signal.setitimer(signal.ITIMER_REAL, allowed_wall_seconds(size))
        with limit_memory(allowed_bytes(size)):
            is_valid, reply = read_program(kind, data, contexts)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send_piece(connection, bytes([is_valid]) + reply)
        contexts.count(size)


def main() -> int:
    """Forks processes that read programs, until the server exits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The kernel reaps processes that exit.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Python warns of forks in a process with threads. Those of MLIR have exited: a context stops its threads
    # when it is created.
    warnings.simplefilter("ignore", DeprecationWarning)
    parent = os.getpid()
    contexts = ProgramContexts()
    contexts.prepare()
    # Keeps garbage collections of the forked processes from copying pages that they share.
    gc.freeze()
    with socket.socket(fileno=0) as server:
        while True:
            _, descriptors, _, _ = socket.recv_fds(server, 1, 1)
            if not descriptors:
                return 0
            if os.fork() == 0:
                break
            os.close(descriptors[0])
    exit_with_parent(parent)
    # MLIR writes a stack trace when it crashes, which is of no use to the user of the server.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with socket.socket(fileno=descriptors[0]) as connection, contextlib.suppress(OSError):
        _read_all(connection, contexts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
