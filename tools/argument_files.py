"""Arguments of a program from a file: JSON or TOML, for trees that are too large for a command line.

    {"args": [{"w": "f32[8,8]", "b": "f32[8]"}, "f32[4,8]"], "kwargs": {"lr": "f32[]"}}

    args = [{w = "f32[8,8]", b = "f32[8]"}, "f32[4,8]"]
    kwargs = {lr = "f32[]"}

A string is a value as on the command line: an array, a tuple `"(f32[2], i32[])"`, or a string `"'mean'"`.
Objects, lists, numbers, true, false and null are themselves.
"""

from __future__ import annotations

import json
import tomllib
from typing import Any

from pathways.tools.files import UserError, read_input
from pathways.tools.signatures import SignatureError, parse_value

_DEEPEST = 64


def read_arguments(path: str) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments, as `signatures.parse_value` reads each.

    Raises:
      UserError: says what is wrong, and where in the file.
    """
    data = read_input(path)
    try:
        text = data.decode()
        found = tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
    except RecursionError:
        raise UserError(f"{path}: nested too deep") from None
    except ValueError as error:
        kind = "TOML" if path.endswith(".toml") else "JSON"
        raise UserError(f"{path}: not {kind}: {error}") from None
    if not isinstance(found, dict) or not found.keys() <= {"args", "kwargs"}:
        raise UserError(f"{path}: expected an object of 'args', a list, and 'kwargs', an object")
    args, kwargs = found.get("args", []), found.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise UserError(f"{path}: expected 'args' to be a list, and 'kwargs' an object")
    return _value(args, f"{path}: args", 0), _value(kwargs, f"{path}: kwargs", 0)


def _value(value: Any, where: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise UserError(f"{where}: nested more than {_DEEPEST} levels deep")
    match value:
        case str():
            try:
                return parse_value(value)
            except SignatureError as error:
                raise UserError(f"{where}: {value!r}, column {error.column}: {error}") from None
        case list():
            return [_value(entry, f"{where}[{n}]", depth + 1) for n, entry in enumerate(value)]
        case dict():
            return {key: _value(entry, f"{where}.{key}", depth + 1) for key, entry in value.items()}
        case None | bool() | int() | float():
            return value
    raise UserError(f"{where}: a {type(value).__name__} is no argument")
