"""Commands that start workers on named machines, such as ssh."""

from __future__ import annotations

import dataclasses
import shlex
import sys

DEFAULT_START = "ssh {host} {command}"

_HOST, _COMMAND = "{host}", "{command}"


@dataclasses.dataclass(frozen=True)
class StartCommand:
    """Template of the command that starts a worker on a machine.

    Attributes:
      start: words that are split as in a shell, but not run by one: `{host}` in any of them represents the
        machine, and the separate word `{command}` represents the words that run a worker.
      python: the interpreter on the machine; by default the path of the interpreter of this process.

    Raises:
      ValueError: a placeholder is missing, or the path of the interpreter has spaces.
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
        """Returns the command that starts a worker on a machine."""
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
    """Returns the command that runs a worker, which reads its configuration from standard input.

    With the process id of its parent as an argument the worker is killed when the parent exits.
    """
    return [python, "-P", "-m", "pathways.runtime.clusters.worker_process"]
