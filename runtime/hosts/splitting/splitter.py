"""Client of the process that proves and splits the programs of clients, with limits."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

import msgspec

from pathways.dialect.errors import PathwaysError
from pathways.runtime.hosts.protocol.programs import BoundProgram, SplitProgram
from pathways.runtime.hosts.splitting.split_pipe import SplitReply, SplitRequest
from pathways.runtime.resources.child_process import LimitedProcess, NoReplyError

SPLIT_SECONDS = 300.0
"""Timeout of a program, in seconds."""

_MODULE = "pathways.runtime.hosts.splitting.split_process"


class RefusedProgramError(PathwaysError, ValueError):
    """Error of a client's program that cannot be proved or split."""

    __module__ = "pathways"


class Owner(Protocol):
    """Owner of programs: a client.

    Attributes:
      disconnected: is set when it has disconnected.
    """

    disconnected: threading.Event


class ProgramSplitter:
    """Process that proves and splits programs, one after the other; it is restarted when it has exited.

    Owners are served in turn: one with many or large programs delays each program of another by one at most.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # The owner that is served, and the waiting owners: each once, however many programs it has.
        self._queue: collections.deque[Owner] = collections.deque()
        self._process = LimitedProcess(_MODULE)

    def split(
        self, owner: Owner, program: BoundProgram, ahead: int | str, *, multi_host: bool
    ) -> SplitProgram:
        """Proves and splits a program, see `splitting.split`.

        Raises:
          RefusedProgramError: it cannot be proved or split, or the process exited over it; or its owner has
            disconnected.
        """
        request = msgspec.msgpack.encode(SplitRequest(program, ahead, multi_host))
        with self._served(owner):
            with self._changed:
                # Under the lock: `cancel` runs either before this check, or when there is a process to kill.
                if owner.disconnected.is_set():
                    raise RefusedProgramError(f"program '{program.name}': its client has disconnected")
                self._process.start()
            try:
                reply = self._process.call(request, SPLIT_SECONDS)
            except NoReplyError as error:
                raise RefusedProgramError(
                    f"program '{program.name}': MLIR {error} while proving it"
                ) from None
        decoded = msgspec.msgpack.decode(reply, type=SplitReply)
        if decoded.program is None:
            raise RefusedProgramError(decoded.error or f"program '{program.name}' cannot be split")
        return decoded.program

    def cancel(self, owner: Owner) -> None:
        """Stops work for an owner that has disconnected; its `disconnected` must be set before."""
        with self._changed:
            if self._queue and self._queue[0] is owner:
                self._process.kill()

    def close(self) -> None:
        """Stops the process; all owners must have disconnected."""
        self._process.close()

    @contextlib.contextmanager
    def _served(self, owner: Owner) -> Iterator[None]:
        """Waits until an owner is served, and then serves it during the context."""
        with self._changed:
            self._changed.wait_for(lambda: owner not in self._queue)
            self._queue.append(owner)
            self._changed.wait_for(lambda: self._queue[0] is owner)
        try:
            yield
        finally:
            with self._changed:
                self._queue.popleft()
                self._changed.notify_all()
