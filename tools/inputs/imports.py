"""Imports of the user's Python files and modules, with one message for any failure. Imports no JAX."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pathways.dialect.spelling import did_you_mean
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import is_file, is_folder


def import_file(path: str) -> types.ModuleType:
    """Imports a Python file.

    Raises:
      UserError: it does not exist, or fails; names the failing line.
    """
    _check_file(path)
    file = Path(path)
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


def _check_file(path: str) -> None:
    if not is_file(path):
        problem = "it is a folder" if is_folder(path) else "no such file"
        raise UserError(f"cannot import {path}: {problem}")


def import_module(name: str) -> types.ModuleType:
    """Imports a module by its name, also from the current folder.

    Raises:
      UserError: it does not exist, or fails; names the failing line.
    """
    sys.path.insert(0, str(Path.cwd()))
    return _import(name, lambda: importlib.import_module(name))


def import_parent(name: str, kind: str, note: str = "") -> tuple[types.ModuleType, str, str]:
    """Imports the module of `path/file.py:name` or `package.module:name`.

    Args:
      name: the name on the command line.
      kind: the kind of object that it names, for messages.
      note: the tool that prints a note about the import; empty for none.

    Returns:
      The module, the text that names it, and the name in it; empty if `name` has none.

    Raises:
      UserError: the name is malformed, or the module cannot be imported.
    """
    source, colon, attribute = name.rpartition(":")
    if not colon:
        source = name
    is_file_name = source.endswith(".py") or "/" in source
    is_module = all(part.isidentifier() for part in source.split("."))
    if (colon and not (source and attribute)) or not (is_file_name or is_module):
        raise UserError(f"expected path/file.py:{kind} or package.module:{kind}, got '{name}'")
    if is_file_name:
        _check_file(source)
    if note:
        print(f"{note}: note: importing {source}, which runs its top level", file=sys.stderr)
    module = import_file(source) if is_file_name else import_module(source)
    return module, source, attribute if colon else ""


def import_object(name: str, kind: str) -> Any:
    """Imports the object of `path/file.py:name` or `package.module:name`.

    Raises:
      UserError: the name is malformed, the module cannot be imported, or has no such object.
    """
    module, source, attribute = import_parent(name, kind)
    if not attribute:
        raise UserError(f"'{name}' names no {kind}; write {name}:{kind}")
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        near = did_you_mean(attribute, vars(module))
        raise UserError(f"there is no '{attribute}' in {source}{near}") from None


def _import[T](name: str, run: Callable[[], T]) -> T:
    """Runs the user's module, which may do anything; reports a failure in one line."""
    arguments, sys.argv = sys.argv, [name]
    try:
        return run()
    except KeyboardInterrupt:
        raise
    except SyntaxError as error:
        raise UserError(f"cannot import {name}: {error.msg} ({error.filename}:{error.lineno})") from error
    except BaseException as error:
        frame = frame_of_user(error)
        place = f" ({frame.filename}:{frame.lineno})" if frame else ""
        first, _, _ = describe(error).partition("\n")
        raise UserError(f"cannot import {name}: {first}{place}") from error
    finally:
        sys.argv = arguments


def describe(error: BaseException) -> str:
    """Returns the type and the message of an error."""
    if isinstance(error, SystemExit):
        return f"it ends the process with sys.exit({error.code!r})"
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def frame_of_user(error: BaseException) -> traceback.FrameSummary | None:
    """Returns the innermost line outside of this package, installed packages and Python."""
    modules = (sys.modules.get("jax"), traceback)
    installed = [str(Path(m.__file__).parent) for m in modules if m and m.__file__]
    ours = [str(Path(__file__).parents[2] / name) for name in ("compiler", "passes", "runtime", "tools")]
    package = str(Path(sys.modules["pathways"].__file__ or "").parent)
    foreign = (*installed, *ours, package, "<frozen")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(foreign)]
    outside = [f for f in frames if "site-packages" not in f.filename]
    return next(reversed(outside or frames), None)
