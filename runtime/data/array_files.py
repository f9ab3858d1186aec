"""Arrays in files, by tensorstore: a limited number of bytes is read or written at the same time."""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Callable
from typing import Any, Self

_MAX_IN_FLIGHT_BYTES = 256 << 20
"""Bytes that are encoded and written, or read, at the same time."""

_OS_ERROR = re.compile(r"os_error_code='(\d+)'|OS error (\d+)")


def load_tensorstore() -> Any:
    """Returns the module `tensorstore`.

    Raises:
      ImportError: it is not installed; the message is the remedy.
    """
    try:
        import tensorstore
    except ImportError as error:
        raise ImportError(f"pip install 'pathways-mlir[checkpoint]' ({error})") from None
    return tensorstore


def system_error(error: Exception, folder: str | None = None) -> OSError | None:
    """Returns the operating system's error in an error of tensorstore about a folder; None for others."""
    match = _OS_ERROR.search(str(error))
    if isinstance(error, OSError) or match is None:
        return None
    number = int(match[1] or match[2])
    return OSError(number, os.strerror(number), folder)


class ArrayFiles:
    """Context in which arrays are read and written.

    Its exit waits for all operations, also after errors: they would use files that others have replaced.

    Args:
      settings: the settings of tensorstore's context.
      result_of: waits for a future, and returns its result.

    Raises:
      ImportError: see `load_tensorstore`.
    """

    def __init__(
        self, settings: Any, result_of: Callable[[Any], Any] = lambda future: future.result()
    ) -> None:
        self._tensorstore = load_tensorstore()
        self._context = self._tensorstore.Context(settings)
        self._result_of = result_of
        self._opened: list[Any] = []
        self._in_flight: collections.deque[tuple[Any, int]] = collections.deque()
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for future in (*self._opened, *(future for future, _ in self._in_flight)):
            future.exception()

    def open(self, spec: Any, **options: bool) -> Any:
        """Returns the future of an array in files; `tensorstore.open` gets `options`."""
        self._opened.append(self._tensorstore.open(spec, context=self._context, **options))
        return self._opened[-1]

    def write(self, block: Any, data: Any) -> None:
        """Starts to write to a block of an array when there is room; the data must not change any more."""
        self._make_room(data.nbytes)
        future = block.write(data, can_reference_source_data_indefinitely=True)
        self._in_flight.append((future, data.nbytes))

    def read(self, block: Any) -> Any:
        """Starts to read a block of an array when there is room; returns the future."""
        size = block.size * block.dtype.numpy_dtype.itemsize
        self._make_room(size)
        self._in_flight.append((block.read(), size))
        return self._in_flight[-1][0]

    def finish(self) -> None:
        """Waits for all reads and writes; raises the error of the first that failed."""
        while self._in_flight:
            self._finish_one()

    def _make_room(self, size: int) -> None:
        while self._in_flight and self._bytes + size > _MAX_IN_FLIGHT_BYTES:
            self._finish_one()
        self._bytes += size

    def _finish_one(self) -> None:
        future, size = self._in_flight[0]
        self._result_of(future)
        self._in_flight.popleft()
        self._bytes -= size
