"""Log of the use of islands by clients, as lines of JSON in files that rotate."""

from __future__ import annotations

import collections
import io
import logging
import logging.handlers
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import override

import msgspec

from pathways.runtime.resources.accounts import AccountRecord
from pathways.runtime.resources.threads import start_thread

WRITE_SECONDS = 10.0
"""Seconds between writes."""

MAX_BYTES = 1 << 24
"""Size of a file, in bytes, from which it is renamed, and a new one begins."""

MAX_FILES = 4
"""Number of renamed files that are kept: `accounts.jsonl.1` is the last one."""

_MAX_PENDING = 1 << 14
"""Limit on the lines that wait until the file can be written."""

log = logging.getLogger("pathways")


class AccountLine(msgspec.Struct, frozen=True):
    """Line of the log: use of an island by a program of a client between two times.

    Attributes:
      since: the begin of this time, in seconds since the epoch.
      until: its end.
      account: the account, with the use in this time.
    """

    since: float
    until: float
    account: AccountRecord


class AccountLog:
    """Log of accounts, which a thread writes from `__enter__` to `__exit__`.

    Args:
      file: the file.
      take_changes: returns the accounts with their use since the last call.
      seconds: the time between writes.
    """

    def __init__(
        self,
        file: Path,
        take_changes: Callable[[], Sequence[AccountRecord]],
        seconds: float = WRITE_SECONDS,
    ) -> None:
        self._take_changes = take_changes
        self._seconds = seconds
        self._lines = _LineFile(file)
        self._since = time.time()
        self._closed = threading.Event()
        self._done = threading.Event()

    def __enter__(self) -> None:
        start_thread(self._run, "accounts")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._done.wait()

    def _run(self) -> None:
        is_closed = False
        try:
            while not is_closed:
                is_closed = self._closed.wait(self._seconds)
                records = self._take_changes()
                now = time.time()
                self._lines.write([AccountLine(self._since, now, record) for record in records])
                self._since = now
        finally:
            self._lines.close()
            self._done.set()


class _LineFile(logging.handlers.RotatingFileHandler):
    """File of lines; lines that cannot be written wait for the next time."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, maxBytes=MAX_BYTES, backupCount=MAX_FILES, encoding="utf-8", delay=True)
        self._pending: collections.deque[str] = collections.deque(maxlen=_MAX_PENDING)
        self._problem: BaseException | None = None

    def write(self, lines: Sequence[AccountLine]) -> None:
        """Writes lines, after earlier lines that could not be written."""
        self._pending += [msgspec.json.encode(line).decode() for line in lines]
        self._problem = None
        while self._pending and self._problem is None:
            self.handle(logging.makeLogRecord({"msg": self._pending[0]}))
            if self._problem is None:
                self._pending.popleft()
        if self._problem is not None:
            log.warning("the accounts are written later: %s: %s", self.baseFilename, self._problem)

    @override
    def _open(self) -> io.TextIOWrapper:
        # Only its user may read it.
        file = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return io.TextIOWrapper(os.fdopen(file, "ab"), encoding=self.encoding)

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        self._problem = sys.exception()
