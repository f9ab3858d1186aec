"""The user's code as `pw-compile` runs it, with one message for any failure, and its place."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from pathways.compiler.lower.phases import ProgramError
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.xla.compile_cache import CompileError
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import is_file, is_folder

_PLACED_ERRORS = (ProgramError, CompileError, ResourceError)
"""Errors that name the place themselves."""


class CannotRun(UserError):
    """Program cannot be compiled; the cause has the reason."""


def import_file(path: str) -> types.ModuleType:
    """Imports a Python file.

    Raises:
      UserError: it does not exist, or fails; names the failing line.
    """
    file = Path(path)
    if not is_file(path):
        problem = "it is a folder" if is_folder(path) else "no such file"
        raise UserError(f"cannot import {path}: {problem}")
    # As Python itself would run it, except that it is not `__main__`.
    sys.path.insert(0, str(file.parent.resolve()))
    name = file.stem if file.stem not in sys.modules else f"_{file.stem}_of_pw_compile"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"cannot import {path}: it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _import(path, lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    return module


def import_module(name: str) -> types.ModuleType:
    """Imports a module by its name, also from the current folder.

    Raises:
      UserError: it does not exist, or fails; names the failing line.
    """
    sys.path.insert(0, str(Path.cwd()))
    return _import(name, lambda: importlib.import_module(name))


def _import[T](name: str, run: Callable[[], T]) -> T:
    """Runs the user's module, which may do anything; reports a failure in one line."""
    print(f"pw-compile: note: importing {name}, which runs its top level", file=sys.stderr)
    arguments, sys.argv = sys.argv, [name]
    try:
        return run()
    except KeyboardInterrupt:
        raise
    except SyntaxError as error:
        raise UserError(f"cannot import {name}: {error.msg} ({error.filename}:{error.lineno})") from error
    except BaseException as error:
        frame = _frame_of_user(error)
        place = f" ({frame.filename}:{frame.lineno})" if frame else ""
        first, _, _ = _describe(error).partition("\n")
        raise UserError(f"cannot import {name}: {first}{place}") from error
    finally:
        sys.argv = arguments


def call[T](what: str, run: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Calls a function that may fail in the user's code.

    Raises:
      CannotRun: it fails; names the user's line.
    """
    try:
        return run(*args, **kwargs)
    except _PLACED_ERRORS as error:
        raise CannotRun(str(error)) from error
    except (Exception, SystemExit) as error:
        frame = _frame_of_user(error)
        place = f"\n  at {frame.filename}:{frame.lineno}: {frame.line}" if frame else ""
        raise CannotRun(f"{what}: {_describe(error)}{place}") from error


def _describe(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ends the process with sys.exit({error.code!r})"
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _frame_of_user(error: BaseException) -> traceback.FrameSummary | None:
    """Returns the innermost line that is neither ours, nor that of an installed package, nor Python's own."""
    installed = [str(Path(m.__file__).parent) for m in (jax, traceback) if m.__file__]
    ours = [str(Path(__file__).parents[2] / name) for name in ("compiler", "passes", "runtime", "tools")]
    package = str(Path(sys.modules["pathways"].__file__ or "").parent)
    foreign = (*installed, *ours, package, "<frozen")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(foreign)]
    outside = [f for f in frames if "site-packages" not in f.filename]
    return next(reversed(outside or frames), None)
