"""Names, documentation and lines of the user's code: for the IR, for `help`, and for warnings."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax

from pathways.runtime.xla.tracebacks import PACKAGE_FOLDERS

_FOLDERS = (*PACKAGE_FOLDERS, jax.__path__[0])


class PathwaysWarning(UserWarning):
    """Program that works, but more slowly or later than it could.

    `warnings.simplefilter("error", pathways.PathwaysWarning)` makes errors of these warnings.
    """

    # The module in its messages.
    __module__ = "pathways"


def warn(message: str) -> None:
    """Warns at the innermost line that is neither ours nor JAX's."""
    warnings.warn(message, PathwaysWarning, skip_file_prefixes=_FOLDERS)


def symbol(name: str) -> str:
    """Returns a name with the characters that the IR allows."""
    cleaned = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return "lambda" if cleaned.strip("_") in ("", "lambda") else cleaned


def symbol_of(fun: Callable[..., Any]) -> str:
    """Returns the name of a function, or of its type, with the characters that the IR allows."""
    return symbol(getattr(fun, "__name__", type(fun).__name__))


def documentation_of(fun: Callable[..., Any], default: str) -> str:
    """Returns the documentation of an object that wraps a function: the function's, or else `default`."""
    docstring = inspect.getdoc(fun) if inspect.isroutine(fun) else None
    return docstring or default
