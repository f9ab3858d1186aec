"""The user's code as `pw-compile` runs it, with one message for any failure, and its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pathways.compiler.lower.phases import ProgramError
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.xla.compile_cache import CompileError
from pathways.tools.common.errors import UserError
from pathways.tools.inputs.imports import describe, frame_of_user

_PLACED_ERRORS = (ProgramError, CompileError, ResourceError)
"""Errors that name the place themselves."""


class CannotRun(UserError):
    """Program cannot be compiled; the cause has the reason."""


def call[T](subject: str, run: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Calls a function that may fail in the user's code.

    Raises:
      CannotRun: it fails; names the user's line.
    """
    try:
        return run(*args, **kwargs)
    except _PLACED_ERRORS as error:
        raise CannotRun(str(error)) from error
    except (Exception, SystemExit) as error:
        frame = frame_of_user(error)
        place = f"\n  at {frame.filename}:{frame.lineno}: {frame.line}" if frame else ""
        raise CannotRun(f"{subject}: {describe(error)}{place}") from error
