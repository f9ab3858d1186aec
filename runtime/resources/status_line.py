"""A line on standard error that says what a process is busy with."""

from __future__ import annotations

import sys


class StatusLine:
    """A line that is rewritten on a terminal; elsewhere only the first text is written, for logs.

    Attributes:
      written: whether there was a text.
    """

    def __init__(self) -> None:
        self.written = False

    def write(self, text: str) -> None:
        """Shows a text in place of the one before."""
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif not self.written:
            print(text, file=sys.stderr, flush=True)
        self.written = True

    def close(self) -> None:
        """Removes the line from a terminal."""
        if self.written and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
