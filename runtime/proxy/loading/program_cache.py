"""Cache of compiled programs, for clients that send a program again."""

from __future__ import annotations

import collections
import hashlib
import threading

MAX_PROGRAMS = 256
"""Number of programs that stay loaded without a session. A trainer has about a hundred tiny ones."""

MAX_PROGRAM_BYTES = 16 << 20
"""Bytes of these programs as clients have sent them; their code may be thirty times as large."""


class ProgramCache[Program]:
    """Least-recently-used cache of compiled programs, by the bytes that clients have sent.

    A trainer that continues on other devices, as after the loss of an island, sends the same programs again.
    Without the cache, the server would spend most of the time until the next step on reading their code from
    files.

    Args:
      max_count: the maximum of programs.
      max_bytes: the maximum of bytes that clients have sent for them.
    """

    def __init__(self, max_count: int = MAX_PROGRAMS, max_bytes: int = MAX_PROGRAM_BYTES) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._programs: collections.OrderedDict[bytes, tuple[Program, int]] = collections.OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, program: bytes, options: bytes) -> Program | None:
        """Returns the compiled program for the same bytes and options, or None."""
        key = _key(program, options)
        with self._lock:
            if key not in self._programs:
                return None
            self._programs.move_to_end(key)
            return self._programs[key][0]

    def add(self, program: bytes, options: bytes, compiled: Program) -> None:
        """Adds a program, and drops the least recently used ones beyond the limits."""
        key = _key(program, options)
        with self._lock:
            # Another session may have compiled it at the same time.
            if key in self._programs or len(program) > self._max_bytes:
                return
            self._programs[key] = compiled, len(program)
            self._bytes += len(program)
            while len(self._programs) > self._max_count or self._bytes > self._max_bytes:
                _, (_, size) = self._programs.popitem(last=False)
                self._bytes -= size


def _key(program: bytes, options: bytes) -> bytes:
    # The length shows where the options end: other pairs of bytes never have the same input.
    return hashlib.sha256(len(options).to_bytes(8, "big") + options + program).digest()
