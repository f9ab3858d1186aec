"""Requests to a process with limits, and its answers, over standard streams: bytes, after their length."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import IO

from pathways.runtime.bundle.limits import memory_of_at_most

HEADER_BYTES = 8


def write_piece(stream: IO[bytes], piece: bytes) -> None:
    """Writes some bytes after their length."""
    stream.write(len(piece).to_bytes(HEADER_BYTES))
    stream.write(piece)
    stream.flush()


def read_piece(stream: IO[bytes]) -> bytes | None:
    """Returns what `write_piece` has written; None where the stream ends."""
    header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    piece = stream.read(size := int.from_bytes(header))
    return piece if len(piece) == size else None


def answer_requests(answer: Callable[[bytes], bytes], memory: int) -> None:
    """Answers what comes on standard input until it ends, with no more than some bytes of address space."""
    # Nothing else may write where answers go.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with memory_of_at_most(memory):
        while (request := read_piece(sys.stdin.buffer)) is not None:
            write_piece(answers, answer(request))
