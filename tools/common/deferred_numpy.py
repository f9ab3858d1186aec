"""Deferred import of numpy, for tools that seldom need it."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class DeferredModule(types.ModuleType):
    """Module that is imported when an attribute of it is first read.

    `importlib.util.LazyLoader` would not do: a second import statement loads its modules.
    """

    def __getattr__(self, name: str) -> Any:
        sys.modules.pop(self.__name__, None)
        real = importlib.import_module(self.__name__)
        self.__dict__.update(real.__dict__)
        return getattr(real, name)


def defer_numpy() -> None:
    """Keeps MLIR's bindings, which import numpy but seldom use it, from doubling the start-up time."""
    sys.modules.setdefault("numpy", DeferredModule("numpy"))
