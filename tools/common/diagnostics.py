"""Printer of diagnostics, like MLIR's drivers, and their check against `expected-error` comments."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable

from pathways.passes.manager.driver import Diagnostic, Position
from pathways.tools.common.source import Source

Complain = Callable[[Position | None, str], None]

_WIDEST_LINE = 400
_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in [*range(32), 127] if chr(code) != "\t"}


class Printer:
    """Printer of diagnostics to standard error, each with its source line and a caret.

    Args:
      source: the input; MLIR calls it `-` if it was not parsed from a file.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lines: list[bytes] | None = None

    def __call__(self, diagnostic: Diagnostic) -> None:
        position = diagnostic.position
        if position is not None and position.file == "-":
            position = dataclasses.replace(position, file=self._source.name)
        self.show(position, diagnostic.severity, diagnostic.message)
        for note in diagnostic.notes:
            self(note)

    def show(self, position: Position | None, severity: str, message: str) -> None:
        """Prints one message at a position."""
        text = str(Diagnostic(severity, message, position))
        print("\n".join([text, *self._snippet(position)]), file=sys.stderr)

    def _snippet(self, position: Position | None) -> list[str]:
        if position is None or position.file != self._source.name or self._source.is_bytecode:
            return []
        if self._lines is None:
            self._lines = self._source.data.split(b"\n")
        index = position.line - self._source.first_line
        if not 0 <= index < len(self._lines):
            return []
        line = self._lines[index].rstrip(b"\r")
        column = max(position.column - 1, 0)
        if len(line) > _WIDEST_LINE or not _is_text(line):
            return []
        before = line[:column].decode(errors="replace")
        caret = "".join("\t" if c == "\t" else " " for c in before) + "^"
        return [line.decode(errors="replace").translate(_CONTROLS), caret]


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclasses.dataclass
class _Expectation:
    kind: str
    line: int | None
    text: str
    pattern: re.Pattern[str]
    written_at: Position
    met: bool = False


_COMMENT = re.compile(
    r"expected-(error|warning|remark|note)(-re)? *(@(?:[+-]\d+|above|below|unknown))? *\{\{(.*)\}\}$"
)


class Expectations:
    """Diagnostics that the comments of a source expect.

    A comment `expected-error@+1 {{text}}` expects an error one line below whose message contains the
    text; `@-1`, `@above`, `@below` (past other such comments) and `@unknown` (no position) work too, and
    `-re` lets `{{...}}` within the text be regular expressions.
    """

    def __init__(self, source: Source, printer: Printer) -> None:
        self._source = source
        self._printer = printer
        self._failed = False
        self._expectations = _read_expectations(source, self._complain)

    def __call__(self, diagnostic: Diagnostic) -> None:
        """Marks the first expectation that matches, or prints an error."""
        position = diagnostic.position
        # MLIR names text that it has not read from a file `-`.
        line = position.line if position and position.file in ("-", self._source.name) else None
        for expectation in self._expectations:
            if (
                not expectation.met
                and (expectation.kind, expectation.line) == (diagnostic.severity, line)
                and expectation.pattern.search(diagnostic.message)
            ):
                expectation.met = True
                break
        else:
            if position is not None and position.file == "-":
                position = dataclasses.replace(position, file=self._source.name)
            self._complain(position, f"unexpected {diagnostic.severity}: {diagnostic.message}")
        for note in diagnostic.notes:
            # MLIR adds this note by itself to every error of its verifier.
            if not note.message.startswith("see current operation: "):
                self(note)

    def finish(self) -> bool:
        """Prints unmet expectations as errors; returns whether there were none, and no other errors."""
        for expectation in self._expectations:
            if not expectation.met:
                self._complain(
                    expectation.written_at,
                    f'expected {expectation.kind} "{expectation.text}" was not produced',
                )
        return not self._failed

    def _complain(self, position: Position | None, message: str) -> None:
        self._failed = True
        self._printer.show(position, "error", message)


def _read_expectations(source: Source, complain: Complain) -> list[_Expectation]:
    if source.is_bytecode:
        return []
    expectations: list[_Expectation] = []
    waiting: list[_Expectation] = []
    last_plain_line = source.first_line
    for number, line in enumerate(source.data.decode(errors="replace").splitlines(), source.first_line):
        comment = _COMMENT.search(line.rstrip())
        if not comment:
            for expectation in waiting:
                expectation.line = number
            waiting.clear()
            last_plain_line = number
            continue
        kind, is_pattern, mark, text = comment.groups()
        written_at = Position(source.name, number, comment.start() + 1)
        try:
            pattern = re.compile(_pattern(text) if is_pattern else re.escape(text))
        except re.error as error:
            complain(written_at, f"invalid regular expression: {error}")
            continue
        expectation = _Expectation(kind, number, text, pattern, written_at)
        match mark:
            case "@above":
                expectation.line = last_plain_line
            case "@below":
                waiting.append(expectation)
            case "@unknown":
                expectation.line = None
            case str():
                expectation.line = number + int(mark[1:])
        expectations.append(expectation)
    return expectations


def _pattern(text: str) -> str:
    """Returns `operand #{{[0-9]+}} is` as a regular expression."""
    pieces = re.split(r"\{\{(.*?)\}\}", text)
    return "".join(piece if number % 2 else re.escape(piece) for number, piece in enumerate(pieces))
