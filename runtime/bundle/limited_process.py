"""Processes for untrusted input: limits of their memory and lifetime, requests over their streams.

A request or a reply is bytes, after their length.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from typing import IO

_PR_SET_PDEATHSIG = 1

HEADER_BYTES = 8
"""Bytes of the length of a request or reply."""


@contextlib.contextmanager
def limit_memory(size: int) -> Iterator[None]:
    """Limits the process to a number of bytes of address space while the context is entered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in (size, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits, default=resource.RLIM_INFINITY), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def exit_status(code: int) -> str:
    """Returns the exit status for a return code of `subprocess`: `SIGSEGV`, or `exit code 3`."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def exit_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent exits; only Linux can.

    Args:
      parent: the id of the parent process. The thread of it that started this process must wait for it: the
        kernel kills at the exit of that thread.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The parent exited before the call above, which then never takes effect.
        os._exit(1)


def write_piece(stream: IO[bytes], piece: bytes) -> None:
    """Writes bytes after their length."""
    stream.write(len(piece).to_bytes(HEADER_BYTES))
    stream.write(piece)
    stream.flush()


def read_piece(stream: IO[bytes]) -> bytes | None:
    """Returns the next bytes that `write_piece` has written; None at the end of the stream."""
    header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    piece = stream.read(size := int.from_bytes(header))
    return piece if len(piece) == size else None


def serve_requests(handle: Callable[[bytes], bytes], memory: int) -> None:
    """Replies to each request on standard input until its end.

    Args:
      handle: returns the reply to a request.
      memory: the maximum of bytes of address space.
    """
    # Replies have a descriptor of their own: what MLIR or Python print to standard output would corrupt them.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with limit_memory(memory):
        while (request := read_piece(sys.stdin.buffer)) is not None:
            write_piece(replies, handle(request))
