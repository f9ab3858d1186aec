"""Editions of the modules of this process, from which hosts import functions: counts of their changes."""

from __future__ import annotations

import importlib.machinery
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from pathways.runtime.hosts.worker.client_modules import is_of_user

_lock = threading.Lock()
_seen: dict[str, tuple[int, int]] = {}
"""Time and size of files at the last check."""
_edition = 0


def edition_with(module: str) -> int:
    """Returns the number of changes of the user's local modules so far.

    Args:
      module: the name of a module that need not be imported here.
    """
    global _edition
    with _lock:
        has_changed = False
        for file in {*_files(), *_file_of(module)}:
            try:
                status = Path(file).stat()
            except OSError:
                continue
            now = status.st_mtime_ns, status.st_size
            has_changed |= _seen.setdefault(file, now) != now
            _seen[file] = now
        _edition += has_changed
        return _edition


def _files() -> Iterator[str]:
    """Yields the files of the modules of this process that are not installed."""
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if file is not None and is_of_user(module):
            yield file


def _file_of(name: str) -> Iterator[str]:
    """Yields the file of a module, without importing it."""
    search, packages = None, name.split(".")
    for n in range(len(packages)):
        spec = importlib.machinery.PathFinder.find_spec(".".join(packages[: n + 1]), search)
        if spec is None:
            return
        if spec.has_location and spec.origin:
            yield spec.origin
        search = spec.submodule_search_locations or []
