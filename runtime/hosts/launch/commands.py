"""Workers on machines that are named: a command for each, such as one of ssh, starts it there."""

from __future__ import annotations

import dataclasses
import shlex
import sys

DEFAULT_START = "ssh {host} {command}"

_HOST, _COMMAND = "{host}", "{command}"


@dataclasses.dataclass(frozen=True)
class StartCommand:
    """How a worker is started on a machine.

    Attributes:
      start: words as in a shell, of which no shell sees any: `{host}` is replaced in each of them, and
        `{command}`, a word of its own, by those that run a worker.
      python: the interpreter of the worker on its machine; by default the path of that of this process.

    Raises:
      ValueError: it is no such line, or a path that has to be one word is not.
    """

    start: str = DEFAULT_START
    python: str | None = None

    def __post_init__(self) -> None:
        words = self._words()
        if not any(_HOST in word for word in words):
            raise ValueError(
                f"start={self.start!r}: expected {_HOST}, the placeholder for the name of a machine"
            )
        if words.count(_COMMAND) != 1 or sum(_COMMAND in word for word in words) != 1:
            raise ValueError(
                f"start={self.start!r}: expected {_COMMAND} once, as a word of its own, which stands for the "
                "command that runs a worker"
            )
        if not self._interpreter or len(self._interpreter.split()) != 1:
            raise ValueError(
                f"python={self._interpreter!r}: expected a path without spaces, because ssh makes one line "
                "of all words"
            )

    def of(self, machine: str) -> list[str]:
        """The command that starts a worker on a machine."""
        command: list[str] = []
        for word in self._words():
            command += (
                worker_command(self._interpreter) if word == _COMMAND else [word.replace(_HOST, machine)]
            )
        return command

    @property
    def _interpreter(self) -> str:
        return sys.executable if self.python is None else self.python

    def _words(self) -> list[str]:
        try:
            return shlex.split(self.start)
        except ValueError as error:
            raise ValueError(f"start={self.start!r}: {error}") from None


def worker_command(python: str) -> list[str]:
    """The command that runs a worker; what it has to know comes on its standard input.

    With the id of its parent as an argument it is killed when that exits.
    """
    return [python, "-P", "-m", "pathways.runtime.hosts.worker.process"]
