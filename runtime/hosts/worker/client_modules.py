"""Modules that calls import: each client has its own, found on its own path.

A process has one `sys.modules` and one `sys.path`. So the modules of a client are set aside when another
client calls, and restored when it calls again. Imports inside a running function use the path of the most
recent call.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import importlib.machinery
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_OURS = __name__.partition(".")[0]

_INSTALLED = ("site-packages", "dist-packages")

_STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))

_MAX_CLIENTS = 16
"""Number of clients whose modules are kept; the modules of others are imported again."""


@dataclasses.dataclass
class _SavedModules:
    """Modules that were imported for a client.

    Attributes:
      edition: see `Call.edition`.
      aside: its modules, by name, while another client is the current one.
    """

    edition: int
    aside: dict[str, types.ModuleType]


class ClientModules:
    """Modules of all clients; only the modules of the current client are in `sys.modules`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own_path = tuple(sys.path)
        # Modules of the worker itself are never set aside.
        self._fixed = frozenset(sys.modules)
        self._current: int | None = None
        self._clients: collections.OrderedDict[int, _SavedModules] = collections.OrderedDict()

    def find(self, function: str, client: int, path: Sequence[str], edition: int) -> Callable[..., Any]:
        """Finds a function by name, in the modules of a client.

        Args:
          function: the name, as in `package.module:name`.
          path: the `sys.path` of the client.
          edition: see `Call.edition`.

        Raises:
          ImportError: it cannot be imported.
        """
        with self._lock:
            search_path = [*path, *(folder for folder in self._own_path if folder not in path)]
            if search_path != sys.path:
                sys.path[:] = search_path
                importlib.invalidate_caches()
            self._switch_to(client, edition)
            name = function.partition(":")[0]
            self._drop_if_elsewhere(name.partition(".")[0])
            if name not in sys.modules:
                importlib.invalidate_caches()
            return find_function(function)

    def _switch_to(self, client: int, edition: int) -> None:
        if client != self._current:
            if self._current is not None:
                self._clients[self._current].aside = self._taken_out()
            self._current = client
            saved = self._clients.setdefault(client, _SavedModules(edition, {}))
            sys.modules.update(saved.aside)
            saved.aside = {}
            self._clients.move_to_end(client)
            while len(self._clients) > _MAX_CLIENTS:
                self._clients.popitem(last=False)
        saved = self._clients[client]
        if edition > saved.edition:
            saved.edition = edition
            self._taken_out()

    def _drop_if_elsewhere(self, name: str) -> None:
        """Drops the modules of the current client if `name` would be found in another file now."""
        module = sys.modules.get(name)
        if module is None or name in self._fixed:
            return
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is not None and spec.has_location and spec.origin != getattr(module, "__file__", None):
            self._taken_out()
            sys.modules.pop(name, None)

    def _taken_out(self) -> dict[str, types.ModuleType]:
        """Removes the modules of the current client from `sys.modules`, and returns them."""
        modules = {
            name: module
            for name, module in [*sys.modules.items()]
            if name not in self._fixed and is_of_user(module)
        }
        for name in modules:
            sys.modules.pop(name, None)
        return modules


def is_of_user(module: Any) -> bool:
    """Returns whether a module is the user's source, neither installed nor of the standard library."""
    spec = getattr(module, "__spec__", None)
    if spec is None or spec.name.partition(".")[0] == _OURS:
        return False
    depth = spec.name.count(".")
    if spec.has_location and spec.origin:
        file = Path(spec.origin)
        if file.suffix not in importlib.machinery.SOURCE_SUFFIXES:
            return False
        depth += spec.submodule_search_locations is not None
    else:
        # A namespace package, which is a folder without a file.
        file = Path(next(iter(spec.submodule_search_locations or ()), ""))
    if not file.is_absolute() or depth >= len(file.parents):
        return False
    return not _is_of_installed(file.parents[depth])


@functools.cache
def _is_of_installed(folder: Path) -> bool:
    """Returns whether a folder of `sys.path` has installed packages or the standard library."""
    if any(folder.is_relative_to(standard) for standard in _STANDARD):
        return True
    return folder.name in _INSTALLED or any(folder.glob("*.dist-info"))


def find_function(function: str) -> Callable[..., Any]:
    """Finds a function by its name, as in `package.module:name`.

    Raises:
      ImportError: it cannot be imported; the message has the folders that were searched.
    """
    module, _, name = function.partition(":")
    try:
        at: Any = importlib.import_module(module)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ImportError(f"cannot import {module}: {why}; searched in {', '.join(sys.path)}") from error
    for part in name.split("."):
        if not hasattr(at, part):
            raise ImportError(f"module {module} ({getattr(at, '__file__', None)}) has no {name}")
        at = getattr(at, part)
    if not callable(at):
        raise ImportError(f"{function} is of type {type(at).__name__}, not a function")
    return at
