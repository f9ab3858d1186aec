"""Arguments of a program: from the command line, or from a file for trees that are too large for it.

A file is JSON or TOML:

    {"args": [{"w": "f32[8,8]", "b": "f32[8]"}, "f32[4,8]"], "kwargs": {"lr": "f32[]"}}

    args = [{w = "f32[8,8]", b = "f32[8]"}, "f32[4,8]"]
    kwargs = {lr = "f32[]"}

A string is a value as on the command line: an array, a tuple `"(f32[2], i32[])"`, or a string `"'mean'"`.
Objects, lists, numbers, true, false and null are themselves.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

from pathways.tools.common.errors import UserError
from pathways.tools.common.files import read_input
from pathways.tools.inputs.signatures import SignatureError, parse_named, parse_value

_DEEPEST = 64


def read_arguments(options: argparse.Namespace) -> tuple[Sequence[Any], dict[str, Any]] | None:
    """Returns the positional and named arguments from the flags of `pw-compile`; None without any.

    Raises:
      UserError: names the error, and its place in the argument or the file.
    """
    if options.args_file is not None:
        if options.args is not None or options.kwargs:
            raise UserError("use either --args-file or --args and --kwargs, not both")
        return _read_file(options.args_file)
    if options.args is None and not options.kwargs:
        return None
    args = [
        _read_text(parse_value, text, f"argument {number}")
        for number, text in enumerate(options.args or (), 1)
    ]
    kwargs: dict[str, Any] = {}
    for text in options.kwargs:
        name, value = _read_text(parse_named, text, "named argument")
        if name in kwargs:
            raise UserError(f"argument '{name}' is given twice")
        kwargs[name] = value
    return args, kwargs


def _read_text[T](parse: Callable[[str], T], text: str, subject: str) -> T:
    try:
        return parse(text)
    except SignatureError as error:
        if text.endswith((".json", ".toml")):
            raise UserError(f"{subject} is a file; write --args-file {text}") from None
        shown = "".join(c if c.isprintable() else " " for c in text)
        caret = " " * (error.column - 1) + "^"
        raise UserError(f"{subject}, column {error.column}: {error}\n{shown}\n{caret}") from None


def _read_file(path: str) -> tuple[list[Any], dict[str, Any]]:
    """Returns positional and named arguments of a file, each as of `signatures.parse_value`."""
    data = read_input(path)
    try:
        text = data.decode("utf-8-sig")
        document = tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None
    except UnicodeDecodeError as error:
        byte = f"byte {error.start} is {data[error.start]:#04x}"
        raise UserError(f"{path}: not UTF-8 text: {byte}") from None
    except ValueError as error:
        kind = "TOML" if path.endswith(".toml") else "JSON"
        raise UserError(f"{path}: not {kind}: {error}") from None
    if not isinstance(document, dict) or not document.keys() <= {"args", "kwargs"}:
        raise UserError(f"{path}: expected an object of 'args', a list, and 'kwargs', an object")
    args, kwargs = document.get("args", []), document.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise UserError(f"{path}: expected 'args' to be a list, and 'kwargs' an object")
    return _value(args, f"{path}: args", 0), _value(kwargs, f"{path}: kwargs", 0)


def _value(value: Any, path: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise UserError(f"{path}: nested more than {_DEEPEST} levels deep")
    match value:
        case str():
            try:
                return parse_value(value)
            except SignatureError as error:
                raise UserError(f"{path}: {value!r}, column {error.column}: {error}") from None
        case list():
            return [_value(item, f"{path}[{n}]", depth + 1) for n, item in enumerate(value)]
        case dict():
            return {key: _value(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
        case None | bool() | int() | float():
            return value
    raise UserError(f"{path}: a {type(value).__name__} is not a valid argument")
