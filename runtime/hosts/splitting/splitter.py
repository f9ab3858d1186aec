"""Has the programs of clients proved and cut in a process of its own, with limits."""

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
"""How long a program may take."""

_MODULE = "pathways.runtime.hosts.splitting.split_process"


class RefusedProgramError(PathwaysError, ValueError):
    """A program of a client that does not prove, or cannot be cut."""

    __module__ = "pathways"


class Owner(Protocol):
    """Whose programs are cut.

    Attributes:
      is_gone: whether it has left, and needs them no more.
    """

    is_gone: threading.Event


class ProgramSplitter:
    """A process that proves and cuts programs, one after the other; another one after it has ended.

    Owners take turns: one that has many programs, or large ones, delays each of another's by one at most.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Whose turn it is, and whose is next: each of them once, however many programs it has.
        self._line: collections.deque[Owner] = collections.deque()
        self._process = LimitedProcess(_MODULE)

    def split(self, owner: Owner, program: BoundProgram, ahead: int | str, *, together: bool) -> SplitProgram:
        """Proves and cuts a program, see `splitting.split`.

        Raises:
          RefusedProgramError: it does not prove, or cannot be cut, or the process has ended over it; or its
            owner has left.
        """
        request = msgspec.msgpack.encode(SplitRequest(program, ahead, together))
        with self._turn_of(owner):
            with self._changed:
                # `forget` comes before, or finds the process.
                if owner.is_gone.is_set():
                    raise RefusedProgramError(f"program '{program.name}': its client has left")
                self._process.start()
            try:
                reply = self._process.call(request, SPLIT_SECONDS)
            except NoReplyError as error:
                raise RefusedProgramError(
                    f"program '{program.name}': MLIR {error} while proving it"
                ) from None
        answer = msgspec.msgpack.decode(reply, type=SplitReply)
        if answer.parts is None:
            raise RefusedProgramError(answer.error or f"program '{program.name}' cannot be cut")
        return answer.parts

    def forget(self, owner: Owner) -> None:
        """An owner has left: nothing of it is worked on any more."""
        with self._changed:
            if self._line and self._line[0] is owner:
                self._process.kill()

    def close(self) -> None:
        """Ends the process; all owners have left."""
        self._process.close()

    @contextlib.contextmanager
    def _turn_of(self, owner: Owner) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: owner not in self._line)
            self._line.append(owner)
            self._changed.wait_for(lambda: self._line[0] is owner)
        try:
            yield
        finally:
            with self._changed:
                self._line.popleft()
                self._changed.notify_all()
