"""Names of functions as names of the IR, and their documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def symbol(name: str) -> str:
    """A name as it can be written in the IR."""
    cleaned = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return "lambda" if cleaned.strip("_") in ("", "lambda") else cleaned


def symbol_of(fun: Callable[..., Any]) -> str:
    """The name of a function as it can be written in the IR; that of its type where it has none."""
    return symbol(getattr(fun, "__name__", type(fun).__name__))


def documentation_of(fun: Callable[..., Any], what: str) -> str:
    """What `help` says of something made of a function: what the function says, or else what became of it."""
    own = inspect.getdoc(fun) if inspect.isroutine(fun) else None
    return own or what
