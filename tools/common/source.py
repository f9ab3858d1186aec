"""MLIR sources: text or bytecode, whole or in pieces."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from jaxlib.mlir import ir

from pathways.dialect import load_ifrt
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostics
from pathways.tools.common import supervisor
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import read_input

BYTECODE_MAGIC = b"ML\xefR"
SEPARATOR = "// -----"

_OTHER_FORMATS = {
    ".py": "is Python; pw-compile {path}:FUNCTION -o FILE.mlir compiles a program in it to MLIR",
    ".pwb": "is a bundle; pw-bundle inspect --program {path} prints the program in it",
    ".json": "is JSON; traces are for pw-viz --trace, durations for --times",
    ".csv": "is CSV; orders are for pw.program(schedule=...) and pw-schedule{{file=...}}",
}
"""Contents of a file of another kind than MLIR, by its suffix."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Piece of an input.

    Attributes:
      name: the file that it is from, as the user wrote it.
      data: text or bytecode.
      first_line: the line of the file at which it starts, from 1.
    """

    name: str
    data: bytes
    first_line: int = 1

    @property
    def is_bytecode(self) -> bool:
        """Whether it is MLIR bytecode and not text."""
        return self.data.startswith(BYTECODE_MAGIC)

    def chunks(self) -> list[Source]:
        """Returns the pieces between lines `// -----`; bytecode is one piece."""
        if self.is_bytecode:
            return [self]
        pieces: list[Source] = []
        start, line = 0, 1
        for separator in re.finditer(rb"(?m)^// -----[ \t\r]*(?:\n|\Z)", self.data):
            pieces.append(Source(self.name, self.data[start : separator.start()], line))
            line += self.data.count(b"\n", start, separator.end())
            start = separator.end()
        return [*pieces, Source(self.name, self.data[start:], line)]


def read_source(path: str) -> Source:
    """Reads a whole file of MLIR, or standard input for `-`.

    Raises:
      UserError: the file cannot be read, or its suffix belongs to another format.
    """
    data = read_input(path)
    kind = _OTHER_FORMATS.get(Path(path).suffix)
    if kind is not None:
        raise UserError(f"'{path}' {kind.format(path=path)}")
    return Source("<stdin>" if path == "-" else path, data)


def parse(source: Source, context: ir.Context) -> ir.Module:
    """Parses a piece of an input; line numbers count from the start of the file.

    Raises:
      MLIRError, PassFailure: errors were emitted to the handlers of the context.
    """
    supervisor.doing(f"reading {source.name}")
    if b"ifrt" in source.data:
        load_ifrt(context)
    if source.is_bytecode:
        with supervisor.limit_cpu_seconds(seconds=5 + len(source.data) / 1e6):
            return _parse_bytecode(source, context)
    _check_encoding(source, context)
    if source.first_line == 1 and _is_file(source):
        # Then locations carry the name of the file.
        return ir.Module.parseFile(source.name, context)
    return ir.Module.parse(b"\n" * (source.first_line - 1) + source.data, context)


def _parse_bytecode(source: Source, context: ir.Context) -> ir.Module:
    with Diagnostics(context, forward=True) as seen:
        try:
            return ir.Module.parse(source.data, context)
        except ValueError as error:
            # Sizes in it may be larger than MLIR can represent.
            message = f"damaged bytecode: {error}"
        except ir.MLIRError:
            if seen.errors:
                raise
            message = "damaged bytecode"
    ir.Location.file(source.name, 1, 1, context).emit_error(message)
    raise PassFailure(message)


def _check_encoding(source: Source, context: ir.Context) -> None:
    """Rejects text that is not UTF-8: MLIR's bindings abort when a diagnostic quotes it."""
    try:
        source.data.decode()
    except UnicodeDecodeError as error:
        line = source.first_line + source.data.count(b"\n", 0, error.start)
        column = error.start - source.data.rfind(b"\n", 0, error.start)
        message = "input is neither UTF-8 text nor MLIR bytecode"
        ir.Location.file(source.name, line, column, context).emit_error(message)
        raise PassFailure(message) from None


def _is_file(source: Source) -> bool:
    """Returns whether a source is a whole file that has not changed since it was read."""
    path = Path(source.name)
    return source.name.isprintable() and path.is_file() and path.read_bytes() == source.data
