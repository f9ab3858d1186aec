"""Status line on standard error: the current work of a process."""

from __future__ import annotations

import sys


class StatusLine:
    """Line that is rewritten on a terminal; elsewhere only the first text is written, for logs.

    Attributes:
      written: whether any text was written.
    """

    def __init__(self) -> None:
        self.written = False

    def write(self, text: str) -> None:
        """Replaces the text of the line."""
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif not self.written:
            print(text, file=sys.stderr, flush=True)
        self.written = True

    def close(self) -> None:
        """Removes the line from a terminal."""
        if self.written and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
