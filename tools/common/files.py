"""Input and output files of the command-line tools, with one clear error for each failure."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from pathways.tools.common.errors import UserError

BUNDLE = ".pwb"
"""Suffix of the names of bundles."""


def check_extension(tool: str, path: str, content: str, *usual: str) -> None:
    """Warns if the suffix of an output's name belongs to another format.

    Args:
      path: the file; one without a suffix, or no regular file, may hold anything.
      *usual: the suffixes of such contents.
    """
    target = Path(path)
    if path == "-" or not target.suffix or path.endswith(usual) or (target.exists() and not target.is_file()):
        return
    print(
        f"{tool}: warning: '{path}' is used for {content}, whose file names end in {' or '.join(usual)}",
        file=sys.stderr,
    )


def read_input(path: str) -> bytes:
    """Reads a whole file, or standard input for `-`."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot open input file '{path}': {_reason(error)}") from None


def is_file(path: str) -> bool:
    """Returns whether a file is at a path; False for a path that is too long, too."""
    with contextlib.suppress(OSError):
        return Path(path).is_file()
    return False


def is_folder(path: str) -> bool:
    """Returns whether a folder is at a path; False for a path that is too long, too."""
    with contextlib.suppress(OSError):
        return Path(path).is_dir()
    return False


def write_output(path: str, data: bytes) -> None:
    """Writes a whole file, or standard output for `-`; a file is either complete or unchanged.

    Raises:
      UserError: it cannot be written.
      BrokenPipeError: standard output is no longer read.
    """
    try:
        if path == "-":
            sys.stdout.flush()
            _write_all(1, data)
            return
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            # A device or a pipe cannot be replaced by a file.
            with _opened(target, os.O_WRONLY) as descriptor:
                _write_all(descriptor, data)
        else:
            _replace(target, data)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        target_name = "standard output" if path == "-" else f"output file '{path}'"
        raise UserError(f"cannot write {target_name}: {_reason(error)}") from None


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666
    with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode) as descriptor:
        try:
            _write_all(descriptor, data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink()
            raise


@contextlib.contextmanager
def _opened(path: Path, flags: int, mode: int = 0o666) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    # Past Python's buffers, which would fail a second time when the interpreter exits.
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
