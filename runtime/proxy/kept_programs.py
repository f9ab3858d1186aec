"""Programs that were compiled last, for clients that send one of them again."""

from __future__ import annotations

import collections
import hashlib
import threading

MAX_KEPT = 256
"""Programs that stay loaded although no session may have them; a trainer has a hundred tiny ones."""

MAX_KEPT_BYTES = 16 << 20
"""Bytes of these programs as clients sent them; their code may have thirty times as many."""


class KeptPrograms[Program]:
    """The programs that were used last, by what clients sent.

    A trainer that goes on with other devices, as after the loss of a slice, sends programs that it sent
    before; reading their code from files is most of what the server does until its next step.

    Args:
      max_count: how many programs there may be.
      max_bytes: how many bytes clients may have sent for them.
    """

    def __init__(self, max_count: int = MAX_KEPT, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._programs: collections.OrderedDict[bytes, tuple[Program, int]] = collections.OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, program: bytes, options: bytes) -> Program | None:
        """Returns what was compiled of the same program with the same options, or None."""
        key = _key(program, options)
        with self._lock:
            if key not in self._programs:
                return None
            self._programs.move_to_end(key)
            return self._programs[key][0]

    def add(self, program: bytes, options: bytes, compiled: Program) -> None:
        """Keeps a program in place of those that were not used for longest."""
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
    return hashlib.sha256(len(options).to_bytes(8, "big") + options + program).digest()
